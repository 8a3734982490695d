"""How long a client repeats a request to a daemon that does not answer."""

from __future__ import annotations

import random
import time

from atta.wire.retries import RetryBudget, pause_s

__all__ = ["PATIENCE_S", "Patience"]

PATIENCE_S = 15.0
"""How long a client repeats a request to a daemon that has answered before: it may be restarting."""
_JITTER = random.Random()  # its own: the program's random numbers stay what they would be


class Patience:
    """Allows repetitions for ``seconds`` from the first failure on, with longer pauses when ``budget`` is used up."""

    def __init__(self, seconds: float, budget: RetryBudget) -> None:
        self._seconds, self._budget = seconds, budget
        self._until, self._failures = 0.0, 0

    def lasts(self) -> bool:
        """After a failure: wait a little and return True; return False when the time is used up."""
        now = time.monotonic()
        self._until = self._until or now + self._seconds
        self._failures += 1
        if now >= self._until:
            return False
        time.sleep(pause_s(self._failures, self._budget, _JITTER.random()))
        return True
