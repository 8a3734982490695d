"""Models of typed graphs, made of PyG's layers: ``rgcn``, ``hetero-sage``, ``hetero-gat`` and ``hgt``. A linear encoder
per node type brings features to one width, which learnt rows of types without have already; then come the layers, each
computing only what later ones read, and a linear decoder for the target type."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast
from urllib.parse import unquote

import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv, HeteroConv, HGTConv, RGCNConv, SAGEConv
from torch_geometric.nn.module_dict import ModuleDict

from atta.partition.names import join_edge_type, module_name
from atta.train.settings.common import TrainSettings
from atta.train.tasks.types import EdgeTriple, TypeReach

Rows = Mapping[str, torch.Tensor]
Edges = Mapping[EdgeTriple, torch.Tensor]


class LayersByType(ModuleDict):  # type: ignore[misc]
    """A layer per node type, whatever its name."""

    def __init__(self, layers: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        for node_type, layer in layers.items():  # PyG's constructor would take a key twice for an external one
            self[node_type] = layer

    @classmethod
    def to_internal_key(cls, key: str) -> str:
        """The name that torch knows the layer by."""
        return str(super().to_internal_key(module_name(key)))

    @classmethod
    def to_external_key(cls, key: str) -> str:
        """The node type of such a name."""
        return unquote(str(super().to_external_key(key)))


class TypedLayers(torch.nn.Module):
    """The layers of a model of a typed graph, which read sampled batches; rows have ``hidden_width`` numbers before the
    first and after each. ``encoders``: a linear layer per type with features; ``layers``: see ``_layer``."""

    def __init__(self, config: TrainSettings, reach: TypeReach) -> None:
        super().__init__()
        self.reach, self.dropout, self.hidden_width = reach, config.dropped, config.hidden
        widths = {t: width for t in reach.read(0) if (width := reach.widths[t]) is not None}
        self.encoders: Any = LayersByType({t: torch.nn.Linear(width, config.hidden) for t, width in widths.items()})
        self.layers = torch.nn.ModuleList(_layer(config, reach, number) for number in range(reach.depth))

    def hidden(
        self,
        x: Rows,
        edge_index: Edges,
        nodes_per_hop: Mapping[str, Sequence[int]],
        edges_per_hop: Mapping[EdgeTriple, Sequence[int]],
    ) -> dict[str, torch.Tensor]:
        """Rows of the seeds by node type, [seeds, hidden]. x: rows by node type: features, or [vertices, hidden] of a
        type without; edge_index: [2, edges] int64 by edge type; both hop by hop, as ``to_pyg`` has them. nodes_per_hop:
        [hops + 1]; edges_per_hop: [hops]."""
        reach = self.reach
        h = {t: F.relu(self.encoders[t](x[t])) if t in self.encoders else x[t] for t in reach.read(0)}
        for number, layer in enumerate(self.layers):
            hops = reach.depth - number
            computed = {t: sum(nodes_per_hop[t][:hops]) for t in reach.computed(number)}
            edges = {e: edge_index[e][:, : sum(edges_per_hop[e][:hops])] for e in reach.edges(number)}
            h = {t: F.dropout(rows, self.dropout, self.training) for t, rows in layer(h, computed, edges).items()}
        return h


class TypedModel(TypedLayers):
    """A model of the vertices of one type. ``decoder``: linear, for the target type."""

    def __init__(self, config: TrainSettings, reach: TypeReach, outputs: int) -> None:
        super().__init__(config, reach)
        self.decoder = torch.nn.Linear(config.hidden, outputs)

    def forward(self, *batch: Any) -> torch.Tensor:
        """Scores of the seeds [seeds, outputs]; arguments are those of ``hidden``."""
        return cast(torch.Tensor, self.decoder(self.hidden(*batch)[self.reach.target]))


class TypedLinkModel(TypedLayers):
    """Embeddings of the types at both ``ends`` of an edge type, by a linear layer each (``outputs``), and a decoder."""

    def __init__(
        self, config: TrainSettings, reach: TypeReach, ends: tuple[str, str], decoder: torch.nn.Module
    ) -> None:
        super().__init__(config, reach)
        self.ends, self.link_decoder = ends, decoder
        self.outputs: Any = LayersByType({t: torch.nn.Linear(config.hidden, config.hidden) for t in sorted(set(ends))})

    def forward(self, *batch: Any, places: torch.Tensor | None = None) -> Any:
        """Scores [n] of pairs, int64 [2, n] ``places`` among the seeds of both ends' types; without, embeddings by type."""
        h = self.hidden(*batch)
        rows = {t: output(h[t]) for t, output in self.outputs.items()}
        if places is None:
            return rows
        return self.link_decoder(rows[self.ends[0]][places[0]], rows[self.ends[1]][places[1]])


