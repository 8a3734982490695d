"""The learning rate from epoch to epoch: ``--lr-schedule none|cosine|step|plateau``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import lr_scheduler

from atta.train.settings import TrainSettings

__all__ = ["LearningRate"]


class LearningRate:
    """Sets an optimiser's learning rate after each epoch. The same figures give the same rates on all trainers.

    ``cosine`` falls from ``--lr`` to 0 over all epochs, on half a wave (Loshchilov and Hutter, ICLR 2017, without
    restarts). It is computed from the number of the epoch. ``step`` multiplies it by ``--lr-factor`` every
    ``--lr-every`` epochs, ``plateau`` after as many evaluations in a row without a better figure.
    """

    def __init__(self, settings: TrainSettings, optimizer: torch.optim.Optimizer, *, rises: bool) -> None:
        """``rises``: whether a higher figure is better (``plateau``)."""
        self._optimizer = optimizer
        self._epochs: lr_scheduler.LRScheduler | None = None
        self._figures: lr_scheduler.ReduceLROnPlateau | None = None
        every, factor = settings.lr_every, settings.lr_factor
        if settings.lr_schedule == "cosine":
            self._epochs = lr_scheduler.LambdaLR(
                optimizer, lambda epoch: (1 + math.cos(math.pi * min(1.0, epoch / settings.epochs))) / 2
            )
        elif settings.lr_schedule == "step":
            self._epochs = lr_scheduler.StepLR(optimizer, every, factor)
        elif settings.lr_schedule == "plateau":
            # torch counts the evaluations that it still bears, and calls small steps none.
            self._figures = lr_scheduler.ReduceLROnPlateau(
                optimizer, "max" if rises else "min", factor, every - 1, threshold=0.0, threshold_mode="abs"
            )

    @property
    def present(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def epoch_done(self, figure: float | None) -> None:
        """Go on to the next epoch; ``figure``: the watched one, None if the epoch was not evaluated."""
        if self._epochs is not None:
            self._epochs.step()
        if self._figures is not None and figure is not None:
            self._figures.step(figure)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint saves: plain values."""
        used = self._epochs or self._figures
        return {} if used is None else used.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``. The optimiser's own state has the rate."""
        used = self._epochs or self._figures
        if used is not None:
            used.load_state_dict(state)
