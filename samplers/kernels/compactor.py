"""Number the vertices of a batch in the order in which they first appear, while its edges are drawn or stitched
together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from atta import _native
from atta.samplers.kernels.arrays import flat, ids_of
from atta.samplers.methods.base import Tables
from atta.samplers.methods.in_numpy import InNumpy

__all__ = ["Compactor", "Weighing", "admit"]

Group = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


class Compactor:
    """Maps internal ids to local ids 0, 1, 2, ... in the order in which they are first seen. Not thread-safe."""

    def __init__(self, num_ids: int = 0) -> None:
        """``num_ids``: all ids are below this number (0 = unknown). Up to 2**24 a direct table replaces hashing."""
        self.native = _native.Compactor(num_ids)

    def reset(self) -> None:
        """Forget all ids but keep the memory for the next batch."""
        self.native.reset()

    @property
    def size(self) -> int:
        """Number of different ids so far."""
        return int(self.native.size)

    def insert(self, ids: np.ndarray) -> np.ndarray:
        """int32 [len(ids)]: local ids. New ids are appended in order."""
        local: np.ndarray = self.native.insert(ids_of(ids))
        return local

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int32 [len(ids)]: local ids, -1 for ids that were never inserted."""
        local: np.ndarray = self.native.find(ids_of(ids))
        return local

    def ids(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start]: the ids numbered ``start`` ... ``stop - 1`` (a copy)."""
        found: np.ndarray = self.native.ids(start, stop)
        return found

    def in_trees(self, start: int, stop: int, sources: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``ids``, for ids of the form tree x ``sources`` + vertex: vertices int64 and trees int32, [stop - start]
        each."""
        found: tuple[np.ndarray, np.ndarray] = self.native.in_trees(start, stop, max(1, sources))
        return found

    def sample_hop(
        self,
        targets: Compactor,
        indptr: np.ndarray,
        indices: np.ndarray,
        edge_ids: np.ndarray | None,
        vertex_keys: np.ndarray | None,
        *,
        first: int,
        last: int,
        fan_out: int,
        replace: bool,
        stream_key: int,
        out_row: np.ndarray,
        out_col: np.ndarray,
        out_edge_ids: np.ndarray | None,
        sources: int,
        method: Tables | None = None,
        trees: bool = False,
        tree_times: np.ndarray | None = None,
    ) -> tuple[int, int]:
        """Expand the ids with local ids ``first`` ... ``last - 1`` in ``targets``, in a whole graph in this process.

        It draws as ``sample_neighbors`` does, and numbers the sources (ids below ``sources``) as ``stitch`` does, in
        one pass. ``targets`` may be this compactor itself. The ``out`` arrays (int32, int32, the dtype of ``edge_ids``)
        take the edges that fit. Without ``edge_ids`` an edge's id is its position. Without ``vertex_keys`` a vertex is
        its own key. With ``trees`` ids are tree x number of vertices + vertex, and ``tree_times`` int64 has the time of
        each tree.

        Returns the number of edges, and the first id that had no room (``last``: all ids are done).
        """
        if isinstance(method, InNumpy):
            nodes = len(indptr) - 1
            rows, of_tree = targets.in_trees(first, last, nodes) if trees else (targets.ids(first, last), None)
            times = None if tree_times is None else tree_times[of_tree]
            found = method.picks(
                rows, vertex_keys, fan_out=fan_out, replace=replace, stream_key=stream_key, trees=of_tree, times=times
            )
            done, count = found.within(len(out_row))
            at, e_id = found.positions[:count], None
            if out_edge_ids is not None:
                e_id = (at if edge_ids is None else edge_ids[at]).astype(out_edge_ids.dtype, copy=False)
            self.stitch(
                [(np.arange(done), found.counts[:done], indices[at], e_id)],
                np.arange(first, first + done, dtype=np.int32),
                out_row[:count],
                out_col[:count],
                None if out_edge_ids is None else out_edge_ids[:count],
                trees=None if of_tree is None else of_tree[:done],
                sources=sources,
            )
            return count, first + done
        return self.native.sample_hop(
            targets.native,
            indptr,
            indices,
            edge_ids,
            vertex_keys,
            first,
            last,
            fan_out,
            replace,
            stream_key,
            out_row,
            out_col,
            out_edge_ids,
            method,
            sources,
            trees,
            tree_times,
        )

    def stitch(
        self,
        groups: Sequence[Group],
        frontier_local: np.ndarray,
        out_row: np.ndarray,
        out_col: np.ndarray,
        out_edge_ids: np.ndarray | None = None,
        *,
        trees: np.ndarray | None = None,
        sources: int = 0,
        weights: Weighing | None = None,
    ) -> int:
        """Merge the answers of several owners in frontier order and number their sources.

        Every group is (positions int64 [m] in the frontier, counts int32 [m], neighbours, edge ids); ``frontier_local``
        int32 [frontier] are the targets' local ids. Writes local ids of sources and targets, and edge ids, as int32 or
        int64 like the outputs. Returns the number of edges. With ``trees`` int32 [frontier] it numbers tree x
        ``sources`` + source. ``weights``: what to write of the edges, too.
        """
        prepared = [
            (flat(p, np.int64), flat(c, np.int32), ids_of(n), None if e is None else ids_of(e)) for p, c, n, e in groups
        ]
        of_tree = None if trees is None else flat(trees, np.int32)
        frontier = flat(frontier_local, np.int32)
        return self.native.stitch(prepared, frontier, out_row, out_col, out_edge_ids, of_tree, sources, weights)


class Weighing(NamedTuple):
    """What edges weigh that are stitched: ``out`` float32 [edges] gets the product of factors of both ends, ``right``
    float32 [frontier] of the target and ``left`` [ids] of the source. Factors of sources are 1 (None), float32 numbers,
    or 1 / root of (unsigned integers + ``more``), 0 for 0. With ``no_loops`` edges of a vertex to itself weigh 0."""

    out: np.ndarray
    right: np.ndarray
    left: np.ndarray | None = None
    more: int = 0
    no_loops: bool = False


def admit(
    members: Compactor,
    targets: np.ndarray,
    counts: np.ndarray,
    sources: np.ndarray,
    keys: np.ndarray,
    *,
    limit: int,
    stream_key: int = 0,
    scores: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the in-neighbours that each target admits: the ``limit`` lowest, without repeats, that are not in
    ``members``.

    ``targets`` int64 [m], their in-edges ``counts`` int32 [m] and ``sources`` int64 [sum(counts)], ``keys`` int64 [N]
    user ids of all vertices. Sources are ordered by ``scores`` (uint64, one per source), ties by user id. Without
    scores they are ordered by a hash of (``stream_key``, user id of the target, user id of the source). Then every set
    of ``limit`` sources is equally likely.

    Targets choose independently, so two may admit the same vertex. Returns how many vertices each target admits, int32
    [m], and these vertices, int64 [sum], the lowest first.
    """
    return _native.admit(
        members.native,
        flat(targets, np.int64),
        flat(counts, np.int32),
        flat(sources, np.int64),
        flat(keys, np.int64),
        limit,
        stream_key,
        None if scores is None else flat(scores, np.uint64),
    )
