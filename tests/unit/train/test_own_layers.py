"""Layers of a user's own model: which are computed, which are refused and what is said of them. No daemons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.utils import to_undirected

from atta.client.inference.block import LayerBlock
from atta.errors import ConfigError, UnknownNameError
from atta.partition.schema import TableSpec
from atta.train.models.own import own_layers

CPU = torch.device("cpu")
TABLES = {"weight": TableSpec("<f4"), "attr": TableSpec("<f4", (3,)), "time": TableSpec("<i8")}


def sage() -> torch.nn.Module:
    return pyg.SAGEConv(4, 4)


class Pairs(torch.nn.Module):
    def forward(self, ends: tuple[torch.Tensor, torch.Tensor], edges: torch.Tensor) -> torch.Tensor:
        sources, targets = ends
        return targets + torch.zeros_like(targets).index_add(0, edges[1], sources[edges[0]])


class BothWays(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(4, 4, **options)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(x, to_undirected(edge_index))


class Nested(torch.nn.Module):
    """A GCN whose norm PyG computes from the edges of the call."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(4, 3, **options)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(x, edge_index).relu()


class Codes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names = torch.nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.names(x[:, 0].long())


class Noise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("modules", "widths"),
    [
        ([sage(), torch.nn.BatchNorm1d(4), torch.nn.LayerNorm(4), torch.nn.ReLU()], [4, 4]),
        ([torch.nn.Linear(4, 6), pyg.SAGEConv(6, 5), torch.nn.Linear(5, 2), pyg.SAGEConv(2, 3)], [4, 2, 3]),
        ([sage(), pyg.LayerNorm(4, mode="node"), torch.nn.Dropout(0.5)], [4, 4]),
        ([Pairs(), Nested(), pyg.SAGEConv(3, 2)], [4, 4, 3, 2]),
        ([Codes(), sage()], [4, 4]),
        ([pyg.GATConv(4, 4, heads=2), torch.nn.Softmax(1)], [4, 8]),
        ([pyg.ARMAConv(4, 4)], [4, 4]),
        ([pyg.GCNConv(4, 3, cached=True)], [4, 3]),
        ([torch.jit.script(Pairs()), pyg.GraphSAGE(4, 5, 2, 3), pyg.GCN(3, 5, 2, 2)], [4, 4, 3, 2]),
        (
            [pyg.Sequential("x, edge_index", [(pyg.SAGEConv(4, 4), "x, edge_index -> x"), torch.nn.ReLU()]), sage()],
            [4, 4, 4],
        ),
    ],
)
def test_what_is_computed(modules: list[Any], widths: list[int]) -> None:
    layers, found = own_layers(modules, CPU, 4, {"time": TABLES["time"]}, None)
    assert found == widths
    assert len(layers) == len(widths) - 1


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (torch.nn.Softmax(0), "gives a vertex rows that depend on the other rows of the block"),
        (torch.nn.TransformerEncoderLayer(4, 2), "gives a vertex rows that depend on the other rows of the block"),
        (pyg.LayerNorm(4), "gives a vertex rows that depend on the other rows of the block"),
        (pyg.GraphNorm(4), "gives a vertex rows that depend on the other rows of the block"),
        (pyg.InstanceNorm(4), "gives a vertex rows that depend on the other rows of the block"),
        (torch.nn.BatchNorm1d(4, track_running_stats=False), "depend on the other rows of the block"),
        (Noise(), "gives other rows each time it is called"),
        (Nested(cached=True), "cached=True of GCNConv keeps what it computed on the first edges"),
        (pyg.SGConv(4, 4, cached=True), "cached=True of SGConv keeps what it computed on the first edges"),
        (pyg.SAGEConv(4, 4, flow="target_to_source"), "reads edges that lead away from a vertex"),
        (BothWays(), "reads edges that lead away from a vertex: it adds the reverses"),
        (pyg.SAGEConv(4, 4, aggr="lstm"), "depends on the order of a vertex' edges, which is not kept"),
        (torch.nn.Linear(5, 4), r"does not take rows of 4 numbers: called as layer\(x\) it raises RuntimeError: mat1"),
        (torch.nn.LSTM(4, 4), "called as layer.x. it raises TypeError: it returns tuple, not a tensor"),
        (torch.nn.Flatten(0), r"gives an array of shape \[\d+\] for \d+ vertices, not \[n, width\]"),
        (pyg.GATConv(4, 4, edge_dim=3), "has weights for edge_attr .att_edge.*edge_tables={'edge_attr': NAME}"),
        (pyg.TransformerConv(4, 4, edge_dim=2), "it takes edge_attr, too: edge_tables={'edge_attr': NAME}"),
        (pyg.GENConv(4, 4, edge_dim=2), "has weights for edge_attr .lin_edge.weight"),
        (pyg.GeneralConv(4, 4, in_edge_channels=2), "has weights for edge_attr .lin_edge"),
        (pyg.PDNConv(4, 4, edge_dim=5, hidden_channels=3), "has weights for edge_attr .mlp"),
    ],
)
def test_what_is_refused(module: torch.nn.Module, said: str) -> None:
    module.requires_grad_(False)  # trained, and no more to be
    for modules in ([sage(), module], [module, sage()], [sage(), module, sage()]):
        number = modules.index(module) + 1
        with pytest.raises(ConfigError, match=rf"layer {number} \({type(module).__name__}\).*{said}") as refused:
            own_layers(modules, CPU, 4, {}, None)
        assert "\n" not in str(refused.value)
    assert not any(weight.requires_grad for weight in module.parameters())


