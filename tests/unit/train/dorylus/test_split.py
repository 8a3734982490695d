"""Gather and apply, by intervals in any order, are what autograd and torch's optimisers do on the whole graph."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils import parameters_to_vector
from torch_geometric.nn import GAT, GCN, GCNConv, GraphSAGE

from atta.errors import ConfigError
from atta.kvstore.parameter_jobs import SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.train.cooperative.graph import TrainingGraph, worker_view
from atta.train.dorylus import engine as engine_module
from atta.train.dorylus.engine import IntervalEngine, TrainerIntervals
from atta.train.dorylus.gathering import alone, forms_of, gather_plan, interval_rows
from atta.train.dorylus.links import Arrays, packed, unpacked
from atta.train.dorylus.progress import (
    Acknowledged,
    Begun,
    Computed,
    Happening,
    IntervalTracks,
    PipelineProgress,
    Work,
    stages_of,
)
from atta.train.dorylus.trainer import targets_of
from atta.train.dorylus.worker import LayerForm, computed
from atta.train.models import whole_model
from atta.train.settings.common import TrainSettings
from tests.unit.invariants import validate
from tests.unit.train.graphs import training_graph

VERTICES, CHANNELS, CLASSES, EPOCHS = 60, 5, 3, 3
MODELS = {
    "gcn": lambda layers: GCN(CHANNELS, 8, layers, CLASSES),
    "sage": lambda layers: GraphSAGE(CHANNELS, 8, layers, CLASSES),
    "gat": lambda layers: GAT(CHANNELS, 8, layers, CLASSES, heads=2),
}


def graph_of(seed: int = 3) -> TrainingGraph:
    """Loops, parallel edges, and a vertex that reads nothing."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, VERTICES, (2, 240))
    edges = np.concatenate([edges, edges[:, :12], np.tile(np.arange(5), (2, 1))], axis=1)
    edges = edges[:, edges[1] != 7]
    ids = rng.permutation(10 * VERTICES)[:VERTICES].astype(np.int64)
    return training_graph(np.ascontiguousarray(edges), VERTICES, rng, global_ids=ids)


def model_of(kind: str, layers: int) -> Any:
    torch.manual_seed(5)
    return MODELS[kind](layers).double()


def by_autograd(model: Any, graph: TrainingGraph, kind: str, lr: float) -> np.ndarray:
    model.train()
    optimiser: torch.optim.Optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](
        model.parameters(), lr, weight_decay=1e-3
    )
    edges, mask = torch.from_numpy(graph.edges), torch.from_numpy(graph.loss_mask)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        scores = model(torch.from_numpy(graph.features), edges)
        F.cross_entropy(scores[mask], torch.from_numpy(graph.labels)[mask]).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach().numpy()


@pytest.mark.parametrize(("mode", "intervals"), [("pipe", 1), ("pipe", 4), ("nopipe", 4), ("pipe", 16)])
@pytest.mark.parametrize(("kind", "steps", "lr"), [("gcn", "sgd", 0.3), ("sage", "adam", 0.02), ("gat", "sgd", 0.3)])
def test_it_is_gradient_descent_on_the_whole_graph(kind: str, steps: str, lr: float, mode: Any, intervals: int) -> None:
    graph, optimiser = graph_of(), VectorStep(steps, lr, 1e-3)
    for layers in (1, 2, 3) if intervals == 4 else (2,):
        found, engine, job = trained(
            model_of(kind, layers), graph, intervals, epochs=EPOCHS, optimiser=optimiser, mode=mode
        )
        wanted = by_autograd(model_of(kind, layers), graph, steps, lr)
        np.testing.assert_allclose(found, wanted, rtol=1e-10 if steps == "sgd" else 1e-6, atol=1e-12)
        assert not np.allclose(wanted, parameters_to_vector(model_of(kind, layers).parameters()).detach(), atol=1e-3)
        assert job.weights.stashed == 0
        assert engine.progress.oldest == 0
        assert len(engine.ended) == len(engine.losses) == EPOCHS


@pytest.mark.parametrize("step", [VectorStep("adam", 0.02, 1e-3), VectorStep("sgd", 0.3)])
@pytest.mark.parametrize("mode", ["nopipe", "pipe"])
def test_a_run_that_meets_or_goes_on_later_is_the_same_run(mode: Any, step: VectorStep) -> None:
    def train(epochs: int, **how: Any) -> Any:
        return trained(model_of("sage", 2), graph_of(), 4, epochs=epochs, optimiser=step, mode=mode, **how)

    wanted, engine, job = train(5)
    met, *_ = train(5, meetings=(1, 3))
    assert met.tobytes() == wanted.tobytes()
    values, _, half = train(2)
    later, went_on, ended = train(5, begins=(2, values, half.weights.moments))
    assert later.tobytes() == wanted.tobytes()
    assert ended.weights.moments.tobytes() == job.weights.moments.tobytes()
    assert sorted(went_on.losses) == [2, 3, 4]
    for epoch in (2, 3, 4):  # added up in the order of results
        assert went_on.losses[epoch] == pytest.approx(engine.losses[epoch], rel=1e-12)


