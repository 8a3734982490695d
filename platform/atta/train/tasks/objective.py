"""What trainers of all strategies compute of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atta.train.tasks.task import LOSS, LearningTask

__all__ = ["Objective"]


@dataclass(frozen=True)
class Objective:
    """A task with the weights of a run.

    Attributes:
        task: the record.
        outputs: width of the model's output.
        weights: float32 [outputs] on the trainer's device, or None.
    """

    task: LearningTask
    outputs: int
    weights: torch.Tensor | None = None

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses of the vertices whose target is known, added up."""
        return self.task.loss(outputs, targets, self.weights)

    def mean_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean of these; 0 if there are none."""
        return self.loss_sum(outputs, targets) / self.task.known(targets).sum().clamp(min=1)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What ``metrics`` needs of some vertices, float64 [2 + k]. Tallies add up."""
        known = self.task.known(targets).sum().double()
        return torch.cat(
            [self.loss_sum(outputs, targets).double().reshape(1), known.reshape(1), self.task.sums(outputs, targets)]
        )

    def empty_tally(self, device: torch.device) -> torch.Tensor:
        """The tally of no vertices."""
        shape = (0, self.outputs) if self.task.rows else (0,)
        targets = torch.zeros(shape, dtype=torch.float32 if self.task.rows else torch.int64, device=device)
        return self.tally(torch.zeros((0, self.outputs), device=device), targets)

    def metrics(self, tally: Sequence[float]) -> dict[str, float]:
        """Figures by name, the task's own first; those that are not defined are left out."""
        values = np.asarray(tally, np.float64)
        found = {m.name: m.of(values[2:]) for m in self.task.metrics} | {LOSS.name: LOSS.of(values)}
        return {name: value for name, value in found.items() if value is not None}
