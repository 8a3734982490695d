"""When a daemon that owes an answer is asked whether it is still there. Pure: times are seconds of any monotonic clock.

A connection may be half open: one end is gone, and nobody has told the other. gRPC's keep-alive finds that after 30 s,
and never that a process is stopped while its kernel still answers. So whoever waits asks a small question.
"""

from __future__ import annotations

import math

__all__ = ["ALONE_S", "ASK_AFTER_S", "REPLICAS_S", "WATCH_S", "DaemonSilence", "patience_of"]

ASK_AFTER_S = 0.5
"""How long nothing must have come before the daemon is asked."""
WATCH_S = 0.25
"""How often it is looked whether that is so."""
REPLICAS_S = 1.25
"""How long the question may take if another daemon can take over. With the other two it is 2 s."""
ALONE_S = 10.0
"""The same if there is no other: a daemon that is merely slow had better not be left."""


def patience_of(replicas: int) -> float:
    """Seconds that the question may take, by the number of daemons that serve the same."""
    return REPLICAS_S if replicas > 1 else ALONE_S


class DaemonSilence:
    """One daemon from which answers are awaited. At most one question is under way."""

    def __init__(self) -> None:
        self._heard = -math.inf
        self._asked: float | None = None

    def heard(self, now: float) -> None:
        """The daemon has answered something."""
        self._heard = max(self._heard, now)

    def due(self, since: float, now: float) -> bool:
        """Whether to ask now. ``since``: when the waiting began."""
        return self._asked is None and now - max(since, self._heard) >= ASK_AFTER_S

    def asked(self, now: float) -> None:
        """The question has been sent."""
        self._asked = now

    def ended(self, *, answered: bool, now: float) -> bool:
        """The question has been answered, or has failed. True: the daemon is silent, nothing else has come meanwhile."""
        asked, self._asked = self._asked, None
        if answered:
            self.heard(now)
        return not answered and (asked is None or self._heard < asked)
