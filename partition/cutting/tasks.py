"""What tasks do that cut a graph, and who runs them. They build the union graph in blocks of rows from slices of the
edges, move edges to the owners of their destinations, and write the partitions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.observe.progress import Silent
from atta.partition import dataset as layout
from atta.partition.cutting.balance import Counts
from atta.partition.cutting.writer import Numbering, PartWriter, stable_order
from atta.partition.disk.files import FileRecord, NpyAppender, check_file, chunks, describe_file, map_array, write_array
from atta.partition.graph import Graph, index_dtype
from atta.partition.names import file_name

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


_BOUNDS = "bounds.npy"

Array = npt.NDArray[Any]


class BucketWriter:
    """Writes columns of equal length into ``folder``, a run at a time; within a run rows are sorted by bucket. Files:
    ``NAME.npy`` for each column, and ``bounds.npy``, int64 [runs, buckets + 1]: where a run's buckets begin."""

    def __init__(self, folder: Path, buckets: int, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._buckets = buckets
        self._files = {name: NpyAppender(folder / f"{name}.npy", np.dtype(kind)) for name, kind in columns.items()}
        self._bounds = NpyAppender(folder / _BOUNDS, np.dtype(np.int64), (buckets + 1,))
        self._rows = 0

    def add(self, keys: npt.NDArray[Any], **columns: Array) -> None:
        """Append a run. ``keys``: the bucket of each row. Rows of a bucket keep their order."""
        order = stable_order(keys, self._buckets)
        for name, file in self._files.items():
            file.append(columns[name][order])
        counts = np.bincount(keys, minlength=self._buckets)
        self._bounds.append(self._rows + np.concatenate([[0], np.cumsum(counts)])[None])
        self._rows += len(keys)

    def __enter__(self) -> BucketWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in (*self._files.values(), self._bounds):
            file.__exit__(kind, error, tb)


class BucketReader:
    """Reads what several tasks wrote for a bucket: folder by folder, run by run."""

    def __init__(self, folders: Sequence[Path], columns: Sequence[str]) -> None:
        self._folders, self._columns = folders, columns

    def bucket(self, number: int) -> Iterator[tuple[Array, ...]]:
        """Yield the columns of each run that has rows of the bucket, memory-mapped."""
        for folder in self._folders:
            bounds = map_array(folder / _BOUNDS)[:, number : number + 2]
            if (filled := bounds[bounds[:, 0] < bounds[:, 1]]).size:
                columns = [map_array(folder / f"{name}.npy") for name in self._columns]
                for lo, hi in filled.tolist():
                    yield tuple(column[lo:hi] for column in columns)


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

    def bounds(self, number: int) -> tuple[int, int]:
        """First row, and the row after the last."""
        return number * self.rows, min(self.total, (number + 1) * self.rows)


def type_starts(graph: Graph) -> dict[str, int]:
    """The first vertex of each node type in the union graph."""
    counts = graph.schema.node_counts
    return dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))


def check_one(work: TaskWork, name: str) -> None:
    """Compare one file of the graph folder with its checksum; raises DataError."""
    check_file(work.source / name, work.graph().files[name], verify=True)


def reverse_balance(work: TaskWork, part: EdgeSlice) -> int:
    """The slice's share of a sum that is 0 modulo 2^64 if all edges are stored in both directions."""
    total = 0
    graph = work.graph()
    for piece in _pieces(work, graph, part):
        total += _native.edge_balance([piece], sum(graph.schema.node_counts.values()))
    return total


def split_by_row(work: TaskWork, part: EdgeSlice, ranges: RowRanges) -> Path:
    """Sort neighbours by the range of their row. Returns the folder of buckets: ``rows`` (from the range's first),
    ``neighbors``, and ``inward``, whether the edge points to the row. Loops are kept as in-edges."""
    graph, index = work.graph(), index_dtype(ranges.total)
    folder = work.own_folder("edges")
    with BucketWriter(folder, ranges.count, {"rows": np.int32, "neighbors": index, "inward": np.bool_}) as out:
        for src, dst, src_start, dst_start in _pieces(work, graph, part):
            heads, tails = dst.astype(index) + index.type(dst_start), src.astype(index) + index.type(src_start)
            inward = np.ones(len(heads), bool)
            if ranges.both:  # in the order of the edges, as _native.union_rows has it
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
    found = list(BucketReader(split, ("rows", "neighbors", "inward")).bucket(number))
    rows = np.concatenate([np.empty(0, np.int32), *(run[0] for run in found)])
    neighbors = np.concatenate([np.empty(0, index), *(run[1] for run in found)])
    inward = np.concatenate([np.empty(0, np.bool_), *(run[2] for run in found)])
    folder = work.own_folder("rows")
    write_array(folder / "in_degrees.npy", np.bincount(rows[inward], minlength=hi - lo))
    linked = neighbors != rows.astype(np.int64) + lo
    rows, neighbors = rows[linked], neighbors[linked]
    degrees = np.bincount(rows, minlength=hi - lo)
    indices = neighbors[stable_order(rows, hi - lo)].astype(index)
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


