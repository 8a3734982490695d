"""The vertices of a batch: their numbers, and those that an operator has added, by owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from atta.samplers import kernels
from atta.samplers.batch.scratch import Scratch
from atta.samplers.dag.instance import OTHERS, Task, chunk_range
from atta.samplers.methods import Method


class Vertices:
    """Numbers internal ids. With ``trees`` it numbers pairs (tree, internal id), written as tree x (vertices of the
    type) + id."""

    def __init__(self, compactor: kernels.Compactor, count: int, *, trees: bool) -> None:
        """``count``: number of vertices of the type in the whole graph."""
        self.compactor, self.count, self.in_trees = compactor, count, trees

    @property
    def size(self) -> int:
        """Number of vertices so far."""
        return self.compactor.size

    def insert(self, ids: np.ndarray, trees: np.ndarray | None = None) -> np.ndarray:
        """int32 [len(ids)]: local ids of ``ids`` (int64 internal ids, in ``trees`` if given). New vertices are appended
        in order."""
        if not self.in_trees:
            return self.compactor.insert(ids)
        assert trees is not None
        return self.compactor.insert(trees.astype(np.int64) * self.count + ids)

    def find(self, ids: np.ndarray, trees: np.ndarray | None = None) -> np.ndarray:
        """int32 [len(ids)]: local ids as ``insert`` gives them; -1: not in the batch."""
        if not self.in_trees:
            return self.compactor.find(ids)
        assert trees is not None
        return self.compactor.find(trees.astype(np.int64) * self.count + ids)

    def internal(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """int64 [stop - start]: internal ids of the vertices with these local ids; int32: their trees (None without
        trees)."""
        if self.in_trees:
            return self.compactor.in_trees(start, stop, self.count)
        return self.compactor.ids(start, stop), None


class CompactorPool:
    """Compactors that batches reuse, and other memory of theirs (``scratch``). The direct table of a large graph has
    megabytes: it is slow to fill and fast to clean."""

    def __init__(self, node_counts: Mapping[str, int]) -> None:
        self._counts = dict(node_counts)
        self.scratch = Scratch()
        self._free: dict[tuple[str, bool], list[kernels.Compactor]] = {
            (t, trees): [] for t in node_counts for trees in (False, True)
        }

    def take(self, *, trees: bool = False) -> dict[str, Vertices]:
        """Empty ``Vertices`` by node type."""
        found = {}
        for node_type, count in self._counts.items():
            free = self._free[node_type, trees]
            compactor = free.pop() if free else kernels.Compactor(0 if trees else count)
            found[node_type] = Vertices(compactor, count, trees=trees)
        return found

    def give(self, used: Mapping[str, Vertices]) -> None:
        """Take compactors back."""
        for node_type, vertices in used.items():
            vertices.compactor.reset()
            self._free[node_type, vertices.in_trees].append(vertices.compactor)


Degree = Callable[[Sequence[str], np.ndarray], int]
"""A function that gives the total in-degree, over some edge types, of rows of the home partition."""


class KeptEdges(Protocol):
    """In-edges of other owners' vertices that are at home. What is here stays here while a batch is made."""

    def serves(self, method: Method, tables: Sequence[str]) -> bool:
        """Whether the method can expand these vertices, with the edges' rows of ``tables``."""

    def split(
        self, node_type: str, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Divide vertices (``ids`` int64 [n] internal, groups as in ``TaskRows``) into those that are here and the
        others. None: none is here. Returns rows and ``positions`` of the first, then ids, positions and ``starts`` of
        the others."""


class FoundRows(Protocol):
    """Which table rows of other owners' vertices are at home. The arrays are int64, slots may be int32. ``slots`` and
    ``positions`` [hits]: the rows that are here. They stay here while ``pins`` lives. ``missing_ids``,
    ``missing_positions`` and ``missing_slots`` [misses]: the others, and where to keep them when they have come.
    ``missing_starts`` [parts + 1]: their bounds by owner."""

    @property
    def slots(self) -> np.ndarray: ...
    @property
    def positions(self) -> np.ndarray: ...
    @property
    def missing_ids(self) -> np.ndarray: ...
    @property
    def missing_positions(self) -> np.ndarray: ...
    @property
    def missing_starts(self) -> np.ndarray: ...
    @property
    def missing_slots(self) -> np.ndarray: ...
    @property
    def pins(self) -> object: ...


class KeptRows(Protocol):
    """Table rows of other owners' vertices that are at home."""

    def look_up(
        self, node_type: str, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
    ) -> FoundRows | None:
        """Which vertices (``ids`` int64 [n] internal, groups as in ``TaskRows``) have their rows of all ``tables``
        here. None: no row of these tables ever is."""

    def expect(self, node_type: str, tables: Sequence[str], rows: np.ndarray) -> None:
        """The batch will read the ``rows``, int64 [n], of home's vertices."""


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Vertices that a task is about, in one group.

    Attributes:
        rows: integers [n]. Positions in the owner's range; for a task of ``OTHERS`` internal ids, grouped by owner; rows of
            ``KeptEdges`` or ``KeptRows`` if they are ``kept`` at home.
        positions: int64 [n], local ids of the same vertices.
        starts: int64 [parts + 1] for a task of ``OTHERS``: partition p owns the entries ``starts[p]`` to ``starts[p + 1]``.
        keep: integers [n] for a task of ``OTHERS``, where ``KeptRows`` may keep the rows that come; None: nowhere."""

    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray | None = None
    keep: np.ndarray | None = None
    kept: bool = False


_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class NewVertices:
    """Vertices of one node type with local ids in [start, stop), grouped by owner; home's come last.

    Attributes:
        rows, positions: int64 [n]: internal ids of other owners' vertices, then positions in the home range; and their local
            ids.
        starts: int64 [parts + 1]: partition p, except ``home``, owns the entries ``starts[p]`` to ``starts[p + 1]``.
            Home's begin at ``starts[parts]``, and ``starts[home]`` to ``starts[home + 1]`` is empty.
        trees: int32 [stop - start], by local id; None without trees.
        kept_rows, kept_positions: integers and int64 [kept]: other owners' vertices that are expanded, or whose table
            rows are fetched, at home. These are rows of ``KeptEdges`` or ``KeptRows``, and they count as home's.
        keep: integers [starts[parts]], where ``KeptRows`` may keep the table rows that come; None: nowhere. ``pins`` holds
            the kept rows in their place."""

    start: int
    stop: int
    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    trees: np.ndarray | None
    home: int
    kept_rows: np.ndarray = field(default_factory=lambda: _NONE)
    kept_positions: np.ndarray = field(default_factory=lambda: _NONE)
    keep: np.ndarray | None = None
    pins: object = None

    @property
    def alone(self) -> bool:
        """Whether all are home's, or kept at home, and have no trees."""
        return self.trees is None and int(self.starts[-1]) == 0

    def counts(self) -> list[int]:
        """Number of vertices of each partition."""
        starts = self.starts.tolist()
        counts = [stop - start for start, stop in pairwise(starts)]
        counts[self.home] = len(self.rows) - starts[-1] + len(self.kept_rows)
        return counts

    def within(self, growths: Sequence[NewVertices]) -> NewVertices:
        """Those of the vertices that are in ``growths``, which are disjoint. None of them is kept at home."""
        if sum(growth.stop - growth.start for growth in growths) == len(self.rows):
            return self
        chosen = np.zeros(self.stop - self.start, dtype=bool)
        for growth in growths:
            chosen[growth.start - self.start : growth.stop - self.start] = True
        kept = chosen[self.positions - self.start]
        starts = np.concatenate([[0], np.cumsum(kept)])[self.starts]
        return replace(self, rows=self.rows[kept], positions=self.positions[kept], starts=starts)

    def expanded_with(self, kept: KeptEdges, node_type: str) -> NewVertices:
        """The same vertices as they are expanded: those whose in-edges are at home go to home's group."""
        others = int(self.starts[-1])
        found = kept.split(node_type, self.rows[:others], self.positions[:others], self.starts) if others else None
        if found is None or not len(found[0]):
            return self
        rows, at, ids, elsewhere, starts = found
        return replace(
            self,
            rows=_before(ids, self.rows[others:]),
            positions=_before(elsewhere, self.positions[others:]),
            starts=starts,
            kept_rows=rows,
            kept_positions=at,
        )

    def fetched_with(self, kept: KeptRows, node_type: str, tables: Sequence[str]) -> NewVertices:
        """The same vertices as their rows of ``tables`` are fetched: those whose rows are at home go to home's
        group."""
        others = int(self.starts[-1])
        kept.expect(node_type, tables, self.rows[others:])
        if not others:
            return self
        found = kept.look_up(node_type, tables, self.rows[:others], self.positions[:others], self.starts)
        if found is None:
            return self
        return replace(
            self,
            rows=_before(found.missing_ids, self.rows[others:]),
            positions=_before(found.missing_positions, self.positions[others:]),
            starts=found.missing_starts,
            kept_rows=found.slots,
            kept_positions=found.positions,
            keep=found.missing_slots,
            pins=found.pins,
        )

    def of_task(self, task: Task, offsets: np.ndarray) -> Iterator[TaskRows]:
        """The vertices that a task is about, without empty groups. ``offsets`` int64 [parts + 1]: the partitions'
        ranges of internal ids."""
        others = int(self.starts[-1])
        if task.owner == OTHERS:
            own, shift, starts, keep = slice(0, others), 0, self.starts, self.keep
        elif task.owner != self.home:
            own = _part(int(self.starts[task.owner]), int(self.starts[task.owner + 1]), task)
            shift, starts, keep = int(offsets[task.owner]), None, None
        else:
            own, shift, starts, keep = _part(others, len(self.rows), task), 0, None, None
        if own.start < own.stop:
            rows = self.rows[own] - shift if shift else self.rows[own]
            yield TaskRows(rows, self.positions[own], starts, keep)
        if task.owner == self.home:
            # Each chunk has its share of both: then it fills one stretch of the batch, as far as others leave it.
            kept = _part(0, len(self.kept_rows), task)
            if kept.start < kept.stop:
                yield TaskRows(self.kept_rows[kept], self.kept_positions[kept], kept=True)


def _before(others: np.ndarray, own: np.ndarray) -> np.ndarray:
    return np.concatenate([others, own]) if len(others) else own


def _part(first: int, stop: int, task: Task) -> slice:
    chunk = chunk_range(stop - first, task.chunk, task.chunks)
    return slice(first + chunk.start, first + chunk.stop)


def grouped(ids: np.ndarray, trees: np.ndarray | None, *, start: int, offsets: np.ndarray, home: int) -> NewVertices:
    """The vertices ``ids`` (int64 [n], internal) with the local ids from ``start`` on."""
    rows, positions, starts = kernels.group_by_owner(ids, offsets, home, first=start)
    return NewVertices(start, start + len(ids), rows, positions, starts, trees, home)


def together(pieces: Sequence[NewVertices]) -> NewVertices:
    """The vertices of several disjoint pieces that are all ``alone``, in ascending order."""
    first = pieces[0]
    return replace(
        first,
        stop=pieces[-1].stop,
        rows=np.concatenate([piece.rows for piece in pieces]),
        positions=np.concatenate([piece.positions for piece in pieces]),
        kept_rows=np.concatenate([piece.kept_rows for piece in pieces]),
        kept_positions=np.concatenate([piece.kept_positions for piece in pieces]),
    )
