"""Number the vertices of a batch in the order in which they first appear, while its edges are drawn or stitched
together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import numpy as np

from atta import _native
from atta.samplers.kernels.arrays import ids_of
from atta.samplers.methods.base import EdgeDraws, InNumpy, Tables, numbers_of

Group = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


class Compactor(_native.Compactor):
    """Maps internal ids to local ids 0, 1, 2, ... in the order in which they are first seen. Not thread-safe.
    ``Compactor(num_ids)``: all ids are below this number (0 = unknown). Up to 2**24 a direct table replaces hashing.
    ``ids(start, stop)``: int64, those numbered ``start`` ... ``stop - 1``, a copy. ``size``: number of different ids so
    far. ``reset`` forgets all ids but keeps the memory for the next batch."""

    def insert(self, ids: np.ndarray) -> np.ndarray:
        """int32 [n]: local ids of ``ids`` [n]. New ids are appended in order."""
        return super().insert(ids_of(ids))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int32 [n]: local ids of ``ids`` [n], -1 for those that were never inserted."""
        return super().find(ids_of(ids))

    def in_trees(self, start: int, stop: int, sources: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``ids``, for ids of the form tree x ``sources`` + vertex: vertices int64 and trees int32, [stop - start]
        each."""
        return super().in_trees(start, stop, max(1, sources))

    def sample_hop(  # type: ignore[override]
        self,
        targets: Compactor,
        indptr: np.ndarray,
        indices: np.ndarray,
        edge_ids: np.ndarray | None,
        vertex_keys: np.ndarray | None,
        *,
        first: int,
        last: int,
        out_row: np.ndarray,
        out_col: np.ndarray,
        out_edge_ids: np.ndarray | None,
        sources: int,
        method: Tables | None = None,
        trees: bool = False,
        tree_times: np.ndarray | None = None,
        **how: Unpack[EdgeDraws],
    ) -> tuple[int, int]:
        """Expand the ids with local ids ``first`` ... ``last - 1`` in ``targets``, in a whole graph in this process.

        It draws as ``sample_neighbors`` does, and numbers the sources (ids below ``sources``) as ``stitch`` does, in
        one pass. ``targets`` may be this compactor itself. The ``out`` arrays (int32, int32, the dtype of ``edge_ids``)
        take the edges that fit. Without ``edge_ids`` an edge's id is its position. Without ``vertex_keys`` a vertex is
        its own key. With ``trees`` ids are tree x number of vertices + vertex, and ``tree_times`` int64 has the time of
        each tree.

        Returns the number of edges, and the first id that had no room (``last``: all ids are done)."""
        if isinstance(method, InNumpy):
            nodes = len(indptr) - 1
            rows, of_tree = targets.in_trees(first, last, nodes) if trees else (targets.ids(first, last), None)
            times = None if tree_times is None else tree_times[of_tree]
            found = method.picks(rows, vertex_keys, trees=of_tree, times=times, **how)
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
        edges, out = (targets, indptr, indices, edge_ids, vertex_keys), (out_row, out_col, out_edge_ids)
        return super().sample_hop(*edges, first, last, *numbers_of(how), *out, method, sources, trees, tree_times)

    def stitch(  # type: ignore[override]
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
        """Merge the answers of several owners in frontier order and number their sources. Every group is (positions int64 [m] in
        the frontier, counts int32 [m], neighbours, edge ids); ``frontier_local`` int32 [frontier] are the targets' local ids.
        Writes local ids of sources and targets, and edge ids, as int32 or int64 like the outputs. Returns the number of edges.
        With ``trees`` int32 [frontier] it numbers tree x ``sources`` + source. ``weights``: what to write of the edges, too."""
        flat = np.ascontiguousarray
        prepared = [
            (flat(p, np.int64), flat(c, np.int32), ids_of(n), None if e is None else ids_of(e)) for p, c, n, e in groups
        ]
        return super().stitch(prepared, frontier_local, out_row, out_col, out_edge_ids, trees, sources, weights)


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
    scores they are ordered by a hash of (``stream_key``, user id of the target, user id of the source): then every set
    of ``limit`` sources is equally likely. Targets choose independently, so two may admit the same vertex. Returns how
    many vertices each target admits, int32 [m], and these vertices, int64 [sum], the lowest first."""
    return _native.admit(members, targets, counts, sources, keys, limit, stream_key, scores)


def split_cached(
    index: Compactor, present: np.ndarray, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray, *, need: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Divide ``ids`` into cached and missing ones. An id is cached if it has a slot in ``index`` whose ``present`` byte has all
    bits of ``need``. ``starts`` int64 are bounds of groups of ``ids``. Returns slots (int32) and positions of the cached ids,
    then ids, positions, bounds of the groups and slots (-1: none) of the missing ids. All are in the order of ``ids``."""
    return _native.split_cached(index, present, need, ids, positions, starts)
