"""What a training run reports: one entry per epoch, the best epoch, and where the time went."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from atta.observe.versions import machine, versions
from atta.train.config import TrainConfig

__all__ = ["PHASES", "EpochReport", "TrainReport"]

PHASES = ("sample", "fetch", "wait", "copy", "compute", "sync")
"""Seconds per epoch, mean over trainers. ``sample`` and ``fetch`` are spent by daemons, overlapping everything else; ``wait`` is
what of them the trainer noticed; ``copy`` turns batches into tensors on the device; ``sync`` is the part of the gradient
all-reduce that backward did not hide; ``compute`` is forward, backward and optimiser without it."""


@dataclass(frozen=True)
class EpochReport:
    """Figures of one epoch, over all trainers."""

    epoch: int
    seconds: float
    loss: float
    seeds_per_s: float
    edges_per_s: float
    remote_bytes: float
    breakdown: dict[str, float]
    val_accuracy: float | None = None
    test_accuracy: float | None = None

    def line(self) -> str:
        """The epoch in one line for people."""
        accuracy = "".join(
            f"  {name} {100 * value:5.2f} %"
            for name, value in (("val", self.val_accuracy), ("test", self.test_accuracy))
            if value is not None
        )
        phases = " ".join(f"{p} {self.breakdown[p]:.2f}" for p in PHASES)
        speed = f"{self.seconds:7.2f} s  {self.seeds_per_s:9,.0f} seeds/s"
        return f"epoch {self.epoch + 1:3d}  loss {self.loss:.4f}{accuracy}  {speed}  [s: {phases}]"


@dataclass
class TrainReport:
    """A whole run."""

    config: TrainConfig
    epochs: list[EpochReport] = field(default_factory=list)

    @property
    def best(self) -> EpochReport:
        """The epoch with the best validation accuracy (the first of equals), the last epoch where none was evaluated."""
        evaluated = [e for e in self.epochs if e.val_accuracy is not None]
        if not evaluated:
            return self.epochs[-1]
        return max(evaluated, key=lambda e: (e.val_accuracy, -e.epoch))

    def to_json(self) -> dict[str, Any]:
        """The report as ``atta train --json`` writes it."""
        best = self.best
        return {
            "schema": 1,
            "strategy": self.config.strategy,
            "model": self.config.model,
            "epochs": [asdict(e) for e in self.epochs],
            "best": {"epoch": best.epoch, "val_accuracy": best.val_accuracy, "test_accuracy": best.test_accuracy},
            "config": asdict(self.config),
            "machine": machine(),
            "versions": versions(),
        }
