"""How long a client repeats a request to a daemon that does not answer."""

from __future__ import annotations

import time

__all__ = ["PATIENCE_S", "Patience"]

PATIENCE_S = 15.0
"""How long a client repeats a request to a daemon that has answered before: it may be restarting."""
RETRY_S = 0.25
"""How long a client waits before it repeats a request."""


class Patience:
    """Allows repetitions for ``seconds`` from the first failure on."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, 0.0

    def lasts(self) -> bool:
        """After a failure: wait a little and return True; return False when the time is used up."""
        now = time.monotonic()
        self._until = self._until or now + self._seconds
        if now >= self._until:
            return False
        time.sleep(RETRY_S)
        return True
