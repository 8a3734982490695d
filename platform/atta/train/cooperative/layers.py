"""A message-passing layer that computes one trainer's rows."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.conv import MessagePassing

from atta.errors import ConfigError
from atta.train.cooperative.exchange import CooperativeGraph, RowRange, exchange, start_exchange
from atta.train.models.matrix import adjacency

__all__ = ["Exchanged", "check_layer"]


class Exchanged(torch.nn.Module):
    """A layer that first fetches the rows it reads from the other trainers of the server.

    ``Exchanged(layer)(h, graph)`` takes own rows [o, channels] and returns own rows [o, out channels]. The layer is
    called as ``layer((read, own), edge_index)`` with read [o + r, channels]. Every PyG layer that can tell sources from
    targets accepts this. If the second argument is not a ``CooperativeGraph``, the layer is called as it is. So the
    same model also runs on a whole graph.

    ``GCNConv`` uses the degrees of the *whole* graph: the subgraph's degrees would give another result. SAGE and GCN
    compute interior rows while remote rows are under way.

    Attributes:
        layer: the wrapped layer.
        number: of the layer in its model; the source of remote rows is asked by it. ``CooperativeModel`` numbers the
            layers in the order in which they lie in the model.
    """

    def __init__(self, layer: torch.nn.Module, number: int = 0) -> None:
        """Raises ConfigError for a PyG layer that cannot tell sources from targets."""
        super().__init__()
        check_layer(layer)
        self.layer: Any = layer
        self.number = number

    def reset_parameters(self) -> None:
        """Reset the wrapped layer."""
        self.layer.reset_parameters()

    def forward(self, h: torch.Tensor, graph: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Own rows [o, out channels].

        Raises:
            ConfigError: edge weights or edge features are given: a server's subgraph has none.
        """
        if not isinstance(graph, CooperativeGraph):
            plain: torch.Tensor = self.layer(h, graph, *args, **kwargs)
            return plain
        extra = [str(i) for i, a in enumerate(args, 2) if a is not None] + [
            k for k, a in kwargs.items() if a is not None
        ]
        if extra:
            raise ConfigError(f"{type(self.layer).__name__}: argument {', '.join(extra)} has no cooperative form")
        with graph.within(f"layer {self.number}", self.layer):
            return self._rows(h, graph)

    def _rows(self, h: torch.Tensor, graph: CooperativeGraph) -> torch.Tensor:
        if type(self.layer) is GCNConv:
            return _gcn(self.layer, h, graph, self.number)
        if type(self.layer) is SAGEConv:
            return _sage(self.layer, h, graph, self.number)
        out: torch.Tensor = self.layer((exchange(h, graph, self.number), h), graph.edge_index)
        return out


def check_layer(layer: torch.nn.Module) -> None:
    """Refuse PyG layers that take only one set of vertices. Most of them also reach over several hops in one call.

    Raises:
        ConfigError: names the layer; also for ``GCNConv(improved=True)``, whose weights differ between PyG's versions,
            and for layers that pass messages against the edges.
    """
    if isinstance(layer, MessagePassing) and layer.flow != "source_to_target":
        raise ConfigError(
            f"{type(layer).__name__}: flow {layer.flow!r} has no cooperative form; edges lie with their targets"
        )
    if type(layer) is GCNConv:
        if layer.improved:
            raise ConfigError("GCNConv(improved=True): has no cooperative form; take improved=False")
        return
    if not isinstance(layer, MessagePassing):
        return
    first = next(iter(inspect.signature(layer.forward).parameters.values()), None)
    if first is not None and first.annotation in (torch.Tensor, "Tensor", "torch.Tensor"):
        raise ConfigError(
            f"{type(layer).__name__}: takes one set of vertices, where a trainer reads more than it computes; "
            "take a layer that accepts a pair (x_source, x_target)"
        )


def _sage(layer: SAGEConv, h: torch.Tensor, graph: CooperativeGraph, number: int) -> torch.Tensor:
    sparse = _as_matrix(layer, h)

    def rows(read: torch.Tensor, span: RowRange) -> torch.Tensor:
        edges = (
            graph.cached(("ones", span.first, span.sources, h.dtype), lambda: _ones(span, h))
            if sparse
            else span.edge_index
        )
        out: torch.Tensor = layer((read, h[span.first : span.last]), edges)
        return out

    if graph.source is None:
        return rows(h, graph.whole)
    pending = start_exchange(h, graph, number)
    interior = rows(h, graph.interior)
    return torch.cat([interior, rows(torch.cat([h, pending.finish()]), graph.boundary)])


def _gcn(layer: GCNConv, h: torch.Tensor, graph: CooperativeGraph, number: int) -> torch.Tensor:
    def rows(z: torch.Tensor, span: RowRange) -> torch.Tensor:
        key = ("gcn", span.first, span.sources, h.dtype, layer.normalize, layer.add_self_loops, _as_matrix(layer, h))
        edges, weights = graph.cached(key, lambda: _gcn_edges(layer, span, graph, h))
        # The layer's own forward refuses to read more rows than it computes. This is what it would do.
        out: torch.Tensor = layer.propagate(
            edges, x=z, edge_weight=weights, size=(span.sources, span.last - span.first)
        )
        return out

    if graph.source is None:
        out = rows(layer.lin(h), graph.whole)
    else:
        pending = start_exchange(h, graph, number)
        z = layer.lin(h)
        interior = rows(z, graph.interior)
        z = torch.cat([z, layer.lin(pending.finish())])
        out = torch.cat([interior, rows(z, graph.boundary)])
    return out if layer.bias is None else out + layer.bias


def _as_matrix(layer: MessagePassing, h: torch.Tensor) -> bool:
    """Whether a sparse matrix can sum up rows, without a copy of a row per edge."""
    return h.device.type == "cpu" and layer.aggr in ("add", "sum", "mean")


def _ones(span: RowRange, like: torch.Tensor) -> torch.Tensor:
    weights = torch.ones(span.edge_index.shape[1], dtype=like.dtype, device=like.device)
    sources, targets = span.edge_index
    return adjacency(sources, targets, weights, (span.last - span.first, span.sources))


def _gcn_edges(
    layer: GCNConv, span: RowRange, graph: CooperativeGraph, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Edges of some rows and their weights; on the CPU as one sparse matrix.

    As PyG's ``gcn_norm``, with degrees of the whole graph: in-edges and the self-loop that is added.
    """
    source, target = span.edge_index
    weights = torch.ones(len(source), dtype=like.dtype, device=like.device)
    if layer.normalize:
        loop = 1.0 if layer.add_self_loops else 0.0
        no_loop = source != target + span.first
        if not layer.add_self_loops and not bool(no_loop.all()):
            raise ConfigError(
                "GCNConv(add_self_loops=False): the graph has self-loops, which degrees do not count; remove them"
            )
        scale = (graph.in_degrees.to(like.dtype) + loop).pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0.0)
        source, target = source[no_loop], target[no_loop]
        weights = scale[source] * scale[target + span.first]
        if loop:
            own = torch.arange(span.last - span.first, device=like.device)
            source, target = torch.cat([source, own + span.first]), torch.cat([target, own])
            weights = torch.cat([weights, scale[span.first : span.last] ** 2])
            order = torch.argsort(target, stable=True)
            source, target, weights = source[order], target[order], weights[order]
    if not _as_matrix(layer, like):
        return torch.stack([source, target]), weights
    return adjacency(source, target, weights, (span.last - span.first, span.sources)), None
