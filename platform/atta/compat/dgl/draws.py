"""The seed of all draws of a script."""

from __future__ import annotations

__all__ = ["drawing_seed"]


def drawing_seed() -> int:
    """The seed of all draws: torch's, so that ``torch.manual_seed`` repeats a run."""
    import torch

    return torch.initial_seed()
