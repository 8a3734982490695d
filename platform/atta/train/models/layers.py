"""Models as lists of layers, for inference layer by layer (``atta.client.inference``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GCNConv, MessagePassing, SAGEConv

from atta.client.inference.block import Floats, Layer, LayerBlock
from atta.errors import ConfigError, DataError
from atta.train.checkpoint import SavedModel
from atta.train.models import whole_model
from atta.train.models.deep import DeepGNN
from atta.train.models.links import DECODER
from atta.train.models.matrix import adjacency
from atta.train.settings import TrainSettings

__all__ = ["TorchLayer", "digest_of", "layers_of", "saved_model", "wrapped"]

Rows = Callable[[torch.Tensor, LayerBlock], torch.Tensor]


class TorchLayer:
    """A layer of torch: moves a block to the device, computes without gradients, and brings the rows back.

    Attributes:
        needs_degrees, row_per_edge: see ``atta.client.inference.block.Layer``.
    """

    def __init__(
        self, rows: Rows, device: torch.device, *, needs_degrees: bool = False, row_per_edge: bool = True
    ) -> None:
        """``rows``: makes rows of the targets from all rows of a block, which are on ``device`` already."""
        self._rows, self._device = rows, device
        self.needs_degrees, self.row_per_edge = needs_degrees, row_per_edge

    @torch.no_grad()
    def __call__(self, block: LayerBlock) -> Floats:
        """See ``Layer``."""
        x = torch.from_numpy(np.require(block.x, requirements="W")).to(self._device)
        out = self._rows(x, block)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"it returns {type(out).__name__}, not a tensor")
        found: Floats = out.float().cpu().numpy()
        return found


def layers_of(gnn: torch.nn.Module, device: torch.device, *, hidden: bool = False) -> list[Layer]:
    """The layers of a model that ``whole_model`` has made, in evaluation mode and on ``device``.

    hidden: leave out what turns rows into scores. Then the last layer's rows are the embeddings: what the last layer
        reads, or, for deep models, what their linear decoder reads.

    Raises:
        ConfigError: without its only layer a model has no rows of hidden values.
    """
    gnn.eval().to(device)
    if isinstance(gnn, DeepGNN):
        return [_deep(gnn, number, device, hidden=hidden) for number in range(len(gnn.layers))]
    convs = list(gnn.convs)  # type: ignore[arg-type]  # of PyG's BasicGNN
    if hidden and len(convs) == 1:
        raise ConfigError("a model of one layer has no embeddings: its only layer gives scores")
    act: Any = gnn.act
    last = len(convs) - 1
    layers: list[Layer] = [_conv(conv, None if number == last else act, device) for number, conv in enumerate(convs)]
    return layers[:-1] if hidden else layers


def wrapped(modules: Sequence[Any] | torch.nn.Module, device: torch.device) -> list[Layer]:
    """The layers of a user's model, put into evaluation mode and on ``device``.

    A module is called as ``module((x, x[:n]), edge_index)`` with the rows that it reads, of which the first n are those
    of the vertices to compute. PyG's layers that can tell sources from targets take this. Modules of ``torch.nn``, such
    as ``ReLU``, are called on the rows alone and belong to the layer before them.

    Raises:
        ConfigError: something is no module, or no module reads neighbours.
    """
    if isinstance(modules, torch.nn.Module):
        if not isinstance(modules, torch.nn.Sequential | torch.nn.ModuleList):
            raise ConfigError(f"{type(modules).__name__}: give a model's layers, first to last, as a list")
        modules = [*modules]
    layers: list[Layer] = []
    before: list[torch.nn.Module] = []
    reader: torch.nn.Module | None = None
    after: list[torch.nn.Module] = []
    for number, module in enumerate(modules, 1):
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"layer {number}: {type(module).__name__} is not a torch module")
        module.eval().to(device)
        if type(module).__module__.startswith("torch.nn."):
            (before if reader is None else after).append(module)
            continue
        of_pyg = type(module).__module__.startswith("torch_geometric.")
        if of_pyg and not any(isinstance(part, MessagePassing) for part in module.modules()):
            raise ConfigError(
                f"layer {number}: {type(module).__name__} of PyG reads no neighbours; between layers take modules of torch.nn"
            )
        if reader is not None:
            layers.append(_fused(before, reader, after, device))
            before, after = [], []
        reader = module
    if reader is None:
        raise ConfigError("a model needs at least one layer that reads neighbours")
    return [*layers, _fused(before, reader, after, device)]


def _fused(
    before: Sequence[torch.nn.Module], reader: torch.nn.Module, after: Sequence[torch.nn.Module], device: torch.device
) -> TorchLayer:
    return _conv(reader, torch.nn.Sequential(*after), device, torch.nn.Sequential(*before))


def _conv(
    conv: Any,
    act: Callable[[torch.Tensor], torch.Tensor] | None,
    device: torch.device,
    first: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> TorchLayer:
    gcn = type(conv) is GCNConv
    if gcn and (conv.improved or not conv.add_self_loops or not conv.normalize):
        raise ConfigError("GCNConv: inference layer by layer takes improved=False, add_self_loops and normalize")
    if gcn and (conv.aggr not in ("add", "sum") or conv.flow != "source_to_target"):
        raise ConfigError("GCNConv: inference layer by layer takes aggr='add' and flow='source_to_target'")

    ordered = [type(part).__name__ for part in conv.modules() if isinstance(part, torch.nn.RNNBase)]
    if ordered:
        raise ConfigError(
            f"{type(conv).__name__}: its {ordered[0]} depends on the order of neighbours, which is not kept"
        )

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        x = x if first is None else first(x)
        out: torch.Tensor = _gcn(conv, x, block) if gcn else _pair(conv, x, block)
        return out if act is None else act(out)

    return TorchLayer(rows, device, needs_degrees=gcn, row_per_edge=not gcn and not _sums(conv, device))


def _pair(conv: Any, x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
    source, target = (torch.from_numpy(np.require(ends, requirements="W")) for ends in block.edge_index)
    targets = x[: block.targets]
    if _sums(conv, x.device):
        ones = torch.ones(len(source), dtype=x.dtype)
        matrix = adjacency(source, target, ones, (block.targets, len(block.x)))
        try:
            summed: torch.Tensor = conv((x, targets), matrix)
            return summed
        except NotImplementedError:
            pass  # PyG makes code per class, and the first layer of this process made some that reads lists of edges only
    found: torch.Tensor = conv((x, targets), torch.stack([source, target]).to(x.device))
    return found


def _sums(conv: Any, device: torch.device) -> bool:
    """Whether PyG sums up rows of the layer as a sparse matrix reads them."""
    return type(conv) is SAGEConv and conv.aggr in ("add", "sum", "mean") and device.type == "cpu"


def _gcn(conv: GCNConv, x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
    """``GCNConv`` with degrees of the whole graph. Rows are summed up before the weights, which is the same and less.

    As PyG's ``gcn_norm`` does, one self-loop of weight 1 takes the place of any that are there.
    """
    source, target = (torch.from_numpy(ends.astype(np.int64)) for ends in block.edge_index)
    other = source != target
    if block.weights is not None:
        given = torch.from_numpy(block.weights).to(x.dtype)
        weights, loops = given[other], torch.zeros(block.targets, dtype=x.dtype)
        loops.index_add_(0, target[~other], given[~other])
    else:
        assert block.degrees is not None, "the layer asks for degrees"
        scale = torch.from_numpy(1 / np.sqrt(block.degrees + 1)).to(x.dtype)
        weights, loops = scale[source[other]] * scale[target[other]], scale[: block.targets] ** 2
    matrix = adjacency(source[other], target[other], weights, (block.targets, len(block.x)))
    summed = matrix.to(x.device) @ x + loops[:, None].to(x.device) * x[: block.targets]
    found: torch.Tensor = conv.lin(summed)
    return found if conv.bias is None else found + conv.bias


def _deep(gnn: DeepGNN, number: int, device: torch.device, *, hidden: bool) -> TorchLayer:
    """Layer ``number`` with its residual; the first one with the encoder, the last one with the decoder."""
    layer: Any = gnn.layers[number]
    first: Any = gnn.layers[0]

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        if number == 0:
            x = gnn.encoder(x)
            h = _pair(layer.conv, x, block)
        else:
            h = x[: block.targets] + _pair(layer.conv, layer.act(layer.norm(x)), block)
        if number < len(gnn.layers) - 1:
            return h
        if hidden:
            kept: torch.Tensor = first.act(first.norm(h))
            return kept
        return gnn.scores(h)

    return TorchLayer(rows, device)


def saved_model(saved: SavedModel, channels: int) -> torch.nn.Module:
    """The model of a checkpoint with its weights, for features of ``channels`` numbers.

    Raises:
        DataError: it was trained on other features, or the checkpoint names no model that this version knows.
    """
    try:
        kind, depth = str(saved.shape["model"]), int(saved.shape["depth"])
        settings = TrainSettings(
            model=kind, hidden=int(saved.shape["hidden"]), heads=int(saved.shape["heads"]), layers=depth
        )
        model = whole_model(settings, channels, _classes(saved, depth))
        model.load_state_dict({name: t for name, t in saved.weights.items() if not name.startswith(DECODER)})
    except (RuntimeError, KeyError, ValueError, TypeError, StopIteration) as error:
        cause = " ".join(str(error).split())
        raise DataError(saved.path, f"does not fit {channels} features per vertex, or this version: {cause}") from error
    return model


def _classes(saved: SavedModel, depth: int) -> int:
    """The width of the last bias: the graph to predict on need not have labels."""
    last = ("decoder.", f"convs.{depth - 1}.")
    return next(len(t) for name, t in saved.weights.items() if name.startswith(last) and name.endswith("bias"))


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
