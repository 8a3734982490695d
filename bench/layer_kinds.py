"""Models of one to three layers of every kind that PyG and DGL have, each of 8 numbers per vertex, for
``bench.exact_layers``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch_geometric import nn as pyg
from torch_geometric.nn import aggr, conv, models, norm

from atta.train.models.forms import SmallGraph

WIDTH, EDGE_WIDTH, TYPES = 8, 3, 3
EDGE_ARGUMENTS: tuple[tuple[str, ...], ...] = ((), ("edge_attr",), ("edge_type",), ("edge_type", "edge_attr"))
"""What a layer is given of edges: the first of these with which it can be called."""
_EMPTY = inspect.Parameter.empty
_RELATIONS = ("node", "first", "node"), ("node", "second", "node")
_EDGE_INDICES = ("edge_index", "pos_edge_index", "neg_edge_index")


@dataclass(frozen=True)
class Kind:
    """A kind of layer, aggregation, norm or model.

    Attributes:
        group: heading of the page that it stands under.
        name: as in its library, with settings that are not the default ones.
        make: makes a model of some layers.
        parts: makes one layer of it as ``atta.predict`` takes layers.
    """

    group: str
    name: str
    make: Callable[[int], torch.nn.Module]
    parts: Callable[[], Sequence[torch.nn.Module]]


def graph_of_rows(seed: int = 0, vertices: int = 200, edges: int = 700) -> SmallGraph:
    """A random directed graph in float64 with three hubs, vertices without in-edges, self-loops and edges that come twice,
    in no order."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(vertices, (edges,), generator=random)
    target = torch.randint(vertices - 20, (edges,), generator=random)
    target[:120] = target[:120] % 3
    source[120:126] = target[120:126]
    source[130:140], target[130:140] = source[140:150], target[140:150]
    x = torch.randn(vertices, WIDTH, generator=random, dtype=torch.float64)
    attr = torch.rand(edges, EDGE_WIDTH, generator=random, dtype=torch.float64)
    kinds = torch.randint(TYPES, (edges,), generator=random)
    return SmallGraph(x, torch.stack([source, target]), {"edge_attr": attr, "edge_type": kinds})


class Stacked(torch.nn.Module):
    """Layers one after another, with a tanh between two of them. Each gets what its ``forward`` asks for by name."""

    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.fits = torch.nn.ModuleList()
        self.gives: tuple[str, ...] = ()

    def fitted(self, graph: SmallGraph) -> Stacked:
        """The model with linear layers that bring rows to the width of the next layer; raises what its layers raise."""
        sorted_graph = graph.by_target()
        self.eval()
        causes = []
        for self.gives in EDGE_ARGUMENTS:
            self.fits = torch.nn.ModuleList()
            try:
                with torch.no_grad():
                    self(sorted_graph.x.float(), sorted_graph.edge_index, sorted_graph.edge["edge_attr"].float(),
                         sorted_graph.edge["edge_type"])  # fmt: skip
                return self
            except Exception as error:  # whatever a layer raises that cannot be called so
                causes.append(error)
        raise causes[0]

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, edge_type: Any = None) -> Any:
        """[n, 8]."""
        edges = {"edge_attr": edge_attr, "edge_type": edge_type}
        first = x
        for number, layer in enumerate(self.layers):
            x = layer(x, **self._asked(layer, first[: len(x)], edge_index, edges))
            x = x[0] if isinstance(x, tuple) else x
            x = x.flatten(1)
            if number == len(self.fits):
                width = x.shape[1]
                self.fits.append(torch.nn.Identity() if width == WIDTH else torch.nn.Linear(width, WIDTH))
            x = self.fits[number](x)
            if number + 1 < len(self.layers):
                x = torch.tanh(x)
        return x

    def _asked(self, layer: Any, first: torch.Tensor, edge_index: Any, edges: dict[str, Any]) -> dict[str, Any]:
        rows = {
            "x_0": first,
            "pos": first[:, :3],
            "normal": first[:, 3:6],
            "msg": first,
            "node_type": (first[:, 0] > 0).long(),
            "type_vec": (first[:, 0] > 0).long(),
        }
        known = list(inspect.signature(layer.forward).parameters)[1:]
        found: dict[str, Any] = {name: edge_index for name in known if name in _EDGE_INDICES}
        found |= {name: rows[name] for name in known if name in rows}
        return found | {name: edges[name] for name in self.gives if name in known}


