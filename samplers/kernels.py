"""The native kernels with types and words: numpy arrays in, numpy arrays out, the interpreter lock released meanwhile.

Ids and rows may be int32 or int64 unless a docstring says otherwise. Bad input (a row outside its range, arrays that contradict
each other, an impossible fan-out) raises ValueError naming the argument and never reads out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from atta import _native

__all__ = [
    "Compactor",
    "admit",
    "advise_huge",
    "count_ids",
    "degree_sum",
    "gather_ids",
    "gather_rows",
    "has_edges",
    "pack_rows",
    "resident",
    "retain_heap",
    "sample_neighbors",
    "sample_pairs",
    "scaled",
    "scatter_rows",
    "split_by_owner",
    "split_cached",
    "validate_csc",
    "widen_ids",
]

Group = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


def validate_csc(indptr: np.ndarray, indices: np.ndarray, num_sources: int) -> None:
    """Check once what every later call relies on: ``indptr`` int64 [n+1] ascends from 0 to len(indices), sources exist."""
    _native.validate_csc(_flat(indptr, np.int64), _ids(indices), num_sources)


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
    method: _native.Method | None = None,
    trees: np.ndarray | None = None,
    times: np.ndarray | None = None,
    positions: bool = False,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw in-neighbours of ``rows``: up to ``fan_out`` different ones (-1 = all), or exactly that many with replacement.

    ``indptr`` int64 [n+1], ``indices`` and ``edge_ids`` [E], ``vertex_keys`` int64 [n] (user ids of the rows), ``rows`` [m].
    ``method`` says how and brings the tables of these edges; None: uniformly (Floyd's algorithm). Rows of different ``trees``
    (int32 [m]) draw independently; ``times`` int64 [m] hides later edges from a temporal method.
    Returns counts int32 [m], neighbours [sum(counts)] in the dtype of ``indices``, edge ids likewise (with ``positions``, and
    without ``edge_ids``: the edges' positions, int64). What a row gets depends on (stream_key, its tree and time, its vertex
    key, its edges) only (architecture: determinism contract).
    """
    return _native.sample_neighbors(
        _flat(indptr, np.int64),
        _ids(indices),
        None if edge_ids is None else _ids(edge_ids),
        _flat(vertex_keys, np.int64),
        _ids(rows),
        fan_out,
        replace,
        stream_key,
        threads,
        method,
        None if trees is None else _flat(trees, np.int32),
        None if times is None else _flat(times, np.int64),
        positions,
    )


