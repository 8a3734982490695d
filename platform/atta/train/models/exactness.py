"""Whether a model gives on batches what it gives on the graph: found by running it on a small graph and on batches of it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch

from atta.errors import ConfigError
from atta.train.models.forms import (
    BLOCKS,
    TRIMMED,
    WHOLE,
    ModelInput,
    NoFormError,
    OfBlocks,
    PartRows,
    ReadingLayers,
    SmallGraph,
    run,
)
from atta.train.models.remedies import BIAS_REMEDIES, Remedy, remedies_for, unbiased, weighted
from atta.train.reports.exactness import FORMS, ExactnessReport, Finding

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""At most this share of the largest value counts as equal."""
DEEPEST = 24
"""At most this many hops are looked for."""
DRAWS, FAN_OUT = 1000, 2
"""Draws of the first layer, and neighbours in each, that tell its bias."""


class _Case(NamedTuple):
    """A batch whose rows must be ``like`` those of the graph, of the first seed alone, or of a model without earlier batches."""

    seeds: Sequence[int]
    form: str = WHOLE
    like: str = "graph"


def check_on(
    model: torch.nn.Module,
    graph: SmallGraph,
    seeds: Sequence[int],
    hops: int | None = None,
    *,
    draws: int = DRAWS,
    seconds: float = math.inf,
) -> ExactnessReport:
    """Compare what ``model`` gives on batches of ``graph`` with what it gives on all of it. The model stays as it is.

    Args:
        model: called as ``model(x, edge_index)``, with ``edge_weight`` or ``edge_attr`` where it takes them and the graph
            has them; gives a row per vertex.
        graph: any graph; vertices are added to it that no path leads from.
        seeds: at least two vertices with in-edges.
        hops: of batches; None: as many as the model reads.
        draws: for the bias of the first layer; 0: it is not measured.
        seconds: forms that have not begun by then are not run.

    Raises ConfigError: the model cannot be called so, or does not give a row per vertex.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the graph is small: several would wait for each other
    try:
        return _Check(model, graph, seeds, hops).report(draws, time.monotonic() + seconds)
    finally:
        torch.set_num_threads(threads)


class _Check:
    def __init__(self, model: torch.nn.Module, graph: SmallGraph, seeds: Sequence[int], hops: int | None) -> None:
        self._model, self._dtype = _prepared(model, graph)
        self._name = type(model.model if isinstance(model, OfBlocks) else model).__name__
        self._seeds = [*map(int, seeds)]
        self._graph, self._lone = _with_strangers(_cast(graph, self._dtype), self._seeds[0])
        self._layers: ReadingLayers
        self._sorted = False
        self._notes: list[str] = []
        self._likely: list[Remedy] = []
        self._hopeless = False
        try:
            self._truth = self._called(self._graph)
        except NoFormError as error:
            if "sorted" not in str(error):
                raise ConfigError(f"{self._name}: {error}") from None
            self._notes.append("wants edges sorted by target: those of a batch are")
            self._sorted = True
            self._graph = self._graph.by_target()
            self._truth = self._called(self._graph)
        self._check_rows()
        again = run(self._model, self._layers, self._graph.whole(), seed=1)
        self._random = _error(again[-1].rows, self._truth[-1].rows) > CLOSE[self._dtype]
        if self._random:
            self._reads = self._hops = hops or self._layers.calls
            return
        found = self._layers
        self._reads, whole = self._depth(), self._reads_strangers()
        self._hops = hops or max(1, found.calls if whole else self._reads)
        each = 1 if whole else max(1, math.ceil(self._reads / found.calls))
        self._layers = ReadingLayers(found.names, found.calls, each)
        self._note_habits(whole=whole)

    @property
    def _has_weights(self) -> bool:
        """Whether edges have weights of the user's. Those that a loader makes of degrees would stand in their place."""
        return "edge_weight" in self._graph.edge

    def _called(self, graph: SmallGraph) -> list[PartRows]:
        self._layers = ReadingLayers.of(self._model, graph.whole())
        return run(self._model, self._layers, graph.whole())

    def _check_rows(self) -> None:
        rows = self._truth[-1].rows
        if not rows.dim() or len(rows) != self._graph.num_nodes:
            shape = list(rows.shape)
            raise ConfigError(f"{self._name}: gives {shape} for {self._graph.num_nodes} vertices, not a row for each")
        missing = int(rows.isnan().reshape(len(rows), -1).any(dim=1).sum())
        if missing == len(rows):
            raise ConfigError(f"{self._name}: gives NaN for every vertex, so there is nothing to compare")
        if missing:
            self._notes.append(f"gives NaN for {missing} of {len(rows)} vertices of the graph itself")

    def _note_habits(self, *, whole: bool) -> None:
        if whole:
            self._notes.append("rows depend on vertices that no path leads from: on whatever else the batch holds")
        other = run(self._model, self._layers, self._graph.by_target().whole())
        if _error(other[-1].rows, self._truth[-1].rows) > CLOSE[self._dtype]:
            self._notes.append("rows depend on the order of edges")

    def _reads_strangers(self) -> bool:
        """Whether the seeds' rows depend on vertices that no path leads from to them."""
        x = self._graph.x.clone()
        x[self._lone + 1 :] = _other_rows(x)[self._lone + 1 :]
        other = run(self._model, self._layers, SmallGraph(x, self._graph.edge_index, self._graph.edge).whole())
        rows = slice(0, self._lone)
        return _error(other[-1].rows[rows], self._truth[-1].rows[rows]) > CLOSE[self._dtype]

    def _depth(self) -> int:
        """The largest distance of a vertex whose features the model's rows depend on: seen on paths, of each of which one
        vertex has other features."""
        paths, ends = _paths(self._graph, DEEPEST, DEEPEST + 1)
        length = DEEPEST + 1
        x = paths.x.clone()
        changed = ends[1:] + torch.arange(1, length)
        x[changed] = _other_rows(x)[changed]
        try:
            rows = run(self._model, self._layers, SmallGraph(x, paths.edge_index, paths.edge).whole())[-1].rows[ends]
        except NoFormError:
            return self._layers.calls
        differs = [_error(row, rows[0]) > CLOSE[self._dtype] for row in rows[1:]]
        return max((distance for distance, differ in enumerate(differs, 1) if differ), default=0)

    def report(self, draws: int, until: float) -> ExactnessReport:
        made = partial(ExactnessReport, self._name, self._layers.calls, self._reads, self._hops)
        if self._random:
            first, *others = FORMS
            drawn = Finding(first, False, None, why="the model draws at random: no two calls give the same")
            return made((drawn, *(Finding(form, None) for form in others)))
        late = "no time was left"
        found = [Finding(f, None, why=late) if time.monotonic() > until else self._finding(f) for f in FORMS]
        bias, biased, remedies = self._bias(draws) if draws else (None, False, [])
        return made(tuple(found), tuple(self._notes), bias, biased, tuple(remedies))

    def _finding(self, form: str) -> Finding:
        error, layer, why = None, None, ""
        try:
            error, layer = self._compared(form, Remedy(), self._model)
        except NoFormError as cause:
            why = str(cause)
            if form in (TRIMMED, BLOCKS):
                return Finding(form, None, why=why)
        if error is not None and error <= CLOSE[self._dtype]:
            return Finding(form, True, error)
        return Finding(form, False, error, layer, self._remedies(form), why)

    def _remedies(self, form: str) -> tuple[str, ...]:
        """The texts of what makes a form equal, and does not break the plain batch."""

        def works(remedy: Remedy, model: torch.nn.Module) -> bool:
            if remedy.norm and self._has_weights:
                return False
            # A norm may make another model of this one, which is the same from batch to batch.
            needed = [*dict.fromkeys([*forms, "batch"])] if remedy.norm else forms
            try:
                return all(self._compared(one, remedy, model)[0] <= CLOSE[self._dtype] for one in needed)
            except NoFormError:
                return False

        forms = [form] if form == "second" else [*dict.fromkeys([form, "batch"])]
        found = remedies_for(self._model, works, [] if form == "second" else self._likely, pairs=not self._hopeless)
        self._likely = self._likely or found
        self._hopeless = self._hopeless or (form == "batch" and not found)
        return tuple(remedy.told(self._model) for remedy in found)

    def _compared(self, form: str, remedy: Remedy, model: torch.nn.Module) -> tuple[float, str | None]:
        """The largest difference of any case of a form, and the part of the model where it begins."""
        graph = _with_repeated(self._graph, self._seeds) if form == "repeated" else self._graph
        graph = graph.by_target() if self._sorted and form == "repeated" else graph
        read = graph if remedy.norm is None else weighted(graph, remedy.norm)
        # Weights stand for what the layers did: the rows must be those of the model given.
        whole = run(model if remedy.norm is None else self._model, self._layers, graph.whole())
        found = [self._case(case, whole, read, remedy, model) for case in self._cases(form)]
        return max(found, key=lambda case: case[0])

    def _cases(self, form: str) -> list[_Case]:
        first, alone = self._seeds[0], (self._lone, self._graph.num_nodes - 1)
        if form == "isolated":
            return [_Case(own) for lone in alone for own in ([lone], [first, lone], [lone, first])]
        if form == "second":
            return [_Case([first], like="fresh")]
        like = "alone" if form == "beside" else "graph"
        return [_Case(self._seeds, form if form in (TRIMMED, BLOCKS) else WHOLE, like)]

    def _case(
        self, case: _Case, whole: Sequence[PartRows], graph: SmallGraph, remedy: Remedy, model: torch.nn.Module
    ) -> tuple[float, str | None]:
        sample = self._batch(graph, case.seeds, remedy)
        give = remedy.norm is not None
        form = BLOCKS if isinstance(model, OfBlocks) and case.form == WHOLE else case.form
        before = self._batch(graph, self._seeds[1:], remedy) if case.like == "fresh" else None
        steps = run(model, self._layers, sample, form, give=give, first=before)
        if case.like == "graph":
            each, deepest = self._layers.hops, min(self._hops, self._layers.calls * self._layers.hops)
            known = [sample.nodes[max(0, deepest - step.done * each)] for step in steps]
            return _first_off(steps, whole, [sample.n_id[:count] for count in known], CLOSE[self._dtype])
        alone = self._batch(graph, case.seeds[:1], remedy)
        wanted = run(model, self._layers, alone, form, give=give)
        return _first_off(steps, wanted, [torch.zeros(1, dtype=torch.long)] * len(steps), CLOSE[self._dtype])

    def _batch(self, graph: SmallGraph, seeds: Sequence[int], remedy: Remedy) -> ModelInput:
        return graph.batch(seeds, [-1] * (self._hops + remedy.more_hops), in_order=remedy.in_order)

    def _bias(self, draws: int) -> tuple[float | None, bool, list[str]]:
        """Distance of the first layer's mean over draws from its rows with all neighbours, whether it is more than chance,
        and what helps."""
        first = next((step.rows for step in self._truth if step.done == 1), None)
        chosen = [seed for seed in self._seeds if self._graph.in_degrees[seed] > FAN_OUT][:4]
        whole = any("no path" in note for note in self._notes)  # batches with all neighbours do not give its rows
        if first is None or not chosen or whole:
            return None, False, []
        try:
            bias, biased = self._drawn(self._model, first, chosen, draws, Remedy())
        except NoFormError:
            return None, False, []
        if math.isnan(bias):
            return None, False, []
        tried = (remedy for remedy in BIAS_REMEDIES if biased and self._helps(remedy, chosen, draws))
        return bias, biased, [remedy.told(self._model) for remedy in islice(tried, 1)]

    def _helps(self, remedy: Remedy, chosen: Sequence[int], draws: int) -> bool:
        own = remedy.changed(self._model)
        if own is None or ((remedy.norm or remedy.unbiased) and self._has_weights):
            return False
        try:
            steps = self._truth if remedy.norm else run(own, self._layers, self._graph.whole())
            first = next(step.rows for step in steps if step.done == 1)
            return not self._drawn(own, first, chosen, draws, remedy)[1]
        except NoFormError:
            return False

    def _drawn(
        self, model: torch.nn.Module, wanted: torch.Tensor, chosen: Sequence[int], draws: int, remedy: Remedy
    ) -> tuple[float, bool]:
        sample = self._graph.batch([*chosen] * draws, [FAN_OUT] * self._layers.hops, disjoint=True)
        if remedy.unbiased:
            sample = unbiased(self._graph, sample, remedy.norm)
        steps = run(model, self._layers, sample, give=remedy.unbiased)
        rows = next(step.rows for step in steps if step.done == 1)[: len(chosen) * draws]
        rows = rows.reshape(draws, len(chosen), *rows.shape[1:])
        off = (rows.mean(0) - wanted[chosen]).abs()
        error = rows.std(0) / math.sqrt(draws)
        tiny = CLOSE[self._dtype] * wanted.abs().max()
        return float(off.max() / wanted.abs().max()), bool((off > 5 * error + tiny).any())


