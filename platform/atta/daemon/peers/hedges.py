"""When a request to a peer is sent a second time, as its answer is late (Dean and Barroso, The Tail at Scale, 2013).

Answers depend only on the request, so the first of the two is as good as the second. The second request takes a
connection of its own, because it is mostly the connection that delays a single request. Pure: the caller measures and
sends.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Hedges"]

WINDOW = 64
"""Number of latest answers that define what is late."""
ENOUGH = 16
"""Number of answers of a kind before any of its requests is repeated."""
QUANTILE = 0.95
"""Share of the latest answers whose time counts as usual."""
FACTOR = 4.0
"""How many times the usual time an answer takes when it is late. A busy peer is not a reason to ask twice."""
LEAST_S = 0.1
"""Least time after which an answer is late, in seconds."""
SHARE = 0.02
"""Largest share of requests that are sent twice. A cluster under load must not get more load."""
MOST = 8.0
"""Largest number of second requests that may be saved up."""


class Hedges:
    """The decision for one peer, by kind of request."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}  # by kind, seconds of the latest WINDOW answers
        self._patience: dict[str, float] = {}  # by kind with ENOUGH answers, at least LEAST_S
        self._allowed = 1.0  # second requests that may be sent now, from 0 to MOST
        self.sent, self.won = 0, 0  # second requests, and those that were answered first

    def patience(self, kind: str) -> float | None:
        """Seconds to wait for the first answer before asking again; None: do not ask again."""
        return self._patience.get(kind) if self._allowed >= 1 else None

    def answered(self, kind: str, seconds: float) -> None:
        """A request of this kind has got its first answer after ``seconds``."""
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

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert 0.0 <= self._allowed <= MOST, f"{self._allowed} second requests may be sent"
        assert 0 <= self.won <= self.sent, f"{self.won} of {self.sent} second requests were answered first"
        assert all(len(seen) <= WINDOW for seen in self._seen.values()), "too many answers are remembered"
        known = {kind for kind, seen in self._seen.items() if len(seen) >= ENOUGH}
        assert self._patience.keys() == known, (
            f"patience for {sorted(self._patience)}, enough answers of {sorted(known)}"
        )
        assert all(wait >= LEAST_S for wait in self._patience.values()), f"impatient: {self._patience}"
