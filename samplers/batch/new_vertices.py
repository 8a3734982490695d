"""Vertices of a batch grouped by owner, and the cost of expanding and fetching them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from atta.samplers import kernels
from atta.samplers.dag.instance import OTHERS, OwnedVertices, Task, chunk_range

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.samplers.dag.spec import PlanOp
    from atta.samplers.methods import Method

__all__ = ["Degree", "KeptEdges", "NewVertices", "TaskRows", "by_owner", "grouped"]

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
        others. None: none is here.

        Returns rows and ``positions`` of the first, then ids, positions and ``starts`` of the others.
        """


@dataclass(frozen=True, slots=True)
class TaskRows:
    """The vertices that a task is about.

    Attributes:
        rows: int64 [n]. For a task of one owner, positions in the owner's range. For a task of ``OTHERS``, internal
            ids, grouped by owner.
        positions: int64 [n], local ids of the same vertices.
        starts: int64 [parts + 1] for a task of ``OTHERS``: partition p owns the entries ``starts[p]`` to ``starts[p +
            1]``. None for a task of one owner.
        kept: at the end of ``rows`` of a task at home, this number of rows of ``KeptEdges``.
    """

    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray | None = None
    kept: int = 0

    def divided(self) -> Iterator[TaskRows]:
        """The rows in their owner's range, then those of ``KeptEdges``, without empty parts."""
        owned = len(self.rows) - self.kept
        if owned:
            yield TaskRows(self.rows[:owned], self.positions[:owned], self.starts)
        if self.kept:
            yield TaskRows(self.rows[owned:], self.positions[owned:], None, self.kept)


@dataclass(frozen=True, slots=True)
class NewVertices:
    """Vertices of one node type with local ids in [start, stop), grouped by owner; home's come last.

    Attributes:
        rows: int64 [n]: internal ids of other owners' vertices, then positions in the home range.
        positions: int64 [n]: local ids of the same vertices.
        starts: int64 [parts + 1]: partition p, except ``home``, owns the entries ``starts[p]`` to ``starts[p + 1]``.
            Home's begin at ``starts[parts]``, and ``starts[home]`` to ``starts[home + 1]`` is empty.
        trees: int32 [stop - start], by local id; None without trees.
        home: the home partition.
        kept: at the end of ``rows``, this number of other owners' vertices that are expanded at home. Their rows are
            those of ``KeptEdges``, and they count as home's.
    """

    start: int
    stop: int
    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    trees: np.ndarray | None
    home: int
    kept: int = 0

    @property
    def at_home(self) -> np.ndarray:
        """int64 [n]: home's own vertices, as positions in its range."""
        return self.rows[self.starts[-1] : len(self.rows) - self.kept]

    def counts(self) -> np.ndarray:
        """int64 [parts]: number of vertices of each partition."""
        counts = np.diff(self.starts)
        counts[self.home] = len(self.rows) - self.starts[-1]
        return counts

    def within(self, growths: Sequence[NewVertices]) -> NewVertices:
        """Those of the vertices that are in ``growths``, which are disjoint."""
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
            rows=np.concatenate([ids, self.rows[others:], rows]),
            positions=np.concatenate([elsewhere, self.positions[others:], at]),
            starts=starts,
            kept=len(rows),
        )

    def of_task(self, task: Task, offsets: np.ndarray) -> TaskRows:
        """The vertices that a task is about. ``offsets`` int64 [parts + 1]: the partitions' ranges of internal ids."""
        if task.owner == OTHERS:
            others = int(self.starts[-1])
            return TaskRows(self.rows[:others], self.positions[:others], self.starts)
        first, stop = int(self.starts[-1]), len(self.rows)
        if task.owner != self.home:
            first, stop = int(self.starts[task.owner]), int(self.starts[task.owner + 1])
        chunk = chunk_range(stop - first, task.chunk, task.chunks)
        part = slice(first + chunk.start, first + chunk.stop)
        if task.owner != self.home:
            return TaskRows(self.rows[part] - offsets[task.owner], self.positions[part])
        kept = max(0, part.stop - max(part.start, len(self.rows) - self.kept))
        return TaskRows(self.rows[part], self.positions[part], kept=kept)


def grouped(ids: np.ndarray, trees: np.ndarray | None, *, start: int, offsets: np.ndarray, home: int) -> NewVertices:
    """The vertices ``ids`` (int64 [n], internal) with the local ids from ``start`` on."""
    rows, positions, starts = kernels.group_by_owner(ids, offsets, home, first=start)
    return NewVertices(start, start + len(ids), rows, positions, starts, trees, home)


def by_owner(
    grown: Mapping[str, NewVertices],
    op: PlanOp | None,
    row_bytes: Mapping[str, int],
    *,
    dataset: Dataset,
    home: int,
    degree: Degree,
) -> list[OwnedVertices]:
    """Each owner's share of ``grown`` (by node type).

    ``op``: the hop that expands them; None if no hop does. ``row_bytes``: bytes to fetch per vertex, by node type.
    Degrees are exact for vertices of the partition ``home``. For others they are the mean of the graph, because only an
    owner knows the degrees of its vertices.
    """
    schema = dataset.schema
    rows = np.zeros(dataset.num_parts, dtype=np.int64)
    degrees, nbytes = np.zeros((2, dataset.num_parts))
    at_home = 0.0
    for node_type, new in grown.items():
        counts = new.counts()
        rows += counts
        nbytes += counts * row_bytes.get(node_type, 0)
        into = [e for e, _ in op.fan_outs if schema.endpoints(e)[1] == node_type] if op is not None else []
        if into:
            edges = sum(schema.edge_counts[e] for e in into)
            mean = edges / max(1, schema.node_counts[node_type])
            degrees += counts * mean
            at_home += new.kept * mean + (float(degree(into, new.at_home)) if counts[home] else 0.0)
    degrees[home] = at_home
    owners = np.flatnonzero(rows)
    shares = zip(owners.tolist(), rows[owners].tolist(), degrees[owners].tolist(), nbytes[owners].tolist(), strict=True)
    return [OwnedVertices(*share) for share in shares]
