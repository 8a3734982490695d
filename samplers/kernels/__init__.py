"""The native kernels, typed and documented. They take and return numpy arrays, and release the interpreter lock. Ids
and rows may be int32 or int64 unless a docstring says otherwise; arrays of another type are copied. Bad input raises a
ValueError that names the argument, and never causes a read out of bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

from atta import _native
from atta._native import bounds_by_target, by_source, retain_heap, scaled, widen_ids
from atta.samplers.kernels.arrays import as_bytes, beside, empty_lines, ids_of, resident, resident_beside, zeros_beside
from atta.samplers.kernels.compactor import Compactor, Weighing, admit, split_cached
from atta.samplers.methods.base import EdgeDraws, InNumpy, Tables, numbers_of

__all__ = [
    "Compactor",
    "Weighing",
    "admit",
    "as_bytes",
    "beside",
    "bounds_by_target",
    "by_source",
    "empty_lines",
    "resident",
    "resident_beside",
    "retain_heap",
    "scaled",
    "split_cached",
    "widen_ids",
    "zeros_beside",
]


def validate_csc(indptr: np.ndarray, indices: np.ndarray, num_sources: int) -> None:
    """Check once what every later call relies on: ``indptr`` int64 [n+1] ascends from 0 to len(indices), and all
    sources exist."""
    _native.validate_csc(indptr, ids_of(indices), num_sources)


def sample_neighbors(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray | None,
    vertex_keys: np.ndarray,
    rows: np.ndarray,
    *,
    method: Tables | None = None,
    trees: np.ndarray | None = None,
    times: np.ndarray | None = None,
    positions: bool = False,
    unread: bool = False,
    threads: int = 1,
    **how: Unpack[EdgeDraws],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw in-neighbours of ``rows``: up to ``fan_out`` different ones (-1 = all), or exactly that many with
    replacement.

    ``indptr`` int64 [n+1], ``indices`` and ``edge_ids`` [E] (perhaps side by side, see ``resident_beside``),
    ``vertex_keys`` int64 [n] (user ids of the rows), ``rows`` [m]. ``method`` says how to draw and has the tables of
    these edges; None: uniformly (Floyd's algorithm). Rows of different ``trees`` (int32 [m]) draw independently. Of 2**32
    rows ``renewed`` draw from the stream after ``stream_key``'s (``hashing.stream_of``).
    ``times`` int64 [m] hides later edges from a temporal method. Returns counts int32 [m], neighbours [sum(counts)] in
    the dtype of ``indices``, and edge ids in their own dtype. With ``positions`` (only without ``edge_ids``) these are
    the edges' positions, int64. Without both they are None. ``unread``: positions come in place of neighbours, and
    ``indices`` is not read."""
    if isinstance(method, InNumpy):
        found = method.picks(rows, vertex_keys, trees=trees, times=times, **how)
        if unread:
            return found.counts, found.positions, None
        chosen = found.positions if positions else None if edge_ids is None else edge_ids[found.positions]
        return found.counts, indices[found.positions], chosen
    given = indptr, *beside(indices, edge_ids), vertex_keys, ids_of(rows)
    return _native.sample_neighbors(*given, *numbers_of(how), threads, method, trees, times, positions, unread)


def has_edges(
    indptr: np.ndarray, indices: np.ndarray, source_keys: np.ndarray, rows: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """bool [m]: whether ``rows[i]`` has an in-edge from ``sources[i]``. The in-edges of a row are ordered by the
    ``source_keys`` of their sources."""
    return _native.has_edges(indptr, ids_of(indices), source_keys, rows, sources).view(np.bool_)


def edge_digests(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray,
    *,
    vertex_keys: np.ndarray,
    num_sources: int,
    rows: np.ndarray,
) -> np.ndarray:
    """A digest of each row's in-edges, int64 [rows]: of the vertex's user id (``vertex_keys`` int64 [n]), the internal
    ids of the sources (below ``num_sources``), the edge ids and their order, and nothing else. So all daemons of a
    dataset find the same one. It finds damage and mistakes, and is no protection against a daemon that means harm."""
    return _native.edge_digests(indptr, ids_of(indices), ids_of(edge_ids), vertex_keys, num_sources, ids_of(rows))


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
    row. ``ids`` int64 [N] are user ids of all source vertices, ``sorted_internal`` [N] internal ids by rank of user id.
    Rows of ``indices`` are ordered by user id. Returns int64 [m * count] internal ids, drawn uniformly with
    replacement; -1 if no such vertex exists."""
    given = indptr, ids_of(indices), vertex_keys, ids_of(rows)
    return _native.sample_pairs(*given, count, stream_key, negative, ids, ids_of(sorted_internal))


def degree_sum(indptr: np.ndarray, rows: np.ndarray) -> int:
    """Total degree of ``rows``."""
    return _native.degree_sum(indptr, ids_of(rows))


def in_degrees(indptr: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64 [rows]: in-degrees."""
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(indptr) - 1):
        raise ValueError(f"row outside 0..{len(indptr) - 2}")
    return np.asarray(indptr[rows + 1] - indptr[rows])


