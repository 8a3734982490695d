"""How often requests are repeated soon after failures, and when a silent daemon is left."""

from __future__ import annotations

import math

SHARE = 0.1
"""Of repetitions in all requests, in the long run."""
AT_ONCE = 10
"""Repetitions that may come at once after a while without failures."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0


class RetryBudget:
    """Of one connection, for all who use it. An outage would otherwise multiply the requests to a daemon that is back.
    Threads may share it: a lost update makes it a tenth of a repetition smaller or larger."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once, self.left = at_once, float(at_once)
        """``left``: repetitions that are left now."""

    def asked(self) -> None:
        """A request is sent, for the first time or again."""
        self.left = min(self._at_once, self.left + SHARE)

    def take(self) -> bool:
        """Whether a request may be repeated soon."""
        if self.left < 1 + SHARE:
            return False
        self.left -= 1 + SHARE  # ``asked`` gives back the share of the repetition itself
        return True


def pause_s(failures: int, budget: RetryBudget, drawn: float) -> float:
    """Seconds to wait after the ``failures``-th failure in a row, from 1; twice as long each time. ``drawn``: from 0 to 1,
    so that those who failed together do not come back together. Without a budget the pause is the longest."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)) if budget.take() else LONGEST_PAUSE_S
    return longest * (1 + drawn) / 2


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
