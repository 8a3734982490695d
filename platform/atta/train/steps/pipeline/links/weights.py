"""The weights of a job on a daemon: one thread asks for them, another sends gradients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from atta.client.parameters import JobWeights
from atta.errors import AttaError, DeadlineError, RemoteError
from atta.train.steps.pipeline.decisions.stages import Work
from atta.train.steps.pipeline.engine import Acknowledged, Begun, Broken, Happening

__all__ = ["DaemonWeights"]

_ASKED_S = 0.5
"""A request for weights waits so long for slower intervals. Then another interval's turn may have come."""
_IDLE_S = 1.0


class _Gradient(NamedTuple):
    work: Work
    layer: int
    version: int
    values: np.ndarray


class DaemonWeights:
    """See ``PipelineWeights``. Members of the job are intervals: those of this trainer count from ``first``."""

    def __init__(self, job: JobWeights, first: int, happenings: queue.SimpleQueue[Happening]) -> None:
        self._job, self._first, self._happenings = job, first, happenings
        self._wanted: list[Work] = []
        self._asked: set[tuple[int, int]] = set()
        self._change = threading.Condition()
        self._gradients: queue.SimpleQueue[_Gradient | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), name="atta-weights", daemon=True)
            for step in (self._ask, self._send)
        ]
        for thread in self._threads:
            thread.start()

    def want(self, works: Sequence[Work]) -> None:
        with self._change:
            self._wanted = [work for work in works if (work.interval, work.epoch) not in self._asked]
            if self._wanted:
                self._change.notify()

    def push(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        """At most one gradient per interval and layer waits."""
        self._gradients.put(_Gradient(work, layer, version, gradient))

    def close(self) -> None:
        """End the threads, after the requests that are under way."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._gradients.put(None)
        for thread in self._threads:
            thread.join(2 * _IDLE_S)

    def _repeat(self, step: Callable[[], None]) -> None:
        try:
            while not self._closed:
                step()
        except AttaError as error:
            if not self._closed:
                self._happenings.put(Broken(error))

    def _ask(self) -> None:
        """Begin the epoch of the slowest interval that waits."""
        with self._change:
            if not self._wanted:
                self._change.wait(_IDLE_S)
            work = min(self._wanted, default=None)
        if work is None or self._closed:
            return
        try:
            found = self._job.begin(self._first + work.interval, work.epoch, within_s=_ASKED_S)
        except DeadlineError:
            return
        if found.values is None:
            raise RemoteError(
                "the daemon", f"interval {work.interval} cannot begin epoch {work.epoch}: it is over there"
            )
        with self._change:
            self._asked.add((work.interval, work.epoch))
            self._asked.discard((work.interval, work.epoch - 2))
            self._wanted = [one for one in self._wanted if one != work]
        self._happenings.put(Begun(work.interval, work.epoch, found.version, found.values))

    def _send(self) -> None:
        found = self._gradients.get()
        if found is None:
            return
        work = found.work
        self._job.push(
            self._first + work.interval, work.epoch, found.values, layer=found.layer, version=found.version
        )  # the answer means that it counts
        self._happenings.put(Acknowledged(work.interval, work.epoch, found.layer))
