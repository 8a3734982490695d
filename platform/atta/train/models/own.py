"""The layers of a user's own model, for inference: how each is called is found by trying it on a small graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GCNConv, MessagePassing

from atta.client.inference.block import Layer, LayerBlock
from atta.client.inference.trial import CANNOT, LayerFault, tried
from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.train.models.layers import TorchLayer, edges_of, gcn_degrees, gcn_rows, pair_rows, sums_rows

__all__ = ["own_layers"]

MOST_HOPS = 4
"""How far a layer may read."""
_FINAL = ("random", "order", "others")
"""Faults that a layer has however it is called."""


def own_layers(
    modules: Sequence[Any] | torch.nn.Module,
    device: torch.device,
    channels: int,
    edge_tables: Mapping[str, TableSpec] | None = None,
    known_tables: Sequence[str] = (),
) -> tuple[list[Layer], list[int]]:
    """The layers of a user's model, put into evaluation mode and on ``device``, and the widths of rows before and after.

    A module is called as ``module((x, x[:n]), edge_index)`` with the rows that it reads, of which the first n are those
    of the vertices to compute, or where it does not take this as ``module(x, edge_index)``. A module that takes only
    rows, such as ``ReLU``, is called on them and belongs to the layer before it.

    Args:
        modules: first to last.
        device: that they compute on.
        channels: numbers per row of the features.
        edge_tables: by argument of modules the table that it gets; None: the user has not said.
        known_tables: names of the graph's edge tables.

    Raises:
        ConfigError: something is no module, no module reads neighbours, or a module's rows cannot be computed block by
            block.
    """
    if isinstance(modules, torch.nn.Module):
        if not isinstance(modules, torch.nn.Sequential | torch.nn.ModuleList):
            raise ConfigError(f"{type(modules).__name__}: give a model's layers, first to last, as a list")
        modules = [*modules]
    own = [_own(number, module, device) for number, module in enumerate(modules, 1)]
    for name in edge_tables or ():
        if not any(module.takes(name) for module in own):
            raise ConfigError(f"edge_tables: no layer takes {name}")
    parts, width, widths = [], channels, [channels]
    for module in own:
        layer, width = module.chosen(width, edge_tables, known_tables)
        parts.append(layer)
        widths.append(width)
    readers = [number for number, part in enumerate(parts) if part.hops]
    if not readers:
        raise ConfigError("a model needs at least one layer that reads neighbours")
    ends = [*readers[1:], len(parts)]
    starts = [0, *readers[1:]]
    layers = [_fused(parts[start:end], device) for start, end in zip(starts, ends, strict=True)]
    return [*layers], [channels, *(widths[end] for end in ends)]


def _own(number: int, module: Any, device: torch.device) -> _OwnModule:
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"layer {number}: {type(module).__name__} is not a torch module")
    return _OwnModule(f"layer {number} ({type(module).__name__})", module.eval().to(device), device)


def _fused(parts: Sequence[TorchLayer], device: torch.device) -> TorchLayer:
    """One layer of several, of which one reads neighbours."""
    (reader,) = (part for part in parts if part.hops)

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        for part in parts:
            x = part.rows(x, block)
        return x

    return TorchLayer(
        rows,
        device,
        hops=reader.hops,
        degrees=reader.degrees,
        edge_arguments=reader.edge_arguments,
        row_per_edge=reader.row_per_edge,
        needs_edges=reader.needs_edges,
        dtype=torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32,
    )


@dataclass(frozen=True)
class _OwnModule:
    """A module of a user's model, in evaluation mode and on its device."""

    title: str
    module: Any
    device: torch.device

    def chosen(
        self, channels: int, edge_tables: Mapping[str, TableSpec] | None, known: Sequence[str]
    ) -> tuple[TorchLayer, int]:
        """The way to call it that gives right rows in any block, and their width."""
        tables = {name: t for name, t in (edge_tables or {}).items() if self.takes(name)}
        self._check(tables)
        faults = []
        for called, layer in self._ways([*tables]):
            verdict = tried(layer, channels, tables)
            if verdict.fault is None:
                layer.needs_edges = verdict.needs_edges
                if edge_tables is None or (edge_tables and not tables):
                    self._check_edge_data(layer, channels, known if edge_tables is None else [])
                return layer, verdict.width
            faults.append((called, verdict.fault))
            if verdict.fault.kind in _FINAL:
                break
        raise ConfigError(f"{self.title} {_cause(faults, channels)}{self._remedy(faults[-1][1], tables)}")

    def _ways(self, arguments: Sequence[str]) -> Iterator[tuple[str, TorchLayer]]:
        """How it may be called, the way that reads least first."""
        module, dtype = self.module, _dtype(self.module)
        layer = partial(TorchLayer, device=self.device, edge_arguments=arguments, dtype=dtype)
        if not self._reads_edges:
            yield "layer(x)", layer(lambda x, block: module(x), hops=0, row_per_edge=False)
            return
        if type(module) is GCNConv:
            weights = arguments[0] if arguments else None
            degrees = gcn_degrees(module, weights)
            rows = partial(gcn_rows, module, degrees, weights=weights)
            yield "layer(x, edge_index)", layer(rows, degrees=degrees, row_per_edge=False)
            return
        in_rows = sums_rows(module, self.device)
        yield "layer((x, x[:n]), edge_index)", layer(partial(_paired, module), row_per_edge=not in_rows)
        for hops in range(1, MOST_HOPS + 1):
            yield "layer(x, edge_index)", layer(partial(_alike, module), hops=hops)

    def _check(self, tables: Mapping[str, TableSpec]) -> None:
        """Refuse what no trial would explain."""
        module, names = self.module, [*self._parameters]
        if type(module) is GCNConv and (module.aggr not in ("add", "sum") or module.flow != "source_to_target"):
            raise ConfigError(f"{self.title}: takes aggr='add' and flow='source_to_target'")
        cached = [type(part).__name__ for part in module.modules() if getattr(part, "cached", None) is True]
        if cached and type(module) is not GCNConv:
            raise ConfigError(
                f"{self.title}: cached=True of {cached[0]} keeps what it computed on the first edges for all others: "
                "make it with cached=False, its weights are the same"
            )
        by_type = [name for name in inspect.signature(module.forward).parameters if name.endswith("_dict")]
        if by_type:
            raise ConfigError(f"{self.title} takes {by_type[0]}: it is made for graphs with several types")
        if self._reads_edges and len(names) > 1:
            edges = "edge_index" if "edge_index" in names else names[1]
            missing = [name for name in self._required if name not in (names[0], edges, *tables)]
            if missing:
                raise ConfigError(
                    f"{self.title} needs {' and '.join(missing)} beside rows and edges: only what edges have can be "
                    f"given, edge_tables={{{missing[0]!r}: NAME}}"
                )

    def _check_edge_data(self, layer: TorchLayer, channels: int, known: Sequence[str]) -> None:
        """Refuse to compute without edge tables a module that may have been trained with some."""
        takes = self._edge_arguments
        if known and takes:
            raise ConfigError(
                f"{self.title} takes {' or '.join(takes)}, and edges have {', '.join(known)}: say what it was trained "
                f"with, edge_tables={{{takes[0]!r}: {known[0]!r}}}, or edge_tables={{}} for nothing"
            )
        for name in takes:
            idle = _idle_weight(layer, self.module, name, channels, self.device)
            if idle is not None:
                raise ConfigError(
                    f"{self.title} has weights for {name} ({idle}), which it would not use: give "
                    f"edge_tables={{{name!r}: NAME}}, or edge_tables={{}} if it was trained without"
                )

    def _remedy(self, fault: LayerFault, tables: Mapping[str, TableSpec]) -> str:
        without = [name for name in self._edge_arguments if name not in tables]
        if fault.kind != "raises" or not without:
            return ""
        return f"; it takes {' or '.join(without)}, too: edge_tables={{{without[0]!r}: NAME}}"

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """Of its ``forward``, by name."""
        variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        found = inspect.signature(self.module.forward).parameters
        return {name: p for name, p in found.items() if p.kind not in variable}

    @property
    def _edge_arguments(self) -> list[str]:
        """Those that it takes rows of edges by."""
        return [name for name in self._parameters if name.startswith("edge_") and not name.startswith("edge_index")]

    @property
    def _required(self) -> list[str]:
        return [name for name, p in self._parameters.items() if p.default is inspect.Parameter.empty]

    def takes(self, name: str) -> bool:
        """Whether it takes rows of edges by the argument ``name``."""
        found = inspect.signature(self.module.forward).parameters
        return name in found or any(p.kind == inspect.Parameter.VAR_KEYWORD for p in found.values())

    @property
    def _reads_edges(self) -> bool:
        """Whether it is called with edges, too."""
        where = type(self.module).__module__
        of_torch, of_pyg = (where.startswith(f"{name}.") for name in ("torch.nn", "torch_geometric"))
        passes = any(isinstance(part, MessagePassing) for part in self.module.modules())
        if of_torch or (of_pyg and not passes and len(self._required) == 1):
            return False
        found = inspect.signature(self.module.forward).parameters.values()
        return len(self._parameters) != 1 or any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in found)


