"""What a rank has of an epoch under way: sums of its figures, and the state of its random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class PartialEpoch:
    """Figures of one rank, from the start of an epoch.

    Attributes:
        loss: float64 scalar, sum of the seeds' losses, on the rank's device: reading it makes the CPU wait for a GPU.
        known: int64 scalar, number of seeds with a target.
        batches, seeds, edges, remote_bytes: counted so far.
        seconds: spent so far, without checkpoints.
        phases: seconds by phase.
    """

    loss: torch.Tensor
    known: torch.Tensor
    batches: int = 0
    seeds: int = 0
    edges: int = 0
    remote_bytes: float = 0.0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    @classmethod
    def empty(cls, device: torch.device) -> PartialEpoch:
        """Of an epoch that begins."""
        return cls(
            torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), dtype=torch.int64, device=device)
        )

    def to_state(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {**vars(self), "phases": dict(self.phases)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PartialEpoch:
        """The inverse of ``to_state``. Raises TypeError and KeyError for something else."""
        return cls(**{**state, "phases": dict(state["phases"])})


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's random numbers on the CPU and on ``device``, uint8 tensors."""
    found = {"cpu": torch.get_rng_state()}
    return {**found, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else found


def set_random_state(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Go on with the random numbers that came next at ``random_state``."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
