"""Models as lists of layers, for inference layer by layer (``atta.client.inference``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch_geometric.nn import GCNConv, Linear

from atta.client.inference.block import DegreeRule, Floats, Layer, LayerBlock, SummedLayer, self_loops, with_company
from atta.errors import ConfigError, DataError
from atta.nn import first_layer, neighbor_sums
from atta.train.checkpoint.files import SavedModel, fill
from atta.train.models import adjacency, row_starts, whole_model
from atta.train.models.deep import DeepGNN
from atta.train.models.links import DECODER, UNFIT
from atta.train.models.sums import is_stock, layer_sums, row_aggregate
from atta.train.settings.common import TrainSettings

RowsOf = Callable[[torch.Tensor, LayerBlock], torch.Tensor]


class TorchLayer:
    """A layer of torch: moves a block to the device, computes in ``dtype`` without gradients, and brings float32 rows
    back. ``rows`` makes rows of the targets from all rows of a block. ``needs_edges``: a block's first target must have
    an edge. The others: see ``atta.client.inference.block.Layer``."""

    def __init__(
        self,
        rows: RowsOf,
        device: torch.device,
        *,
        hops: int = 1,
        degrees: DegreeRule | None = None,
        edge_arguments: Sequence[str] = (),
        row_per_edge: bool = True,
        needs_edges: bool = False,
        dtype: torch.dtype = torch.float32,
        sums: SummedLayer | None = None,
    ) -> None:
        self.rows, self._device, self.dtype, self.sums = rows, device, dtype, sums
        self.hops, self.degrees, self.edge_arguments = hops, degrees, tuple(edge_arguments)
        self.row_per_edge, self.needs_edges = row_per_edge, needs_edges

    @torch.no_grad()
    def __call__(self, block: LayerBlock) -> Floats:
        whole = with_company(block) if self.needs_edges else block
        out = self.rows(torch.from_numpy(np.require(whole.x, requirements="W")).to(self._device, self.dtype), whole)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"it returns {type(out).__name__}, not a tensor")
        found: Floats = out.float().cpu().numpy()
        return found[whole.targets - block.targets :]


def layers_of(gnn: torch.nn.Module, device: torch.device, *, hidden: bool = False) -> list[Layer]:
    """The layers of a model that ``whole_model`` has made, in evaluation mode and on ``device``. hidden: without what
    turns embeddings into scores, the last layer or a deep model's decoder; raises ConfigError: it is the only layer."""
    gnn.eval().to(device)
    if isinstance(gnn, DeepGNN):
        return [_deep(gnn, number, device, hidden=hidden) for number in range(len(gnn.layers))]
    convs = list(gnn.convs)  # type: ignore[arg-type]  # of PyG's BasicGNN
    if hidden and len(convs) == 1:
        raise ConfigError("a model of one layer has no embeddings: its only layer gives scores")
    acts: list[Any] = [gnn.act] * (len(convs) - 1) + [None]
    layers: list[Layer] = [_conv(conv, act, device) for conv, act in zip(convs, acts, strict=True)]
    return layers[:-1] if hidden else layers


def _conv(conv: Any, act: Callable[[torch.Tensor], torch.Tensor] | None, device: torch.device) -> TorchLayer:
    of_gcn = type(conv) is GCNConv
    degrees = gcn_degrees(conv) if of_gcn else None

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        out = gcn_rows(conv, degrees, x, block) if of_gcn else pair_rows(conv, x, block)
        return out if act is None else act(out)

    in_rows = of_gcn or row_aggregate(conv, device) is not None
    return TorchLayer(rows, device, degrees=degrees, row_per_edge=not in_rows, sums=layer_sums(conv, device, act))


def pair_rows(conv: Any, x: torch.Tensor, block: LayerBlock, **edge_rows: torch.Tensor) -> torch.Tensor:
    """What a layer gives that is called as ``conv((x, x[:n]), edge_index)``."""
    if not edge_rows and (aggregate := row_aggregate(conv, x.device)):
        source, target = (torch.from_numpy(np.require(ends, requirements="W")) for ends in block.edge_index)
        summed, own = neighbor_sums(x, row_starts(target, block.targets), source, aggregate)
        return first_layer(conv, own, summed)
    found: torch.Tensor = conv((x, x[: block.targets]), edges_of(block, x.device), **edge_rows)
    return found


def edges_of(block: LayerBlock, device: torch.device) -> torch.Tensor:
    """int64 [2, e]: the edges of a block."""
    return torch.from_numpy(np.ascontiguousarray(np.require(block.edge_index, requirements="W"))).to(device)


