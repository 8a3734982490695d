"""A task: everything that trainers, reports and settings ask of it, and its loss and figures with the weights of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from atta.errors import ConfigError
from atta.partition.schema import TableSpec

VERTICES = {"train": "training", "val": "validation", "test": "test"}
"""What vertices of each split are called."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A figure of validation and test, named as reports and ``--early-stop`` do. ``of`` makes it of
    ``LearningTask.sums`` over all vertices, None where it is not defined; ``rises``: whether a higher one is better."""

    name: str
    of: Callable[[Floats], float | None]
    rises: bool = True


def ratio(above: float, below: float) -> float | None:
    """One number divided by another; None where that is 0."""
    return float(above / below) if below else None


LOSS = Metric("loss", lambda sums: ratio(sums[0], sums[1]), rises=False)
"""The mean loss, of the sum of losses and the number of vertices."""


@dataclass(frozen=True)
class TargetCounts:
    """The numbers of some vertices, of those without a target (``unknown``) and of those whose target is none of the
    task (``wrong``); found: what the task counts besides, float64 [k] (``LearningTask.found``)."""

    vertices: int = 0
    unknown: int = 0
    wrong: int = 0
    found: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def known(self) -> int:
        """Number of vertices that have a target."""
        return self.vertices - self.unknown


class LearningTask:
    """What a model is trained for. All strategies take their loss and their figures from here.

    A target is what the model shall find for a vertex, its row of table ``y``: a class, int64 [n], or if ``rows`` numbers,
    float32 [n, outputs]. The first of ``metrics`` decides which epoch is the best. ``weighs``: there are classes to weigh;
    ``target``, ``nothing``: what a target is called, and what table ``y`` has where there is none.
    """

    name: str
    metrics: tuple[Metric, ...]
    rows = weighs = False
    target, nothing = "label", "-1"

    def outputs(self, spec: TableSpec, classes: int | None) -> int:
        """Number of the model's outputs, from the table and the number of classes. Raises ConfigError: no such targets."""
        raise NotImplementedError

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        """bool [n], the vertices that have a target. Others do not count for loss and metrics."""
        raise NotImplementedError

    def wrong(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        """bool [n], the vertices whose target is none of this task."""
        raise NotImplementedError

    def wrong_text(self, outputs: int) -> str:
        """What is wrong with these targets."""
        raise NotImplementedError

    def found(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        """What is counted of targets besides, float64 [k]; sums of it over trainers make sense."""
        return targets.new_zeros(0).double()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The *sum* of the losses of vertices with a known target; outputs: [n, outputs], n may be 0; weights: [outputs]."""
        raise NotImplementedError

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What metrics are computed from, float64 [k], added up over batches and trainers."""
        raise NotImplementedError

    def balanced(self, found: Floats) -> Floats:
        """The weights [outputs] of ``--class-weights balanced``."""
        raise NotImplementedError

    def scaled(self, weights: Floats, found: Floats) -> Floats:
        """Given weights as the loss takes them."""
        return weights

    def refuse(self, counts: TargetCounts, outputs: int, vertices: str) -> None:
        """Raise ConfigError for targets that are none of this task, from the counts of all trainers."""
        if counts.wrong:
            raise ConfigError(
                f"{counts.wrong} of {counts.vertices} {vertices} vertices have {self.wrong_text(outputs)}"
            )

    def check(self, counts: TargetCounts, outputs: int) -> str | None:
        """What is left out of training (None: nothing). Raises ConfigError for targets that nothing can be learnt from."""
        self.refuse(counts, outputs, VERTICES["train"])
        if counts.vertices and not counts.known:
            raise ConfigError(
                f"none of the {counts.vertices} training vertices has a {self.target}: all are {self.nothing} in table y"
            )
        if counts.vertices:
            self.check_different(counts)
        if not counts.unknown:
            return None
        what = f"no {self.target} ({self.nothing} in table y)"
        return f"{counts.unknown} of {counts.vertices} training vertices have {what} and are left out"

    def check_different(self, counts: TargetCounts) -> None:
        """Raise ConfigError for targets that are all alike."""

    def doubt(self, figures: Mapping[str, float], counts: TargetCounts) -> str:
        """What shows that a model tells nothing apart; empty: nothing shows it. figures: of validation, by names of metrics;
        counts: the targets there."""
        return ""

    def targets(self, values: torch.Tensor) -> torch.Tensor:
        """Rows of table ``y`` as targets, for any type and shape of the table that ``outputs`` accepts."""
        if not self.rows:
            return values.reshape(-1).long()
        return values.float() if values.dim() > 1 else values.reshape(-1, 1).float()

    def target_array(self, values: np.ndarray) -> np.ndarray:
        """``targets`` of a numpy array."""
        if not self.rows:
            return values.reshape(-1).astype(np.int64)
        return values.reshape(len(values), *(values.shape[1:] or (1,))).astype(np.float32)


@dataclass(frozen=True)
class Objective:
    """A task with the weights of a run, float32 [outputs] on the trainer's device, or None."""

    task: LearningTask
    outputs: int
    weights: torch.Tensor | None = None

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """``LearningTask.loss``."""
        return self.task.loss(outputs, targets, self.weights)

    def mean_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean of these; 0 if there are none."""
        return self.loss_sum(outputs, targets) / self.task.known(targets).sum().clamp(min=1)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What ``metrics`` needs of some vertices, float64 [2 + k]. Tallies add up."""
        loss, known = self.loss_sum(outputs, targets).double(), self.task.known(targets).sum().double()
        return torch.cat([torch.stack([loss, known]), self.task.sums(outputs, targets)])

    def empty_tally(self, device: torch.device) -> torch.Tensor:
        """The tally of no vertices."""
        nothing = torch.zeros((0, self.outputs), device=device)
        return self.tally(nothing, nothing if self.task.rows else nothing[:, 0].long())

    def metrics(self, tally: Sequence[float]) -> dict[str, float]:
        """Figures by name, the task's own first; those that are not defined are left out."""
        values = np.asarray(tally, np.float64)
        found = {m.name: m.of(values[2:]) for m in self.task.metrics} | {LOSS.name: LOSS.of(values)}
        return {name: value for name, value in found.items() if value is not None}
