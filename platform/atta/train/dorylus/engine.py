"""One trainer's pipeline: it gathers and scatters, hands tasks out, and follows what comes back."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from atta.errors import AttaError, ConfigError, DeadlineError
from atta.train.dorylus.gathering import GatherPlan, Travels, matrices
from atta.train.dorylus.links import Arrays, DaemonWeights, PeerLinks
from atta.train.dorylus.progress import (
    Acknowledged,
    Arrived,
    Begun,
    Broken,
    Computed,
    Happening,
    IntervalTracks,
    PipelineProgress,
    Producer,
    Work,
)
from atta.train.dorylus.worker import LayerForm
from atta.train.dorylus.workers import WorkerPool

SILENT_S = 300.0
"""If nothing happens for so long, the job ends with an error."""
TICK_S = 0.1


@dataclass(frozen=True)
class TrainerIntervals:
    """What a trainer's intervals compute on: what they gather, what travels, ``features`` [own + others', channels] of
    all rows that are read, user ids int64 [own], and of each interval the ``places`` int64 [m] whose loss is taken, and
    their ``targets`` [m, ...]."""

    plan: GatherPlan
    travels: Travels
    features: torch.Tensor
    ids: np.ndarray
    targets: Sequence[Arrays]


@dataclass
class _Held:
    """What an interval has at hand: weights, sums by layer, and rows or gradients that wait for the next stage."""

    version: int = -1
    weights: list[torch.Tensor] = field(default_factory=list)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    made: torch.Tensor | None = None


class IntervalEngine:
    """Runs the intervals of a trainer. Everything is decided in one thread; others put what has happened into ``happenings``.

    Attributes:
        losses: by epoch, the sum of losses of this trainer's training vertices.
        ended: by epoch from the first one that was trained, seconds since the start at which its slowest interval ended it.
        marks: of the same epochs, counts at that time, of ``WorkerPool.counts`` too.
        went_on: seconds since the start at which the latest ``run`` began.
    """

    def __init__(
        self,
        progress: PipelineProgress,
        forms: Sequence[LayerForm],
        data: TrainerIntervals,
        links: tuple[WorkerPool, DaemonWeights, PeerLinks | None],
        happenings: queue.SimpleQueue[Happening],
        *,
        about: Mapping[str, Any],
        began: Callable[[int, np.ndarray], None] = lambda version, values: None,
        tracks: IntervalTracks | None = None,
    ) -> None:
        """``about``: what every task is told, ``seed`` and ``divisor``; ``began``: called with each version of the
        weights that an interval begins with; ``tracks``: remembers what intervals did."""
        self.progress, self._forms, self._data, self._about, self._began = progress, forms, data, about, began
        self._tasks, self._weights, self._peers = links
        self.happenings = happenings
        plan, travels, dtype, read = data.plan, data.travels, data.features.dtype, len(data.features)
        self._gathers, self._backs = matrices(plan, travels, own=len(data.ids), read=read, dtype=dtype)
        self._rows = [data.features] + [torch.zeros(read, form.reads, dtype=dtype) for form in forms[1:]]
        self._gradients = [torch.empty(0)] + [
            torch.zeros(plan.sums + travels.sums, form.reads, dtype=dtype) for form in forms[1:]
        ]
        self._held = [_Held() for _ in plan.intervals]
        self.losses: defaultdict[int, float] = defaultdict(float)
        self.ended: list[float] = []
        self.marks: list[dict[str, float]] = []
        self._tracks = tracks
        self.sent_bytes = 0
        self._start: float | None = None
        self._heard = self.went_on = 0.0

    def run(self) -> None:
        """Go on until all intervals have finished all epochs. May be called again after ``progress.go_on``. Raises
        AttaError: what has broken the job; DeadlineError: nothing has happened for a long time."""
        self._heard = ticked = time.monotonic()
        if self._start is None:
            self._start = ticked
        self.went_on = self._now()
        while not self.progress.done:
            busy = self._hand_out()
            now = time.monotonic()
            if now - ticked >= TICK_S:
                ticked = now
                self._tasks.tick(busy)
            self._listen(wait=not busy)

    def _hand_out(self) -> int:
        """Give away what workers can do, then do the first thing that is left; returns how many there were."""
        self._weights.want(self.progress.wanting())
        own = []
        for work in self.progress.ready():
            if self.progress.stages[work.stage].by_trainer:
                own.append(work)
            else:
                self._take(work)
                self._give(work)
        if own:
            self._take(own[0])
            self._do(own[0])
            self._end(own[0])
        return len(own)

    def _listen(self, *, wait: bool) -> None:
        try:
            self._take_in(self.happenings.get(block=wait, timeout=TICK_S))
            while True:
                self._take_in(self.happenings.get_nowait())
        except queue.Empty:
            if wait and time.monotonic() - self._heard > SILENT_S:
                raise DeadlineError(
                    "pipeline", f"nothing has happened for {SILENT_S:g} s; {self.progress.finished} epochs are finished"
                ) from None

    def _take_in(self, happening: Happening) -> None:
        self._heard = time.monotonic()
        match happening:
            case Begun(interval, epoch, version, values):
                if self.progress.begun(interval, epoch, version):
                    vector = torch.from_numpy(np.array(values))
                    held = self._held[interval]
                    held.version, held.weights = version, list(vector.split([form.size for form in self._forms]))
                    self._began(version, values)
            case Acknowledged(interval, epoch, layer):
                self.progress.acknowledged(interval, epoch, layer)
                self._note_ends()
            case Computed(work, arrays):
                self._computed(work, arrays)
            case Arrived():
                self._arrived(happening)
            case Broken(error):
                raise error

    def _now(self) -> float:
        assert self._start is not None, "it runs"
        return time.monotonic() - self._start

    def _note_ends(self) -> None:
        while len(self.ended) < self.progress.finished - self.progress.first:
            self.ended.append(self._now())
            counts = {"sent_bytes": float(self.sent_bytes), "oldest_row": float(self.progress.oldest)}
            self.marks.append(counts | self._tasks.counts())

    def _give(self, work: Work) -> None:
        stage, held = self.progress.stages[work.stage], self._held[work.interval]
        plan, form = self._data.plan.intervals[work.interval], self._forms[stage.layer]
        sums, weights = held.sums[stage.layer].numpy(), held.weights[stage.layer].numpy()
        arrays = {"sums": sums, "weights": weights, "keys": self._data.ids[plan.rows], **plan.edge_task}
        if stage.part == "loss":
            arrays |= self._data.targets[work.interval]
        if stage.part == "apply-back":
            assert held.made is not None, "gathered before"
            arrays["gradients"], held.made = held.made.numpy(), None
        about = {**self._about, "part": stage.part, "layer": asdict(form), "epoch": work.epoch}
        self._tasks.give(work, about, arrays)

    def _do(self, work: Work) -> None:
        stage, held = self.progress.stages[work.stage], self._held[work.interval]
        plan, layer = self._data.plan.intervals[work.interval], stage.layer
        if stage.part == "gather":
            if layer > 0 or 0 not in held.sums:  # sums of features never change
                held.sums[layer] = self._gathers[work.interval] @ self._rows[layer]
        elif stage.part == "gather-back":
            held.made = self._backs[work.interval] @ self._gradients[layer + 1]
        else:
            assert held.made is not None, "computed before"
            if stage.part == "scatter":
                self._rows[layer + 1][torch.from_numpy(plan.rows)] = held.made
                self._send(work, self._rows[layer + 1], self._data.travels.rows_to)
            else:
                self._gradients[layer][torch.from_numpy(plan.sums)] = held.made
                self._send(work, self._gradients[layer], self._data.travels.sums_to)
            held.made = None

    def _send(self, work: Work, table: torch.Tensor, lists: Mapping[Producer, np.ndarray]) -> None:
        for (rank, interval), rows in lists.items():
            if interval == work.interval:
                assert self._peers is not None, "somebody reads them"
                values = table[torch.from_numpy(rows)].numpy()
                self.sent_bytes += values.nbytes
                self._peers.send(rank, self.progress.stages[work.stage], work.interval, work.epoch, values)

    def _take(self, work: Work) -> None:
        if self._tracks is not None:
            self._tracks.begin(work, self._now())
        self.progress.take(work)

    def _end(self, work: Work) -> None:
        if self._tracks is not None:
            self._tracks.end(work, self._now())
        self.progress.end(work)
        self._note_ends()

    def _computed(self, work: Work, arrays: Arrays) -> None:
        """A task's result: rows or gradients stay here until they are scattered, gradients of weights are sent."""
        stage, held = self.progress.stages[work.stage], self._held[work.interval]
        form, plan = self._forms[stage.layer], self._data.plan.intervals[work.interval]
        if stage.part == "apply":
            held.made = self._checked(arrays, "rows", (len(plan.rows), form.makes))
        else:
            gradient = self._checked(arrays, "weights", (form.size,)).numpy()
            if stage.part == "loss":
                self.losses[work.epoch] += float(arrays["loss"][0])
            if stage.layer > 0:
                held.made = self._checked(arrays, "sums", (len(plan.sums), form.reads))
        self._end(work)
        if stage.part != "apply":
            self._weights.push(work, stage.layer, held.version, gradient)

    def _checked(self, arrays: Arrays, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        found = arrays.get(name)
        dtype = self._rows[0].numpy().dtype
        if found is None or found.shape != shape or found.dtype != dtype:
            what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ConfigError(f"a worker returned {what} as {name}, not {dtype} {list(shape)}")
        return torch.from_numpy(np.array(found))

    def _arrived(self, found: Arrived) -> None:
        stage = found.stage
        forward = stage.part == "scatter"
        places = (self._data.travels.rows_from if forward else self._data.travels.sums_from).get(found.producer)
        table = self._rows[stage.layer + 1] if forward else self._gradients[stage.layer]
        if places is None or found.rows.shape != (len(places), table.shape[1]):
            raise AttaError(
                f"trainer {found.producer[0]} sent rows of shape {list(found.rows.shape)}, which nobody reads"
            )
        table[torch.from_numpy(places)] = torch.from_numpy(np.array(found.rows))
        self.progress.arrived(stage, found.producer, found.epoch)
