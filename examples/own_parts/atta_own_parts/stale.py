"""A training strategy: trainers compute with the rows that others had in the epoch before, which travel while this epoch
computes, and gradients of those rows do not travel at all. The first epochs are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from atta.observe.settings import Setting
from atta.train.cooperative.source import Direction
from atta.train.exchange.policies import NEVER, RowPolicy, Rule, exact
from atta.train.settings.servers import StaleSettings
from atta.train.strategies.exchange import reading_rows


@dataclass(frozen=True)
class LastEpochSettings(StaleSettings):
    """What the strategy has beside the settings of all that read stale rows: ``--strategy stale:exact-epochs=4``."""

    exact_epochs: Annotated[int, Setting("First epochs, which wait for rows and gradients.", at_least=1)] = 2


@dataclass(frozen=True)
class LastEpochPolicy(RowPolicy):
    """Which rows are read and sent. Fields have their values from the settings of the same names. Epochs count from 1."""

    exact_epochs: int

    def history(self, direction: Direction) -> int | None:
        """Newer rows take the place of those that were read."""
        return 0

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """The version of rows, or of their gradients; None: the gradient of a row ends at its reader."""
        if epoch <= self.exact_epochs:
            return exact(epoch)
        return exact(epoch - 1) if direction == "forward" else None

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        """Whether an owner sends in this epoch."""
        return direction == "forward" or epoch <= self.exact_epochs


def explained(settings: Any) -> list[str]:
    """What ``atta train --explain`` says, where epochs count from 0."""
    if (exact_epochs := settings.exact_epochs) >= settings.epochs:
        return ["all epochs are exact, as with --strategy exchange"]
    return [
        f"epochs 0 to {exact_epochs - 1} are exact: every layer waits for the rows of other trainers",
        f"from epoch {exact_epochs} on these rows are those of the epoch before, and their gradients are left out",
    ]


stale = reading_rows(
    "stale",
    "as exchange, but with the rows that others had in the epoch before, and without their gradients",
    LastEpochSettings,
    LastEpochPolicy,
    explain=explained,
)
