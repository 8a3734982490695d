"""Trainers without barriers (DIGEST-A): each steps by itself, on weights that a daemon keeps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from atta.client.parameters import JobWeights
from atta.errors import UnknownClientError
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.partition.disk.staging import StagedFile
from atta.train.cooperative.exchange import TrainerBatch, count_targets, own_backward
from atta.train.exchange.tables import repeated
from atta.train.exchange.trainer import DigestTrainer, other_source
from atta.train.meeting import Meeting, meet_once, meeting_here
from atta.train.reports.display import TRAINING_BEGINS
from atta.train.reports.epochs import EpochReport
from atta.train.settings.servers import AsyncDigestSettings
from atta.train.steps.timing import Stopwatch

HELD_S = 3600.0
"""How long a trainer waits at most for slower ones; those that are silent hold it for a lease only."""
MOST_SAVED = 256
"""If there are more copies of weights, every second one is dropped, and copies are made half as often."""
_ENDING = ".npy"
_LIVES = 1 << 20
"""Lives of a trainer's process: it takes a new one whenever it was stopped for longer than its lease."""


class AsyncDigestTrainer(DigestTrainer):
    """Repeats by itself: take weights, pull rows now and then, compute, push rows now and then, send the gradient.
    Trainers are present together when tables are filled before the first step, and after the last one, when saved
    weights are evaluated. In between, one that is started anew takes its place again."""

    options: AsyncDigestSettings
    slots = 1
    meeting: Meeting

    def _fit(self) -> list[EpochReport]:
        """Train, then evaluate the saved weights exactly; returns a report of each of them."""
        self.meeting = meeting_here() or meet_once(self.device)
        with self._run_log() as log:
            epochs = self._run()
            for epoch in epochs:
                log.epoch(epoch)
        return epochs

    def _run(self) -> list[EpochReport]:
        watch, meeting = Stopwatch(self.device), self.meeting
        self.data.prepare(0, watch, self._needed)
        batch = self._kept(watch)
        count = count_targets(batch, self.groups)
        job = self._job()
        if self.rank == 0 and not meeting.did("create"):
            job.create(parameters_to_vector(self.model.parameters()).detach().cpu().numpy())
            meeting.done("create")
        dist.barrier()
        copies = Copies(self.options.eval_interval, meeting) if self.rank == 0 else None
        if not meeting.did("train"):
            self._train(job, batch, count, copies)
            meeting.done("train")
        with repeated(lambda: job.renew(self.rank, 0), self.options.lease / 4):  # a trainer that was stopped may come
            dist.barrier()
        if self.rank == 0:
            job.drop()
        saved = [] if copies is None else copies.made
        reports, _ = meeting.together("evaluation", lambda: [asdict(e) for e in self._evaluate(saved, batch, count)])
        return [EpochReport.from_dict(report) for report in reports]

    def _fill(self, batch: TrainerBatch) -> dict[int, torch.Tensor]:
        """Fill the tables together with all others, or find those that a former life has filled."""
        made: dict[int, torch.Tensor] = {}

        def fill() -> dict[int, tuple[int, str]]:
            made.update(DigestTrainer._fill(self, batch))
            return {layer: (rows.shape[1], str(rows.dtype).removeprefix("torch.")) for layer, rows in made.items()}

        found, here = self.meeting.together("tables", fill)
        if not here:
            made = {int(n): torch.empty(0, width, dtype=getattr(torch, of)) for n, (width, of) in found.items()}
            self.stale.rejoin(self._table(self._table_name(), made), made)
        return made

    def _table_name(self) -> str:
        return f"stale-{self.meeting.run}"

    def _job(self) -> JobWeights:
        parameters, options = list(self.model.parameters()), self.options
        scale = 1 / self.world if options.lr_scale is None else options.lr_scale
        spec = ParameterSpec(
            f"weights-{self.meeting.run}",
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

    def _train(self, job: JobWeights, batch: TrainerBatch, count: int, copies: Copies | None) -> None:
        """All steps of this trainer. ``copies``: of the first trainer, which copies the weights, also the last ones."""
        self.cooperative.train()
        self.display.line(TRAINING_BEGINS)
        for life in itertools.count(1 + self.meeting.life * _LIVES):
            try:
                step = job.join(self.rank, life)
                # A stopped process gives no sign of life. The step itself raises what is wrong; the job lives on.
                with repeated(partial(job.renew, self.rank, life), self.options.lease / 4):
                    while (found := job.begin(self.rank, step, life=life, within_s=HELD_S)).values is not None:
                        if copies is not None:
                            copies.keep(found.version, found.values)
                        job.push(self.rank, step, self._gradient(batch, count, step, found.values), life=life)
                        step += 1
                break
            except UnknownClientError:  # this process was stopped for longer than its lease
                continue
        if copies is not None:
            last = job.pull()
            assert last.values is not None, "the present weights are always there"
            copies.keep(last.version, last.values, last=True)

    def _gradient(self, batch: TrainerBatch, count: int, step: int, values: np.ndarray) -> np.ndarray:
        """The gradient of this trainer's share of the loss, [size], at weights ``values``."""
        vector_to_parameters(torch.from_numpy(values.copy()).to(self.device), self.model.parameters())
        if batch.graph.dropout is not None:
            batch.graph.dropout.epoch = step
        self.stale.begin(step + 1)
        own_backward(self.cooperative, batch, self.divisor(batch, count), self.objective.loss_sum)
        self.stale.flush()
        self.stale.commit()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()]
        return parameters_to_vector(gradients).cpu().numpy()

    def _evaluate(self, saved: list[SavedWeights], batch: TrainerBatch, count: int) -> list[EpochReport]:
        self._exact = None  # a trainer that is started again in the middle needs all others to make its own
        many, edges = self._sum([len(saved), batch.graph.edge_index.shape[1]])
        reports, before, done = [], 0.0, 0
        for number in range(int(many)):
            mine = saved[number] if saved else SavedWeights(0.0, 0, np.empty(0))
            self.take_weights(mine.values if saved else None)
            seconds, version = self._sum([mine.seconds, mine.version])
            passes, took = (version - done) / self.world, max(seconds - before, 1e-9)
            loss = self._exact_loss(batch, count)
            report = self.report(number, took, passes * count, passes * edges, loss=loss, steps=int(version) - done)
            report.check_loss()
            reports.append(self.evaluated(report))
            before, done = seconds, int(version)
            self.display.epoch(reports[-1])
        return reports

    @torch.no_grad()
    def _exact_loss(self, batch: TrainerBatch, count: int) -> float:
        """Mean loss over all training vertices, of an exact forward pass without dropout."""
        self.cooperative.eval()
        with other_source(batch.graph, self.exact):
            scores = self.cooperative(batch.x, batch.graph)
        mine = self.objective.loss_sum(scores.index_select(0, batch.targets), batch.y)
        return self._sum([float(mine)])[0] / count


