"""Move rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atta import _native
from atta.samplers.kernels.arrays import as_bytes, flat, ids_of
from atta.samplers.kernels.compactor import Compactor

__all__ = [
    "gather_ids",
    "gather_merged",
    "gather_rows",
    "pack_rows",
    "retain_heap",
    "scatter_rows",
    "split_cached",
    "widen_ids",
]


def gather_rows(
    table: np.ndarray, rows: np.ndarray, out: np.ndarray, *, positions: np.ndarray | None = None, threads: int = 1
) -> None:
    """``out[i] = table[rows[i]]``, or ``out[positions[i]] = table[rows[i]]``; any dtype and row shape, C-contiguous."""
    _native.gather_rows(
        as_bytes(table), ids_of(rows), as_bytes(out), None if positions is None else ids_of(positions), threads
    )


def gather_merged(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], out: np.ndarray) -> None:
    """``out[positions[i]] = table[rows[i]]`` for each of ``parts`` (table, rows, positions). It writes in the order of
    the positions: rows that lie side by side in ``out`` share cache lines, wherever they come from. Positions do not
    repeat.

    Raises:
        ValueError: a row or position does not exist, or a position repeats.
    """
    _native.gather_merged(
        [(as_bytes(table), ids_of(rows), flat(positions, np.int64)) for table, rows, positions in parts], as_bytes(out)
    )


def pack_rows(prefix: bytes, tables: Sequence[np.ndarray], rows: np.ndarray) -> bytes:
    """``prefix`` followed by the bytes of ``table[rows]`` for each table, made with one copy. Tables are
    C-contiguous."""
    return _native.pack_rows(prefix, [as_bytes(table) for table in tables], ids_of(rows))


def scatter_rows(rows: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None:
    """``out[positions[i]] = rows[i]``; any dtype and row shape, C-contiguous."""
    _native.scatter_rows(as_bytes(rows), ids_of(positions), as_bytes(out))


def gather_ids(table: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``out[i] = table[rows[i]]`` for one-dimensional tables."""
    gather_rows(table, rows, out)


def split_cached(
    index: Compactor, present: np.ndarray, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray, *, need: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Divide ``ids`` into cached and missing ones. An id is cached if it has a slot in ``index`` whose ``present`` byte
    has all bits of ``need``.

    ``starts`` int64 are bounds of groups of ``ids``. Returns slots (int32) and positions of the cached ids, then ids,
    positions, bounds of the groups and slots (-1: none) of the missing ids. All are in the order of ``ids``.
    """
    return _native.split_cached(
        index.native, present, need, flat(ids, np.int64), flat(positions, np.int64), flat(starts, np.int64)
    )


def widen_ids(ids: np.ndarray, out: np.ndarray) -> None:
    """Copy ``ids`` (int32 [n]) to ``out`` (int64 [n]). Many ids bypass the caches: ``out`` is not read soon."""
    _native.widen_ids(ids, out)


def retain_heap() -> bool:
    """Keep freed blocks of up to 32 MiB mapped in this process (glibc): fresh pages cost about eight times a copy."""
    return bool(_native.retain_heap())
