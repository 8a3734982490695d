"""Whether a trainer that has ended is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import atta.errors
from atta.errors import AttaError


class Verdict(Enum):
    """What follows from the end of a trainer."""

    ENDED = "ended"
    AGAIN = "again"
    FAILED = "failed"


class Lives:
    """How often trainers were started again.

    An error of Atta would come again: bad input, a daemon that was lost. So only trainers that a signal has killed, and
    those with other errors, are started again.

    Attributes:
        most: how often each is started again.
        restarts: how often each was, by rank.
    """

    def __init__(self, ranks: Sequence[int], most: int) -> None:
        self.most = most
        self.restarts = dict.fromkeys(ranks, 0)

    def ended(self, rank: int, code: int, error: str | None) -> Verdict:
        """A trainer has ended with an exit code, negative for signals. ``error``: the name of its exception, if known."""
        if code == 0:
            return Verdict.ENDED
        kind = getattr(atta.errors, error or "", None)
        if isinstance(kind, type) and issubclass(kind, AttaError):
            return Verdict.FAILED
        if self.restarts[rank] >= self.most:
            return Verdict.FAILED
        self.restarts[rank] += 1
        return Verdict.AGAIN