class Aggregated(pyg.MessagePassing):  # type: ignore[misc]
    """Rows of in-neighbours by an aggregation alone."""

    def forward(self, x: Any, edge_index: torch.Tensor) -> torch.Tensor:
        """[targets, ...]."""
        pair = (x, x) if isinstance(x, torch.Tensor) else x
        rows: torch.Tensor = self.propagate(edge_index, x=pair, size=(len(pair[0]), len(pair[1])))
        return rows


class OfOneType(torch.nn.Module):
    """A layer of typed graphs on a graph with one type of vertices and two of edges."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor) -> Any:
        """[n, ...]."""
        edges = {
            relation: edge_index[:, (edge_type == 0) == first]
            for relation, first in zip(_RELATIONS, (True, False), strict=True)
        }
        return self.layer({"node": x}, edges)["node"]


class WithHistory(torch.nn.Module):
    """``DNAConv`` reads the rows of all layers before: here of one."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """[n, ...]."""
        return self.layer(x.unsqueeze(1), edge_index)


class OfDgl(torch.nn.Module):
    """A layer of DGL, called with an edge index: on a pair of rows it gets a block."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.names = [*inspect.signature(layer.forward).parameters][2:]

    def forward(
        self, x: Any, edge_index: torch.Tensor, edge_attr: Any = None, edge_type: Any = None, edge_weight: Any = None
    ) -> Any:
        """[targets, ...]."""
        import dgl

        source, target = edge_index
        pair = not isinstance(x, torch.Tensor)
        graph = (
            dgl.create_block((source, target), num_src_nodes=len(x[0]), num_dst_nodes=len(x[1]))
            if pair
            else dgl.graph((source, target), num_nodes=len(x))
        )
        given = {
            **dict.fromkeys(("efeats", "edge_feat", "edge_feats", "efeat", "pseudo"), edge_attr),
            "etypes": edge_type,
            "edge_weight": edge_weight,
            "feat_0": x,
            "coord_feat": None if pair else x[:, :3],
        }
        wanted = {n: given[n] for n in self.names if n in given and given[n] is not None}
        out = self.layer(graph, x, **wanted)
        return out[0] if isinstance(out, tuple) else out


def histogram() -> torch.Tensor:
    """How many vertices of ``graph_of_rows`` have each in-degree."""
    return torch.bincount(graph_of_rows().in_degrees)


def _mlp(inputs: int, outputs: int = WIDTH) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.Tanh())


def _values() -> dict[str, Any]:
    """Values of arguments that constructors need, by name."""
    return {
        **dict.fromkeys(("in_channels", "out_channels", "channels", "hidden_channels", "in_feats", "out_feats"), WIDTH),
        **dict.fromkeys(("in_feat", "out_feat", "in_size", "out_size", "hidden_size", "input_d", "output_d"), WIDTH),
        **dict.fromkeys(("in_node_feats", "out_node_feats", "node_in_feats", "hidden_feats", "hidden_d", "d"), WIDTH),
        **dict.fromkeys(("in_edge_feats", "edge_feats", "edge_in_feats", "edge_dim", "dim"), EDGE_WIDTH),
        **dict.fromkeys(("num_relations", "num_rels", "n_etypes", "num_edge_types"), TYPES),
        **dict.fromkeys(("K", "k", "kernel_size", "n_kernels", "filter_size", "num_layers", "processing_steps"), 2),
        **dict.fromkeys(("num_heads", "n_steps", "prop_step", "num_node_types", "num_types", "groups"), 2),
        **dict.fromkeys(("edge_type_emb_dim", "edge_attr_emb_dim", "out_edge_feats", "patch_size"), 4),
        "alpha": 0.1, "alp": 0.5, "lam": 0.5, "q": 0.5, "delta": 1.0, "layer": 1, "max_num_elements": 512,
        "deg": histogram(), "aggregators": ["mean", "max"], "scalers": ["identity", "amplification"],
        "aggrs": ["mean", "max"], "aggr": "mean", "scaler": ["identity", "attenuation"], "aggregator_type": "mean",
        "gate_nn": torch.nn.Linear(WIDTH, 1), "nn": _mlp(WIDTH), "first_aggr": True,
        "edge_func": torch.nn.Linear(EDGE_WIDTH, WIDTH * WIDTH), "metadata": (["node"], [*_RELATIONS]),
        "mlp_h": _mlp(WIDTH, 3), "mlp_f": _mlp(WIDTH + 3), "mlp_g": _mlp(WIDTH), "conv": pyg.SAGEConv(WIDTH, WIDTH),
    }  # fmt: skip


