"""Trainers without barriers (DIGEST-A): each steps by itself, on weights that a daemon keeps."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from atta.client.parameters import JobWeights
from atta.errors import AttaError, UnknownClientError
from atta.kvstore.parameters.spec import ParameterSpec, VectorStep
from atta.train.cooperative import TrainerBatch, count_targets
from atta.train.cooperative.across.digest import DigestTrainer
from atta.train.cooperative.across.meeting import told
from atta.train.cooperative.step import own_backward
from atta.train.reports.display import TRAINING_BEGINS
from atta.train.reports.epochs import SERVER_PHASES, EpochReport
from atta.train.settings import AsyncDigestSettings
from atta.train.stale.newest import NewestRows
from atta.train.steps.timing import Stopwatch

__all__ = ["AsyncDigestTrainer", "SavedWeights"]

HELD_S = 3600.0
"""How long a trainer waits at most for slower ones; those that are silent hold it for a lease only."""
MOST_SAVED = 256
"""If there are more copies of weights, every second one is dropped, and copies are made half as often."""


class SavedWeights(NamedTuple):
    """Weights [size] after ``version`` updates, ``seconds`` after training began."""

    seconds: float
    version: int
    values: torch.Tensor


class Copies:
    """Copies of weights while training goes on, made now and then.

    Attributes:
        made: the copies, in the order of time.
    """

    def __init__(self, every_s: float) -> None:
        self.made: list[SavedWeights] = []
        self._every, self._began, self._next = every_s, time.monotonic(), every_s

    def keep(self, version: int, values: torch.Tensor, *, last: bool = False) -> None:
        """Keep weights [size] if it is time, or if they are the ``last`` ones."""
        seconds = time.monotonic() - self._began
        if seconds < self._next and not last:
            return
        self.made.append(SavedWeights(seconds, version, values))
        if len(self.made) > MOST_SAVED:
            self.made, self._every = self.made[::2], 2 * self._every
        self._next = seconds + self._every


class AsyncDigestTrainer(DigestTrainer):
    """Repeats by itself: take weights, pull rows now and then, compute, push rows now and then, send the gradient.

    Trainers wait for each other before the first step, and after the last one, when saved weights are evaluated.
    """

    options: AsyncDigestSettings
    table_type = NewestRows

    def fit(self) -> list[EpochReport]:
        """Train, then evaluate the saved weights exactly; returns a report of each of them."""
        try:
            epochs = self._run()
        except BaseException:
            if hasattr(self, "tables"):
                self.tables.let_go()
            raise
        self.stale.close()
        return epochs

    def _run(self) -> list[EpochReport]:
        watch = Stopwatch(self.device)
        self.data.prepare(0, watch, self._needed)
        batch = self._kept(watch).batch
        count = count_targets(batch, self.groups)
        job = self._job()
        if self.rank == 0:
            job.create(self._flat(parameters_to_vector(self.model.parameters())))
        dist.barrier()
        saved = self._train(job, batch, count)
        with _kept_alive(job, self.rank, 0, self.options.lease / 4):  # one that was stopped may still look for the job
            dist.barrier()
        if self.rank == 0:
            job.drop()
        return self._evaluated(saved, batch, count)

    def _job(self) -> JobWeights:
        number = int(told(np.array([secrets.randbits(62)]) if self.rank == 0 else None, 0, self.device)[0])
        parameters, options = list(self.model.parameters()), self.options
        scale = 1 / self.world if options.lr_scale is None else options.lr_scale
        spec = ParameterSpec(
            f"weights-{number:016x}",
            tuple(parameter.numel() for parameter in parameters),
            members=self.world,
            applies="arrival",
            optimiser=VectorStep("adam", self.config.lr * scale, self.config.weight_decay),
            dtype="<f8" if parameters[0].dtype is torch.float64 else "<f4",
            bound=options.max_delay,
            lease_s=options.lease,
            max_updates=options.max_updates or self.config.epochs * self.world,
        )
        return self.cluster.weights(spec)

    def _train(self, job: JobWeights, batch: TrainerBatch, count: int) -> list[SavedWeights]:
        """All steps of this trainer. The first trainer returns copies of the weights, the last ones at the end."""
        self.cooperative.train()
        self.display.line(TRAINING_BEGINS)
        saved = Copies(self.options.eval_interval)
        for life in itertools.count(1):
            try:
                step = job.join(self.rank, life)
                with _kept_alive(job, self.rank, life, self.options.lease / 4):
                    while (found := job.begin(self.rank, step, life=life, within_s=HELD_S)).values is not None:
                        if self.rank == 0:
                            saved.keep(found.version, self._tensor(found.values))
                        job.push(self.rank, step, self._gradient(batch, count, step, found.values), life=life)
                        step += 1
                break
            except UnknownClientError:  # this process was stopped for longer than its lease
                continue
        if self.rank == 0:
            last = job.pull()
            assert last.values is not None, "the present weights are always there"
            saved.keep(last.version, self._tensor(last.values), last=True)
        return saved.made

    def _gradient(self, batch: TrainerBatch, count: int, step: int, values: np.ndarray) -> np.ndarray:
        """The gradient of this trainer's share of the loss, [size], at weights ``values``."""
        vector_to_parameters(self._tensor(values), self.model.parameters())
        if batch.graph.dropout is not None:
            batch.graph.dropout.epoch = step
        self.stale.begin(step + 1)
        divisor = count if self.options.loss == "global" else max(1, len(batch.targets))
        own_backward(self.cooperative, batch, divisor, self.objective.loss_sum)
        self.stale.flush()
        self.stale.commit()
        parameters = list(self.model.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return self._flat(parameters_to_vector(gradients))

    def _evaluated(self, saved: list[SavedWeights], batch: TrainerBatch, count: int) -> list[EpochReport]:
        """Reports of the first trainer's copies, by exact forward passes of all trainers."""
        many = int(self._sum([len(saved)])[0])
        size = sum(p.numel() for p in self.model.parameters())
        edges = self._sum([batch.graph.edge_index.shape[1]])[0]
        reports, before, done = [], 0.0, 0
        for number in range(many):
            mine = saved[number] if saved else SavedWeights(0.0, 0, torch.empty(0))
            values = mine.values if saved else self._tensor(np.zeros(size, self._dtype))
            dist.broadcast(values, 0)
            vector_to_parameters(values, self.model.parameters())
            seconds, version = self._sum([mine.seconds, mine.version])
            start = time.perf_counter()
            loss = self._exact_loss(batch, count)
            metrics = self._metrics()
            passes, took = (version - done) / self.world, max(seconds - before, 1e-9)
            reports.append(
                EpochReport(
                    number,
                    took,
                    loss=loss,
                    seeds_per_s=passes * count / took,
                    edges_per_s=passes * edges / took,
                    remote_bytes=0.0,
                    breakdown=dict.fromkeys(SERVER_PHASES, 0.0),
                    eval_seconds=self._max(time.perf_counter() - start),
                    eval_bytes=self.eval_bytes,
                    steps=int(version) - done,
                    peak_memory_bytes=self._peaks(),
                ).evaluated(metrics)
            )
            before, done = seconds, int(version)
            self.display.line(reports[-1].line())
        return reports

    @torch.no_grad()
    def _exact_loss(self, batch: TrainerBatch, count: int) -> float:
        """Mean loss over all training vertices, of an exact forward pass without dropout."""
        graph = batch.graph
        trained, graph.source = graph.source, self.exact
        self.cooperative.eval()
        try:
            scores = self.cooperative(batch.x, graph)
        finally:
            graph.source = trained
        mine = self.objective.loss_sum(scores.index_select(0, batch.targets), batch.y)
        return self._sum([float(mine)])[0] / count

    @property
    def _dtype(self) -> str:
        return "<f8" if next(self.model.parameters()).dtype is torch.float64 else "<f4"

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.copy()).to(self.device)

    def _flat(self, vector: torch.Tensor) -> np.ndarray:
        found: np.ndarray = vector.detach().cpu().numpy().astype(self._dtype, copy=False)
        return found


@contextlib.contextmanager
def _kept_alive(job: JobWeights, member: int, life: int, every_s: float) -> Iterator[None]:
    """Give signs of life while a step takes long. A stopped process gives none."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(AttaError):  # the step itself raises what is wrong; the job lives on
                job.renew(member, life)

    keeper = threading.Thread(target=renew, name="atta-life", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
