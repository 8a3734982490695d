"""First layers for batches of a loader that aggregates; ``conv`` of each is PyG's, with PyG's names of weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv, GINConv, GraphConv, MeanAggregation, SAGEConv, SumAggregation

from atta.errors import ConfigError

__all__ = ["FirstLayer", "GCNFirst", "SAGEFirst", "first_layer"]

_PARTS = ("forward", "message", "aggregate", "update")
_LAYERS = (SAGEConv, GCNConv, GraphConv, GINConv)
_AGGREGATES: dict[type, str] = {MeanAggregation: "mean", SumAggregation: "sum"}


class FirstLayer(torch.nn.Module):
    """``conv``, a layer of PyG (``SAGEConv``, ``GCNConv``, ``GraphConv``, ``GINConv``), with the sums over in-neighbours made
    elsewhere.

    >>> loader = atta.NeighborLoader(cluster, [15, 10], "train", aggregate=layer.aggregate)
    >>> h = layer(data.x, data.aggregated)  # data = batch.to_pyg()

    ``conv``: the layer, whose weights these are; ``aggregate``: what the loader must aggregate by."""

    def __init__(self, conv: torch.nn.Module) -> None:
        """Raises ConfigError: the layer does more with rows of neighbours than to add them up."""
        super().__init__()
        self.aggregate = aggregate_of(conv)
        self.conv: Any = conv

    def forward(self, x: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
        """What the layer gives on the batch with all of its rows: [rows, out channels]. ``x``, ``aggregated`` [rows, in
        channels]: of the same vertices."""
        return first_layer(self.conv, x, aggregated)


def first_layer(conv: Any, x: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
    """What ``FirstLayer`` gives. Raises ConfigError: as it does."""
    aggregate_of(conv)
    x = x if len(x) == len(aggregated) else x[: len(aggregated)]  # sparse rows cannot be cut
    if isinstance(conv, GCNConv):
        out: torch.Tensor = conv.lin(aggregated)
        return out if conv.bias is None else out + conv.bias
    if isinstance(conv, GINConv):
        found: torch.Tensor = conv.nn(aggregated + (1 + conv.eps) * x)
        return found
    if isinstance(conv, GraphConv):
        of_rows: torch.Tensor = conv.lin_rel(aggregated) + conv.lin_root(x)
        return of_rows
    out = conv.lin_l(aggregated)
    if conv.root_weight:
        out = out + conv.lin_r(x)
    return F.normalize(out, p=2.0, dim=-1) if conv.normalize else out


class SAGEFirst(FirstLayer):
    """PyG's ``SAGEConv``, with its arguments, as a first layer."""

    def __init__(self, in_channels: int, out_channels: int, aggr: str = "mean", **options: Any) -> None:
        super().__init__(SAGEConv(in_channels, out_channels, aggr, **options))


class GCNFirst(FirstLayer):
    """PyG's ``GCNConv``, with its arguments, as a first layer."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(GCNConv(in_channels, out_channels, **options))


def aggregate_of(conv: Any) -> str:
    """The loader's ``aggregate`` for a layer of PyG. Raises ConfigError: there is none, as for attention and maxima."""
    name, base = type(conv).__name__, next((kind for kind in _LAYERS if isinstance(conv, kind)), None)
    if base is None:
        raise ConfigError(f"{name} cannot be a first layer of sums: SAGEConv, GCNConv, GraphConv and GINConv can")
    if any(getattr(type(conv), part) is not getattr(base, part) for part in _PARTS):
        raise ConfigError(f"{name} is more than {base.__name__}, so rows must come as they are")
    if conv.flow != "source_to_target":
        raise ConfigError(f"{name}: flow {conv.flow!r} reads the rows of targets, sums are of sources")
    aggregate = _AGGREGATES.get(type(conv.aggr_module))
    if aggregate is None or (base is GCNConv and aggregate != "sum"):
        known = "sum" if base is GCNConv else "sum or mean"
        raise ConfigError(f"{name}: aggr {conv.aggr!r} is no {known}, so rows must come as they are")
    if base is GCNConv:
        if conv.improved or (conv.normalize and not conv.add_self_loops):
            raise ConfigError(
                f"{name}: aggregate='gcn' has self-loops of weight 1, not improved=True or add_self_loops=False"
            )
        return "gcn" if conv.normalize else "sum"
    if base is SAGEConv and conv.project:
        raise ConfigError(f"{name}: project=True changes every row before it is added, so rows must come as they are")
    return aggregate
