"""The tasks that cut a graph: who runs them, how they divide the edges, and how they hand rows to each other. Tasks on
several machines also build the union graph, in blocks of rows from slices of the edges."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.observe.machine.processor import usable_cores
from atta.observe.machine.threads import in_order
from atta.observe.progress import Progress, Silent
from atta.partition.disk.files import NpyAppender, NpyReader, check_file, chunks, map_array, write_array
from atta.partition.graph import Graph, index_dtype

PIECES = 16
"""Number of tasks of a step at least, so that several machines have work, and each holds a small part of the edges."""
LEAST = 1 << 20
"""Number of edges for which a task of its own is worth its start."""
BUCKETS = 1024
"""Number of buckets of all edges at least, where they are large enough: what is sorted stays near the caches."""
MOST_THREADS = 4
"""Number of threads of this process that compute at most: a task in each holds a chunk or a bucket of edges."""

WORK = "work"
"""The folder of a dataset under construction that tasks write into."""

Result = TypeVar("Result")


class TaskPool(Protocol):
    """Runs tasks, perhaps elsewhere. A task may run more than once: each time it writes into a folder of its own."""

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Result]:
        """Return ``function(*a)`` for each of the ``arguments``, in their order. ``advance(1)`` after each."""


def thread_count() -> int:
    """Number of threads of this process that compute."""
    return min(usable_cores(), MOST_THREADS)


class Threads:
    """Runs tasks in threads of this process, one for each core."""

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Result]:
        """Run the tasks. Raises what a task raises."""
        results = []
        for result in in_order((partial(function, *each) for each in arguments), thread_count()):
            results.append(result)
            advance(1)
        return results


@dataclass(frozen=True)
class TaskSizes:
    """How the work is divided; the result does not depend on it.

    Attributes:
        slice_edges: edges that one task reads.
        chunk_edges: edges that it sorts at a time.
        block_edges: neighbours held at a time to place vertices (8 bytes each), and sorted by one task (30 bytes each).
        bucket_edges: edges of a partition sorted at a time (80 bytes each).
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
            bucket_edges=min(most.bucket_edges, max(LEAST, edges // BUCKETS)),
        )


@dataclass(frozen=True)
class TaskWork:
    """Where a task finds things: the graph folder and the work folder, good on all machines, the sizes, and the room that
    the graph gets."""

    source: Path
    folder: Path
    sizes: TaskSizes
    room: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def graph(self) -> Graph:
        """The graph folder; its checksums were compared before."""
        return Graph.open(self.source, verify=False).with_room(self.room)

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


@dataclass(frozen=True)
class TaskRun:
    """The tasks of one command: the graph that they cut, who runs them, and where they find things."""

    pool: TaskPool
    graph: Graph
    work: TaskWork
    progress: Progress

    @classmethod
    def begun(
        cls, pool: TaskPool, graph: Graph, folder: Path, sizes: TaskSizes | None, progress: Progress | None
    ) -> TaskRun:
        """Make the work folder in ``folder``. Without ``sizes``, they suit the number of edges."""
        work = folder.absolute() / WORK
        work.mkdir()
        divided = sizes or TaskSizes.of(sum(graph.schema.edge_counts.values()))
        return cls(pool, graph, TaskWork(graph.path.absolute(), work, divided, graph.schema.room), progress or Silent())

    def tasks(self, stage: str, function: Callable[..., Result], given: Sequence[tuple[Any, ...]]) -> list[Result]:
        """Return ``function(work, *each)`` for all that is ``given``."""
        self.progress.stage(stage, len(given))
        return self.pool.run(function, [(self.work, *each) for each in given], self.progress.advance)

    @property
    def slices(self) -> list[EdgeSlice]:
        """All edges, as tasks read them."""
        return edge_slices(self.graph, self.work.sizes.slice_edges)


_BOUNDS = "bounds.npy"

Array = npt.NDArray[Any]


Columns = Mapping[str, npt.DTypeLike]
"""By name, the dtype of a column. That of rows of several values has their shape, ``np.dtype((kind, shape))``."""


class BucketWriter:
    """Writes columns of equal length into ``folder``, a run at a time; within a run rows are sorted by bucket. Files:
    ``NAME.npy`` for each column, and ``bounds.npy``, int64 [runs, buckets + 1]: where a run's buckets begin."""

    def __init__(self, folder: Path, buckets: int, columns: Columns) -> None:
        self._buckets = buckets
        self._files = {name: column_file(folder / f"{name}.npy", kind) for name, kind in columns.items()}
        self._bounds = NpyAppender(folder / _BOUNDS, np.dtype(np.int64), (buckets + 1,))
        self._rows = 0

    def add(self, keys: npt.NDArray[Any], **columns: Array) -> None:
        """Append a run. ``keys``: the bucket of each row. Rows of a bucket keep their order."""
        given = [np.ascontiguousarray(columns[name]) for name in self._files]
        sorted_ = [np.empty_like(column) for column in given]
        bounds = _native.dealt(keys, self._buckets, given, sorted_)
        for file, column in zip(self._files.values(), sorted_, strict=True):
            file.append(column)
        self._bounds.append(self._rows + bounds[None])
        self._rows += len(keys)

    def __enter__(self) -> BucketWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in (*self._files.values(), self._bounds):
            file.__exit__(kind, error, tb)


def column_file(path: Path, kind: npt.DTypeLike) -> NpyAppender:
    """The file of a column."""
    return NpyAppender(path, np.dtype(kind).base, np.dtype(kind).shape)


class BucketReader(contextlib.ExitStack):
    """Reads buckets that several tasks wrote, each into one of ``folders``."""

    def __init__(self, folders: Sequence[Path], columns: Columns) -> None:
        super().__init__()
        self._columns = columns
        self._bounds = [map_array(folder / _BOUNDS) for folder in folders]
        self._files = {n: [self.enter_context(NpyReader(f / f"{n}.npy")) for f in folders] for n in columns}

    def read(self, number: int) -> list[Array]:
        """Return the columns of a bucket, folder by folder, run by run."""
        runs = [bounds[:, number : number + 2] for bounds in self._bounds]
        runs = [of[of[:, 0] < of[:, 1]] for of in runs]
        total, found = sum(int((of[:, 1] - of[:, 0]).sum()) for of in runs), []
        for name, kind in self._columns.items():
            column, at = np.empty(total, kind), 0
            for file, of in zip(self._files[name], runs, strict=True):
                for lo, hi in of.tolist():
                    file.read(lo, column[at : (at := at + hi - lo)])
            found.append(column)
        return found


def read_bucket(folders: Sequence[Path], columns: Columns, number: int) -> list[Array]:
    """Return the columns of one bucket: see ``BucketReader``."""
    with BucketReader(folders, columns) as reader:
        return reader.read(number)


def remove_folders(folders: Sequence[Path]) -> None:
    """Remove what tasks wrote for others."""
    for folder in folders:
        shutil.rmtree(folder)


def lots(ends: npt.NDArray[np.int64], limit: int, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield ranges of the items ``[first, last)`` with at most ``limit`` in each, or one item that has more. ``ends``:
    int64 [n + 1], how much all items before each have."""
    last = len(ends) - 1 if last is None else last
    while first < last:
        end = int(np.searchsorted(ends, ends[first] + limit, side="right")) - 1
        yield first, (first := min(last, max(end, first + 1)))


POSITIONS = "positions.npy"
"""Of the work folder: the turn of each vertex, int64 [N]."""


@dataclass(frozen=True)
class RowRanges:
    """How the rows of the union graph are divided: range k begins with row ``k * rows``. ``total``: number of vertices
    of all types. ``both``: whether every edge also counts backwards."""

    total: int
    rows: int
    both: bool

    @property
    def count(self) -> int:
        """Number of ranges."""
        return -(-self.total // self.rows)

    @property
    def columns(self) -> Columns:
        """What ``split_by_row`` writes of each neighbour."""
        return {"rows": np.int32, "neighbors": index_dtype(self.total), "inward": np.bool_}

    def bounds(self, number: int) -> tuple[int, int]:
        """First row, and the row after the last."""
        return number * self.rows, min(self.total, (number + 1) * self.rows)


def type_starts(graph: Graph) -> dict[str, int]:
    """The first vertex of each node type in the union graph."""
    counts = graph.schema.node_counts
    return dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))


def check_one(work: TaskWork, name: str) -> None:
    """Compare one file of the graph folder with its checksum; raises DataError."""
    check_file(work.source / name, work.graph.files[name], verify=True)


def reverse_balance(work: TaskWork, part: EdgeSlice) -> int:
    """The slice's share of a sum that is 0 modulo 2^64 if all edges are stored in both directions."""
    total = 0
    graph = work.graph
    for piece in _pieces(work, graph, part):
        total += _native.block_sizes(*piece, sum(graph.schema.node_counts.values()))[0]
    return total


def split_by_row(work: TaskWork, part: EdgeSlice, ranges: RowRanges) -> Path:
    """Sort neighbours by the range of their row. Returns the folder of buckets: ``rows`` (from the range's first),
    ``neighbors``, and ``inward``, whether the edge points to the row. Loops are kept as in-edges."""
    graph, index = work.graph, index_dtype(ranges.total)
    folder = work.own_folder("edges")
    with BucketWriter(folder, ranges.count, ranges.columns) as out:
        for src, dst, src_start, dst_start in _pieces(work, graph, part):
            heads, tails = dst.astype(index) + index.type(dst_start), src.astype(index) + index.type(src_start)
            inward = np.ones(len(heads), bool)
            if ranges.both:  # in the order of the edges, as union_rows has it
                heads, tails = (np.stack(pair, axis=1).ravel() for pair in ((heads, tails), (tails, heads)))
                inward = np.tile([True, False], len(src))
                kept = inward | (heads != tails)
                heads, tails, inward = heads[kept], tails[kept], inward[kept]
            out.add(heads // ranges.rows, rows=heads % ranges.rows, neighbors=tails, inward=inward)
    return folder


def merged_rows(
    work: TaskWork, split: Sequence[Path], ranges: RowRanges, number: int, turns: int | None
) -> tuple[Path, int]:
    """Put the rows of a range together, from all slices. Returns the folder and the number of neighbours. Its files:
    ``indptr``, ``indices``, ``in_degrees`` (loops included, int64), and with ``turns`` the indices once more in buckets
    of that many turns (``POSITIONS``), rows ascending in each."""
    lo, hi = ranges.bounds(number)
    index = index_dtype(ranges.total)
    rows, neighbors, inward = read_bucket(split, ranges.columns, number)
    folder = work.own_folder("rows")
    write_array(folder / "in_degrees.npy", np.bincount(rows[inward], minlength=hi - lo))
    linked = neighbors != rows.astype(np.int64) + lo
    rows, neighbors = rows[linked], neighbors[linked]
    degrees = np.bincount(rows, minlength=hi - lo)
    indices = neighbors[_native.stable_order(rows, hi - lo)]
    write_array(folder / "indptr.npy", np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    write_array(folder / "indices.npy", indices)
    if turns is not None:
        turn = map_array(work.folder / POSITIONS)[lo:hi] // turns
        with BucketWriter(folder, -(-ranges.total // turns), {"streamed": index}) as out:
            out.add(np.repeat(turn, degrees), streamed=indices)
    return folder, len(indices)


def _pieces(work: TaskWork, graph: Graph, part: EdgeSlice) -> Iterator[tuple[Array, Array, int, int]]:
    """Yield sources, destinations, and the first vertices of their types, a chunk at a time."""
    starts = type_starts(graph)
    source, target = graph.schema.endpoints(part.edge_type)
    edges = graph.edges(part.edge_type)
    for first, last in chunks(part.hi - part.lo, work.sizes.chunk_edges):
        chosen = slice(part.lo + first, part.lo + last)
        yield edges.src[chosen], edges.dst[chosen], starts[source], starts[target]
