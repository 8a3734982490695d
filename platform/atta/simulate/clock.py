"""Simulated time: a queue of calls to be made, in order of time, equal times in order of planning."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Clock"]


class Clock:
    """``now`` is in seconds.

    Calls are made one at a time and never from within ``at``, so users of a clock are not re-entered.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._stopped = False

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Make ``call(*args)`` at ``when``, which must not lie in the past."""
        self._planned += 1
        heapq.heappush(self._calls, (when, self._planned, call, args))

    def stop(self) -> None:
        """Let ``run`` return after the current call."""
        self._stopped = True

    def run(self) -> None:
        """Make all calls until ``stop``, or until there are none."""
        calls, pop = self._calls, heapq.heappop
        while calls and not self._stopped:
            self.now, _, call, args = pop(calls)
            self.events += 1
            call(*args)
