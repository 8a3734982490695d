"""DIGEST (Chai et al., 2022): rows of others are synchronised every N epochs, gradients end at the cut.

Rows at age N cost little accuracy. Gradients that are so old do harm, so they have a period of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from atta.train.settings.servers import DigestOptions, check_options
from atta.train.stale.decisions.common import Decisions, Published
from atta.train.stale.rules import Rule, SyncPeriod, latest, snapshot
from atta.train.stale.table import Direction

__all__ = [
    "AsyncDigestDecisions",
    "DigestDecisions",
]


@dataclass(frozen=True)
class DigestDecisions(DigestOptions, Decisions):
    """Rows of the last synchronisation. An exact pass before the first epoch fills the tables with version 0."""

    def __post_init__(self) -> None:
        check_options(self)

    def period(self, direction: Direction) -> SyncPeriod | None:
        """When this direction is synchronised; None: never."""
        every = self.sync_every if direction == "forward" else self.grad_sync_every
        return None if every is None else SyncPeriod(every, self.phase)

    def keeps(self, direction: Direction) -> int | None:
        return 1

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Before the first synchronisation there are no gradients."""
        period = self.period(direction)
        if period is None or (direction == "backward" and period.read(epoch) == 0):
            return None
        return snapshot(period.read(epoch))

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        period = self.period(direction)
        return period is not None and period.pushes(epoch)

    def pulls(self, epoch: int, direction: Direction) -> bool:
        """Whether the version that is read changes in ``epoch``, so that it has to be pulled."""
        period = self.period(direction)
        return period is not None and self.reads(epoch, direction) is not None and period.pulls(epoch)


@dataclass(frozen=True)
class AsyncDigestDecisions(DigestDecisions):
    """DIGEST-A: as DIGEST, but epochs are the steps of this trainer, and rows are the newest that owners have pushed."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return latest() if direction == "forward" else None
