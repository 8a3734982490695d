"""A small graph, batches of it in the forms that models read them in, and what each layer of a model gives there."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from atta.observe.packages import load
from atta.samplers import LocalGraph, LocalSampler

WHOLE, TRIMMED, BLOCKS = "whole", "trimmed", "blocks"


class OfBlocks(torch.nn.Module):
    """A model of DGL, called as ``model(blocks, x)`` with ``hops`` blocks, the input side first."""

    def __init__(self, model: torch.nn.Module, hops: int) -> None:
        super().__init__()
        self.model, self._hops = model, hops
        self._sample: ModelInput | None = None

    def read(self, sample: ModelInput, form: str) -> None:
        """Cut the blocks of the calls that follow from ``sample``; of a whole graph each block is all of it."""
        if form == TRIMMED:
            raise NoFormError("DGL's models read blocks")
        self._sample = sample

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """[targets, ...]; raises ConfigError where DGL is missing."""
        dgl = load("a model of blocks", "dgl")
        sample, made = self._sample, []
        for done in range(self._hops):
            hops = 0 if sample is None else sample.hops - done
            nodes = (len(x), len(x)) if sample is None or hops < 1 else (sample.nodes[hops], sample.nodes[hops - 1])
            source, target = edge_index if sample is None or hops < 1 else edge_index[:, : sample.edges[hops]]
            made.append(dgl.create_block((source, target), num_src_nodes=nodes[0], num_dst_nodes=nodes[1]))
        return self.model(made, x)


class NoFormError(Exception):
    """A model cannot be called in a form."""


@dataclass(frozen=True)
class ModelInput:
    """What a model is called on: a whole graph, or a batch of it. x: [n, channels], seeds first; edge_index: int64 [2,
    e], places in ``x``; edge: [e, ...] by argument of the model; n_id: int64 [n], places in the graph; nodes, edges:
    [hops + 1], their number up to each hop, from the seeds on."""

    x: torch.Tensor
    edge_index: torch.Tensor
    edge: Mapping[str, torch.Tensor]
    n_id: torch.Tensor
    nodes: Sequence[int]
    edges: Sequence[int]

    @property
    def hops(self) -> int:
        """Number of hops around the seeds."""
        return len(self.nodes) - 1


@dataclass(frozen=True)
class SmallGraph:
    """A graph by itself: some vertices with all edges among them, in the user's order. ``edge``: [m, ...] by argument of the
    model (``edge_weight``, ``edge_attr``)."""

    x: torch.Tensor
    edge_index: torch.Tensor
    edge: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return len(self.x)

    @cached_property
    def in_degrees(self) -> torch.Tensor:
        """int64 [n]."""
        return torch.bincount(self.edge_index[1], minlength=self.num_nodes)

    def with_edges(self, edge_index: torch.Tensor, chosen: torch.Tensor) -> SmallGraph:
        """The same vertices with other edges; each has what the edge ``chosen`` of this graph has."""
        return SmallGraph(self.x, edge_index, {name: rows[chosen] for name, rows in self.edge.items()})

    def by_target(self) -> SmallGraph:
        """The same graph with its edges by target, then by source, then in their order, as batches have them."""
        order = torch.from_numpy(np.lexsort(self.edge_index.numpy()))
        return self.with_edges(self.edge_index[:, order], order)

    def whole(self) -> ModelInput:
        """The graph as a model's full forward pass reads it."""
        every = torch.arange(self.num_nodes)
        return ModelInput(self.x, self.edge_index, self.edge, every, [self.num_nodes], [self.edge_index.shape[1]])

    def batch(
        self, seeds: Sequence[int], fan_outs: Sequence[int], *, in_order: bool = False, disjoint: bool = False
    ) -> ModelInput:
        """The batch of some seeds as Atta's loaders make it. ``in_order``: the edges of a vertex stand as in this graph,
        not by source."""
        found = self._sampler.sample(np.array(seeds), fan_outs, disjoint=disjoint)
        ends, e_id = np.stack([found.row, found.col]).astype(np.int64), found.e_id.astype(np.int64)
        if in_order:
            order = np.lexsort((e_id, ends[1]))
            ends, e_id = ends[:, order], e_id[order]
        n_id, chosen = torch.from_numpy(found.n_id.astype(np.int64)), torch.from_numpy(e_id)
        nodes = np.cumsum(found.num_sampled_nodes).tolist()
        edges = np.cumsum([0, *found.num_sampled_edges]).tolist()
        rows = {name: table[chosen] for name, table in self.edge.items()}
        return ModelInput(self.x[n_id], torch.from_numpy(ends), rows, n_id, nodes, edges)

    @cached_property
    def _sampler(self) -> LocalSampler:
        source, target = self.edge_index.numpy()
        return LocalSampler(LocalGraph.from_edges(source, target, self.num_nodes))


