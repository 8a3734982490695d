"""When to look at which session again, and for when the shell has been asked to wake the scheduler."""

from __future__ import annotations

import heapq
import math
from itertools import count

from atta.scheduler.coarse import ScheduledSession

__all__ = ["EARLY_S", "WakeUps"]

EARLY_S = 1e-4
"""How much too early a check may happen. Timers and clocks round differently, and asking for another tick would
spin."""


class WakeUps:
    """Checks of sessions in order of time; at most one wake-up is asked for, that of the earliest check."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, int, ScheduledSession]] = []
        """A heap. An entry counts if it is its session's ``check_at`` and the session is open; others are out of
        date."""
        self._sequence = count()
        self._asked: float | None = None
        """The wake-up that the shell holds. After ``next`` it is no later than the earliest check that counts."""

    def plan(self, session: ScheduledSession, when: float) -> None:
        """Look at ``session`` again at ``when``; replaces its check before."""
        session.check_at = when
        heapq.heappush(self._checks, (when, next(self._sequence), session))

    def due(self, now: float) -> ScheduledSession | None:
        """A session whose check is due, once; None: there is none."""
        checks = self._checks
        while checks and checks[0][0] <= now + EARLY_S:
            when, _, session = heapq.heappop(checks)
            if when == session.check_at and not session.closed:
                return session
        return None

    def arrived(self) -> None:
        """The shell's wake-up has come."""
        self._asked = None

    def next(self, now: float) -> float | None:
        """When to be woken; None: the shell holds that wake-up, or an earlier one, or none is needed."""
        checks = self._checks
        while checks and (checks[0][0] != checks[0][2].check_at or checks[0][2].closed):
            heapq.heappop(checks)
        if self._asked is not None and self._asked <= now:
            self._asked = None
        if checks and (self._asked is None or checks[0][0] < self._asked):
            self._asked = checks[0][0]
            return self._asked
        return None

    def validate(self, session: ScheduledSession) -> None:
        """Raise AssertionError where a check of ``session`` is missing, or no wake-up comes in time for it."""
        if session.check_at == math.inf:
            return
        assert any(when == session.check_at and of is session for when, _, of in self._checks), (
            f"session {session.name!r} is to be checked at {session.check_at}, but no check is planned"
        )
        assert self._asked is not None, f"session {session.name!r} is to be checked, but no wake-up was asked for"
        assert self._asked <= session.check_at, f"the wake-up comes after the check of session {session.name!r}"
