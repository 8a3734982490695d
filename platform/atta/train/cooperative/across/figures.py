"""What a source of rows has done in an epoch, in numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field

from atta.train.cooperative.exchange.source import Direction, Payload
from atta.train.stale.prediction.guard import Errors
from atta.train.stale.rules import Ages

__all__ = ["RowFigures"]

Key = tuple[int, Direction]
"""Layer and direction."""


@dataclass
class RowFigures:
    """Counted by layer and direction.

    Attributes:
        sent: bytes of rows that this trainer sent to others, or pulled from daemons.
        crossed: the bytes of these that went to, or came from, other servers.
        ages: of the rows that were read, in epochs.
        broadcasts: how often this trainer sent its rows to those who read them.
        skipped: how often it did not, because theirs were still good enough.
        pushed: bytes of rows that this trainer pushed to the daemon beside it, from which others pull them.
        errors: squared distances of predicted and of stale rows to those of this epoch, of all trainers together.
    """

    sent: Payload = field(default_factory=Counter)
    crossed: Payload = field(default_factory=Counter)
    ages: dict[Key, Ages] = field(default_factory=dict)
    broadcasts: Counter[Key] = field(default_factory=Counter)
    skipped: Counter[Key] = field(default_factory=Counter)
    pushed: Payload = field(default_factory=Counter)
    errors: dict[Key, Errors] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin anew."""
        for figure in dataclasses.fields(self):
            getattr(self, figure.name).clear()

    def read(self, key: Key, ages: Ages) -> None:
        """Note the ages of rows that were read."""
        self.ages[key] = self.ages.get(key, Ages()) + ages