def test_async_reads_older_rows_and_learns_and_goes_on_with_an_epoch_that_reads_none() -> None:
    def train(epochs: int, **how: Any) -> Any:
        step = VectorStep("adam", 0.02)
        return trained(model_of("gcn", 2), graph_of(), 6, epochs=epochs, optimiser=step, mode="async", **how)

    for staleness in (0, 1):
        _, engine, job = train(20, staleness=staleness)
        assert 1 <= engine.progress.oldest <= staleness + 1
        assert engine.losses[19] < 0.9 * engine.losses[0]
        assert (job.weights.version, job.weights.stashed) == (20, 0)
    values, _, job = train(10)
    _, engine, _ = train(11, begins=(10, values, job.weights.moments))
    assert engine.progress.oldest == 0
    _, engine, ended = train(20, begins=(10, values, job.weights.moments), meetings=(15,))
    assert engine.progress.oldest == 1
    assert (ended.weights.version, ended.weights.stashed) == (20, 0)


def test_tracks_have_each_stage_once_and_no_overlap() -> None:
    stages = stages_of(2)
    tracks = IntervalTracks(stages, 3)
    trained(model_of("gcn", 2), graph_of(), 3, epochs=2, optimiser=VectorStep("sgd", 0.1), tracks=tracks)
    for interval in range(3):
        mine = [span for span in tracks.spans if span.work.interval == interval]
        assert [span.work for span in mine] == [Work(e, s, interval) for e in range(2) for s in range(len(stages))]
        assert all(0 <= a.start <= a.end <= b.start for a, b in pairwise(mine))


def test_the_order_of_results_changes_no_bit() -> None:
    step = VectorStep("adam", 0.02)
    found = [trained(model_of("sage", 2), graph_of(), 7, epochs=3, optimiser=step, seed=seed) for seed in range(4)]
    assert len({weights.tobytes() for weights, *_ in found}) == 1


def test_models_without_a_split_form_are_refused() -> None:
    deep = whole_model(TrainSettings(model="resgcn+", hidden=8, layers=3), CHANNELS, CLASSES)
    with pytest.raises(ConfigError, match="DeepGNN cannot be split"):
        forms_of(deep)
    with pytest.raises(ConfigError, match="cannot be split"):
        forms_of(GCN(CHANNELS, 8, 2, CLASSES, norm="layer_norm"))
    odd = GCN(CHANNELS, 8, 2, CLASSES)
    odd.convs[0] = GCNConv(CHANNELS, 8, improved=True)
    with pytest.raises(ConfigError, match="GCNConv with these options"):
        forms_of(odd)


def test_arrays_that_do_not_fit_are_refused() -> None:
    form, about = forms_of(model_of("gcn", 2))[1], {"seed": 0, "epoch": 0, "divisor": 1}
    arrays = {
        "sums": np.ones((4, form.reads)), "weights": np.ones(form.size), "keys": np.arange(4),
        "places": np.array([1]), "targets": np.array([2]),
    }  # fmt: skip
    for name, array, words in (
        ("sums", np.ones((4, 3)), r"sums has shape \[4, 3\]"),
        ("sums", np.ones((5, 8)), r"sums has shape \[5, 8\]"),
        ("weights", np.ones(5), r"weights has shape \[5\]"),
        ("weights", np.full(27, np.nan), "an infinity or NaN"),
    ):
        with pytest.raises(ConfigError, match=words):
            computed("loss", form, about, arrays | {name: array}, lambda rows, targets: rows.sum())


