"""The report of a whole run, as ``atta train --json`` writes it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from atta.observe import html
from atta.observe.lastwords import counted
from atta.observe.packages import machine, versions
from atta.train.config import TrainConfig
from atta.train.reports.epochs import EpochReport, Watched, best_epoch
from atta.train.tasks.choice import watched_by

REPORT = "report.json"
"""Its name beside checkpoints."""


@dataclass
class TrainReport:
    """A run: its settings, the figures of each epoch, and how often trainers were started again, in all and each one
    alone (``restarts_by_rank``; empty: all start together). ``ended``: what has ended it before it was done."""

    config: TrainConfig
    epochs: list[EpochReport] = field(default_factory=list)
    restarts: int = 0
    restarts_by_rank: list[int] = field(default_factory=list)
    ended: BaseException | None = None

    @property
    def best(self) -> EpochReport:
        """The epoch with the best figure of validation; the last epoch if none was validated."""
        return best_epoch(self.epochs, self.watched) or self.epochs[-1]

    @property
    def watched(self) -> Watched:
        """The figure that decides which epoch is the best."""
        return watched_by(self.config)

    def _repr_html_(self) -> str:
        rows = [epoch.cells() for epoch in self.epochs[-html.MOST_ROWS :]]
        heads = tuple(dict.fromkeys(name for row in rows for name in row))  # not every epoch is evaluated
        title = f"{self.config.model}, {self.config.strategy}: {counted(len(self.epochs), 'epoch')}"
        title += f", the best is {self.best.epoch}" if self.epochs else ""
        return html.table(title, [[row.get(name, "") for name in heads] for row in rows], heads)

    def to_json(self) -> dict[str, Any]:
        """The report as ``atta train --json`` writes it; None for figures that are not finite, which JSON lacks."""
        best = self.best if self.epochs else None
        stopped = isinstance(self.ended, KeyboardInterrupt)
        return {
            "schema": 1,
            "strategy": self.config.strategy,
            "model": self.config.model,
            "task": self.config.task,
            "evaluation": self.config.evaluation,
            "restarts": self.restarts,
            "restarts_by_rank": self.restarts_by_rank,
            "interrupted": stopped,
            "error": None if stopped or self.ended is None else str(self.ended),
            "epochs": [_finite(asdict(e)) for e in self.epochs],
            "best": best
            and {
                "epoch": best.epoch,
                "val_accuracy": best.val_accuracy,
                "test_accuracy": best.test_accuracy,
                "metrics": _finite(best.metrics),
            },
            "config": self.config.to_dict(),
            "machine": machine(),
            "versions": versions(),
        }


def _finite(value: Any) -> Any:
    """The value, with None for each infinity and NaN in it."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
