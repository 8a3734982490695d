"""The native kernels of mutable tables, typed and documented. The interpreter lock is released while they run.

Tables and values are C-contiguous arrays [n, *row shape]; rows are int64 positions in the table. Bad input (a row
outside the table, arrays that contradict each other) raises ValueError naming the argument, before anything changes.
"""

from __future__ import annotations

from math import prod

import numpy as np

from atta import _native

RowLocks = _native.RowLocks
"""Locks of one table's rows. All users of a table share them, so every row is read and written as a whole."""


def read_rows(
    table: np.ndarray,
    rows: np.ndarray,
    out: np.ndarray,
    locks: RowLocks,
    *,
    versions: np.ndarray | None = None,
    out_versions: np.ndarray | None = None,
) -> None:
    """``out[i] = table[rows[i]]`` and, read at the same moment, ``out_versions[i] = versions[rows[i]]`` (int64)."""
    _native.read_rows(_bytes(table), rows, _bytes(out), locks, versions, out_versions)


def pack_table(
    head: bytes,
    table: np.ndarray,
    rows: np.ndarray,
    locks: RowLocks,
    *,
    versions: np.ndarray | None = None,
    middle: bytes = b"",
) -> bytes:
    """``head`` and the bytes of ``table[rows]``; with ``versions`` also ``middle`` and the bytes of
    ``versions[rows]``. The message is made with one copy."""
    return _native.pack_table(head, _bytes(table), rows, locks, versions, middle)


def write_rows(
    table: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    locks: RowLocks,
    *,
    versions: np.ndarray | None = None,
    version: int = 0,
) -> None:
    """``table[rows[i]] = values[i]`` in order, and ``versions[rows[i]] = version``. The last value of a repeated row
    counts.

    A row with a higher version than ``version`` keeps its values and its version.
    """
    _native.write_rows(_bytes(table), rows, _bytes(values), locks, versions, version)


def add_rows(table: np.ndarray, rows: np.ndarray, values: np.ndarray, locks: RowLocks) -> None:
    """``table[rows[i]] += values[i]`` in order. All values of a repeated row are added. Integers wrap. Any dtype but
    bool."""
    _native.add_rows(_flat(table), rows, _flat(values), locks)


def step_sgd(table: np.ndarray, rows: np.ndarray, grads: np.ndarray, locks: RowLocks, *, lr: float) -> None:
    """Plain gradient descent on float32 rows. As in all steps, gradients of equal rows are summed before one step."""
    _native.step_sgd(_flat(table), rows, _flat(grads), locks, lr)


def step_adagrad(
    table: np.ndarray,
    rows: np.ndarray,
    grads: np.ndarray,
    locks: RowLocks,
    *,
    sums: np.ndarray,
    lr: float,
    eps: float,
) -> None:
    """Adagrad (Duchi, Hazan, Singer, 2011) on float32 rows; ``sums`` of squared gradients have the table's shape."""
    _native.step_adagrad(_flat(table), _flat(sums), rows, _flat(grads), locks, lr, eps)


def step_adam(
    table: np.ndarray,
    rows: np.ndarray,
    grads: np.ndarray,
    locks: RowLocks,
    *,
    moments: tuple[np.ndarray, np.ndarray],
    step_size: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Lazy Adam (Kingma, Ba, 2015) on float32 rows.

    ``moments``: running means of gradients and of their squares, both of the table's shape; ``step_size`` includes the
    correction of their bias.
    """
    means, squares = moments
    _native.step_adam(_flat(table), _flat(means), _flat(squares), rows, _flat(grads), locks, step_size, *betas, eps)


def step_row_adam(
    table: np.ndarray,
    rows: np.ndarray,
    grads: np.ndarray,
    locks: RowLocks,
    *,
    moments: tuple[np.ndarray, np.ndarray],
    steps: np.ndarray,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam on float32 rows, each as if it were alone: the bias is corrected by the row's own number of ``steps``
    (float32 of the table's shape), which the kernel counts. ``moments`` as for ``step_adam``."""
    means, squares = moments
    arrays = _flat(table), _flat(means), _flat(squares), _flat(steps)
    _native.step_row_adam(*arrays, rows, _flat(grads), locks, lr, *betas, eps)


def fill_rows(out: np.ndarray, ids: np.ndarray, *, normal: bool, seed: int, a: float, b: float) -> None:
    """Fill float32 or float64 rows with normal (mean ``a``, deviation ``b``) or uniform numbers (from ``a`` to ``b``).

    ``out[i]`` is the row of ``ids[i]`` (int64): a number depends on the seed, its row's id and its column only.
    """
    _native.fill_rows(_flat(out), ids, normal, seed, a, b)


def _flat(array: np.ndarray) -> np.ndarray:
    """The same memory as [rows, row size]."""
    if not array.flags.c_contiguous:
        raise ValueError("table: rows must be C-contiguous")
    return array.reshape(array.shape[0], prod(array.shape[1:]))


def _bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as uint8 [rows, row bytes], for kernels that move bytes and know no dtypes."""
    return _flat(array).view(np.uint8)
