"""LDG (``methods.streaming``) over blocks of rows of the union graph on disk: the same vertices in the same order, so the same
owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.observe.progress import Progress
from atta.partition.cutting.tasks import BucketReader, RowRanges
from atta.partition.disk.files import map_array
from atta.partition.graph import index_dtype

Longs = npt.NDArray[np.int64]
Rows = tuple[Longs, npt.NDArray[Any]]
"""``indptr`` over all vertices and ``indices``; only some vertices have their rows, the others none."""


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of rows that tasks wrote: a folder for each range, see ``merged_rows``. ``degrees``: int64 [N]."""

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


Owners = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Placing:
    """What vertices are placed by: ``weights`` int64 [N, C], what is balanced, ``room`` float64 [C], how much of it a
    partition may hold, and ``block_edges``, the neighbours held at a time."""

    blocks: RowBlocks
    parts: int
    weights: Longs
    room: npt.NDArray[np.float64]
    block_edges: int

    def owners(
        self, passes: int, turns: Sequence[Longs], rows: Callable[[int, Longs], Rows], progress: Progress
    ) -> Owners:
        """Return the partition of each vertex, int32 [N]. ``turns``: the vertices in their order, block by block.
        ``rows``: their rows by the block's number and the block's vertices, ascending."""
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
