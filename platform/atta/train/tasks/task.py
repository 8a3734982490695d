"""The record of a task: everything that trainers, reports and the command line ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

__all__ = ["LOSS", "VERTICES", "ClassWeights", "Floats", "LearningTask", "Loss", "Metric", "TargetCounts"]

VERTICES = {"train": "training", "val": "validation", "test": "test"}
"""What vertices of each split are called."""

Floats = npt.NDArray[np.float64]
Loss = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor | None"], "torch.Tensor"]
"""Takes outputs [n, outputs], targets and weights [outputs] (None: all 1); returns the *sum* of the losses of the
vertices whose target is known, a scalar; n may be 0."""


@dataclass(frozen=True)
class Metric:
    """A figure of validation and test.

    Attributes:
        name: as reports and ``--early-stop`` call it.
        of: takes the task's sums over all vertices (``LearningTask.sums``); None where the figure is not defined.
        rises: whether a higher figure is better.
    """

    name: str
    of: Callable[[Floats], float | None]
    rises: bool = True


def _mean_loss(sums: Floats) -> float | None:
    return float(sums[0] / sums[1]) if sums[1] else None


LOSS = Metric("loss", _mean_loss, rises=False)
"""The mean loss, a figure of every task; of the sum of losses and the number of vertices."""


@dataclass(frozen=True)
class TargetCounts:
    """The targets of some vertices in numbers.

    Attributes:
        vertices: number of vertices.
        unknown: number of vertices without a target.
        wrong: number of vertices whose target is none that the task knows.
        found: what the task counts besides, float64 [k] (``LearningTask.found``).
    """

    vertices: int = 0
    unknown: int = 0
    wrong: int = 0
    found: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def known(self) -> int:
        """Number of vertices that have a target."""
        return self.vertices - self.unknown


@dataclass(frozen=True)
class ClassWeights:
    """How a task weighs its classes.

    Attributes:
        balanced: the weights [outputs] of ``--class-weights balanced``, from ``TargetCounts.found``.
        scaled: makes given weights those of the loss, from the same.
    """

    balanced: Callable[[Floats], Floats]
    scaled: Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class LearningTask:
    """What a model is trained for. All strategies take their loss and their figures from here.

    A target is what the model shall find for a vertex: its row of table ``y``. The functions import torch when they are
    called, so that the command line can read this record without it.

    Attributes:
        name: value of ``--task``.
        sentence: what it is, for ``--help``.
        outputs: number of the model's outputs, from the spec of the table and the dataset's number of classes. Raises
            ConfigError for a table that cannot hold targets of this task.
        rows: whether targets are rows of numbers, float32 [n, outputs]; otherwise they are classes, int64 [n].
        known: bool [n], the vertices of some targets that have one. Others do not count for loss and metrics.
        wrong: bool [n], the vertices whose target is none of this task, given their number of outputs.
        found: what is counted of training targets besides, float64 [k]; sums of it over trainers must make sense.
        refuse: raises ConfigError for targets that are none of this task, from the counts of all trainers, the number of
            outputs and a word for the vertices (``VERTICES``).
        check: says what is left out (None: nothing) of training targets, from the counts of all trainers and the number of
            outputs. Raises ConfigError for those that nothing can be learnt from, and the errors of ``refuse``.
        loss: see ``Loss``.
        sums: what metrics are computed from, float64 [k], of outputs and targets. Sums over batches and trainers are
            those of all their vertices.
        metrics: figures of validation and test. The first one decides which epoch is the best.
        predictions: what the model says of vertices, given its outputs [n, outputs].
        weights: None if the task has no classes to weigh.
    """

    name: str
    sentence: str
    outputs: Callable[[TableSpec, int | None], int]
    rows: bool
    known: Callable[[torch.Tensor], torch.Tensor]
    wrong: Callable[[torch.Tensor, int], torch.Tensor]
    found: Callable[[torch.Tensor, int], torch.Tensor]
    refuse: Callable[[TargetCounts, int, str], None]
    check: Callable[[TargetCounts, int], str | None]
    loss: Loss
    sums: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    metrics: tuple[Metric, ...]
    predictions: Callable[[torch.Tensor], torch.Tensor]
    weights: ClassWeights | None = None

    def targets(self, values: torch.Tensor) -> torch.Tensor:
        """Rows of table ``y`` as targets, for any type and shape of the table that ``outputs`` accepts."""
        if not self.rows:
            return values.reshape(-1).long()
        return values.float() if values.dim() > 1 else values.reshape(-1, 1).float()

    def target_array(self, values: np.ndarray) -> np.ndarray:
        """``targets`` of a numpy array."""
        if not self.rows:
            return values.reshape(-1).astype(np.int64)
        width = values.shape[1:] or (1,)
        return values.reshape(len(values), *width).astype(np.float32)
