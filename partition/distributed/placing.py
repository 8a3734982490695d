"""LDG (``methods.streaming``) over blocks of rows: the same vertices in the same order, so the same owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.observe.progress import Progress
from atta.partition.distributed.row_blocks import RowBlocks, Rows

__all__ = ["Placing"]

Longs = npt.NDArray[np.int64]
Owners = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Placing:
    """What vertices are placed by.

    Attributes:
        blocks: the union graph.
        parts: number of partitions.
        weights: int64 [N, C], what is balanced, a column each.
        room: float64 [C], how much of it a partition may hold.
        block_edges: neighbours held at a time.
    """

    blocks: RowBlocks
    parts: int
    weights: Longs
    room: npt.NDArray[np.float64]
    block_edges: int

    def owners(
        self, passes: int, turns: Sequence[Longs], rows: Callable[[int, Longs], Rows], progress: Progress
    ) -> Owners:
        """Return the partition of each vertex, int32 [N].

        Args:
            passes: over all vertices.
            turns: the vertices in their order, block by block.
            rows: their rows by the block's number and the block's vertices, ascending.
            progress: receives the passes.
        """
        owners: Owners | None = None
        flat = self.weights.reshape(-1)
        progress.stage("streaming", passes * len(turns))
        for _ in range(passes):
            placed = np.full(self.blocks.ranges.total, -1, np.int32)
            for number, vertices in enumerate(turns):
                near = rows(number, np.sort(vertices))
                _native.stream_vertices(*near, vertices, owners, placed, self.parts, flat, self.room, 0.0, 0.0)
                progress.advance(1)
            owners = placed
        assert owners is not None
        self._even(owners)
        for number in range(self.blocks.ranges.count):
            _native.refine_owners(*self.blocks.block(number), owners, self.parts, flat, self.room)
        return owners

    def _even(self, owners: Owners) -> None:
        """Move vertices out of partitions that hold too much, as ``_native.even_owners`` does, in lots."""
        flat = self.weights.reshape(-1)
        for thing in range(len(self.room)):
            for strict in (True, False):
                if (full := self._full(owners, thing)).any():
                    candidates = self._candidates(owners, thing, strict, full)
                    for lot in self.blocks.lots(candidates, self.block_edges):
                        near = self.blocks.chosen(lot)
                        _native.even_moves(*near, lot, owners, self.parts, flat, self.room, thing, strict)
                        if not self._full(owners, thing).any():
                            break

    def _full(self, owners: Owners, thing: int) -> npt.NDArray[np.bool_]:
        """Whether each partition holds too much of a thing."""
        loads = np.bincount(owners, weights=self.weights[:, thing], minlength=self.parts)
        full: npt.NDArray[np.bool_] = loads - self.room[thing] > 0
        return full

    def _candidates(self, owners: Owners, thing: int, strict: bool, full: npt.NDArray[np.bool_]) -> Longs:
        """The vertices of full partitions; those whose move costs the fewest cut edges first."""
        flat = self.weights.reshape(-1)
        vertices, costs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number in range(self.blocks.ranges.count):
            lo, hi = self.blocks.ranges.bounds(number)
            found = lo + np.flatnonzero((self.weights[lo:hi, thing] > 0) & full[owners[lo:hi]])
            if len(found):
                near = self.blocks.block(number)
                vertices.append(found)
                costs.append(_native.even_costs(*near, found, owners, self.parts, flat, self.room, thing, strict))
        return np.concatenate(vertices)[np.argsort(np.concatenate(costs), kind="stable")]