def test_forms_survive_json_and_nothing_else_passes() -> None:
    for kind in MODELS:
        for form in forms_of(model_of(kind, 2)):
            about, _ = unpacked(packed(asdict(form), {}))
            assert LayerForm.from_dict(about) == form
    good = asdict(form)
    for bad in ({}, {**good, "kind": "gin"}, {**good, "more": 1}, {**good, "weights": 5}):
        with pytest.raises(ConfigError, match="describes no layer"):
            LayerForm.from_dict(bad)


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(0, 300), st.integers(0, 20))
def test_intervals_balance_vertices_and_edges(seed: int, vertices: int, edges: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.stack([rng.integers(0, vertices + others, edges), rng.integers(0, vertices, edges)])
    intervals = int(rng.integers(1, vertices + 1))
    rows = interval_rows(ends, vertices, intervals)
    assert sorted(np.concatenate(rows).tolist()) == list(range(vertices))
    assert all((np.diff(one) > 0).all() for one in rows)
    sizes = [len(one) for one in rows]
    assert max(sizes) - min(sizes) <= 1
    degrees = np.zeros(vertices, np.int64)
    for source, target in ends.T.tolist():
        if source != target:
            degrees[target] += 1
            if source < vertices:
                degrees[source] += 1
    sums = [int(degrees[one].sum()) for one in rows]
    assert max(sums) - min(sums) <= degrees.max()


def test_intervals_that_cannot_be_are_refused() -> None:
    for vertices, intervals, cause in (
        (3, 4, "intervals=4.*take fewer intervals"),
        (5, 0, "intervals=0"),
        (0, 1, "has no vertices.*take fewer partitions"),
    ):
        with pytest.raises(ConfigError, match=cause):
            interval_rows(np.zeros((2, 0), np.int64), vertices, intervals)


class AnyOrderTasks:
    def __init__(self, happenings: queue.SimpleQueue[Happening], seed: int) -> None:
        self._happenings, self._rng = happenings, random.Random(seed)
        self._waiting: list[Callable[[], None]] = []
        self.done: list[Work] = []

    def give(self, work: Work, about: Mapping[str, Any], arrays: Arrays) -> None:
        told, given = unpacked(packed(about, arrays))

        def compute() -> None:
            loss = lambda rows, targets: F.cross_entropy(rows, targets, reduction="sum")  # noqa: E731
            found = computed(told["part"], LayerForm.from_dict(told["layer"]), told, given, loss)
            self.done.append(work)
            self._happenings.put(Computed(work, unpacked(packed({}, found))[1]))

        self._waiting.append(compute)
        if self._rng.random() < 0.5:
            self._some()

    def _some(self) -> None:
        self._rng.shuffle(self._waiting)
        while self._waiting and self._rng.random() < 0.8:
            self._waiting.pop()()

    def tick(self, queue: int) -> None:
        self._some()

    def counts(self) -> dict[str, float]:
        return {}


class OwnWeights:
    def __init__(
        self, job: SummedJob, lock: threading.Lock, happenings: queue.SimpleQueue[Happening], first: int
    ) -> None:
        self._job, self._lock, self._happenings, self._first = job, lock, happenings, first

    def want(self, works: Sequence[Work]) -> None:
        with self._lock:
            for work in works:
                found = self._job.begin(self._first + work.interval, work.epoch)
                if found is not None and found.values is not None:
                    self._happenings.put(Begun(work.interval, work.epoch, found.version, found.values))

    def push(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        with self._lock:
            self._job.push(self._first + work.interval, work.epoch, layer, version, gradient)
            validate(self._job)
        self._happenings.put(Acknowledged(work.interval, work.epoch, layer))


def trained(
    model: torch.nn.Module, graph: TrainingGraph, intervals: int, *, epochs: int, optimiser: VectorStep,
    mode: str = "pipe", staleness: int = 0, seed: int = 0, tracks: IntervalTracks | None = None,
    meetings: Sequence[int] = (), begins: tuple[int, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, IntervalEngine, SummedJob]:  # fmt: skip
    """The weights after ``epochs``, computed by one trainer.

    ``meetings``: epochs after which it stops before it goes on; ``begins``: version, weights and moments to go on from.
    """
    view = worker_view(graph, np.zeros(len(graph), np.int64), 0, 1)
    forms = forms_of(model)
    rows = interval_rows(view.edge_index, len(view.own), intervals)
    plan = gather_plan(forms[0].kind, view, rows)
    happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
    spec = ParameterSpec(
        "job", tuple(form.size for form in forms), intervals, "summed", optimiser, "<f8", staleness, 30.0, epochs
    )
    start = parameters_to_vector(model.parameters()).detach().numpy()
    first, values, moments = begins or (0, start, None)
    job = SummedJob(spec, values, first, moments)
    progress = PipelineProgress(len(forms), intervals, epochs=first, first=first, mode=mode, staleness=staleness)
    tasks = AnyOrderTasks(happenings, seed)
    links: Any = tasks, OwnWeights(job, threading.Lock(), happenings, 0), None
    data = TrainerIntervals(
        plan, alone(), torch.from_numpy(view.features), view.global_ids[: len(view.own)], targets_of(view, rows)
    )
    about = {"seed": 0, "divisor": int(graph.loss_mask.sum())}
    engine = IntervalEngine(progress, forms, data, links, happenings, about=about, tracks=tracks)
    with mock.patch.object(engine_module, "TICK_S", 1e-3):  # results of workers here come with the ticks
        for end in (*meetings, epochs):
            progress.go_on(end)
            engine.run()
            assert (progress.finished, len(engine.ended), job.weights.version) == (end, end - first, end)
    validate(progress)
    assert sorted(tasks.done) == sorted(
        Work(epoch, stage, interval)
        for epoch in range(first, epochs)
        for stage, part in enumerate(progress.stages)
        for interval in range(intervals)
        if not part.by_trainer
    )
    return job.weights.of(job.weights.version), engine, job