def _error(found: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """The largest difference as a share of the largest value of ``scale`` (default: of what is wanted)."""
    if found.shape != wanted.shape:
        return math.inf
    off = (found - wanted).abs().double()
    off[found.isnan() & wanted.isnan() | (found == wanted)] = 0
    sizes = (wanted if scale is None else scale).abs().double()
    most = float(sizes[sizes.isfinite()].max()) if sizes.isfinite().any() else 1.0
    worst = float(off.max()) if off.numel() else 0.0
    return math.inf if math.isnan(worst) else worst / (most or 1.0)


def _first_off(
    steps: Sequence[PartRows], wanted: Sequence[PartRows], places: Sequence[torch.Tensor], close: float
) -> tuple[float, str | None]:
    """The difference of the last rows, and the first part whose rows differ. ``places``: of a step's rows in those wanted."""
    same = [step.name for step in steps] == [step.name for step in wanted]
    pairs = [*zip(steps, wanted, places, strict=False)] if same else []
    if not same:
        pairs = [(steps[-1], wanted[-1], places[-1])]
    errors = [(_error(s.rows[: len(at)], other.rows[at], other.rows), s.name) for s, other, at in pairs]
    return errors[-1][0], next((name for error, name in errors if error > close), steps[-1].name)


def _prepared(model: torch.nn.Module, graph: SmallGraph) -> tuple[torch.nn.Module, torch.dtype]:
    """A copy that is called in double precision, or in single where it cannot be."""
    try:
        own = copy.deepcopy(model).cpu().eval()
    except Exception as error:
        raise ConfigError(f"{type(model).__name__}: cannot be copied: {' '.join(str(error).split())}") from None
    for module in own.modules():  # what layers keep of an earlier call is of another graph
        for name in [name for name in vars(module) if name.startswith("_cached")]:
            setattr(module, name, None)
    double = copy.deepcopy(own).double()
    try:
        sample = _cast(graph, torch.float64).by_target().whole()
        run(double, ReadingLayers(frozenset(), 0), sample)
        return double, torch.float64
    except NoFormError as error:
        single = any(word in str(error) for word in ("dtype", "Double", "double", "float64"))
        return (own.float(), torch.float32) if single else (double, torch.float64)


def _cast(graph: SmallGraph, dtype: torch.dtype) -> SmallGraph:
    edge = {name: rows.to(dtype) if rows.is_floating_point() else rows for name, rows in graph.edge.items()}
    return SmallGraph(graph.x.to(dtype) if graph.x.is_floating_point() else graph.x, graph.edge_index, edge)


def _other_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows that differ from those of ``x``; whole numbers may be places in a table, so they stay those of some vertex."""
    return x.roll(1, 0) * -2 + 1 if x.is_floating_point() else x.roll(1, 0)


def _with_strangers(graph: SmallGraph, seed: int) -> tuple[SmallGraph, int]:
    """The graph with more vertices: a path into ``seed``, so that no batch holds all that a model may read; a vertex
    without edges, whose number is returned; all of this again with other features and with a vertex that has edges from
    all others, from where no path leads here; and another vertex without edges."""
    graph = _joined(graph, seed)
    count = graph.num_nodes
    x = torch.cat([graph.x, graph.x[:1], graph.x.flip(0), graph.x[1:2]])
    every = torch.arange(graph.edge_index.shape[1])
    hub = torch.stack([torch.arange(count), torch.full((count,), seed)])
    edge_index = torch.cat([graph.edge_index, torch.cat([graph.edge_index, hub], dim=1) + count + 1], dim=1)
    chosen = torch.cat([every, every, torch.arange(count) % len(every)])
    return SmallGraph(x, edge_index, graph.with_edges(edge_index, chosen).edge), count


def _joined(graph: SmallGraph, seed: int) -> SmallGraph:
    """The graph with a path to ``seed`` that is longer than any model reads."""
    (path, _), count = _paths(graph, DEEPEST + 2, 1), graph.num_nodes
    link = torch.tensor([[count], [seed]])
    edge_index = torch.cat([graph.edge_index, path.edge_index + count, link], dim=1)
    edge = {name: torch.cat([rows, path.edge[name], rows[:1]]) for name, rows in graph.edge.items()}
    return SmallGraph(torch.cat([graph.x, path.x]), edge_index, edge)


def _with_repeated(graph: SmallGraph, seeds: Sequence[int]) -> SmallGraph:
    """The graph with every edge into ``seeds`` twice, and self-loops there."""
    into = torch.isin(graph.edge_index[1], torch.tensor(seeds)).nonzero()[:, 0]
    loops = torch.tensor([seeds, seeds])
    edge_index = torch.cat([graph.edge_index, graph.edge_index[:, into], loops], dim=1)
    chosen = torch.cat([torch.arange(graph.edge_index.shape[1]), into, torch.arange(len(seeds))])
    return graph.with_edges(edge_index, chosen)


def _paths(graph: SmallGraph, length: int, count: int) -> tuple[SmallGraph, torch.Tensor]:
    """Equal paths of ``length`` edges, both ways, with another vertex beside each but the last; and where each begins. Rows
    are those of the graph."""
    width = 2 * length + 1
    chain, firsts = torch.arange(length), torch.arange(count) * width
    there = torch.stack([torch.cat([chain + 1, chain + length + 1]), torch.cat([chain, chain])])
    one = torch.cat([there, there.flip(0)], dim=1)
    edge_index = (one[:, None] + firsts[:, None]).reshape(2, -1)
    rows = torch.arange(width).repeat(count) % graph.num_nodes
    chosen = torch.arange(one.shape[1]).repeat(count) % graph.edge_index.shape[1]
    paths = SmallGraph(graph.x[rows], edge_index, graph.with_edges(edge_index, chosen).edge)
    return paths.by_target(), firsts
