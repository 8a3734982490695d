"""Every layer and aggregation of PyG: ``atta.predict`` gives what it computes on the whole graph, or refuses it and says
why."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn.aggr as aggregations
import torch_geometric.nn.conv as convolutions
from torch_geometric.nn import MessagePassing, SAGEConv

import atta
from atta.errors import ConfigError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter

WIDTH = 8
TABLES = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "kind"}
GIVEN: dict[str, Any] = {
    "in_channels": WIDTH, "out_channels": WIDTH, "channels": WIDTH, "hidden_channels": WIDTH, "heads": 2, "K": 2, "k": 3,
    "num_relations": 2, "dim": 3, "kernel_size": 2, "edge_dim": 3, "in_edge_channels": 3, "alpha": 0.1, "num_layers": 2,
    "aggr": "mean", "aggrs": ["mean", "max"], "scaler": "amplification", "deg": torch.tensor([2, 4, 6, 3, 2, 1]), "q": 0.3,
    "patch_size": 4, "max_num_elements": 50, "processing_steps": 2, "filter_size": 2, "first_aggr": True,
    "metadata": (["node"], [("node", "to", "node")]), "space_dimensions": 2, "propagate_dimensions": 2,
    "num_node_types": 2, "num_edge_types": 2, "edge_type_emb_dim": 2, "edge_attr_emb_dim": 2, "scalers": ["identity"],
    "aggregators": ["mean", "std"],
}  # fmt: skip
FAR, ORDER = "reads more than the in-edges of a vertex", "depends on the order of a vertex' edges"
AWAY = "reads edges that lead away from a vertex"
OTHERS = "gives a vertex rows that depend on the other rows of the block"
REFUSED = {
    "ChebConv": FAR, "ChebConv with edges": FAR, "DirGNNConv": AWAY, "HypergraphConv": FAR, "EGConv of means": OTHERS,
    "GPSConv": OTHERS, "EquilibriumAggregation": OTHERS, "LSTMAggregation": ORDER, "GRUAggregation": ORDER,
    "MLPAggregation": ORDER, "LCMAggregation": ORDER, "PatchTransformerAggregation": ORDER, "MeshCNNConv": ORDER,
}  # fmt: skip
"""What runs on the whole graph and cannot be computed block by block."""
UNRUN = "does not take rows of 8 numbers: called as|beside rows and edges|made for graphs with several types"
"""What is said of layers that do not run on the whole graph either."""


class Gathering(MessagePassing):
    def __init__(self, aggr: Any) -> None:
        super().__init__(aggr=aggr)

    def forward(self, x: Any, edge_index: torch.Tensor) -> torch.Tensor:
        ends = (x, x) if isinstance(x, torch.Tensor) else x
        return self.propagate(edge_index, x=ends, size=(len(ends[0]), len(ends[1])))

    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        return x_j


def network(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, outputs))


def made(kind: Any, **more: Any) -> torch.nn.Module:
    """An instance with small numbers for what it must have."""
    name = kind.__name__
    values = GIVEN | {
        "nn": network({"EdgeConv": 16, "NNConv": 3}.get(name, WIDTH), WIDTH * (WIDTH if name == "NNConv" else 1)),
        "gate_nn": network(WIDTH, 1),
        "conv": SAGEConv(WIDTH, WIDTH),
        "convs": {("node", "to", "node"): SAGEConv(WIDTH, WIDTH)},
        **dict.fromkeys(("mlp_h", "mlp_f", "mlp_g"), network(WIDTH, WIDTH)),
    }
    if name == "EquilibriumAggregation":
        values["num_layers"] = [WIDTH]
    if name == "MLPAggregation":
        more = {"num_layers": 1}
    if name == "FusedGATConv":
        more = {"in_channels": WIDTH, "out_channels": WIDTH, "add_self_loops": False}
    needed = [
        parameter.name
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    layer = kind(**{name: values[name] for name in needed if name != "self"} | more)
    return Gathering(layer) if issubclass(kind, aggregations.Aggregation) else layer


def cases() -> Iterator[Any]:
    for module in (convolutions, aggregations):
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or kind in (MessagePassing, aggregations.Aggregation):
                continue
            taken = [edge for edge in TABLES if edge in inspect.signature(kind.forward).parameters]
            yield pytest.param(kind, {}, (), id=name, marks=[pytest.mark.slow] * bool(taken))
            if taken:
                known = inspect.signature(kind.__init__).parameters
                width = next((name for name in ("edge_dim", "in_edge_channels", "dim") if name in known), None)
                options = {width: 3} if width and "edge_attr" in taken else {}
                yield pytest.param(kind, options, tuple(taken), id=f"{name} with edges")
    yield pytest.param(convolutions.EGConv, {"aggregators": ["mean"]}, (), id="EGConv of means")
    yield pytest.param(convolutions.GCNConv, {"improved": True}, ("edge_weight",), id="GCNConv improved")
    yield pytest.param(convolutions.GCNConv, {"improved": True}, (), id="GCNConv improved, of edges without weights")
    yield pytest.param(convolutions.GCNConv, {"add_self_loops": False}, (), id="GCNConv without self-loops")
    yield pytest.param(convolutions.GCNConv, {"normalize": False}, ("edge_weight",), id="GCNConv without norm")
    yield pytest.param(convolutions.GCNConv, {"cached": True}, (), id="GCNConv cached")


class Graph:
    """40 vertices: the first one with edges, one in the middle and the last two without, one with many."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        source, target = rng.integers(0, 39, 160), rng.integers(0, 38, 160)
        target[target == 20], target[:30], target[30] = 21, 3, 0
        source[31:33], target[31:33] = 7, 7  # a self-loop that comes twice
        source[33:35], target[33:35] = 8, 9  # an edge that comes twice
        order = np.lexsort((source, target))  # as aggregations that read sequences want it
        self.edges = np.stack([source[order], target[order]])
        self.x = rng.standard_normal((40, WIDTH)).astype(np.float32)
        self.tables = {
            "weight": rng.uniform(0.2, 2, 160).astype(np.float32),
            "attr": rng.uniform(0, 1, (160, 3)).astype(np.float32),
            "kind": rng.integers(0, 2, 160),
        }
        self.tables["weight"][self.edges[0] == self.edges[1]] = 0.5

    def whole(self, layer: Any, taken: tuple[str, ...]) -> np.ndarray:
        dtype = next((weight.dtype for weight in layer.parameters()), torch.float32)
        rows = {name: torch.from_numpy(self.tables[TABLES[name]]) for name in taken}
        rows = {name: values.to(dtype) if values.is_floating_point() else values for name, values in rows.items()}
        with torch.no_grad():
            return layer(torch.from_numpy(self.x).to(dtype), torch.from_numpy(self.edges), **rows).numpy()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph()


