"""What every system decides, and exact exchange, which decides that nothing is stale."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from atta.errors import ConfigError
from atta.observe.settings import check_bounds
from atta.train.stale.rules import NEVER, Rule, exact
from atta.train.stale.table import Direction

__all__ = ["Decisions", "ExchangeDecisions", "Published", "check_options"]


@dataclass(frozen=True, slots=True)
class Published:
    """What an owner knows of the rows of one layer and direction that it has published.

    Attributes:
        version: the oldest version that a reader holds; -1: none.
        gap: mean absolute difference of the rows to those that were published.
    """

    version: int = NEVER
    gap: float = math.inf


class Decisions(Protocol):
    """What trainers read and publish. Epochs count from 1."""

    @property
    def gaps(self) -> bool:
        """Whether owners keep what they have published, to measure gaps. That is a second copy of these rows."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Which rows of others are read in ``epoch``; None: none, so gradients end at the cut."""

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        """Whether trainer ``owner`` publishes the rows of a layer in ``epoch``. Asked before they are read."""


@dataclass(frozen=True)
class ExchangeDecisions:
    """Full-graph training: rows and gradients of this epoch."""

    gaps = False

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """See ``Decisions.reads``."""
        return exact(epoch)

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        """See ``Decisions.publishes``."""
        return True


def check_options(options: Any) -> None:
    """Refuse options outside their bounds or choices, and numbers that are not finite.

    Raises:
        ConfigError: names the option; one line.
    """
    check_bounds(options)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"--{field.name.replace('_', '-')} {value}: must be a finite number")
