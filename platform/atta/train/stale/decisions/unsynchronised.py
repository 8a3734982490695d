"""DIGEST-A (Chai et al., 2022): trainers synchronise rows by their own steps, and read the newest there are."""

from __future__ import annotations

from dataclasses import dataclass

from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.rules import Rule, latest
from atta.train.stale.table import Direction

__all__ = ["AsyncDigestDecisions"]


@dataclass(frozen=True)
class AsyncDigestDecisions(DigestDecisions):
    """As DIGEST, but epochs are the steps of this trainer, and rows are the newest that owners have pushed."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """See ``Decisions.reads``."""
        return latest() if direction == "forward" else None