@pytest.fixture(scope="module")
def cluster(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    folder = tmp_path_factory.mktemp("layers")
    with GraphWriter(folder / "graph") as writer:
        writer.add_nodes("node", 40, tables={"x": graph.x})
        writer.add_edges("node__to__node", *graph.edges, tables=graph.tables)
    partition_graph(folder / "graph", folder / "data", parts=2, method="random", seed=1)
    with atta.local(folder / "data", threads=1) as started:
        yield started


@pytest.mark.parametrize(("kind", "options", "taken"), [*cases()])
def test_a_layer_gives_the_rows_of_the_whole_graph_or_is_refused_by_its_cause(
    graph: Graph, cluster: atta.LocalCluster, kind: Any, options: Any, taken: tuple[str, ...], request: Any
) -> None:
    torch.manual_seed(1)
    try:
        layer = made(kind, **options).double().eval()
    except ImportError as error:
        pytest.skip(str(error))
    try:
        wanted = graph.whole(layer, taken)
    except Exception:  # of many kinds
        wanted = None
    tables = {name: TABLES[name] for name in taken}
    name = request.node.callspec.id
    try:
        found = atta.predict(cluster, [layer], edge_tables=tables, batch_size=7)
    except ConfigError as error:
        said = str(error)
        assert "\n" not in said
        assert re.search(UNRUN if wanted is None else REFUSED.get(name, "^$"), said), said
        return
    assert wanted is not None
    assert name not in REFUSED
    off = np.abs(found.values[np.argsort(found.ids)] - wanted).max() / np.abs(wanted).max()
    assert off < (1e-6 if wanted.dtype == np.float64 else 1e-5)
