"""Seeds that follow from ``--seed``."""

from __future__ import annotations

__all__ = ["epoch_seed"]

_SEEDS = 1 << 64


def epoch_seed(seed: int, epoch: int, rank: int = 0, world: int = 1) -> int:
    """A seed of each rank in each epoch, below 2**64: torch and numpy take no larger ones."""
    return ((seed * 1_000_003 + epoch) * world + rank) % _SEEDS
