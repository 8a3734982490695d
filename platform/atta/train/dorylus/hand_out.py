"""Hands tasks out to workers, again if need be, and says how many workers there should be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from atta.errors import AttaError, ConfigError
from atta.train.dorylus.progress import Work

_LEAST_TIMEOUT_S = 0.5
_FIRST_TIMEOUT_S = 10.0
"""Before any task has ended, nobody knows how long one takes."""
_MEANS = 5
_REMEMBERED = 0.95
_STUCK = 4
STUCK_S = 30.0
"""No worker is given up earlier: where many processes share a core, a task may take seconds now and then."""
_FIRST_WORKERS = 100
"""At most so many workers at first."""
_RISES = 3
_FEWER, _MORE = 0.8, 1.25


@dataclass(slots=True)
class _Handed:
    """A task that has no result yet. ``workers``: those that do it; ``again``: how often it was relaunched;
    ``waiting``: whether it waits for a (further) worker; ``late_at``: when it will be relaunched."""

    workers: set[int] = field(default_factory=set)
    again: int = 0
    waiting: bool = True
    late_at: float = 0.0


class HandOut:
    """The tasks of workers, who may die, be slow, or answer twice. The first result counts. Times are seconds that never go
    back.

    A task whose worker takes longer than the timeout is handed to another one too. The timeout is five times the mean
    time of a task, at least half a second, and twice as long after each relaunch of the same task.

    Attributes:
        relaunched, handed: how many times a task was handed out again, and at all.
        ignored: how many results came too late.
        lost: how many workers went away in the middle of a task.
        busy_s: seconds that workers were at tasks which they have answered, all of them together.
    """

    def __init__(self, *, timeout_s: float | None = None, max_relaunch: int = 5) -> None:
        """``timeout_s``: in place of the rule. Raises ConfigError for numbers out of range."""
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ConfigError(f"worker-timeout={timeout_s}: must be positive")
        if max_relaunch < 0:
            raise ConfigError(f"max-relaunch={max_relaunch}: must be at least 0")
        self._given, self._most = timeout_s, max_relaunch
        self._mean: float | None = None
        self._open: dict[Work, _Handed] = {}
        self._doing: dict[int, tuple[Work, float]] = {}  # by worker: its task, and when it began
        self.relaunched = self.ignored = self.lost = self.handed = 0
        self.busy_s = 0.0

    @property
    def timeout_s(self) -> float:
        """How long a task may take before it is relaunched for the first time."""
        if self._given is not None:
            return self._given
        return _FIRST_TIMEOUT_S if self._mean is None else max(_LEAST_TIMEOUT_S, _MEANS * self._mean)

    @property
    def waiting(self) -> int:
        """How many tasks wait for a worker."""
        return sum(task.waiting for task in self._open.values())

    def add(self, work: Work) -> None:
        """A task is there to be done."""
        assert work not in self._open, f"{work} is there already"
        self._open[work] = _Handed()

    def take(self, worker: int, now: float) -> Work | None:
        """The first task that waits, for an idle worker; None: there is none for it."""
        assert worker not in self._doing, f"worker {worker} is busy"
        for work in sorted(work for work, task in self._open.items() if task.waiting):
            task = self._open[work]
            task.waiting, task.late_at = False, now + self.timeout_s * 2**task.again
            task.workers.add(worker)
            self._doing[worker] = work, now
            self.handed += 1
            return work
        return None

    def result(self, worker: int, work: Work, now: float) -> bool:
        """A worker has ended its task; whether its result counts, which the first one does. Raises ConfigError: the
        worker was not given this task."""
        doing, since = self._doing.get(worker, (None, now))
        if doing != work:
            raise ConfigError(f"worker {worker} answers {work}, which it was not given")
        del self._doing[worker]
        took = now - since
        self.busy_s += took
        if self._open.pop(work, None) is None:
            self.ignored += 1
            return False
        self._mean = took if self._mean is None else _REMEMBERED * self._mean + (1 - _REMEMBERED) * took
        return True

    def gone(self, worker: int) -> None:
        """A worker has gone away. Its task waits for another one, unless somebody else does it too. Raises AttaError:
        the task was relaunched too often."""
        if worker not in self._doing:
            return
        self.lost += 1
        work, _ = self._doing.pop(worker)
        if (task := self._open.get(work)) is not None:
            task.workers.discard(worker)
            if not task.workers and not task.waiting:
                self._again(work, task)

    def late(self, now: float) -> list[Work]:
        """Let tasks that take too long wait for one more worker; returns them. Raises AttaError: a task was relaunched
        too often."""
        found = [work for work, task in self._open.items() if not task.waiting and now >= task.late_at]
        for work in found:
            self._again(work, self._open[work])
        return found

    def stuck(self, now: float) -> list[int]:
        """Workers that have been at a task for 30 s, and for four times as long as the present timeout."""
        most = max(STUCK_S, _STUCK * self.timeout_s)
        return sorted(worker for worker, (_, since) in self._doing.items() if now - since >= most)

    def _again(self, work: Work, task: _Handed) -> None:
        if task.again == self._most:
            raise AttaError(
                f"epoch {work.epoch}, interval {work.interval}: a task had no result after {self._most} relaunches; "
                "workers die or are too slow (worker-timeout, max-relaunch)"
            )
        task.again, task.waiting = task.again + 1, True
        self.relaunched += 1


class PoolSize:
    """How many workers there should be (Dorylus, section 6); it follows the queue of what the trainer itself has to do.
    If that queue rises, workers are faster than the trainer: after three rises in a row there are fewer of them. If it
    falls below the number of the trainer's threads, the trainer will soon wait for workers: there are more of them."""

    def __init__(self, intervals: int, *, limit: int, threads: int = 1) -> None:
        """``limit``: at most so many; ``threads``: that the trainer computes with. Raises ConfigError below 1."""
        if limit < 1:
            raise ConfigError(f"workers={limit}: must be at least 1")
        self._limit, self._threads = limit, threads
        self.size = min(intervals, _FIRST_WORKERS, limit)
        self._last: int | None = None
        self._rises = 0

    def check(self, queue: int) -> int:
        """The size, after the queue was looked at; once a second."""
        last, self._last = self._last, queue
        if last is None:
            return self.size
        self._rises = self._rises + 1 if queue > last else 0
        if self._rises == _RISES:
            self._rises = 0
            self.size = max(1, math.floor(_FEWER * self.size))
        elif queue < last and queue < self._threads:
            self.size = min(self._limit, math.ceil(_MORE * self.size))
        return self.size
