"""When a request to a peer is sent a second time because its answer is late (Dean and Barroso, The Tail at Scale, 2013).

Answers depend on nothing but the request, so whichever of the two comes first is as good. The second one takes a connection of its
own: what holds up a single request is mostly its connection. Pure: the caller measures and sends.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Hedges"]

WINDOW = 64
"""The latest answers that tell what is late."""
ENOUGH = 16
"""Answers of a kind before any of its requests is repeated."""
QUANTILE = 0.95
FACTOR = 4.0
"""An answer is late after so many times what 95 % of the latest ones have taken: a busy peer is no reason to ask it twice."""
LEAST_S = 0.1
SHARE = 0.02
"""Of all requests, those that may be sent twice: a cluster under load must not get more of it."""
MOST = 8.0
"""Second requests that may be saved up."""


class Hedges:
    """The decision for one peer, by kind of request."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._patience: dict[str, float] = {}
        self._allowed = 1.0
        self.sent, self.won = 0, 0

    def patience(self, kind: str) -> float | None:
        """Seconds to wait for the first answer before asking again; None: do not ask again."""
        return self._patience.get(kind) if self._allowed >= 1 else None

    def answered(self, kind: str, seconds: float) -> None:
        """A request of this kind has got its first answer after so long."""
        self._allowed = min(MOST, self._allowed + SHARE)
        seen = self._seen.setdefault(kind, deque(maxlen=WINDOW))
        seen.append(seconds)
        if len(seen) >= ENOUGH:
            usual = sorted(seen)[int(QUANTILE * (len(seen) - 1))]
            self._patience[kind] = max(LEAST_S, FACTOR * usual)

    def take(self) -> bool:
        """Whether a second request may be sent now; it counts as sent."""
        if self._allowed < 1:
            return False
        self._allowed -= 1
        self.sent += 1
        return True