_SPECIAL: dict[str, dict[str, Any]] = {
    "EdgeConv": {"nn": _mlp(2 * WIDTH)},
    "GPSConv": {"heads": 2},
    "DegreeScalerAggregation": {"scaler": "amplification"},
    "EquilibriumAggregation": {"num_layers": [WIDTH]},
    "GINEConv": {"edge_dim": EDGE_WIDTH},
    "GMMConv": {"dim": EDGE_WIDTH},
    "MLPAggregation": {"num_layers": 2, "hidden_channels": WIDTH},
    "NNConv": {"nn": torch.nn.Linear(EDGE_WIDTH, WIDTH * WIDTH)},
    "PNAConv": {"out_channels": WIDTH},
    "PPFConv": {"local_nn": _mlp(WIDTH + 4)},
    "PointNetConv": {"local_nn": _mlp(WIDTH + 3)},
    "CGConv": {"dim": EDGE_WIDTH},
}


def made(kind: type, **given: Any) -> torch.nn.Module:
    """An object of a class with the values above for what its constructor needs; raises what that raises."""
    own = {**_SPECIAL.get(kind.__name__, {}), **given}
    needed = inspect.signature(kind.__init__).parameters  # type: ignore[misc]  # of the class itself
    values = {name: value for name, value in _values().items() if name in needed and needed[name].default is _EMPTY}
    others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in needed.values())
    arguments = {**values, **{name: value for name, value in own.items() if others or name in needed}}
    layer: torch.nn.Module = kind(**arguments)
    if kind.__name__ in ("HANConv", "HGTConv") and kind.__module__.startswith("torch_geometric."):
        return OfOneType(layer)
    if kind.__name__ == "DNAConv":
        return WithHistory(layer)
    return OfDgl(layer) if kind.__module__.startswith("dgl.") else layer


def stacked(make: Callable[[], torch.nn.Module], depth: int, between: Callable[[], Any] | None = None) -> Stacked:
    """A model of some layers that ``make`` makes, each followed by what ``between`` makes."""
    torch.manual_seed(depth)
    parts: list[torch.nn.Module] = []
    for _ in range(depth):
        parts += [make()] if between is None else [make(), between()]
    return Stacked(parts).fitted(graph_of_rows())


_CONVS: tuple[tuple[type, dict[str, Any]], ...] = (
    (pyg.GCNConv, {"normalize": False}),
    (pyg.GCNConv, {"cached": True}),
    (pyg.GCNConv, {"add_self_loops": False}),
    *((pyg.SAGEConv, {"aggr": name}) for name in ("sum", "max", "min", "median", "std", "lstm")),
    (pyg.SAGEConv, {"project": True}),
    (pyg.GATConv, {"add_self_loops": False}),
    (pyg.GATConv, {"edge_dim": EDGE_WIDTH}),
    (pyg.GATv2Conv, {"add_self_loops": False}),
    (pyg.EGConv, {"aggregators": ["mean", "max"]}),
    (pyg.ClusterGCNConv, {"add_self_loops": False}),
    (pyg.SimpleConv, {"aggr": "mean"}),
)
_BETWEEN: tuple[tuple[str, Callable[[], Any]], ...] = (
    ('LayerNorm(mode="node")', lambda: pyg.LayerNorm(WIDTH, mode="node")),
    ("nn.LayerNorm", lambda: torch.nn.LayerNorm(WIDTH)),
    ("nn.BatchNorm1d", lambda: torch.nn.BatchNorm1d(WIDTH)),
    ("nn.Softmax(0)", lambda: torch.nn.Softmax(0)),
    ("nn.TransformerEncoderLayer", lambda: torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0)),
)
_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        (name, {})
        for name in ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN", "PMLP", "GraphUNet", "RECT_L", "LINKX")
    ),
    *((name, {}) for name in ("SGFormer", "Polynormer", "NeuralFingerprint")),
    ("GraphSAGE", {"norm": "layer"}),
    ("GraphSAGE", {"jk": "cat"}),
    ("GCN", {"cached": True}),
)


