"""What has been measured about the batches of a session, what the next session of the same loader inherits of it, and the
launch score of ByteGNN (§4.2, Algorithm 1), which follows from it. docs/internals/scheduler.md explains the terms.

::

    balance = T_sample / (T_train * max(Q, Q0))        Q: finished batches not yet taken
    f(C)    = max(floor, 101 - exp(C / c)),  c = 100 / ln 101
    score   = T_gap * f(C) * balance                   T_gap: milliseconds since the session's last launch
    launch if score >= sigma

Times are milliseconds, utilisations percent of the whole machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from dataclasses import dataclass

from atta.scheduler.config import SchedulerConfig

_C = 100.0 / math.log(101.0)


def headroom(utilisation: float) -> float:
    """f(C) before its floor: 100 on an idle machine, 0 on a fully used one; ``utilisation`` in percent."""
    return 101.0 - math.exp(min(max(utilisation, 0.0), 100.0) / _C)


def balance(sample_ms: float | None, train_ms: float | None, queued: float, empty_queue: float) -> float:
    """How far sampling lags behind training. While a time is unknown, both count as equal."""
    ratio = sample_ms / train_ms if sample_ms is not None and train_ms is not None else 1.0
    return ratio / max(queued, empty_queue)


def launch_score(
    gap_ms: float,
    *,
    utilisation: float,
    queued: float,
    sample_ms: float | None,
    train_ms: float | None,
    config: SchedulerConfig,
) -> float:
    """The launch score, with Q0 and the floor of f."""
    room = max(headroom(utilisation), config.least_headroom)
    return gap_ms * room * balance(sample_ms, train_ms, queued, config.empty_queue)


def threshold(sample_ms: float, config: SchedulerConfig) -> float:
    """sigma, from the operating point (C*, Q*) at which the machine should settle. There T_gap equals T_train, so the
    score equals T_sample * f(C*) / Q*."""
    return sample_ms * headroom(config.target_utilisation) / config.target_queue


SIZE_MARGIN = 1.125
"""How much larger than the largest batch so far the next ones may be. Sizes within a session differ by a few
percent."""
KEPT_PACES = 64
"""Number of loaders whose measurements outlive their sessions. Those used last are kept."""


@dataclass
class Pace:
    """What has been measured about the batches of a session. Means are running means."""

    sample_ms: float | None = None  # launch to end of a DAG
    train_ms: float | None = None  # the consumer's time per batch
    sigma: float | None = None  # threshold of the launch score; None until the first batch is finished
    batch_bytes: float | None = None  # estimated size of a batch
    work_ms: float | None = None  # CPU time of a DAG's tasks at home, added up
    finished: int = 0
    largest: int = 0  # bytes
    most: int = 0  # largest number of batches that were in flight or finished at once
    total_ms: float = 0.0  # of the batches that calibrate sigma

    @property
    def depth(self) -> float:
        """Batches that training takes while one is being sampled; 0 while a time is unknown."""
        return self.sample_ms / self.train_ms if self.sample_ms is not None and self.train_ms is not None else 0.0

    def inherited(self, config: SchedulerConfig) -> Pace:
        """What the loader's next session starts from: the latest means, and sigma frozen at their value."""
        if self.sample_ms is None:
            return dataclasses.replace(self)
        sigma = threshold(self.sample_ms, config)
        return dataclasses.replace(self, sigma=sigma, finished=max(self.finished, config.calibration_batches))

    def sampled(self, ms: float, nbytes: int, config: SchedulerConfig, work_ms: float = 0.0) -> None:
        """A batch is finished, ``ms`` after its launch. Its tasks kept workers busy for ``work_ms``. sigma is frozen
        after the first batches. From then on slower sampling raises the score above it."""
        self.finished += 1
        self.largest = max(self.largest, nbytes)
        self.batch_bytes = SIZE_MARGIN * self.largest
        self.sample_ms = _mean(self.sample_ms, ms, config.averaging)
        if work_ms > 0:
            self.work_ms = _mean(self.work_ms, work_ms, config.averaging)
        if self.finished <= config.calibration_batches:
            self.total_ms += ms
            self.sigma = threshold(self.total_ms / self.finished, config)

    def trained(self, ms: float, trainers: int, config: SchedulerConfig) -> None:
        """The consumers report their time per batch. Together, ``trainers`` of them drain the queue that much
        faster."""
        self.train_ms = _mean(self.train_ms, ms / trainers, config.averaging)


class PaceMemory:
    """The measurements of loaders whose sessions are closed."""

    # Invariant: at most KEPT_PACES entries, each with at least one finished batch.

    def __init__(self) -> None:
        self._paces: OrderedDict[str, Pace] = OrderedDict()  # by loader, the latest used last

    def __len__(self) -> int:
        return len(self._paces)

    def get(self, loader: str) -> Pace | None:
        """What the loader's latest closed session measured."""
        return self._paces.get(loader)

    def keep(self, loader: str, pace: Pace) -> None:
        """Remember ``pace`` unless it is empty, and forget the loader that was not used for the longest time."""
        if not loader or not pace.finished:
            return
        self._paces[loader] = pace
        self._paces.move_to_end(loader)
        if len(self._paces) > KEPT_PACES:
            self._paces.popitem(last=False)


def _mean(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)
