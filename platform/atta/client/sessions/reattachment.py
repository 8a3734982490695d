"""Decides whether and when a lost session is opened again. Pure: times are seconds of any monotonic clock, passed in.

An *outage* begins when a session is lost, and ends when a batch arrives. Within one, attempts come with growing,
jittered waits until ``limit_s`` have passed. Outages have a budget: each costs one, and ten batches earn one back. So a
daemon that dies again and again is not asked for ever, even if a few batches come in between.
"""

from __future__ import annotations

__all__ = ["Reattachment"]

FIRST_WAIT_S = 0.05
"""Mean wait before the second attempt of an outage, doubled for each further one. The first comes at once."""
LONGEST_WAIT_S = 1.0
OUTAGES = 10
"""Most outages that the budget holds. It is full at first."""
PER_OUTAGE = 10
"""Number of batches that earn one outage."""


class Reattachment:
    """The outages of one iterator."""

    def __init__(self, limit_s: float, batch: int = 0) -> None:
        """``limit_s``: longest outage that is waited for; 0: none. ``batch``: the first batch that is wanted."""
        self._limit_s, self._batch = limit_s, batch
        self._budget = OUTAGES * PER_OUTAGE  # in batches
        self._since: float | None = None
        self._attempts = 0
        self._over = False

    def wait_s(self, now: float, batch: int, jitter: float) -> float | None:
        """The session was lost, or an attempt failed: seconds until the next attempt, or None to give up.

        Args:
            now: seconds.
            batch: the next batch that is wanted. If it has grown, batches came in between.
            jitter: a random number in [0, 1).
        """
        if batch > self._batch:
            self._budget = min(OUTAGES * PER_OUTAGE, self._budget + batch - self._batch)
            self._batch, self._since = batch, None
        if self._since is None:
            self._over = self._over or self._budget < PER_OUTAGE or self._limit_s == 0
            self._budget -= 0 if self._over else PER_OUTAGE
            self._since, self._attempts = now, 0
        if self._over or now - self._since >= self._limit_s:
            self._over = True
            return None
        return self._next_wait(now - self._since, jitter)

    def left_s(self, now: float) -> float:
        """How long the present outage may still last; ``limit_s`` if there is none."""
        lasted_s = 0.0 if self._since is None else now - self._since
        return max(0.0, self._limit_s - lasted_s)

    def _next_wait(self, lasted_s: float, jitter: float) -> float:
        wait_s = 0.0
        if self._attempts:
            mean = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._attempts - 1, 30))
            wait_s = min(mean * (0.5 + jitter), self._limit_s - lasted_s)
        self._attempts += 1
        return wait_s

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert 0 <= self._budget <= OUTAGES * PER_OUTAGE, f"a budget of {self._budget} batches"
        assert self._attempts >= 0, f"{self._attempts} attempts"
        assert self._since is not None or not self._over, "given up without an outage"
