"""How many workers there should be (Dorylus, section 6)."""

from __future__ import annotations

import math

from atta.errors import ConfigError

__all__ = ["FIRST_WORKERS", "PoolSize"]

FIRST_WORKERS = 100
"""At most so many workers at first."""
_RISES = 3
_FEWER, _MORE = 0.8, 1.25


class PoolSize:
    """Follows the queue of what the trainer itself has to do.

    If that queue rises, workers are faster than the trainer: after three rises in a row there are fewer of them. If it
    falls below the number of the trainer's threads, the trainer will soon wait for workers: there are more of them.

    Attributes:
        size: how many workers there should be.
    """

    def __init__(self, intervals: int, *, limit: int, threads: int = 1) -> None:
        """``limit``: at most so many; ``threads``: that the trainer computes with. Raises ConfigError below 1."""
        if limit < 1:
            raise ConfigError(f"workers={limit}: must be at least 1")
        self._limit, self._threads = limit, threads
        self.size = min(intervals, FIRST_WORKERS, limit)
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

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        assert 1 <= self.size <= self._limit, f"{self.size} workers, at most {self._limit}"
        assert 0 <= self._rises < _RISES, f"{self._rises} rises"
