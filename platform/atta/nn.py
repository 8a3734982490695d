"""First layers for batches of a loader that aggregates; ``conv`` of each is PyG's, with PyG's names of weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch_geometric.nn import GCNConv, GINConv, GraphConv, Linear, MeanAggregation, SAGEConv, SumAggregation

from atta import _native
from atta.errors import ConfigError

__all__ = ["FirstLayer", "GCNFirst", "SAGEFirst", "first_layer", "neighbor_sums"]

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


def first_layer(conv: Any, x: torch.Tensor, aggregated: torch.Tensor, *, relu: bool = False) -> torch.Tensor:
    """What ``FirstLayer`` gives; ``relu``: with zeros in place of negative numbers. Raises ConfigError: as it does."""
    aggregate_of(conv)
    x = x if len(x) == len(aggregated) else x[: len(aggregated)]  # sparse rows cannot be cut
    if isinstance(conv, GCNConv):
        return _affine([(conv.lin, aggregated)], conv.bias, relu)
    if isinstance(conv, GINConv):
        found: torch.Tensor = conv.nn(aggregated + (1 + conv.eps) * x)
        return found.relu() if relu else found
    if isinstance(conv, GraphConv):
        return _affine([(conv.lin_rel, aggregated), (conv.lin_root, x)], None, relu)
    parts = [(conv.lin_l, aggregated), (conv.lin_r, x)] if conv.root_weight else [(conv.lin_l, aggregated)]
    if not conv.normalize:
        return _affine(parts, None, relu)
    out = F.normalize(_affine(parts, None, False), p=2.0, dim=-1)
    return out.relu() if relu else out


def _affine(parts: list[tuple[Any, torch.Tensor]], bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    # The sum of linear layers, each of its rows.
    eager = not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    biases = [b for b in (bias, *(getattr(layer, "bias", None) for layer, _ in parts)) if b is not None]
    if eager and len(biases) < 2 and all(_is_plain(layer, x) for layer, x in parts):
        flat = [tensor for layer, x in parts for tensor in (x, layer.weight)]
        out: torch.Tensor = _Affine.apply(relu, biases[0] if biases else None, *flat)  # type: ignore[no-untyped-call]
        return out
    (first, rows), *others = parts
    out = sum((layer(x) for layer, x in others), first(rows))
    out = out if bias is None else out + bias
    return out.relu() if relu else out


def _is_plain(layer: Any, x: torch.Tensor) -> bool:
    # It multiplies rows in the memory by its weights and does nothing else.
    hooked = type(layer) not in (Linear, torch.nn.Linear) or layer._forward_hooks or layer._forward_pre_hooks
    return not hooked and x.layout == torch.strided and x.device.type == "cpu"


class _Affine(torch.autograd.Function):
    # relu(x1 @ w1.T + x2 @ w2.T + ... + bias) by blocks of rows that stay in the caches from one step to the next.
    # One step after the other, all rows would cross the memory ten times, there and back.
    BLOCK_BYTES = 2**21

    @staticmethod
    def forward(ctx: Any, relu: bool, bias: torch.Tensor | None, *pairs: torch.Tensor) -> torch.Tensor:
        (first, weight), *others = zip(pairs[::2], pairs[1::2], strict=True)
        out = first.new_empty(len(first), len(weight))
        for rows in _blocks(out, *pairs[::2]):
            block = torch.mm(first[rows], weight.t(), out=out[rows])
            for x, w in others:
                block.addmm_(x[rows], w.t())
            block = block if bias is None else block.add_(bias)
            block = block.relu_() if relu else block
        ctx.biased = bias is not None
        ctx.save_for_backward(out if relu else None, *pairs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        out, *pairs = ctx.saved_tensors
        of_bias = gradient.new_zeros(gradient.shape[1]) if ctx.biased else None
        found = [torch.zeros_like(t) if need else None for t, need in zip(pairs, ctx.needs_input_grad[2:], strict=True)]
        for rows in _blocks(gradient, gradient, *pairs[::2]):
            block = gradient[rows]
            block = block if out is None else torch.ops.aten.threshold_backward(block, out[rows], 0)
            for x, w, of_x, of_w in zip(pairs[::2], pairs[1::2], found[::2], found[1::2], strict=True):
                if of_x is not None:
                    torch.mm(block, w, out=of_x[rows])
                if of_w is not None and len(w) > w.shape[1]:  # the order that is quicker for this shape
                    of_w.t().addmm_(x[rows].t(), block)
                elif of_w is not None:
                    of_w.addmm_(block.t(), x[rows])
            if of_bias is not None:
                of_bias += block.sum(0)
        return None, of_bias, *found


def _blocks(*tensors: torch.Tensor) -> list[slice]:
    width = sum(tensor.shape[1] * tensor.element_size() for tensor in tensors)
    count = max(_Affine.BLOCK_BYTES * torch.get_num_threads() // width, 64)
    return [slice(first, first + count) for first in range(0, len(tensors[0]), count)]


def neighbor_sums(
    x: torch.Tensor, starts: torch.Tensor, sources: torch.Tensor, aggregate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each target the sum or mean (``aggregate``) of its in-neighbours' rows, and its own row: [targets, channels] each.
    ``x`` [rows, channels], targets first; ``starts`` int64 [targets + 1]: where the edges of each begin in ``sources`` int64."""
    found: tuple[torch.Tensor, torch.Tensor] = _NeighborSums.apply(x, starts, sources, aggregate)  # type: ignore[no-untyped-call]
    return found


class _NeighborSums(torch.autograd.Function):
    # Backward adds up both gradients of a row at once, where autograd makes two tables of all rows.

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, starts: torch.Tensor, sources: torch.Tensor, aggregate: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.rows, ctx.aggregate = len(x), aggregate
        ctx.save_for_backward(starts, sources)
        return F.embedding_bag(sources, x, starts[:-1], mode=aggregate), x[: len(starts) - 1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_sums: torch.Tensor, of_own: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        starts, sources = ctx.saved_tensors
        if ctx.aggregate == "mean":
            of_sums = of_sums / starts.diff().clamp(min=1)[:, None]
        bounds, targets, _ = map(torch.from_numpy, _native.by_source(starts.numpy(), sources.numpy(), ctx.rows))
        found = F.embedding_bag(targets, of_sums, bounds[:-1], mode="sum")
        found[: len(of_own)] += of_own
        return found, None, None, None


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
