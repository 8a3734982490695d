"""Runs pipelines in this process: workers compute at once or in any order, and weights are a job of their own."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

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
)
from atta.train.dorylus.trainer import targets_of
from atta.train.dorylus.worker import LayerForm, computed
from tests.unit.invariants import validate


class AnyOrderTasks:
    """Workers in this process. Results come in a random order; each message is packed and unpacked."""

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
    """The weights of a job, for trainers in threads of this process."""

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
