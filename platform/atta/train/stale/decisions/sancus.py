"""SANCUS (Peng et al., VLDB 2022): an owner skips a broadcast while its readers' copies are good enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.settings.servers import SancusOptions, check_options
from atta.train.stale.decisions.common import Decisions, Published
from atta.train.stale.rules import NEVER, Rule, at_most, due_by_age, due_by_gap, exact, latest, lead
from atta.train.stale.table import Direction

__all__ = ["SancusDecisions"]

_DEFAULT_EPS = {"epoch": 1.0, "adaptive": 1.0, "gap": 0.03}


@dataclass(frozen=True)
class SancusDecisions(SancusOptions, Decisions):
    """Rows within a bound, gradients of this epoch. Without a warm-up, the code of the paper's authors loses 2 to 5
    points of accuracy."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.bound != "gap" and self.limit != int(self.limit):
            raise ConfigError(f"eps={self.eps}: is a number of epochs with bound={self.bound}")
        if self.clip_grad is not None and self.clip_grad <= 0:
            raise ConfigError(f"clip-grad={self.clip_grad}: must be positive")

    @property
    def limit(self) -> float:
        """The bound's value."""
        return _DEFAULT_EPS[self.bound] if self.eps is None else self.eps

    @property
    def gaps(self) -> bool:  # type: ignore[override]
        """See ``Decisions.gaps``."""
        return self.bound == "gap"

    def keeps(self, direction: Direction) -> int | None:
        return 0 if direction == "forward" else None

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """A bound on the change is no bound on the age."""
        if direction == "backward":
            return exact(epoch)
        return latest() if self.gaps else at_most(epoch, int(self.limit))

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        """The first broadcast is always active."""
        if direction == "backward" or last.version == NEVER or epoch <= self.warmup:
            return True
        if self.gaps:
            return due_by_gap(last.gap, self.limit)
        bound = int(self.limit)
        if self.bound == "adaptive" and last.version <= max(1, self.warmup):
            bound -= lead(owner, bound)
        return due_by_age(epoch, last.version, bound)

    def clip_norm(self, trainers: int) -> float | None:
        """A share of a sum over P trainers is about 1/√P of its norm."""
        return None if self.clip_grad is None else self.clip_grad / math.sqrt(trainers)