def is_stock_gcn(conv: torch.nn.Module) -> bool:
    """Whether ``gcn_rows`` gives what a layer gives: it sums up rows first, so the weights must have no constant."""
    return type(conv) is GCNConv and is_stock(conv) and isinstance(conv.lin, Linear) and conv.lin.bias is None


def gcn_degrees(conv: GCNConv, weights: str | None = None) -> DegreeRule | None:
    """The in-degrees by which a layer scales rows, of edges with these weights; None: it does not."""
    # A self-loop counts twice with improved=True, but for PyG only where edges have weights.
    if not conv.normalize:
        return None
    loop = 2.0 if conv.improved and weights is not None else 1.0
    return DegreeRule(loop if conv.add_self_loops else None, weights)


def gcn_rows(
    conv: GCNConv, degrees: DegreeRule | None, x: torch.Tensor, block: LayerBlock, weights: str | None = None
) -> torch.Tensor:
    """``GCNConv`` with degrees of the whole graph; rows are summed up before the weights. ``weights``: which of
    ``block.edge_rows`` edges have; those of sampled batches are weighed already."""
    dtype = np.float64 if x.dtype == torch.float64 else np.float32
    source, target = block.edge_index
    values = np.ones(len(source), dtype) if weights is None else block.edge_rows[weights].reshape(-1).astype(dtype)
    loops, other = None, source != target
    if block.weights is not None:
        values = block.weights.astype(dtype)
        loops = np.bincount(target[~other], values[~other], minlength=block.targets)[: block.targets]
    elif degrees is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = 1 / np.sqrt(block.degrees[degrees].astype(dtype))
        scale[np.isinf(scale)] = 0
        if degrees.loop is not None:
            loops = (self_loops(block, degrees.loop, values) * scale**2)[: block.targets]
        values = values * scale[source] * scale[target]
    if loops is not None:
        source, target, values = source[other], target[other], values[other]
    sources, targets = (torch.from_numpy(ends.astype(np.int64)) for ends in (source, target))
    matrix = adjacency(sources, targets, torch.from_numpy(values), (block.targets, len(block.x)))
    summed = matrix.to(x.device) @ x
    if loops is not None:
        summed = summed + torch.from_numpy(loops[:, None]).to(x) * x[: block.targets]
    found: torch.Tensor = conv.lin(summed)
    return found if conv.bias is None else found + conv.bias


def _deep(gnn: DeepGNN, number: int, device: torch.device, *, hidden: bool) -> TorchLayer:
    """Layer ``number`` with its residual; the first one with the encoder, the last one with the decoder."""
    layer: Any = gnn.layers[number]
    first: Any = gnn.layers[0]

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        h = pair_rows(layer.conv, layer.act(layer.norm(x)) if number else gnn.encoder(x), block)
        h = x[: block.targets] + h if number else h
        if number < len(gnn.layers) - 1:
            return h
        return cast(torch.Tensor, first.act(first.norm(h))) if hidden else gnn.scores(h)

    return TorchLayer(rows, device)


def saved_model(saved: SavedModel, channels: int) -> torch.nn.Module:
    """The model of a checkpoint with its weights, for features of ``channels`` numbers. Raises DataError: it is of others."""
    try:
        settings = saved_settings(saved)
        last = ("decoder.", f"convs.{settings.depth - 1}.")
        biases = (t for name, t in saved.weights.items() if name.startswith(last) and name.endswith("bias"))
        model = whole_model(settings, channels, len(next(biases)))  # the graph to predict on need not have labels
        fill(model, {n: t for n, t in saved.weights.items() if not n.startswith(DECODER)}, saved.path)
    except (*UNFIT, StopIteration) as error:
        raise DataError(saved.path, f"does not fit this version: {' '.join(str(error).split())}") from error
    return model


def saved_settings(saved: SavedModel) -> TrainSettings:
    """What a checkpoint says of its model's shape; raises one of ``UNFIT``."""
    depth, hidden, heads = (int(saved.shape[name]) for name in ("depth", "hidden", "heads"))
    return TrainSettings(model=str(saved.shape["model"]), hidden=hidden, heads=heads, layers=depth)


def digest_of(modules: Iterable[torch.nn.Module]) -> str:
    """Hexadecimal digest of what modules are and of all their weights."""
    found = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, part in module.named_modules():  # PyG's texts leave some settings out
            settings = sorted((key, repr(value)) for key, value in vars(part).items() if _is_setting(key, value))
            found.update(f"{name} {type(part).__qualname__} {settings}".encode())
        found.update(repr(module).encode())
        for name, tensor in module.state_dict().items():
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _is_setting(name: str, value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    plain = all(part is None or isinstance(part, bool | int | float | str) for part in parts)
    return plain and not name.startswith("_") and name != "training"
