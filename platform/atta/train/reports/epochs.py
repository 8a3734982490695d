"""Figures of epochs, as trainers report them: rows with texts for people, and what decides the best epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from atta.errors import NonFiniteError
from atta.observe import html


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer in one direction, of all trainers together.

    Attributes:
        layer: number of the layer that reads them, from 0.
        direction: ``forward``: rows; ``backward``: their gradients.
        payload_bytes: bytes of rows that travelled, as they were packed.
        crossed_bytes: the bytes of these that came from other servers.
        pushed_bytes: bytes of rows that trainers pushed to the daemons beside them.
        rows: how many rows of others were read.
        age_min, age_mean, age_max: of these, in epochs; None where none was read.
        broadcasts, skipped: how often trainers sent their rows, and how often they did not.
        predicted_error, stale_error: distances of predicted and of stale rows to those that were pulled in this epoch,
            root of the sum of squares; None where nothing was predicted and measured.
        saved_bytes: bytes that exact rows would have taken beyond ``payload_bytes``; 0 without ``--accuracy-loss``.
        choices: with ``--accuracy-loss`` how the rows of each trainer travel, by rank, such as ``int8/2``.
        row_error: distance of what was read to the rows of this epoch, relative to their norm, of the owner with the
            largest one; None without ``--accuracy-loss``, and in the first epoch.
    """

    layer: int
    direction: str
    payload_bytes: int
    crossed_bytes: int
    pushed_bytes: int
    rows: int
    age_min: int | None
    age_mean: float | None
    age_max: int | None
    broadcasts: int
    skipped: int
    predicted_error: float | None = None
    stale_error: float | None = None
    saved_bytes: int = 0
    choices: list[str] = field(default_factory=list)
    row_error: float | None = None


