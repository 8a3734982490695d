"""How long a client goes on asking a daemon that does not answer."""

from __future__ import annotations

import time

__all__ = ["PATIENCE_S", "Patience"]

PATIENCE_S = 15.0
"""How long a client asks again when a daemon that has answered before is gone: it may be starting anew."""
RETRY_S = 0.25
"""How long it waits before it asks again."""


class Patience:
    """Ask again, at most for ``seconds`` from the first failure on."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, 0.0

    def lasts(self) -> bool:
        """After a failure: wait a little and return True, or return False because the time is used up."""
        now = time.monotonic()
        self._until = self._until or now + self._seconds
        if now >= self._until:
            return False
        time.sleep(RETRY_S)
        return True
