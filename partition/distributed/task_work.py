"""What tasks are told, and who runs them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from atta.partition.disk.files import chunks
from atta.partition.graph import Graph

__all__ = ["EdgeSlice", "InTurn", "TaskPool", "TaskSizes", "TaskWork", "edge_slices"]

PIECES = 16
"""Number of tasks of a step at least, so that several machines have work, and each holds a small part of the edges."""
LEAST = 1 << 20
"""Number of edges for which a task of its own is worth its start."""

Result = TypeVar("Result")


class TaskPool(Protocol):
    """Runs tasks, perhaps elsewhere. A task may run more than once: each time it writes into a folder of its own."""

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Result]:
        """Return ``function(*a)`` for each of the ``arguments``, in their order. ``advance(1)`` after each."""


class InTurn:
    """Runs tasks in this process, one after another."""

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Result]:
        results = []
        for given in arguments:
            results.append(function(*given))
            advance(1)
        return results


@dataclass(frozen=True)
class TaskSizes:
    """How the work is divided; the result does not depend on it.

    Attributes:
        slice_edges: edges that one task reads.
        chunk_edges: edges that it sorts at a time.
        block_edges: neighbours held at a time to place vertices (8 bytes each), and sorted by one task (30 bytes each).
        bucket_edges: edges of a partition sorted at a time (40 bytes each).
    """

    slice_edges: int = 128 << 20
    chunk_edges: int = 4 << 20
    block_edges: int = 32 << 20
    bucket_edges: int = 32 << 20

    @classmethod
    def of(cls, edges: int) -> TaskSizes:
        """The sizes for a graph with so many edges: the usual ones, or less, so that there are ``PIECES`` of each."""
        each = max(LEAST, edges // PIECES)
        most = cls()
        return cls(
            slice_edges=min(most.slice_edges, each),
            chunk_edges=min(most.chunk_edges, max(LEAST, each // 4)),
            block_edges=min(most.block_edges, 2 * each),  # most edges count in both directions
            bucket_edges=min(most.bucket_edges, each),
        )


@dataclass(frozen=True)
class TaskWork:
    """Where a task finds things: the graph folder and the work folder, good on all machines, and the sizes."""

    source: Path
    folder: Path
    sizes: TaskSizes

    def graph(self) -> Graph:
        """Open the graph folder; its checksums were compared before."""
        return Graph.open(self.source, verify=False)

    def own_folder(self, name: str) -> Path:
        """A new folder for one run of a task."""
        made = self.folder / f"{name}-{uuid.uuid4().hex}"
        made.mkdir(parents=True)
        return made


@dataclass(frozen=True)
class EdgeSlice:
    """The edges ``[lo, hi)`` of a type."""

    edge_type: str
    lo: int
    hi: int


def edge_slices(graph: Graph, limit: int) -> list[EdgeSlice]:
    """All edges, in slices of at most ``limit``: by type, then by id."""
    counts = graph.schema.edge_counts
    return [EdgeSlice(e, lo, hi) for e in graph.schema.edge_types for lo, hi in chunks(counts[e], limit)]