@dataclass(frozen=True)
class PartRows:
    """What a part of a model has given, [vertices, ...], after ``done`` layers."""

    name: str
    done: int
    rows: torch.Tensor


@dataclass(frozen=True)
class ReadingLayers:
    """The parts of a model that read neighbours, ``hops`` each: modules by name, and how often they are called in all."""

    names: frozenset[str]
    calls: int
    hops: int = 1

    @classmethod
    def of(cls, model: torch.nn.Module, sample: ModelInput) -> ReadingLayers:
        """Look at one call of ``model``. What the model hands its edges to is a layer, the model itself if nothing is; what
        hands them on to several parts consists of layers."""
        root = _Call("")
        open_calls = [root]

        def enter(name: str) -> Callable[..., None]:
            def begun(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                given = any(_is_edges(value) or _is_block(value) for value in (*args, *kwargs.values()))
                call = _Call(name, given)
                open_calls[-1].inner.append(call)
                open_calls.append(call)

            return begun

        def leave(*_: Any) -> None:
            open_calls.pop()

        own = copy.deepcopy(model)
        for name, module in own.named_modules():
            module.register_forward_pre_hook(enter(name), with_kwargs=True)
            module.register_forward_hook(leave)
        _called(own, sample)
        found = root.inner[0].layers(top=True)
        return cls(frozenset(call.name for call in found), len(found))


@dataclass
class _Call:
    name: str
    has_edges: bool = False
    inner: list[_Call] = field(default_factory=list)

    def layers(self, *, top: bool = False) -> list[_Call]:
        below = [layer for call in self.inner for layer in call.layers()]
        if self.has_edges and not top:
            return below if len(below) > 1 else [self]
        return below or ([self] if top else [])


def run(
    model: torch.nn.Module,
    layers: ReadingLayers,
    sample: ModelInput,
    form: str = WHOLE,
    *,
    give: bool = False,
    first: ModelInput | None = None,
    seed: int = 0,
) -> list[PartRows]:
    """Call a copy of ``model`` on a sample and return what its parts gave, in their order; the last one is the model.

    form: ``WHOLE``: every layer reads all of it; ``TRIMMED``: as PyG's ``trim_to_layer`` leaves it; ``BLOCKS``:
    ``layer((x, x[:n]), edge_index)``. give: layers that take ``edge_weight`` or the like get that of the sample where the
    model gives none. first: what the copy is called on before. Raises NoFormError: the model does not take this form.
    """
    own = copy.deepcopy(model)
    if first is not None:
        _called(own, first)
    if isinstance(own, OfBlocks):
        own.read(sample, form)
        form = WHOLE
    seen = _Observer(own, layers, sample, form, give=give)
    out = _called(own, sample, seed)
    return [*seen.steps, PartRows("the output", seen.done, out)]


class _Observer:
    """Hooks of a model that change what its layers are given and keep what they and the parts between them return."""

    def __init__(
        self, model: torch.nn.Module, layers: ReadingLayers, sample: ModelInput, form: str, *, give: bool
    ) -> None:
        self.steps: list[PartRows] = []
        self.done = self._within = 0
        self._sample, self._form, self._hops, self._give = sample, form, layers.hops, give
        self._rows = len(sample.x)
        if form == BLOCKS and layers.hops != 1:
            raise NoFormError("a layer reads several hops")
        for name, module in model.named_modules():
            if name in layers.names:
                module.register_forward_pre_hook(self._enter, with_kwargs=True)
                module.register_forward_hook(self._leave(name))
            elif name and not any(layer.startswith(f"{name}.") for layer in layers.names):
                module.register_forward_hook(self._between(name))

    def _enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._within += 1
        if self._within > 1 or (self._form == WHOLE and not self._give):
            return None
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        if self._give:
            names = inspect.signature(module.forward).parameters
            missing = [n for n in self._sample.edge if n in names and bound.arguments.get(n) is None]
            count = next((v.num_edges() for v in bound.arguments.values() if _is_block(v)), None)
            bound.arguments.update({name: self._sample.edge[name][:count] for name in missing})
        if self._form != WHOLE:
            self._cut(bound.arguments)
        return bound.args, bound.kwargs

    def _cut(self, given: dict[str, Any]) -> None:
        """Leave the layer what it needs for the rows that later layers read."""
        sample = self._sample
        hops = max(sample.hops - self.done * self._hops, 1)
        nodes, edges, targets = sample.nodes[hops], sample.edges[hops], sample.nodes[hops - 1]
        every = sample.edge_index.shape[1]
        values = [one for value in given.values() for one in (value if isinstance(value, tuple) else [value])]
        if not any(_is_edges(value) and value.shape[1] == every for value in values):
            raise NoFormError("its edges are not those of the batch")

        def cut(value: Any, name: str = "") -> Any:
            if not isinstance(value, torch.Tensor) or not value.dim():
                return value
            if _is_edges(value):
                return value[:, :edges]
            if len(value) == every and (name.startswith("edge") or every != self._rows):
                return value[:edges]
            if len(value) not in (self._rows, len(sample.x)):
                return value
            return (value[:nodes], value[:targets]) if self._form == BLOCKS else value[:nodes]

        for name, value in given.items():
            given[name] = tuple(map(cut, value)) if isinstance(value, tuple) else cut(value, name)

    def _leave(self, name: str) -> Callable[..., None]:
        def ended(module: Any, args: Any, out: Any) -> None:
            self._within -= 1
            if self._within == 0:
                self.done += 1
                rows = _rows_of(out)
                if rows is not None and rows.dim():
                    self._rows = len(rows)
                    self.steps.append(PartRows(f"{name or 'the model'} ({type(module).__name__})", self.done, rows))

        return ended

    def _between(self, name: str) -> Callable[..., None]:
        def ended(module: Any, args: Any, out: Any) -> None:
            if self._within == 0 and isinstance(out, torch.Tensor) and out.dim() and len(out) == self._rows:
                self.steps.append(PartRows(f"{name} ({type(module).__name__})", self.done, out))

        return ended


def _called(model: torch.nn.Module, sample: ModelInput, seed: int = 0) -> torch.Tensor:
    """[n, ...], what a model says of a sample; draws of its own follow from ``seed``. Raises NoFormError."""
    known = inspect.signature(model.forward).parameters
    edge = {name: rows.clone() for name, rows in sample.edge.items() if name in known}  # it may write to what it gets
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            out = _rows_of(model(sample.x.clone(), sample.edge_index.clone(), **edge))
        except NoFormError:
            raise
        except Exception as error:  # whatever a user's model raises
            first_sentence = " ".join(str(error).split()).partition(". ")[0]
            raise NoFormError(f"{type(error).__name__}: {first_sentence[:200]}".rstrip(": ")) from None
    if out is None:
        raise NoFormError("it returns no tensor")
    return out


def _rows_of(out: Any) -> torch.Tensor | None:
    """The tensor that a model gives. Of several, those with as many rows as the first, side by side."""
    found = _tensors_of(out)
    first = found[0] if found else None
    same = [rows for rows in found if rows.dim() and first is not None and first.dim() and len(rows) == len(first)]
    if first is None or len(same) < 2:
        return first
    return torch.cat([rows.reshape(len(first), -1).to(first.dtype) for rows in same], dim=1)


def _tensors_of(out: Any) -> list[torch.Tensor]:
    if isinstance(out, tuple | list):
        return [found for part in out for found in _tensors_of(part)]
    return [out] if isinstance(out, torch.Tensor) else []


def _is_block(value: Any) -> bool:
    return hasattr(value, "num_dst_nodes")


def _is_edges(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.long and value.dim() == 2 and len(value) == 2