def test_edge_tables_must_be_said_where_there_are_some() -> None:
    gat, graph = pyg.GATConv(4, 4, edge_dim=3), pyg.GraphConv(4, 4)
    with pytest.raises(ConfigError, match=r"layer 1 \(GraphConv\) takes edge_weight, and edges have weight, attr: say"):
        own_layers([graph], CPU, 4, TABLES, None)
    assert own_layers([sage()], CPU, 4, TABLES, None)[1] == [4, 4]
    (layer, other), _ = own_layers([gat, graph], CPU, 4, TABLES, {"edge_attr": "attr"})
    assert (layer.edge_arguments, other.edge_arguments) == (("edge_attr",), ())
    with pytest.raises(ConfigError, match=r"layer 2 \(GATConv\) has weights for edge_attr"):
        own_layers([graph, gat], CPU, 4, TABLES, {"edge_weight": "weight"})
    with pytest.raises(ConfigError, match=r"layer 1 \(GATConv\) does not take rows.*lin_edge|mat1"):
        own_layers([gat], CPU, 4, TABLES, {"edge_attr": "weight"})
    assert own_layers([gat, graph], CPU, 4, TABLES, {})[1] == [4, 4, 4]
    with pytest.raises(UnknownNameError, match="unknown edge table"):
        own_layers([gat], CPU, 4, {}, {"edge_attr": "attr"})
    with pytest.raises(UnknownNameError, match="unknown edge table"):
        own_layers([gat], CPU, 4, TABLES, {"edge_attr": ["attr"]})  # type: ignore[dict-item]


def tripled(_: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
    return 3 * out


MLP = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
CHANGES: list[tuple[Any, str, Any]] = [
    (pyg.GCNConv, "lin", torch.nn.Linear(4, 3)),  # with a bias
    (pyg.GCNConv, "lin", MLP),
    (pyg.GCNConv, "message", lambda x_j, edge_weight: 2 * x_j),
    (pyg.GCNConv, "register_forward_hook", tripled),
    *((kind, "register_message_forward_hook", tripled) for kind in (pyg.GCNConv, pyg.SAGEConv)),
    (pyg.SAGEConv, "message", lambda x_j: 2 * x_j),
]


@pytest.mark.parametrize(("kind", "what", "given"), CHANGES)
def test_changed_layers_of_pyg_are_computed_as_they_are(kind: Any, what: str, given: Any) -> None:
    module = kind(4, 3)
    getattr(module, what)(given) if what.startswith("register") else setattr(module, what, given)
    rng = np.random.default_rng(3)
    x, edges = rng.random((9, 4), np.float32), rng.integers(0, 9, (2, 30))
    edges = edges[:, np.argsort(edges[1], kind="stable")]
    (layer,), _ = own_layers([module], CPU, 4, {}, {})
    assert layer.degrees is None, "the layer computes its own"
    with torch.no_grad():
        wanted = module(torch.from_numpy(x), torch.from_numpy(edges)).numpy()
    assert np.allclose(layer(LayerBlock(x, edges, 9)), wanted, atol=1e-5)