def _paired(module: Any, x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
    return pair_rows(module, x, block, **_edge_rows(x, block))


def _alike(module: Any, x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
    """What a layer gives that computes all vertices it reads. The last ones lack in-edges: they are left out."""
    found: torch.Tensor = module(x, edges_of(block, x.device), **_edge_rows(x, block))
    whole = isinstance(found, torch.Tensor) and found.ndim > 0 and len(found) == len(x)
    return found[: block.targets] if whole else found


def _edge_rows(x: torch.Tensor, block: LayerBlock) -> dict[str, torch.Tensor]:
    """Rows of edges beside ``x``: numbers as it has them, codes as int64."""
    found = {
        name: torch.from_numpy(np.require(rows, requirements=["C", "W"])) for name, rows in block.edge_rows.items()
    }
    return {n: r.to(x.device, x.dtype if r.is_floating_point() else torch.int64) for n, r in found.items()}


def _dtype(module: torch.nn.Module) -> torch.dtype:
    tensors = chain(module.parameters(), module.buffers())
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _cause(faults: Sequence[tuple[str, LayerFault]], channels: int) -> str:
    """What is said of a module that fails in every way: how it computes, or else what it does when it is called."""
    computes = [fault for _, fault in faults if fault.kind not in ("raises", "shape")]
    if computes:
        return computes[-1].cause
    said = {fault.cause: called for called, fault in reversed(faults)}
    each = "; ".join(f"called as {called} it {cause}" for cause, called in reversed(said.items()))
    return f"does not take rows of {channels} numbers: {each}"


def _unread_weights(layer: TorchLayer, module: torch.nn.Module, block: LayerBlock, device: torch.device) -> list[str]:
    """The weights of a module that no row of a block depends on; raises what the module raises."""
    weights = {name: w for name, w in module.named_parameters() if w.is_floating_point()}
    if not weights:
        return []
    frozen = [w for w in weights.values() if not w.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with torch.enable_grad():
            total = layer.rows(torch.from_numpy(block.x).to(device, layer.dtype), block).sum()
            found = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    return [name for name, gradient in zip(weights, found, strict=True) if gradient is None]


def _idle_weight(
    layer: TorchLayer, module: torch.nn.Module, argument: str, channels: int, device: torch.device
) -> str | None:
    """The name of a weight that a module uses only if it gets rows of edges as ``argument``; None: it has none."""
    rows = np.random.default_rng(0).random((3, channels), np.float32)
    ones = {} if layer.degrees is None else {layer.degrees: np.ones(3, np.float32)}
    block = LayerBlock(rows, np.array([[1, 2, 0], [0, 0, 1]]), 3, ones)
    idle = _unread_weights(layer, module, block, device)
    widths = {n for name, weight in module.named_parameters() if name in idle for n in weight.shape}
    ran = not idle
    for shape in [(3,), *((3, width) for width in sorted(widths))]:
        of_edges = {argument: np.ones(shape, np.float32)}
        try:
            still = _unread_weights(layer, module, replace(block, edge_rows=of_edges), device)
        except CANNOT:
            continue
        ran = True
        if woken := set(idle) - set(still):
            return min(woken)
    return None if ran else idle[0]
