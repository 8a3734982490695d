"""Draw in-edges of rows, and answer other questions about the edges of one partition."""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.samplers.kernels.arrays import beside, flat, ids_of
from atta.samplers.methods.base import Tables
from atta.samplers.methods.in_numpy import InNumpy

__all__ = [
    "bounds_by_target",
    "by_source",
    "degree_sum",
    "edge_digests",
    "group_by_owner",
    "has_edges",
    "sample_neighbors",
    "sample_pairs",
    "scaled",
    "split_by_owner",
    "validate_csc",
]


def validate_csc(indptr: np.ndarray, indices: np.ndarray, num_sources: int) -> None:
    """Check once what every later call relies on: ``indptr`` int64 [n+1] ascends from 0 to len(indices), and all
    sources exist."""
    _native.validate_csc(flat(indptr, np.int64), ids_of(indices), num_sources)


def bounds_by_target(targets: np.ndarray, count: int) -> np.ndarray | None:
    """Where the edges of each target begin: int64 [count + 1], as ``indptr`` of a CSC.

    ``targets``: int64 [edges], each below ``count``. None if they do not ascend.
    """
    return _native.bounds_by_target(flat(targets, np.int64), count)


def by_source(indptr: np.ndarray, indices: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The edges of a CSC by source: its transpose.

    Args:
        indptr: int64 [targets + 1], where the edges of each target begin.
        indices: int64 [edges], their sources, each below ``count``.

    Returns:
        int64 [count + 1], where the edges of each source begin; int64 [edges], their targets; int64 [edges], their
        places in ``indices``, which ascend for each source.

    Raises:
        ValueError: bounds that do not fit, a source outside its range, or 2^32 edges or targets.
    """
    return _native.by_source(flat(indptr, np.int64), flat(indices, np.int64), count)


def sample_neighbors(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray | None,
    vertex_keys: np.ndarray,
    rows: np.ndarray,
    *,
    fan_out: int,
    replace: bool,
    stream_key: int,
    method: Tables | None = None,
    trees: np.ndarray | None = None,
    times: np.ndarray | None = None,
    positions: bool = False,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw in-neighbours of ``rows``: up to ``fan_out`` different ones (-1 = all), or exactly that many with
    replacement.

    ``indptr`` int64 [n+1], ``indices`` and ``edge_ids`` [E] (perhaps side by side, see ``resident_beside``),
    ``vertex_keys`` int64 [n] (user ids of the rows), ``rows`` [m].
    ``method`` says how to draw and has the tables of these edges; None: uniformly (Floyd's algorithm). Rows of
    different ``trees`` (int32 [m]) draw independently. ``times`` int64 [m] hides later edges from a temporal method.
    Returns counts int32 [m], neighbours [sum(counts)] in the dtype of ``indices``, and edge ids in their own dtype.
    With ``positions`` (only without ``edge_ids``) these are the edges' positions, int64. Without both they are None. A
    row's result depends only on ``stream_key`` and on its tree, time, vertex key and edges (docs/internals/architecture.md,
    determinism contract).
    """
    if isinstance(method, InNumpy):
        found = method.picks(
            rows, vertex_keys, fan_out=fan_out, replace=replace, stream_key=stream_key, trees=trees, times=times
        )
        chosen = found.positions if positions else None if edge_ids is None else edge_ids[found.positions]
        return found.counts, indices[found.positions], chosen
    indices, edge_ids = beside(indices, edge_ids)
    return _native.sample_neighbors(
        flat(indptr, np.int64),
        indices,
        edge_ids,
        flat(vertex_keys, np.int64),
        ids_of(rows),
        fan_out,
        replace,
        stream_key,
        threads,
        method,
        None if trees is None else flat(trees, np.int32),
        None if times is None else flat(times, np.int64),
        positions,
    )


def scaled(bits: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """``bits * bounds >> 64`` of uint64 and int64 [m]: int64 [m]. It is uniform below ``bounds`` if ``bits`` are
    random."""
    return _native.scaled(flat(bits, np.uint64), flat(bounds, np.int64))


def has_edges(
    indptr: np.ndarray, indices: np.ndarray, source_keys: np.ndarray, rows: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """bool [m]: whether ``rows[i]`` has an in-edge from ``sources[i]``. The in-edges of a row are ordered by the
    ``source_keys`` of their sources."""
    found = _native.has_edges(
        flat(indptr, np.int64),
        ids_of(indices),
        flat(source_keys, np.int64),
        flat(rows, np.int64),
        flat(sources, np.int64),
    )
    return found.view(np.bool_)


def edge_digests(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray,
    *,
    vertex_keys: np.ndarray,
    num_sources: int,
    rows: np.ndarray,
) -> np.ndarray:
    """A digest of each row's in-edges, int64 [rows]. It depends on the vertex's user id (``vertex_keys`` int64 [n]), on
    the internal ids of the sources (below ``num_sources``), on the edge ids and on their order, and on nothing else. So
    all daemons of a dataset find the same one.

    It finds damage and mistakes. It is no protection against a daemon that means harm.
    """
    return _native.edge_digests(
        flat(indptr, np.int64),
        ids_of(indices),
        ids_of(edge_ids),
        flat(vertex_keys, np.int64),
        num_sources,
        ids_of(rows),
    )


def sample_pairs(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertex_keys: np.ndarray,
    rows: np.ndarray,
    *,
    count: int,
    stream_key: int,
    negative: bool,
    ids: np.ndarray,
    sorted_internal: np.ndarray,
) -> np.ndarray:
    """``count`` in-neighbours (or, ``negative``, vertices that are neither in-neighbours nor the vertex itself) per
    row.

    ``ids`` int64 [N] are user ids of all source vertices, ``sorted_internal`` [N] internal ids by rank of user id. Rows
    of ``indices`` are ordered by user id. Returns int64 [m * count] internal ids, drawn uniformly with replacement; -1
    if no such vertex exists.
    """
    drawn: np.ndarray = _native.sample_pairs(
        flat(indptr, np.int64),
        ids_of(indices),
        flat(vertex_keys, np.int64),
        ids_of(rows),
        count,
        stream_key,
        negative,
        flat(ids, np.int64),
        ids_of(sorted_internal),
    )
    return drawn


def degree_sum(indptr: np.ndarray, rows: np.ndarray) -> int:
    """Total degree of ``rows``."""
    return int(_native.degree_sum(flat(indptr, np.int64), ids_of(rows)))


def group_by_owner(
    ids: np.ndarray, offsets: np.ndarray, home: int, *, first: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group internal ``ids`` int64 [m] by the ranges ``offsets`` int64 [P+1]. Those of part ``home`` come last.

    Returns rows int64 [m], positions int64 [m] and starts int64 [P+1]. Part p, except ``home``, has the entries
    ``starts[p]`` to ``starts[p + 1]`` of rows, which are ids. Home has none there. It has the entries from
    ``starts[P]`` on, which are positions in its range. The position of ``ids[i]`` is ``first + i``. The order of
    ``ids`` is kept within a part.
    """
    return _native.group_by_owner(flat(ids, np.int64), flat(offsets, np.int64), home, first)


def split_by_owner(ids: np.ndarray, offsets: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Internal ``ids`` int64 [m] by the ranges ``offsets`` int64 [P+1]: rows in each part's range, positions in
    ``ids``.

    Both int64; the order of ``ids`` is kept within a part.
    """
    last = max(0, len(offsets) - 2)
    rows, positions, starts = group_by_owner(ids, offsets, last)
    rows[: starts[-1]] -= np.repeat(offsets[:last], np.diff(starts[:-1]))
    cuts = starts[1:-1]
    return np.split(rows, cuts), np.split(positions, cuts)
