"""Uses predictions only where they are much better than the stale rows (SAT's condition on the two errors)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["MOST_RATIO", "Errors", "Guard"]

MOST_RATIO = 0.5
"""Predictions are used where their distance to the fresh rows is at most this part of the stale rows' distance.

The paper asks for less than 1. But stale rows are rows that a model has had, and predictions are off in directions of
their own. With ratios of 0.7 to 0.8 training diverged (bench/results/stale-sat.md).
"""


@dataclass(frozen=True)
class Errors:
    """Squared distances of predicted and of stale rows to the fresh ones. Those of several trainers can be added."""

    predicted: float = 0.0
    stale: float = 0.0

    @classmethod
    def of(cls, predicted: torch.Tensor, stale: torch.Tensor, fresh: torch.Tensor) -> Errors:
        """Of own rows [n, d] that others read: only their fresh values are known here."""
        return cls(*(float((rows.double() - fresh.double()).square().sum()) for rows in (predicted, stale)))

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.predicted + other.predicted, self.stale + other.stale)

    @property
    def ratio(self) -> float:
        """Predicted by stale distance; below 1 where predictions are better. 1 where both are 0."""
        if self.stale > 0:
            return math.sqrt(self.predicted / self.stale)
        return 1.0 if self.predicted == 0 else math.inf


@dataclass
class Guard:
    """Decides for one layer. Tell it errors that were measured before the predictor learnt from these rows.

    Attributes:
        most_ratio: see ``MOST_RATIO``.
        uses: whether predictions are used now. At the start they are not.
        patience: after so many measurements in a row without a better ratio the predictor stops learning.
    """

    most_ratio: float = MOST_RATIO
    patience: int = 10
    uses: bool = False
    best: float = math.inf
    waited: int = 0

    def measured(self, errors: Errors) -> None:
        """Note the errors of the predictions for this epoch, summed over all trainers."""
        self.uses = errors.stale > 0 and errors.ratio <= self.most_ratio  # false if one of them is not a number
        if errors.ratio < self.best:
            self.best, self.waited = errors.ratio, 0
        else:
            self.waited += 1

    @property
    def learns(self) -> bool:
        """Whether the predictor should learn. It learns again when its predictions have become worse than stale rows."""
        return self.waited < self.patience or not self.uses

    def choose(self, predicted: torch.Tensor, stale: torch.Tensor) -> torch.Tensor:
        """The rows that the GNN reads."""
        return predicted if self.uses else stale
