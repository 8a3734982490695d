"""Where in a run a checkpoint was taken. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunPlace"]


@dataclass(frozen=True)
class RunPlace:
    """The next batch of a run.

    Attributes:
        epoch: number of complete epochs.
        batch: batches of the epoch under way that each trainer has done; 0: the epoch has not begun.
        step: optimiser steps of the epoch under way.
    """

    epoch: int
    batch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.step}"
