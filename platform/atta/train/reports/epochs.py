"""Figures of an epoch, the phases of its time, and the best epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atta.train.reports.rows import RowReport

__all__ = ["PHASES", "SERVER_PHASES", "EpochReport", "best_epoch", "stalled"]

PHASES = ("sample", "fetch", "wait", "copy", "compute", "sync")
"""Phases of strategies with mini-batches, in seconds per epoch, mean over trainers.

Daemons spend ``sample`` and ``fetch``, which overlap with everything else. ``wait`` is how long the trainer waited for
batches. ``copy`` makes tensors on the device. ``compute`` is forward, backward and optimiser. ``sync`` is the part of
the gradient all-reduce that did not overlap with backward.
"""

SERVER_PHASES = ("sample", "fetch", "copy", "compute", "exchange", "sync", "external")
"""Phases of strategies with servers, in seconds per epoch, of the servers' first trainers, mean over servers.

They follow each other and add up to the epoch. ``sample`` extracts subgraphs and divides them; ``fetch`` sends the
shares to the other trainers. For co-batches these two count only while the trainer waits, because the rest overlaps
with the step before. ``copy`` puts the share on the device. ``exchange`` waits for rows and gradients of other trainers
of the server. ``sync`` adds up gradients within the server, ``external`` between servers. ``compute`` is everything
else.
"""


@dataclass(frozen=True)
class EpochReport:
    """Figures of one epoch, over all trainers.

    Attributes:
        epoch: from 0.
        seconds: of training, without evaluation, of the slowest trainer.
        loss: mean cross-entropy over the epoch's seeds during training (with dropout).
        seeds_per_s, edges_per_s: seeds and sampled edges of all trainers per second.
        remote_bytes: bytes that daemons sent each other for this epoch's training batches.
        breakdown: seconds by phase, see ``PHASES`` and ``SERVER_PHASES``.
        eval_seconds: of validation and test; 0 without evaluation.
        eval_bytes: bytes of rows that trainers sent each other for validation and test. No other figure counts them.
        val_accuracy, test_accuracy: in [0, 1]; None if this epoch was not evaluated.
        steps: optimiser steps.
        exchanged_bytes: bytes of rows and gradients that trainers sent each other, within their servers; with
            ``exchange`` to those of other servers too.
        crossed_bytes: the bytes of these that went to other machines, or to other servers; 0 if each server is one
            machine, except with ``exchange``.
        rows: what trainers read of each other's rows; None for strategies in which servers do not.
        peak_memory_bytes: of each trainer since its start, by rank: of the process on the CPU, of tensors on a GPU.
    """

    epoch: int
    seconds: float
    loss: float
    seeds_per_s: float
    edges_per_s: float
    remote_bytes: float
    breakdown: dict[str, float]
    eval_seconds: float = 0.0
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    steps: int = 0
    exchanged_bytes: float = 0.0
    crossed_bytes: float = 0.0
    peak_memory_bytes: list[int] = field(default_factory=list)
    rows: RowReport | None = None

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> EpochReport:
        """The inverse of ``dataclasses.asdict``. Raises TypeError and KeyError for other fields."""
        rows = saved.get("rows")
        return cls(**{**saved, "rows": None if rows is None else RowReport.from_dict(rows)})

    eval_bytes: float = 0.0

    def line(self) -> str:
        """The epoch in one line for people."""
        accuracy = "".join(
            f"  {name} {100 * value:5.2f} %"
            for name, value in (("val", self.val_accuracy), ("test", self.test_accuracy))
            if value is not None
        )
        phases = " ".join(f"{phase} {seconds:.2f}" for phase, seconds in self.breakdown.items())
        speed = f"{self.seconds:7.2f} s  {self.seeds_per_s:9,.0f} seeds/s"
        return f"epoch {self.epoch:3d}  loss {self.loss:.4f}{accuracy}  {speed}  [s: {phases}]"


def best_epoch(epochs: Iterable[EpochReport]) -> EpochReport | None:
    """The epoch with the best validation accuracy (the first of equals); None if no epoch was validated."""
    best: EpochReport | None = None
    for epoch in epochs:
        if epoch.val_accuracy is None:
            continue
        if best is None or best.val_accuracy is None or epoch.val_accuracy > best.val_accuracy:
            best = epoch
    return best


def stalled(epochs: Iterable[EpochReport], patience: int) -> bool:
    """True if none of the last ``patience`` validations was better than the best one before them."""
    validated = [e for e in epochs if e.val_accuracy is not None]
    best = best_epoch(validated)
    return best is not None and len(validated) - 1 - validated.index(best) >= patience
