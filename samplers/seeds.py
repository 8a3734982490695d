"""Which seeds each rank gets in which batch: pure planning, the same on every daemon (DistDGL §4.1, two-level split)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SeedPlan", "SeedPolicy", "home_of", "plan_seeds"]


class SeedPolicy(enum.Enum):
    """LOCAL: every trainer draws from a range of seeds near its home. GLOBAL: one permutation, whatever the partitions."""

    LOCAL = 0
    GLOBAL = 1


@dataclass(frozen=True)
class SeedPlan:
    """The seeds of one rank in one epoch, batch after batch."""

    seeds: NDArray[np.int64]  # [S] internal ids
    input_id: NDArray[np.int64]  # [S] position of each seed in the user's input
    batch_size: int
    batches: int  # of this rank
    rank: int
    world: int

    def batch_slice(self, index: int) -> slice:
        """Where this rank's ``index``-th batch lies in ``seeds``; IndexError outside 0..batches-1."""
        if not 0 <= index < self.batches:
            raise IndexError(f"batch {index} of {self.batches}")
        start = index * self.batch_size
        return slice(start, min(start + self.batch_size, len(self.seeds)))

    def batch_id(self, index: int) -> int:
        """Global id of this rank's ``index``-th batch."""
        return index * self.world + self.rank

    def index_of(self, batch_id: int) -> int:
        """The inverse of ``batch_id``."""
        return batch_id // self.world


def home_of(rank: int, world: int, parts: int) -> int:
    """The partition whose daemon serves ``rank``: contiguous ranks share a home."""
    return rank * parts // world


def plan_seeds(
    internal: NDArray[np.int64],
    user_ids: NDArray[np.int64],
    *,
    batch_size: int,
    parts: int,
    policy: SeedPolicy = SeedPolicy.LOCAL,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    pad: bool = True,
    position: NDArray[np.int64] | None = None,
) -> SeedPlan:
    """Plan one epoch of one rank.

    internal: [n] int64 internal ids of the chosen seeds, in any order; user_ids: [n] their user ids.
    position: [n] where each seed stood in the user's input; None for a named split, whose order is ascending user ids.
    """
    raise NotImplementedError
