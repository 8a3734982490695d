"""Decides when leases are renewed. Pure: times are seconds of any monotonic clock, passed in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Renewals"]

PER_LEASE = 3
"""Number of renewals within a lease: two of them may be lost."""
PER_FAILURE = 4
"""A failed renewal is repeated after the period divided by this."""
SHORTEST_S = 0.01
"""Shortest period between two renewals."""
D = TypeVar("D")


@dataclass
class _Schedule:
    period: float
    due: float


class Renewals(Generic[D]):
    """When to renew the leases of each daemon ``D``. Answers do not shift the schedule."""

    def __init__(self) -> None:
        self._daemons: dict[D, _Schedule] = {}

    def keep(self, daemon: D, lease_s: float, now: float) -> None:
        """From now on there is a lease of ``lease_s`` seconds to renew, perhaps one of several of this daemon."""
        period = max(lease_s / PER_LEASE, SHORTEST_S)
        known = self._daemons.get(daemon)
        if known is not None:
            period, due = min(period, known.period), min(now + period, known.due)
        else:
            due = now + period
        self._daemons[daemon] = _Schedule(period, due)

    def drop(self, daemon: D) -> None:
        """The daemon has no lease left to renew."""
        self._daemons.pop(daemon, None)

    def due(self, now: float) -> list[D]:
        """The daemons to ask now. Each is due again a period later, whether it answers or not."""
        found = [daemon for daemon, schedule in self._daemons.items() if schedule.due <= now]
        for daemon in found:
            self._daemons[daemon].due = now + self._daemons[daemon].period
        return found

    def failed(self, daemon: D, now: float) -> None:
        """A renewal has failed, so the next one comes sooner."""
        if (schedule := self._daemons.get(daemon)) is not None:
            schedule.due = min(schedule.due, now + schedule.period / PER_FAILURE)

    def wait_s(self, now: float) -> float:
        """Seconds until the next renewal is due; inf if there is none."""
        return max(0.0, min((schedule.due for schedule in self._daemons.values()), default=math.inf) - now)
