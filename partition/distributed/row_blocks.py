"""The union graph on disk, row block by row block, as the process that places the vertices reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.disk.files import map_array
from atta.partition.distributed.edge_tasks import RowRanges
from atta.partition.distributed.shuffled import BucketReader
from atta.partition.graph import index_dtype

__all__ = ["RowBlocks", "Rows"]

Longs = npt.NDArray[np.int64]
Rows = tuple[Longs, npt.NDArray[Any]]
"""``indptr`` over all vertices and ``indices``; only some vertices have their rows, the others none."""


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of rows that tasks wrote.

    Attributes:
        ranges: how rows are divided.
        folders: of each range, see ``edge_tasks.merged_rows``.
        degrees: int64 [N].
    """

    ranges: RowRanges
    folders: Sequence[Path]
    degrees: Longs

    @classmethod
    def of(cls, ranges: RowRanges, folders: Sequence[Path]) -> RowBlocks:
        """Read the degrees."""
        degrees = np.zeros(ranges.total, np.int64)
        for number, folder in enumerate(folders):
            lo, hi = ranges.bounds(number)
            degrees[lo:hi] = np.diff(map_array(folder / "indptr.npy"))
        return cls(ranges, folders, degrees)

    def in_degrees(self) -> Longs:
        """In-degrees of all vertices, loops included, int64 [N]."""
        return np.concatenate([np.empty(0, np.int64), *(map_array(f / "in_degrees.npy") for f in self.folders)])

    def block(self, number: int) -> Rows:
        """The rows of a range."""
        lo, hi = self.ranges.bounds(number)
        return self._indptr(np.arange(lo, hi)), map_array(self.folders[number] / "indices.npy")

    def streamed(self, number: int, vertices: Longs) -> Rows:
        """The rows of ``vertices``, which have the turns of bucket ``number``."""
        found = [run for (run,) in BucketReader(self.folders, ("streamed",)).bucket(number)]
        return self._indptr(vertices), np.concatenate([np.empty(0, index_dtype(self.ranges.total)), *found])

    def chosen(self, vertices: Longs) -> Rows:
        """The rows of any ``vertices``, picked from the files."""
        vertices = np.sort(vertices)
        found = [np.empty(0, index_dtype(self.ranges.total))]
        firsts = np.searchsorted(vertices, np.arange(self.ranges.count + 1) * self.ranges.rows)
        for number in np.flatnonzero(np.diff(firsts)).tolist():
            folder, local = self.folders[number], vertices[firsts[number] : firsts[number + 1]]
            begins = map_array(folder / "indptr.npy")[local - number * self.ranges.rows]
            sizes = self.degrees[local]
            shift = begins - (np.cumsum(sizes) - sizes)
            found.append(map_array(folder / "indices.npy")[np.arange(sizes.sum()) + np.repeat(shift, sizes)])
        return self._indptr(vertices), np.concatenate(found)

    def lots(self, vertices: Longs, limit: int) -> Iterator[Longs]:
        """Yield ``vertices`` in lots of at most ``limit`` neighbours, or one vertex that has more."""
        ends = np.cumsum(self.degrees[vertices])
        first = 0
        while first < len(vertices):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
            yield vertices[first:last]
            first = last

    def _indptr(self, vertices: Longs) -> Longs:
        indptr = np.zeros(self.ranges.total + 1, np.int64)
        indptr[vertices + 1] = self.degrees[vertices]
        return np.cumsum(indptr, out=indptr)