@dataclass(frozen=True)
class RowReport:
    """An epoch's rows.

    Attributes:
        layers: by layer, forward before backward.
        kept_bytes: copies of others' rows that trainers keep for later epochs.
        copied_bytes: second copies of own rows, which the bound on their change, or a budget, needs.
        filled_bytes: what the exact pass before the first epoch sent and pushed to fill the tables; 0 in other epochs.
        gradient_errors: by layer of the model, in epochs with an exact step: cosine of its gradient and of that with older
            rows, and their distance relative to its norm (or to what Adam divides by, if that is larger).
        allowed_error: with ``--accuracy-loss`` the largest such distance that is allowed.
        row_bounds: the same of ``row_error``, by direction.
        measure_s: seconds of the exact step, of the slowest trainer.
    """

    layers: list[LayerRows]
    kept_bytes: int = 0
    copied_bytes: int = 0
    filled_bytes: int = 0
    gradient_errors: dict[str, list[float]] = field(default_factory=dict)
    allowed_error: float | None = None
    row_bounds: dict[str, float] = field(default_factory=dict)
    measure_s: float = 0.0

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RowReport:
        """The inverse of ``dataclasses.asdict``. Raises TypeError for other fields."""
        layers = [LayerRows(**layer) for layer in saved["layers"]]
        return cls(layers, **{f.name: saved[f.name] for f in fields(cls) if f.name != "layers" and f.name in saved})


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
        loss: mean loss over the epoch's seeds during training (with dropout).
        seeds_per_s, edges_per_s: seeds and sampled edges of all trainers per second.
        remote_bytes: bytes that daemons sent each other for this epoch's training batches.
        breakdown: seconds by phase, see ``PHASES`` and ``SERVER_PHASES``.
        eval_seconds: of validation and test; 0 without evaluation.
        eval_bytes: bytes of rows that trainers sent each other for validation and test. No other figure counts them.
        val_accuracy, test_accuracy: in [0, 1]; None if this epoch was not evaluated, or the task has no accuracy.
        steps: optimiser steps.
        exchanged_bytes: bytes of rows and gradients that trainers sent each other, within their servers; with
            ``exchange`` to those of other servers too.
        crossed_bytes: the bytes of these that went to other machines, or to other servers; 0 if each server is one
            machine, except with ``exchange``.
        crossed_feature_bytes: the bytes of ``crossed_bytes`` that are features.
        rows: what trainers read of each other's rows; None for strategies in which servers do not.
        metrics: every figure of validation and test by name, such as ``val_accuracy`` or ``test_mae``, those of the task
            first.
        learning_rate: of this epoch; None: it is not known.
        pipeline: figures of intervals and workers by name, of all trainers together (docs/reference); empty for strategies
            without them.
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
    crossed_feature_bytes: float = 0.0
    peak_memory_bytes: list[int] = field(default_factory=list)
    rows: RowReport | None = None
    eval_bytes: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    learning_rate: float | None = None
    pipeline: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> EpochReport:
        """The inverse of ``dataclasses.asdict``. Raises TypeError and KeyError for other fields."""
        rows = saved.get("rows")
        return cls(**{**saved, "rows": None if rows is None else RowReport.from_dict(rows)})

    def check_loss(self) -> None:
        """Raise NonFiniteError if the loss is an infinity or NaN: then those of later epochs would be, too."""
        if not math.isfinite(self.loss):
            raise NonFiniteError(None, self.epoch, None, "losses")

    def line(self, width: int | None = None) -> str:
        """The epoch in one line for people, without seconds by phase where it would be wider than ``width``."""
        accuracy = "".join(f"  {text}" for split in ("val", "test") if (text := self._first_metric(split)))
        phases = " ".join(f"{phase} {seconds:.2f}" for phase, seconds in self.breakdown.items())
        speed = f"{self.seconds:7.2f} s  {self.seeds_per_s:9,.0f} seeds/s"
        line = f"epoch {self.epoch:3d}  loss {self.loss:.4f}{accuracy}  {speed}"
        whole = f"{line}  [s: {phases}]"
        return whole if width is None or len(whole) <= width else line

    def cells(self) -> dict[str, Any]:
        """What a table shows of the epoch, by column."""
        metrics = {"val_accuracy": self.val_accuracy, "test_accuracy": self.test_accuracy, **self.metrics}
        known = {name: value for name, value in metrics.items() if value is not None}
        return {"epoch": self.epoch, "loss": self.loss, **known, "seconds": self.seconds, "seeds/s": self.seeds_per_s}

    def _repr_html_(self) -> str:
        return html.table("Epoch", self.cells().items())

    def _first_metric(self, split: str) -> str:
        """The figure of a split that decides, as text; empty without an evaluation."""
        if (accuracy := self.metric(f"{split}_accuracy")) is not None:
            return f"{split} {100 * accuracy:5.2f} %"
        first = next((name for name in self.metrics if name.startswith(f"{split}_")), None)
        return f"{first} {self.metrics[first]:.4f}" if first else ""

    def evaluated(self, metrics: Mapping[str, float]) -> EpochReport:
        """The epoch with figures of validation and test."""
        accuracies = metrics.get("val_accuracy"), metrics.get("test_accuracy")
        return replace(self, val_accuracy=accuracies[0], test_accuracy=accuracies[1], metrics=dict(metrics))

    def metric(self, name: str) -> float | None:
        """The figure ``name``; None if it is not known."""
        accuracies = {"val_accuracy": self.val_accuracy, "test_accuracy": self.test_accuracy}
        return self.metrics.get(name, accuracies.get(name))


@dataclass(frozen=True)
class Watched:
    """The figure that decides which epoch is the best. metric: its name, such as ``val_accuracy``; rises: whether a
    higher one is better."""

    metric: str = "val_accuracy"
    rises: bool = True


ACCURACY = Watched()


def best_epoch(epochs: Iterable[EpochReport], watched: Watched = ACCURACY) -> EpochReport | None:
    """The epoch with the best figure (the first of equals); None if no epoch has it."""
    known = [(epoch, value) for epoch in epochs if (value := epoch.metric(watched.metric)) is not None]
    sign = 1 if watched.rises else -1
    return max(known, key=lambda pair: sign * pair[1])[0] if known else None


def stalled(epochs: Iterable[EpochReport], patience: int, watched: Watched = ACCURACY) -> bool:
    """True if none of the last ``patience`` evaluations was better than the best one before them."""
    evaluated = [e for e in epochs if e.metric(watched.metric) is not None]
    best = best_epoch(evaluated, watched)
    return best is not None and len(evaluated) - 1 - evaluated.index(best) >= patience
