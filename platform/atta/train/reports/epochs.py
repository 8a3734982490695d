"""The figures of an epoch, where its time went, and which epoch is the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["PHASES", "SERVER_PHASES", "EpochReport", "best_epoch", "stalled"]

PHASES = ("sample", "fetch", "wait", "copy", "compute", "sync")
"""Seconds per epoch, mean over trainers. ``sample`` and ``fetch`` are spent by daemons, overlapping everything else; ``wait`` is
what of them the trainer noticed; ``copy`` turns batches into tensors on the device; ``sync`` is the part of the gradient
all-reduce that backward did not hide; ``compute`` is forward, backward and optimiser without it."""

SERVER_PHASES = ("sample", "fetch", "copy", "compute", "exchange", "sync", "external")
"""Seconds per epoch of ``full`` and ``cooperative``, of the servers' first trainers, mean over servers; they follow each other and
add up to the epoch. ``sample`` extracts subgraphs and divides them, ``fetch`` hands the shares to the other trainers: of co-batches
only what the trainer waited for counts, the rest overlaps with the step before. ``copy`` puts this trainer's share on the device;
``exchange`` waits for rows and gradients of other trainers of the server, ``sync`` adds up gradients within the server,
``external`` between servers; ``compute`` is everything else."""


@dataclass(frozen=True)
class EpochReport:
    """Figures of one epoch, over all trainers.

    Attributes:
        epoch: from 0.
        seconds: training only, of the slowest trainer.
        loss: mean cross-entropy over the epoch's seeds, as they were trained on (with dropout).
        seeds_per_s, edges_per_s: seeds and sampled edges of all trainers per second.
        remote_bytes: what daemons sent each other for this epoch's training batches.
        breakdown: seconds by phase, see ``PHASES`` and ``SERVER_PHASES``.
        eval_seconds: of validation and test, 0 when there was none.
        val_accuracy, test_accuracy: in [0, 1]; None when not evaluated after this epoch.
        steps: of the optimiser.
        exchanged_bytes: rows and gradients that trainers sent within their servers.
        crossed_bytes: as much of it as went to other machines; 0 when servers are machines.
        peak_memory_bytes: of each trainer since it began, by rank: of the process on the CPU, of tensors on a GPU.
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
    """The epoch with the best validation accuracy (the first of equals); None when no epoch was validated."""
    best: EpochReport | None = None
    for epoch in epochs:
        if epoch.val_accuracy is None:
            continue
        if best is None or best.val_accuracy is None or epoch.val_accuracy > best.val_accuracy:
            best = epoch
    return best


def stalled(epochs: Iterable[EpochReport], patience: int) -> bool:
    """True when the last ``patience`` validations were all no better than the best one before them."""
    validated = [e for e in epochs if e.val_accuracy is not None]
    best = best_epoch(validated)
    return best is not None and len(validated) - 1 - validated.index(best) >= patience
