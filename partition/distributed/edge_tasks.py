"""Tasks that build the union graph (``cutting.union``) in blocks of rows, from slices of the edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.partition.cutting.sorting import stable_order
from atta.partition.disk.files import check_file, chunks, map_array, write_array
from atta.partition.distributed.shuffled import BucketReader, BucketWriter
from atta.partition.distributed.task_work import EdgeSlice, TaskWork
from atta.partition.graph import Graph, index_dtype

__all__ = ["POSITIONS", "RowRanges", "check_one", "merged_rows", "reverse_balance", "split_by_row", "type_starts"]

POSITIONS = "positions.npy"
"""Of the work folder: the turn of each vertex, int64 [N]."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowRanges:
    """How the rows of the union graph are divided: range k begins with row ``k * rows``.

    Attributes:
        total: number of vertices of all types.
        rows: rows of a range, at least 1.
        both: whether every edge also counts backwards.
    """

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
    """Put the rows of a range together, from all slices. Returns the folder and the number of neighbours.

    Its files: ``indptr``, ``indices``, ``in_degrees`` (loops included, int64), and with ``turns`` the indices once more
    in buckets of that many turns (``POSITIONS``), rows ascending in each.
    """
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
