"""The layers of a user's own model, for inference: how each is called is found by trying it on a small graph."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch_geometric.nn import GCNConv, MessagePassing, SGConv

from atta.client.inference.block import Doubles, Floats, Layer, LayerBlock, SummedLayer
from atta.client.inference.trial import CANNOT, LayerFault, tried
from atta.errors import ConfigError, UnknownNameError
from atta.partition.schema import TableSpec
from atta.train.models.layers import TorchLayer, edges_of, gcn_degrees, gcn_rows, is_stock_gcn, pair_rows
from atta.train.models.sums import is_stock, layer_sums, row_aggregate

MOST_HOPS = 4
"""How far a layer may read."""
_FINAL = ("random", "reverse", "order", "others")
"""Faults that a layer has however it is called."""
_NO_INPUT = ("time", "y")
"""Edge tables that layers hardly read: they say when an edge came, and what is to be predicted."""


def own_layers(
    modules: Sequence[Any] | torch.nn.Module,
    device: torch.device,
    channels: int,
    known: Mapping[str, TableSpec],
    edge_tables: Mapping[str, str] | None,
) -> tuple[list[Layer], list[int]]:
    """The layers of a user's model, put into evaluation mode and on ``device``, and the widths of rows before and after.

    A module is called as ``module((x, x[:n]), edge_index)``, the first n rows being those to compute, or where it does not
    take this as ``module(x, edge_index)``. One that takes only rows, such as ``ReLU``, belongs to the layer before it.

    channels: numbers per row of the features; known: the graph's edge tables; edge_tables: names of those by argument of
    modules; None: the user has not said. Raises ConfigError: something is no module, none reads neighbours, or one's rows
    cannot be computed block by block; UnknownNameError: there is no such edge table.
    """
    own = _listed(modules, device)
    tables = {} if edge_tables is None else _checked(edge_tables, known, own)
    parts, widths = [], [channels]
    for module in own:
        layer, width = module.chosen(widths[-1], tables)
        if edge_tables is None:
            module.check_untold(known)
        if edge_tables is None or tables:
            module.check_weights(layer, widths[-1], tables)
        parts.append(layer)
        widths.append(width)
    readers = [number for number, part in enumerate(parts) if part.hops]
    if not readers:
        raise ConfigError("a model needs at least one layer that reads neighbours")
    bounds = [0, *readers[1:], len(parts)]
    layers: list[Layer] = [_fused(parts[start:end]) for start, end in pairwise(bounds)]
    return layers, [widths[end] for end in bounds]


def _listed(modules: Sequence[Any] | torch.nn.Module, device: torch.device) -> list[_OwnModule]:
    if isinstance(modules, torch.nn.Module) and not isinstance(modules, torch.nn.Sequential | torch.nn.ModuleList):
        raise ConfigError(f"{type(modules).__name__}: give a model's layers, first to last, as a list")
    found = []
    for number, module in enumerate(modules, 1):
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"layer {number}: {type(module).__name__} is not a torch module")
        title = f"layer {number} ({type(module).__name__})"
        found += [_OwnModule(title, part.eval().to(device), device) for part in _by_hop(module)]
    return found


def _by_hop(module: Any) -> list[torch.nn.Module]:
    """``SGConv`` as a layer per hop, which gets in-degrees of the whole graph; others as they are."""
    stock = type(module) is SGConv and is_stock(module) and not module.cached and not is_lazy(module.lin.weight)
    if not stock or module.aggr not in ("add", "sum") or module.flow != "source_to_target":
        return [module]
    outputs, inputs = module.lin.weight.shape
    first, last = (GCNConv(inputs, n, add_self_loops=module.add_self_loops, bias=False) for n in (inputs, outputs))
    first.lin.weight = torch.nn.Parameter(torch.eye(inputs, dtype=module.lin.weight.dtype))
    last.lin.weight, last.bias = module.lin.weight, module.lin.bias
    return [*[first] * (module.K - 1), last]


def _checked(
    edge_tables: Mapping[str, str], known: Mapping[str, TableSpec], own: Sequence[_OwnModule]
) -> dict[str, TableSpec]:
    if not isinstance(edge_tables, Mapping):
        raise ConfigError(f"edge_tables {edge_tables!r}: must be such as {{'edge_weight': 'weight'}}")
    for argument, table in edge_tables.items():
        if not isinstance(table, str) or table not in known:
            raise UnknownNameError.of("edge table", str(table), known)
        if not any(module.takes(argument) for module in own):
            raise ConfigError(f"edge_tables: no layer takes {argument}")
    return {argument: known[table] for argument, table in edge_tables.items()}


def _fused(parts: Sequence[TorchLayer]) -> TorchLayer:
    """One layer of several, of which at most one reads neighbours."""
    (reader,) = [part for part in parts if part.hops] or parts[:1]

    def rows(x: torch.Tensor, block: LayerBlock) -> torch.Tensor:
        for part in parts:
            x = part.rows(x, block)
        return x

    fused = copy.copy(reader)
    fused.rows = rows
    fused.dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    if reader is not parts[0]:
        fused.sums = None
    elif reader.sums is not None and len(parts) > 1:
        fused.sums = replace(reader.sums, update=partial(_updated, reader.sums, _fused(parts[1:])))
    return fused


def _updated(sums: SummedLayer, after: TorchLayer, rows: Floats, totals: Doubles, degrees: Floats | None) -> Floats:
    found = sums.update(rows, totals, degrees)
    return after(LayerBlock(found, np.empty((2, 0), np.int64), len(found)))


@dataclass(frozen=True)
class _OwnModule:
    """A module of a user's model, in evaluation mode and on its device."""

    title: str
    module: Any
    device: torch.device

    def chosen(self, channels: int, edge_tables: Mapping[str, TableSpec]) -> tuple[TorchLayer, int]:
        """The way to call it that gives right rows in any block, and their width."""
        tables = {name: table for name, table in edge_tables.items() if self.takes(name)}
        self._check(tables)
        faults = []
        for called, layer in self._ways([*tables]):
            verdict = tried(layer, channels, tables)
            if verdict.fault is None:
                layer.needs_edges = verdict.needs_edges
                if layer.hops == 1 and not layer.edge_arguments:
                    layer.sums = layer_sums(self.module, self.device)
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
        if self._sums_first:
            weights = arguments[0] if arguments else None
            degrees = gcn_degrees(module, weights)
            rows = partial(gcn_rows, module, degrees, weights=weights)
            yield "layer(x, edge_index)", layer(rows, degrees=degrees, row_per_edge=False)
            return
        per_edge = row_aggregate(module, self.device) is None
        yield "layer((x, x[:n]), edge_index)", layer(partial(_paired, module), row_per_edge=per_edge)
        for hops in range(1, MOST_HOPS + 1):
            yield "layer(x, edge_index)", layer(partial(_alike, module), hops=hops)

    def _check(self, tables: Mapping[str, TableSpec]) -> None:
        """Refuse what no trial would explain."""
        module, names = self.module, [*self._parameters]
        if self._sums_first and (module.aggr not in ("add", "sum") or module.flow != "source_to_target"):
            raise ConfigError(f"{self.title}: takes aggr='add' and flow='source_to_target'")
        cached = [type(part).__name__ for part in module.modules() if getattr(part, "cached", None) is True]
        if cached and not self._sums_first:
            raise ConfigError(
                f"{self.title}: cached=True of {cached[0]} keeps what it computed on the first edges for all others: "
                "make it with cached=False, its weights are the same"
            )
        if by_type := [name for name in self._signature if name.endswith("_dict")]:
            raise ConfigError(f"{self.title} takes {by_type[0]}: it is made for graphs with several types")
        if self._reads_edges and len(names) > 1:
            edges = "edge_index" if "edge_index" in names else names[1]
            if missing := [name for name in self._required if name not in (names[0], edges, *tables)]:
                raise ConfigError(
                    f"{self.title} needs {' and '.join(missing)} beside rows and edges: only what edges have can be "
                    f"given, edge_tables={{{missing[0]!r}: NAME}}"
                )

    def check_untold(self, known: Mapping[str, TableSpec]) -> None:
        """Refuse to guess whether a module was trained with one of the graph's edge tables."""
        takes, there = self._edge_arguments, [name for name in known if name not in _NO_INPUT]
        if takes and there:
            raise ConfigError(
                f"{self.title} takes {' or '.join(takes)}, and edges have {', '.join(there)}: say what it was trained "
                f"with, edge_tables={{{takes[0]!r}: {there[0]!r}}}, or edge_tables={{}} for nothing"
            )

    def check_weights(self, layer: TorchLayer, channels: int, tables: Mapping[str, TableSpec]) -> None:
        """Refuse a module that has weights for rows of edges which it does not get."""
        given = {name: np.ones((3, *tables[name].row_shape), tables[name].dtype) for name in layer.edge_arguments}
        degrees = {} if layer.degrees is None else {layer.degrees: np.ones(3, np.float32)}
        rows = np.random.default_rng(0).random((3, channels), np.float32)
        block = LayerBlock(rows, np.array([[1, 2, 0], [0, 0, 1]]), 3, degrees, given)
        for name in self._edge_arguments:
            idle = None if name in given else _idle_weight(layer, self.module, block, name, self.device)
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

    @cached_property
    def _sums_first(self) -> bool:
        return is_stock_gcn(self.module)

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.module.forward).parameters
        except (TypeError, ValueError):
            return {}

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those without ``*args`` and ``**kwargs``."""
        variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        return {name: p for name, p in self._signature.items() if p.kind not in variable}

    @property
    def _edge_arguments(self) -> list[str]:
        """Those that it takes rows of edges by."""
        return [name for name in self._parameters if name.startswith("edge_") and not name.startswith("edge_index")]

    @property
    def _required(self) -> list[str]:
        return [name for name, p in self._parameters.items() if p.default is inspect.Parameter.empty]

    def takes(self, name: str) -> bool:
        """Whether it takes rows of edges by the argument ``name``."""
        found = self._signature
        return name in found or any(p.kind == inspect.Parameter.VAR_KEYWORD for p in found.values())

    @property
    def _reads_edges(self) -> bool:
        where = type(self.module).__module__
        of_torch, of_pyg = (where.startswith(f"{name}.") for name in ("torch.nn", "torch_geometric"))
        passes = any(isinstance(part, MessagePassing) for part in self.module.modules())
        if of_torch or (of_pyg and not passes and len(self._required) == 1):
            return False
        several = any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in self._signature.values())
        return several or len(self._parameters) != 1


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
    if computes := [fault for _, fault in faults if fault.kind not in ("raises", "shape")]:
        return computes[-1].cause
    said = {fault.cause: called for called, fault in reversed(faults)}
    each = "; ".join(f"called as {called} it {cause}" for cause, called in reversed(said.items()))
    return f"does not take rows of {channels} numbers: {each}"


def _idle_weight(
    layer: TorchLayer, module: torch.nn.Module, block: LayerBlock, argument: str, device: torch.device
) -> str | None:
    """The name of a weight that a module uses only if it gets rows of edges as ``argument``, too; None: it has none."""
    idle = _unread_weights(layer, module, block, device)
    if not idle:
        return None
    edges = block.edge_index.shape[1]
    widths = {n for name, weight in module.named_parameters() if name in idle for n in weight.shape}
    given = [np.ones(shape, np.float32) for shape in [(edges,), *((edges, width) for width in sorted(widths))]]
    blocks = [replace(block, edge_rows={**block.edge_rows, argument: rows}) for rows in given]
    still = [left for one in blocks if (left := _unread_weights(layer, module, one, device)) is not None]
    woken = [name for name in idle if any(name not in left for left in still)]
    return woken[0] if woken else None if still else idle[0]


def _unread_weights(
    layer: TorchLayer, module: torch.nn.Module, block: LayerBlock, device: torch.device
) -> list[str] | None:
    """The weights of a module that no row of a block depends on; None: it does not take the block."""
    weights = {name: w for name, w in module.named_parameters() if w.is_floating_point()}
    frozen = [w for w in weights.values() if not w.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with torch.enable_grad():
            total = layer.rows(torch.from_numpy(block.x).to(device, layer.dtype), block).sum()
            if not total.requires_grad:
                return [*weights]
            found = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
    except CANNOT:
        return None
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    return [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
