"""The report of a whole run, as ``atta train --json`` writes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from atta.observe.versions import machine, versions
from atta.train.config import TrainConfig
from atta.train.reports.epochs import EpochReport, Watched, best_epoch
from atta.train.tasks.watching import watched_by

__all__ = ["TrainReport"]


@dataclass
class TrainReport:
    """A whole run.

    Attributes:
        config: its settings.
        epochs: figures of each one.
        restarts: how often trainers were started again, all together or one alone.
        restarts_by_rank: how often each was started again alone; empty: all start together.
    """

    config: TrainConfig
    epochs: list[EpochReport] = field(default_factory=list)
    restarts: int = 0
    restarts_by_rank: list[int] = field(default_factory=list)

    @property
    def best(self) -> EpochReport:
        """The epoch with the best figure of validation; the last epoch if none was validated."""
        return best_epoch(self.epochs, self.watched) or self.epochs[-1]

    @property
    def watched(self) -> Watched:
        """The figure that decides which epoch is the best."""
        return watched_by(self.config)

    def to_json(self) -> dict[str, Any]:
        """The report as ``atta train --json`` writes it."""
        best = self.best
        return {
            "schema": 1,
            "strategy": self.config.strategy,
            "model": self.config.model,
            "task": self.config.task,
            "evaluation": self.config.evaluation,
            "restarts": self.restarts,
            "restarts_by_rank": self.restarts_by_rank,
            "epochs": [asdict(e) for e in self.epochs],
            "best": {
                "epoch": best.epoch,
                "val_accuracy": best.val_accuracy,
                "test_accuracy": best.test_accuracy,
                "metrics": best.metrics,
            },
            "config": self.config.to_dict(),
            "machine": machine(),
            "versions": versions(),
        }