def step(indptr: np.ndarray, read: Callable[..., np.ndarray], rows: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """One source of each row (int64 [m]), chosen by ``bits`` (uint64 [m]): of d in-edges the one at ``bits * d >> 64``; -1
    for a row without in-edges. int64 [m]. ``read`` gives those of the edges at some positions, int64."""
    degree, found = in_degrees(indptr, rows), np.full(len(rows), -1, np.int64)
    some = degree > 0
    found[some] = read((indptr[rows] + scaled(bits, degree))[some])
    return found


def taken(table: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """``table[positions]``. Cache lines are requested ahead."""
    out = np.empty((len(positions), *table.shape[1:]), table.dtype)
    gather_rows(table, positions, out)
    return out


def group_by_owner(
    ids: np.ndarray, offsets: np.ndarray, home: int, *, first: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group internal ``ids`` int64 [m] by the ranges ``offsets`` int64 [P+1]. Those of part ``home`` come last. Returns
    rows int64 [m], positions int64 [m] and starts int64 [P+1]. Part p, except ``home``, has the entries ``starts[p]``
    to ``starts[p + 1]`` of rows, which are ids. Home has none there. It has the entries from ``starts[P]`` on, which
    are positions in its range. The position of ``ids[i]`` is ``first + i``. The order of ``ids`` is kept within a part.
    """
    return _native.group_by_owner(ids, offsets, home, first)


def split_by_owner(ids: np.ndarray, offsets: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Internal ``ids`` int64 [m] by the ranges ``offsets`` int64 [P+1]: rows in each part's range, positions in
    ``ids``, both int64. The order of ``ids`` is kept within a part."""
    last = max(0, len(offsets) - 2)
    rows, positions, starts = group_by_owner(ids, offsets, last)
    rows[: starts[-1]] -= np.repeat(offsets[:last], np.diff(starts[:-1]))
    cuts = starts[1:-1]
    return np.split(rows, cuts), np.split(positions, cuts)


def gather_rows(
    table: np.ndarray, rows: np.ndarray, out: np.ndarray, *, positions: np.ndarray | None = None, threads: int = 1
) -> None:
    """``out[i] = table[rows[i]]``, or ``out[positions[i]] = table[rows[i]]``; any dtype and row shape, C-contiguous."""
    to = None if positions is None else ids_of(positions)
    _native.gather_rows(as_bytes(table), ids_of(rows), as_bytes(out), to, threads)


def gather_merged(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], out: np.ndarray) -> None:
    """``out[positions[i]] = table[rows[i]]`` for each of ``parts`` (table, rows, positions). It writes in the order of
    the positions: rows that lie side by side in ``out`` share cache lines, wherever they come from. Raises ValueError:
    a row or position does not exist, or a position repeats."""
    given = [(as_bytes(table), ids_of(rows), np.ascontiguousarray(at, np.int64)) for table, rows, at in parts]
    _native.gather_merged(given, as_bytes(out))


def pack_rows(prefix: bytes, tables: Sequence[np.ndarray], rows: np.ndarray) -> bytes:
    """``prefix`` followed by the bytes of ``table[rows]`` for each table (C-contiguous), made with one copy."""
    return _native.pack_rows(prefix, [as_bytes(table) for table in tables], ids_of(rows))


def scatter_rows(rows: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None:
    """``out[positions[i]] = rows[i]``; any dtype and row shape, C-contiguous."""
    _native.scatter_rows(as_bytes(rows), ids_of(positions), as_bytes(out))
