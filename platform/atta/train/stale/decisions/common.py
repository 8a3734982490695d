"""What every system decides, and exact exchange, which decides that nothing is stale."""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

from atta.train.stale.rules import NEVER, Rule, exact
from atta.train.stale.table import Direction

__all__ = ["Decisions", "ExchangeDecisions", "Published", "decisions_of"]


@dataclass(frozen=True, slots=True)
class Published:
    """What an owner knows of the rows of one layer and direction that it has published.

    Attributes:
        version: the oldest version that a reader holds; -1: none.
        gap: mean absolute difference of the rows to those that were published.
    """

    version: int = NEVER
    gap: float = math.inf


class Decisions(abc.ABC):
    """What trainers read and publish. Epochs count from 1.

    Attributes:
        gaps: whether owners keep what they have published, to measure gaps. That is a second copy of these rows.
        smooths: whether readers use a moving mean of the rows, ``smoothed``.
    """

    gaps: bool = False
    smooths: bool = False

    def keeps(self, direction: Direction) -> int | None:
        """How many versions readers keep while an epoch brings new ones.

        0: new rows replace them at once. None: rows are read in their own epoch only, so nothing is kept.
        """
        return None

    @abc.abstractmethod
    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Which rows of others are read in ``epoch``; None: none, so gradients end at the cut."""

    @abc.abstractmethod
    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        """Whether trainer ``owner`` publishes the rows of a layer in ``epoch``. Asked before they are read."""

    def smoothed(self, before: torch.Tensor | None, fresh: torch.Tensor) -> torch.Tensor:
        """What a reader uses after ``before`` (None: nothing yet) when ``fresh`` has come."""
        return fresh

    def clip_norm(self, trainers: int) -> float | None:
        """Largest norm of one trainer's gradient; None: there is no limit."""
        return None


@dataclass(frozen=True)
class ExchangeDecisions(Decisions):
    """Full-graph training: rows and gradients of this epoch."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return exact(epoch)

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        return True


def decisions_of(kind: type[Any], settings: Any) -> Any:
    """Decisions of a dataclass ``kind`` from the settings of the same names; raises its ConfigErrors."""
    return kind(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(kind)})
