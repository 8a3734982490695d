"""The union graph: all node types together, edges without direction, no self-loops. Every method but ``random`` cuts
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.partition.cutting.tasks import thread_count
from atta.partition.graph import Graph

Longs = npt.NDArray[np.int64]
Owners = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Union:
    """Neighbours by vertex; vertices are the rows of the node types, one type after another.

    Attributes:
        indptr: int64 [N+1].
        indices: int32|int64 [M]; a neighbour occurs once per edge to it. If all edges are stored in both directions,
            each pair counts once.
        counts: vertices by node type, in their order.
    """

    indptr: Longs
    indices: npt.NDArray[Any]
    counts: dict[str, int]

    @classmethod
    def of(cls, graph: Graph) -> Union:
        """Read all edges twice, and further times to see whether both directions are stored. Takes 4 or 8 bytes per
        neighbour."""
        counts = dict(graph.schema.node_counts)
        total = sum(counts.values())
        starts = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
        pieces = []
        for edge_type in graph.schema.edge_types:
            source, target = graph.schema.endpoints(edge_type)
            edges = graph.edges(edge_type)
            pieces.append((edges.src, edges.dst, starts[source], starts[target]))
        indptr, indices = _native.union_rows(pieces, total, not _native.is_symmetric(pieces, total))
        return cls(indptr, indices, counts)

    @property
    def num_nodes(self) -> int:
        """Number of vertices of all types."""
        return len(self.indptr) - 1

    def by_type(self, owners: Owners) -> dict[str, Owners]:
        """Divide an array over all vertices by node type."""
        starts = np.cumsum([0, *self.counts.values()])
        return {t: owners[lo:hi] for t, lo, hi in zip(self.counts, starts[:-1], starts[1:], strict=True)}

    def settle(  # noqa: PLR0917 - what the kernels take
        self, owners: Owners, parts: int, weights: Longs, room: Doubles, passes: int, advance: Callable[[int], None]
    ) -> None:
        """Move vertices out of partitions that hold too much, then in ``passes`` to those with most of their neighbours."""
        given = self.indptr, self.indices, owners, parts, weights.reshape(-1), room
        _native.even_owners(*given)
        for _ in range(passes):
            advance(1)
            if not _native.refine_owners(*given, threads=thread_count()):
                break

    def sparse(self, cap: int, seed: int) -> tuple[Longs, Longs, Longs]:
        """As ``weighted_rows``, but each vertex keeps only the edges to its ``cap`` neighbours of lowest degree. An
        edge that both of its ends keep has twice the weight."""
        kept = _native.sparsify(self.indptr, self.indices, cap, seed % 2**64)
        return _native.merge_rows(*_native.union_rows([(*kept, 0, 0)], self.num_nodes, True))


def weighted_rows(union: Union) -> tuple[Longs, Longs, Longs]:
    """``indptr``, ``indices`` and ``weights`` (int64 each). Each row is ascending and has each neighbour once; the
    weight is the number of edges."""
    return _native.merge_rows(union.indptr, union.indices)