def _alone(whole: Callable[[int], Any]) -> list[Any]:
    return [whole(1)]


def pyg_kinds() -> Iterator[Kind]:
    """Every class of ``torch_geometric.nn.conv``, ``.aggr`` and ``.norm``, settings of some, and models."""
    plain: list[tuple[Any, dict[str, Any]]] = [
        (getattr(conv, name), {}) for name in conv.__all__ if name != "MessagePassing"
    ]
    for kind, given in [*plain, *_CONVS]:
        yield _kind("Layers of PyG", _named(kind, given), partial(made, kind, **given))
    for name in aggr.__all__:
        if name != "Aggregation":
            yield _kind("Aggregations of PyG", name, partial(_aggregated, getattr(aggr, name)))
    norms: list[tuple[str, Any]] = [(name, partial(made, getattr(norm, name))) for name in norm.__all__]
    for name, module in [*norms, *_BETWEEN]:
        yield _kind("Norms and the like, after SAGEConv", name, partial(pyg.SAGEConv, WIDTH, WIDTH), module)
    for name, given in _MODELS:
        whole = partial(_whole, getattr(models, name), given)
        yield Kind("Models of PyG", _named(getattr(models, name), given), whole, partial(_alone, whole))


def dgl_kinds() -> Iterator[Kind]:
    """Every class of ``dgl.nn.pytorch.conv``; none where DGL cannot be imported."""
    try:
        from dgl.nn.pytorch import conv as convs
    except Exception:  # whatever its libraries raise
        return
    for name in convs.__all__:
        if not name.startswith(("Dense", "CuGraph")) and name != "EdgeWeightNorm":
            kind = getattr(convs, name)
            able = {"allow_zero_in_degree"} & set(inspect.signature(kind.__init__).parameters)
            yield _kind("Layers of DGL", name, partial(made, kind, **dict.fromkeys(able, True)))
    for given in ({"norm": "right"}, {"norm": "none"}):
        own = partial(made, convs.GraphConv, allow_zero_in_degree=True, **given)
        yield _kind("Layers of DGL", _named(convs.GraphConv, given), own)
    for name in ("gcn", "pool", "lstm"):
        own = partial(made, convs.SAGEConv, aggregator_type=name)
        yield _kind("Layers of DGL", f'SAGEConv(aggregator_type="{name}")', own)


def _kind(
    group: str, name: str, layer: Callable[[], torch.nn.Module], between: Callable[[], Any] | None = None
) -> Kind:
    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [layer()] if between is None else [layer(), between()]

    return Kind(group, name, partial(stacked, layer, between=between), parts)


def _named(kind: type, given: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in given.items())
    return f"{kind.__name__}({settings})" if settings else kind.__name__


def _aggregated(kind: type) -> torch.nn.Module:
    return Aggregated(aggr=made(kind))


def _whole(kind: Any, given: dict[str, Any], depth: int) -> torch.nn.Module:
    torch.manual_seed(depth)
    own = {
        **given,
        **({"aggregators": ["mean"], "scalers": ["identity"], "deg": histogram()} if kind is models.PNA else {}),
    }
    if kind is models.GraphUNet:
        own["depth"] = depth
    names = inspect.signature(kind.__init__).parameters
    values = {"out_channels": WIDTH, "num_nodes": 200, "num_layers": depth, **own}
    rest = {**_values(), **values}
    needed = {n: rest[n] for n, p in names.items() if n in rest and (p.default is p.empty or n in values)}
    model: torch.nn.Module = kind(**needed, **{n: v for n, v in own.items() if n not in names})
    if "batch" in inspect.signature(model.forward).parameters:
        return OneGraph(model)
    return model


class OneGraph(torch.nn.Module):
    """A model that asks which graph each vertex belongs to: all to one."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asks = inspect.signature(model.forward).parameters["batch"].default is inspect.Parameter.empty

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """[n, ...]."""
        batch = {"batch": torch.zeros(len(x), dtype=torch.long)} if self.asks else {}
        return self.model(x, edge_index, **batch)