def _layer(config: TrainSettings, reach: TypeReach, number: int) -> torch.nn.Module:
    """Layer ``number``: called with rows by type, how many of each type it computes, and edges; returns these rows."""
    width, edge_types = config.hidden, reach.edges(number)
    if config.model == "rgcn":
        return _Relational(width, reach.read(number), edge_types)
    if config.model == "hgt":
        return _Transformer(width, config.heads, reach.read(number), edge_types)
    convs: dict[EdgeTriple, torch.nn.Module] = {
        e: SAGEConv((width, width), width, root_weight=False)
        if config.model == "hetero-sage"
        else GATConv((width, width), width // config.heads, config.heads, add_self_loops=False)
        for e in edge_types
    }
    return _PerEdgeType(width, convs, reach.computed(number))


class _PerEdgeType(torch.nn.Module):
    """A convolution per edge type, added up at its destinations, and a linear layer per type for a vertex' own row."""

    def __init__(self, width: int, convs: Mapping[EdgeTriple, torch.nn.Module], computed: Sequence[str]) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # types that no edge ends at have their own row, so they are updated too
            self.conv = HeteroConv({_coded(e): conv for e, conv in convs.items()}, aggr="sum")
        self.own: Any = LayersByType({t: torch.nn.Linear(width, width) for t in computed})

    def forward(self, x: Rows, computed: Mapping[str, int], edges: Edges) -> dict[str, torch.Tensor]:
        ends = {_coded(e): (x[e[0]], x[e[2]][: computed[e[2]]]) for e in edges}
        found = self.conv(ends, {_coded(e): index for e, index in edges.items()})
        seen = {unquote(t): rows for t, rows in found.items()}
        own = {t: self.own[t](x[t][:rows]) for t, rows in computed.items()}
        return {t: F.relu(own[t] + seen[t] if t in seen else own[t]) for t in computed}


class _Relational(torch.nn.Module):
    """R-GCN (Schlichtkrull et al., ESWC 2018): the vertices of all types are those of one graph with relations."""

    def __init__(self, width: int, read: Sequence[str], edge_types: Sequence[EdgeTriple]) -> None:
        super().__init__()
        self._read, self._edge_types = read, edge_types
        self.conv = RGCNConv(width, width, len(edge_types))

    def forward(self, x: Rows, computed: Mapping[str, int], edges: Edges) -> dict[str, torch.Tensor]:
        read_at = _offsets({t: len(x[t]) for t in self._read})
        computed_at = _offsets(computed)
        moved = [torch.stack([edges[e][0] + read_at[e[0]], edges[e][1] + computed_at[e[2]]]) for e in self._edge_types]
        relation = torch.cat([torch.full((m.shape[1],), number, device=m.device) for number, m in enumerate(moved)])
        rows = torch.cat([x[t] for t in self._read]), torch.cat([x[t][:n] for t, n in computed.items()])
        out = F.relu(self.conv(rows, torch.cat(moved, 1), relation))
        return dict(zip(computed, out.split(list(computed.values())), strict=True))

    def of_means(self, x: torch.Tensor, means: Rows) -> torch.Tensor:
        """The same of one type, whose own rows are ``x``, from the mean rows of their in-neighbours by edge type."""
        weights = dict(zip((join_edge_type(*e) for e in self._edge_types), self.conv.weight, strict=True))
        return F.relu(x @ self.conv.root + self.conv.bias + sum(rows @ weights[e] for e, rows in means.items()))


class _Transformer(torch.nn.Module):
    """HGT (Hu et al., WWW 2020). A type that no edge ends at keeps its rows."""

    def __init__(self, width: int, heads: int, read: Sequence[str], edge_types: Sequence[EdgeTriple]) -> None:
        super().__init__()
        self.conv = HGTConv(width, width, (list(map(_dotless, read)), [_coded(e, _dotless) for e in edge_types]), heads)
        ends = {e[2] for e in edge_types}
        for name in map(_dotless, set(read) - ends):  # PyG makes these weights, and uses none: DDP would wait for them
            self.conv.out_lin.lins[name].requires_grad_(False)
            self.conv.skip[name].requires_grad_(False)

    def forward(self, x: Rows, computed: Mapping[str, int], edges: Edges) -> dict[str, torch.Tensor]:
        seen = self.conv(
            {_dotless(t): rows for t, rows in x.items()}, {_coded(e, _dotless): i for e, i in edges.items()}
        )
        found = {t: seen.get(_dotless(t)) for t in computed}
        return {t: (x[t] if found[t] is None else found[t])[:rows] for t, rows in computed.items()}


def _coded(edge_type: EdgeTriple, code: Callable[[str], str] = module_name) -> EdgeTriple:
    source, relation, target = map(code, edge_type)
    return source, relation, target


def _dotless(name: str) -> str:
    """A name for torch, which refuses "." and names of its own: PyG's ``ModuleDict`` takes them, which ``HGTConv`` does not
    use everywhere."""
    coded = module_name(name).replace(".", "%2E")
    return f"%{ord(coded[0]):X}{coded[1:]}" if hasattr(torch.nn.ModuleDict, coded) else coded


def _offsets(counts: Mapping[str, int]) -> dict[str, int]:
    """Where each type begins if all stand one after another."""
    return dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
