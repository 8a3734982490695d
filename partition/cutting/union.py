"""The union graph: all node types together, edges without direction, no self-loops. Every method but ``random`` cuts
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.observe.machine.threads import in_order
from atta.partition.cutting.tasks import edge_slices, thread_count, type_starts
from atta.partition.disk.files import chunks
from atta.partition.graph import Graph, index_dtype

Longs = npt.NDArray[np.int64]
Owners = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]
Piece = tuple[npt.NDArray[Any], npt.NDArray[Any], int, int]
"""Sources and destinations of some edges, and the first vertices of their types."""
Result = TypeVar("Result")
Number = TypeVar("Number", np.int32, np.int64)

BLOCK_ROWS: int = _native.BLOCK_ROWS
"""Number of rows of the union graph that are sorted at a time."""
SLICE = 8 << 20
"""Number of edges that a thread reads at a time."""


@dataclass(frozen=True)
class Union:
    """Neighbours by vertex; vertices are the rows of the node types, one type after another.

    Attributes:
        indptr: int64 [N+1].
        indices: int32|int64 [M]; a neighbour occurs once per edge to it. If all edges are stored in both directions,
            each pair counts once.
        in_degrees: int64 [N], loops included.
        counts: vertices by node type, in their order.
    """

    indptr: Longs
    indices: npt.NDArray[Any]
    in_degrees: Longs
    counts: dict[str, int]

    @classmethod
    def of(cls, graph: Graph) -> Union:
        """Read all edges twice. Takes 4 or 8 bytes per neighbour, and 2 more at first."""
        starts = type_starts(graph)

        def piece(edge_type: str, lo: int, hi: int) -> Piece:
            source, target = graph.schema.endpoints(edge_type)
            edges = graph.edges(edge_type)  # mapped anew, so that pages which were read do not stay
            return edges.src[lo:hi], edges.dst[lo:hi], starts[source], starts[target]

        counts = dict(graph.schema.node_counts)
        pieces = [partial(piece, s.edge_type, s.lo, s.hi) for s in edge_slices(graph, SLICE)]
        return cls(*union_rows(pieces, sum(counts.values())), counts)

    @property
    def num_nodes(self) -> int:
        """Number of vertices of all types."""
        return len(self.indptr) - 1

    def by_type(self, values: npt.NDArray[Number]) -> dict[str, npt.NDArray[Number]]:
        """Divide an array over all vertices by node type."""
        starts = np.cumsum([0, *self.counts.values()])
        return {t: values[lo:hi] for t, lo, hi in zip(self.counts, starts[:-1], starts[1:], strict=True)}

    def settle(  # noqa: PLR0917 - what the kernels take
        self, owners: Owners, parts: int, weights: Longs, room: Doubles, passes: int, advance: Callable[[int], None]
    ) -> None:
        """Move vertices out of partitions that hold too much, then in ``passes`` to those with most of their neighbours."""
        given = self.indptr, self.indices, owners, parts, weights.reshape(-1), room
        _native.even_owners(*given)
        for _ in range(passes):
            advance(1)
            if not _native.refine_owners(*given, thread_count()):
                break

    def sparse(self, cap: int, seed: int) -> tuple[Longs, Longs, Longs]:
        """As ``weighted_rows``, but each vertex keeps only the edges to its ``cap`` neighbours of lowest degree. An
        edge that both of its ends keep has twice the weight."""
        kept = _native.sparsify(self.indptr, self.indices, cap, seed % 2**64)
        pieces = [partial(_cut, kept, lo, hi) for lo, hi in chunks(len(kept[0]), SLICE)]
        return _native.merge_rows(*union_rows(pieces, self.num_nodes, both=True)[:2])


def _cut(ends: tuple[npt.NDArray[Any], npt.NDArray[Any]], lo: int, hi: int) -> Piece:
    return ends[0][lo:hi], ends[1][lo:hi], 0, 0


def union_rows(
    pieces: Sequence[Callable[[], Piece]], n: int, *, both: bool | None = None
) -> tuple[Longs, npt.NDArray[Any], Longs]:
    """Return ``indptr``, ``indices`` and in-degrees of ``n`` vertices: see ``Union``. ``both``: whether edges count in
    both directions; None: they do unless all are stored so. Neighbours are divided into blocks of rows first, so that
    each block is sorted in the caches."""
    sizes = _on_threads([partial(_block_sizes, take, n) for take in pieces])
    if both is None:
        both = sum(balance for balance, *_ in sizes) % 2**64 != 0
    held = np.array([inward + outward if both else inward for _, inward, outward in sizes], np.int64)
    held = held.reshape(len(sizes), -(-n // BLOCK_ROWS))  # by piece, by block
    ends = np.concatenate([[0], np.cumsum(held.sum(axis=0))])
    begins = ends[:-1] + np.cumsum(held, axis=0) - held
    indices, places = np.empty(ends[-1], index_dtype(n)), np.empty(ends[-1], np.uint16)
    loops, indptr, inward = np.zeros(n, np.int64), np.zeros(n + 1, np.int64), np.empty(n, np.int64)

    def fill(take: Callable[[], Piece], next_: Longs) -> None:
        _native.fill_blocks(*take(), n, both, next_, indices, places, loops)

    def sort(block: int, lo: int, hi: int) -> None:
        rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        ends_of = indptr[1:][rows]
        _native.sort_rows(indices[lo:hi], places[lo:hi], ends_of, inward[rows])
        ends_of += lo

    _on_threads([partial(fill, take, next_) for take, next_ in zip(pieces, begins, strict=True)])
    _on_threads([partial(sort, block, *bounds) for block, bounds in enumerate(pairwise(ends.tolist()))])
    inward += loops
    return indptr, indices, inward


def _block_sizes(take: Callable[[], Piece], n: int) -> tuple[int, Longs, Longs]:
    return _native.block_sizes(*take(), n)


def _on_threads(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    return list(in_order(jobs, thread_count()))


def weighted_rows(union: Union) -> tuple[Longs, Longs, Longs]:
    """``indptr``, ``indices`` and ``weights`` (int64 each). Each row is ascending and has each neighbour once; the
    weight is the number of edges."""
    return _native.merge_rows(union.indptr, union.indices)
