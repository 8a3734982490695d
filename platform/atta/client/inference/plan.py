"""Decides what a process of an inference does next. No sockets, files or clocks here.

The work has stages, one per layer. Every stage is cut into the same number of *shares*. A process has the same shares
in all stages, so what it writes in one stage is near it in the next. A stage reads what the stage before has written,
for vertices of any share. So it begins when all shares of the stage before are done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError

__all__ = ["AwaitStage", "InferencePlan", "RunShare", "block_size", "share_count"]

MOST_SHARES = 1 << 16
_EDGE_ROWS_BYTES = 64 << 20
_READ_ROWS_BYTES = 128 << 20
_QUEUED_BYTES = 64 << 20
_BLOCK_EDGES = 1 << 20
_BLOCK_SEEDS = 1 << 15

Done = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RunShare:
    """Compute a share of a stage."""

    stage: int
    share: int


@dataclass(frozen=True)
class AwaitStage:
    """Wait until other processes have done all shares of a stage."""

    stage: int


@dataclass(frozen=True)
class InferencePlan:
    """What one of several processes does.

    Attributes:
        stages: number of stages.
        shares: number of shares of each stage.
        rank, world: number of this process, and of all.

    Raises:
        ConfigError: there is no such process, or no stage or share.
    """

    stages: int
    shares: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ConfigError("a model needs at least one layer")
        if not 1 <= self.shares <= MOST_SHARES:
            raise ConfigError(f"{self.shares} files: must be 1 to {MOST_SHARES}")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} processes")

    @property
    def mine(self) -> range:
        """The shares of this process: consecutive ones, for they lie near each other. Ranks may differ by one share."""
        first, stop = (-(-rank * self.shares // self.world) for rank in (self.rank, self.rank + 1))
        return range(first, stop)

    def next(self, done: Done) -> RunShare | AwaitStage | None:
        """What comes next; None: nothing is left for this process.

        done: bool [stages, shares]. When the last stage is done as a whole nobody needs rows of earlier stages. While
        it is not, a process does its shares of earlier stages even if its own of the last one are done: others read
        them.
        """
        if done.shape != (self.stages, self.shares):
            raise ConfigError(f"done: has shape {list(done.shape)}, expected {[self.stages, self.shares]}")
        if done[-1].all():
            return None
        for stage in range(self.stages):
            left = [share for share in self.mine if not done[stage, share]]
            if not left:
                continue
            if stage and not done[stage - 1].all():
                return AwaitStage(stage - 1)
            return RunShare(stage, left[0])
        return None


def share_count(processes: int, parts: int) -> int:
    """How many shares there are unless somebody says: equally many per process, and at least one per partition."""
    return processes * -(-parts // processes)


def block_size(vertices: int, edges: int, width: int, *, row_per_edge: bool, queued: bool) -> int:
    """How many vertices a layer computes at a time, for rows of ``width`` float32 and vertices with average in-degrees.

    row_per_edge: whether the layer makes a row per edge; these take at most 64 MiB. Other layers sum up rows as they
        read them. Then the rows that a block reads count, at most all there are: large blocks read each row less often.
        They take at most 128 MiB, and a block has at most 2**20 edges.
    queued: whether rows come with batches, of which several wait. Then a block reads at most 64 MiB.
    """
    degree = -(-edges // max(1, vertices))
    row_bytes = 4 * max(1, width)
    rows = (_EDGE_ROWS_BYTES if row_per_edge else _QUEUED_BYTES if queued else _READ_ROWS_BYTES) // row_bytes
    if not row_per_edge and vertices <= rows:
        rows = _BLOCK_EDGES
    return max(1, min(_BLOCK_SEEDS, min(_BLOCK_EDGES, rows) // (1 + degree)))