_FIELDS = ("offsets", "row_of", "internal_of", "rank_of", "ids")


def keep_numbering(work: TaskWork, numbering: Mapping[str, Numbering]) -> None:
    """Write down how vertices are numbered, for all tasks to map."""
    for node_type, numbers in numbering.items():
        for name in _FIELDS:
            write_array(work.folder / "numbering" / file_name(node_type) / f"{name}.npy", getattr(numbers, name))


def _numbering(work: TaskWork, graph: Graph) -> dict[str, Numbering]:
    folder = work.folder / "numbering"
    return {
        t: Numbering(*(map_array(folder / file_name(t) / f"{name}.npy") for name in _FIELDS))
        for t in graph.schema.node_types
    }


def split_by_part(work: TaskWork, part: EdgeSlice, parts: int) -> Path:
    """Sort edges by the owner of their destination. Returns the folder of buckets: edge ``ids`` and ``heads``, the
    internal ids of the destinations."""
    graph = work.graph()
    target = graph.schema.endpoints(part.edge_type)[1]
    numbers, dst = _numbering(work, graph)[target], graph.edges(part.edge_type).dst
    index = index_dtype(graph.schema.edge_counts[part.edge_type])
    folder = work.own_folder("moved")
    with BucketWriter(folder, parts, {"ids": index, "heads": numbers.internal_of.dtype}) as out:
        for first, last in chunks(part.hi - part.lo, work.sizes.chunk_edges):
            lo, hi = part.lo + first, part.lo + last
            heads = numbers.internal_of[dst[lo:hi]]
            owners = np.searchsorted(numbers.offsets, heads, side="right") - 1
            out.add(owners, ids=np.arange(lo, hi, dtype=index), heads=heads)
    return folder


class _MovedEdges:
    """The edges that ``split_by_part`` moved; see ``EdgeSource``."""

    def __init__(self, moved: Mapping[str, Sequence[Path]], graph: Graph, numbering: Mapping[str, Numbering]) -> None:
        self._readers = {e: BucketReader(folders, ("ids", "heads")) for e, folders in moved.items()}
        self._offsets = {e: numbering[graph.schema.endpoints(e)[1]].offsets for e in moved}

    def degrees(self, edge_type: str, part: int) -> npt.NDArray[np.int64]:
        lo, hi = (int(x) for x in self._offsets[edge_type][part : part + 2])
        counts = np.zeros(hi - lo, np.int64)
        for _, heads in self._readers[edge_type].bucket(part):
            counts += np.bincount(heads - lo, minlength=hi - lo)
        return counts

    def into(self, edge_type: str, part: int, lo: int, hi: int) -> Iterator[tuple[Array, Array]]:
        for ids, heads in self._readers[edge_type].bucket(part):
            chosen = (heads >= lo) & (heads < hi)
            yield ids[chosen], heads[chosen]


def written_part(
    work: TaskWork, moved: Mapping[str, Sequence[Path]], part: int, parts: int
) -> tuple[Path, Counts, dict[str, FileRecord]]:
    """Write one partition. Returns a folder that holds the partition's, its figures, and the records of its files."""
    graph = work.graph()
    numbering, counts = _numbering(work, graph), Counts.zero(graph.schema, parts)
    source, folder = _MovedEdges(moved, graph, numbering), work.own_folder("part")
    bucket = work.sizes.bucket_edges
    writer = PartWriter(graph, folder, numbering, source, counts=counts, progress=Silent(), bucket_edges=bucket)
    for node_type in graph.schema.node_types:
        for name in graph.schema.node_tables[node_type]:
            writer.table(node_type, name, part)
    writer.edges(part)
    files = sorted((folder / layout.part_folder(part)).rglob("*.npy"))
    return folder, counts, {path.relative_to(folder).as_posix(): describe_file(path) for path in files}
