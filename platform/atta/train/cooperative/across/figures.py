"""What a source of rows has done in an epoch, in numbers: of one trainer, and of all together."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from atta.train.cooperative.exchange.source import Payload
from atta.train.reports.epochs import LayerRows, RowReport
from atta.train.stale.prediction.guard import Errors
from atta.train.stale.rules import Ages
from atta.train.stale.table import Direction

__all__ = ["RowFigures", "row_report"]

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


def row_report(
    figures: RowFigures,
    *,
    kept_bytes: int,
    copied_bytes: int,
    filled_bytes: int = 0,
    device: torch.device | str = "cpu",
) -> RowReport:
    """The report of an epoch, of all trainers together. All ranks call this and get the same. It takes one message."""
    keys = sorted({*figures.broadcasts, *figures.skipped}, key=lambda key: (key[0], key[1] != "forward"))
    kept = [kept_bytes, copied_bytes, filled_bytes]
    mine = [float(value) for key in keys for value in _values(figures, key)] + [float(value) for value in kept]
    world = dist.get_world_size()
    table = torch.zeros((world, len(mine)), dtype=torch.float64, device=device)
    table[dist.get_rank()] = torch.tensor(mine, dtype=torch.float64, device=device)
    dist.all_reduce(table)
    sums, least, most = table.sum(0).tolist(), table.amin(0).tolist(), table.amax(0).tolist()
    width = len(_values(figures, keys[0])) if keys else 0
    layers = []
    for number, (layer, direction) in enumerate(keys):
        first = number * width
        sent, crossed, pushed, broadcasts, skipped, rows, total = map(int, sums[first : first + 7])
        errors = figures.errors.get((layer, direction))  # of all trainers already
        layers.append(
            LayerRows(
                layer,
                direction,
                payload_bytes=sent,
                crossed_bytes=crossed,
                pushed_bytes=pushed,
                rows=rows,
                age_min=int(least[first + 7]) if rows else None,
                age_mean=total / rows if rows else None,
                age_max=int(most[first + 8]) if rows else None,
                broadcasts=broadcasts,
                skipped=skipped,
                predicted_error=None if errors is None else math.sqrt(errors.predicted),
                stale_error=None if errors is None else math.sqrt(errors.stale),
            )
        )
    totals = map(int, sums[-len(kept) :])
    return RowReport(layers, *totals)


def _values(figures: RowFigures, key: Key) -> tuple[float, ...]:
    """Numbers that are added up, then the bounds of ages."""
    counted = figures.sent, figures.crossed, figures.pushed, figures.broadcasts, figures.skipped
    ages = figures.ages.get(key, Ages())
    return (*(counter[key] for counter in counted), ages.rows, ages.total, ages.least, ages.most)