def scaled(bits: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """``bits * bounds >> 64`` of uint64 and int64 [m]: int64 [m], uniform below ``bounds`` when ``bits`` are random."""
    return _native.scaled(_flat(bits, np.uint64), _flat(bounds, np.int64))


def has_edges(
    indptr: np.ndarray, indices: np.ndarray, source_keys: np.ndarray, rows: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """bool [m]: whether ``rows[i]`` has an in-edge from ``sources[i]``; rows are ordered by the ``source_keys`` of their
    sources."""
    found = _native.has_edges(
        _flat(indptr, np.int64),
        _ids(indices),
        _flat(source_keys, np.int64),
        _flat(rows, np.int64),
        _flat(sources, np.int64),
    )
    return found.view(np.bool_)


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
    """``count`` in-neighbours (or, ``negative``, vertices that are neither in-neighbours nor the vertex itself) per row.

    ``ids`` int64 [N] user ids of all source vertices, ``sorted_internal`` [N] internal ids by rank of user id; rows of ``indices``
    are ordered by user id. Returns int64 [m * count] internal ids, -1 where no such vertex exists; uniform, with replacement.
    """
    drawn: np.ndarray = _native.sample_pairs(
        _flat(indptr, np.int64),
        _ids(indices),
        _flat(vertex_keys, np.int64),
        _ids(rows),
        count,
        stream_key,
        negative,
        _flat(ids, np.int64),
        _ids(sorted_internal),
    )
    return drawn


def degree_sum(indptr: np.ndarray, rows: np.ndarray) -> int:
    """Total degree of ``rows``."""
    return int(_native.degree_sum(_flat(indptr, np.int64), _ids(rows)))


def split_by_owner(ids: np.ndarray, offsets: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Group internal ``ids`` int64 [m] by the ranges ``offsets`` int64 [P+1]: rows in the range, positions in ``ids``.

    Both int64; the order of ``ids`` is kept within a part.
    """
    rows, positions = _native.split_by_owner(_flat(ids, np.int64), _flat(offsets, np.int64))
    return rows, positions


def gather_rows(
    table: np.ndarray, rows: np.ndarray, out: np.ndarray, *, positions: np.ndarray | None = None, threads: int = 1
) -> None:
    """``out[i] = table[rows[i]]``, or ``out[positions[i]] = table[rows[i]]``; any dtype and row shape, C-contiguous."""
    _native.gather_rows(_bytes(table), _ids(rows), _bytes(out), None if positions is None else _ids(positions), threads)


def pack_rows(prefix: bytes, tables: Sequence[np.ndarray], rows: np.ndarray) -> bytes:
    """``prefix`` followed by the bytes of ``table[rows]`` for each table, put together with one copy; C-contiguous."""
    return _native.pack_rows(prefix, [_bytes(table) for table in tables], _ids(rows))


def scatter_rows(rows: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None:
    """``out[positions[i]] = rows[i]``; any dtype and row shape, C-contiguous."""
    _native.scatter_rows(_bytes(rows), _ids(positions), _bytes(out))


def gather_ids(table: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``out[i] = table[rows[i]]`` for one-dimensional tables."""
    gather_rows(table, rows, out)


class Compactor:
    """Maps internal ids to local ids 0, 1, 2, ... in the order in which they are first seen. Not thread-safe."""

    def __init__(self, num_ids: int = 0) -> None:
        """``num_ids``: ids are below it (0 = unknown); for up to 2**24 a direct table replaces hashing."""
        self.native = _native.Compactor(num_ids)

    def reset(self) -> None:
        """Forget all ids but keep the memory for the next batch."""
        self.native.reset()

    @property
    def size(self) -> int:
        """Number of different ids so far."""
        return int(self.native.size)

    def insert(self, ids: np.ndarray) -> np.ndarray:
        """int32 [len(ids)]: local ids; new ones are appended in order."""
        local: np.ndarray = self.native.insert(_ids(ids))
        return local

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int32 [len(ids)]: local ids, -1 for those that were never inserted."""
        local: np.ndarray = self.native.find(_ids(ids))
        return local

    def ids(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start]: the ids numbered ``start`` ... ``stop - 1`` (a copy)."""
        found: np.ndarray = self.native.ids(start, stop)
        return found

    def in_trees(self, start: int, stop: int, sources: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``ids`` where they are tree x ``sources`` + vertex: vertices int64 and trees int32, [stop - start] each."""
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
        method: _native.Method | None = None,
        trees: bool = False,
        tree_times: np.ndarray | None = None,
    ) -> tuple[int, int]:
        """Expand the ids that ``targets`` numbers ``first`` ... ``last - 1``, in a graph that lies here as a whole.

        Draws as ``sample_neighbors`` does and numbers the sources (ids below ``sources``) as ``stitch`` does, in one pass;
        ``targets`` may be this compactor itself. The ``out`` arrays (int32, int32, the dtype of ``edge_ids``) take what fits.
        Without ``edge_ids`` an edge's id is its position, without ``vertex_keys`` a vertex is its own key. With ``trees`` ids are
        tree x number of vertices + vertex, and ``tree_times`` int64 has the time of each tree.

        Returns the number of edges, and the first id for which there was no room (``last``: all are done).
        """
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
    ) -> int:
        """Merge the answers of several owners in frontier order and number their sources.

        Every group is (positions int64 [m] in the frontier, counts int32 [m], neighbours, edge ids); ``frontier_local`` int32
        [frontier] are the targets' local ids. Writes sources' and targets' local ids and edge ids, int32 or int64 as the
        outputs are; returns their number. With ``trees`` int32 [frontier] what is numbered is tree x ``sources`` + source.
        """
        prepared = [
            (_flat(p, np.int64), _flat(c, np.int32), _ids(n), None if e is None else _ids(e)) for p, c, n, e in groups
        ]
        of_tree = None if trees is None else _flat(trees, np.int32)
        frontier = _flat(frontier_local, np.int32)
        return self.native.stitch(prepared, frontier, out_row, out_col, out_edge_ids, of_tree, sources)


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
    """Which in-neighbours each of ``targets`` admits: the ``limit`` lowest of the different ones that are no ``members`` yet.

    ``targets`` int64 [m], their in-edges ``counts`` int32 [m] and ``sources`` int64 [sum(counts)], ``keys`` int64 [N] user ids of
    all vertices. They are ordered by ``scores`` (uint64, one per source), ties by user id; without scores by a hash of
    (``stream_key``, user id of the target, user id of the source): every set of ``limit`` is as likely as any other then.

    Targets choose independently, so two may admit the same vertex. Returns how many each admits, int32 [m], and whom, int64
    [sum], the lowest first.
    """
    return _native.admit(
        members.native,
        _flat(targets, np.int64),
        _flat(counts, np.int32),
        _flat(sources, np.int64),
        _flat(keys, np.int64),
        limit,
        stream_key,
        None if scores is None else _flat(scores, np.uint64),
    )


def count_ids(ids: np.ndarray, limit: int) -> np.ndarray:
    """uint32 [limit]: how often each id occurs in ``ids``, all of which are below ``limit``."""
    return _native.count_ids(_ids(ids), limit)


def split_cached(
    index: Compactor, present: np.ndarray, rows: np.ndarray, positions: np.ndarray, *, need: int, base: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Divide ``rows`` by whether ``base + row`` has a slot in ``index`` whose ``present`` byte has all bits of ``need``.

    Returns slots (int32) and positions of those, then rows, positions and slots (-1: none) of the others; all in order.
    """
    return _native.split_cached(index.native, present, need, base, _flat(rows, np.int64), _flat(positions, np.int64))


def widen_ids(ids: np.ndarray, out: np.ndarray) -> None:
    """Copy ``ids`` (int32 [n]) to ``out`` (int64 [n]), past the caches where there are many: ``out`` is not read soon."""
    _native.widen_ids(ids, out)


def retain_heap() -> bool:
    """Keep freed blocks of up to 32 MiB mapped in this process (glibc): fresh pages cost about eight times a copy."""
    return bool(_native.retain_heap())


def resident(array: np.ndarray) -> np.ndarray:
    """A copy in this process's own memory, on huge pages where the system gives them.

    Random reads of a mapped file miss the TLB as well as the cache: they took up to half as long again when measured.
    """
    copy = np.empty(array.shape, array.dtype)
    advise_huge(copy)
    np.copyto(copy, array)
    return copy


def advise_huge(array: np.ndarray) -> bool:
    """Ask for huge pages under ``array``; False where the system does not give them."""
    return bool(_native.advise_huge(_bytes(array)))


def _flat(array: np.ndarray, dtype: Any) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=dtype)


def _ids(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array if array.dtype in (np.int32, np.int64) else _refuse(array)


def _refuse(array: np.ndarray) -> np.ndarray:
    if np.issubdtype(array.dtype, np.integer) or array.size == 0:
        return array.astype(np.int64)
    raise ValueError(f"ids must be integers, not {array.dtype}")


def _bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as a uint8 array [rows, row bytes]: the kernels move bytes and know no dtypes."""
    if not array.flags.c_contiguous:
        raise ValueError("table: rows must be C-contiguous")
    rows = array.shape[0]
    width = array.dtype.itemsize * prod(array.shape[1:])
    return array.reshape(-1).view(np.uint8).reshape(rows, width)