class SavedWeights(NamedTuple):
    """Weights [size] after ``version`` updates, ``seconds`` after training began."""

    seconds: float
    version: int
    values: np.ndarray


class Copies:
    """Copies that are ``made`` now and then. A trainer that is started again goes on with those of its former life."""

    def __init__(self, every_s: float, meeting: Meeting, clock: Callable[[], float] = time.monotonic) -> None:
        """``every_s``: seconds between copies. Files of copies are in the folder of the ``meeting``, if it has one.
        ``clock`` counts seconds, which all processes of this machine share. Nobody sets it, as people set the time."""
        self.made: list[SavedWeights] = []
        self._every, self._clock, self._began = every_s, clock, clock()
        self._folder = None if meeting.folder is None else meeting.folder / "copies"
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            self._take_up(self._folder)
        self._next = (self.made[-1].seconds if self.made else 0.0) + every_s

    def keep(self, version: int, values: np.ndarray, *, last: bool = False) -> None:
        """Keep weights [size] if it is time, or if they are the ``last`` ones."""
        seconds = self._clock() - self._began
        if (self.made and self.made[-1].version >= version) or (seconds < self._next and not last):
            return
        self.made.append(copy := SavedWeights(seconds, version, values.copy()))
        if self._folder is not None:
            with StagedFile(self._path(copy), overwrite=True) as partial_file, partial_file.open("wb") as file:
                np.save(file, copy.values, allow_pickle=False)
        if len(self.made) > MOST_SAVED:
            for dropped in self.made[1::2]:
                self._path(dropped).unlink(missing_ok=True)
            self.made, self._every = self.made[::2], 2 * self._every
        self._next = seconds + self._every

    def _take_up(self, folder: Path) -> None:
        for path in sorted(folder.glob(f"*{_ENDING}")):
            version, millis = (int(number) for number in path.name.removesuffix(_ENDING).split("-"))
            self.made.append(SavedWeights(millis / 1000, version, np.load(path, allow_pickle=False)))
        began, latest_s = folder / "began", self.made[-1].seconds if self.made else 0.0
        if began.exists() and (former := float(began.read_text(encoding="utf-8"))) + latest_s <= self._began:
            self._began = former
        else:  # the first life; or the machine was started anew, and its clock with it
            self._began -= latest_s
            with StagedFile(began, overwrite=True) as partial_file:
                partial_file.write_text(str(self._began), encoding="utf-8")

    def _path(self, copy: SavedWeights) -> Path:
        """Names are in the order of time."""
        return (self._folder or Path()) / f"{copy.version:020}-{int(copy.seconds * 1000)}{_ENDING}"
