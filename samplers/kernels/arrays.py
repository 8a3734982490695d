"""Prepare arrays for native code: contiguous, and of a type that it knows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

__all__ = ["as_bytes", "beside", "flat", "ids_of"]


def flat(array: np.ndarray, dtype: Any) -> np.ndarray:
    """``array`` as contiguous values of ``dtype``."""
    return np.ascontiguousarray(array, dtype=dtype)


def ids_of(array: np.ndarray) -> np.ndarray:
    """``array`` as contiguous int32 or int64. Other integers become int64. Raises ValueError for any other type."""
    array = np.ascontiguousarray(array)
    return array if array.dtype in (np.int32, np.int64) else _refuse(array)


def beside(indices: np.ndarray, edge_ids: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """As ``ids_of`` for sources and edge ids. Both may be every second value of an array (``resident_beside``): then
    they stay where they are."""
    if edge_ids is not None and _every_second(indices) and _every_second(edge_ids):
        return indices, edge_ids
    return ids_of(indices), None if edge_ids is None else ids_of(edge_ids)


def _every_second(ids: np.ndarray) -> bool:
    return ids.dtype in (np.int32, np.int64) and ids.strides == (2 * ids.itemsize,)


def _refuse(array: np.ndarray) -> np.ndarray:
    if np.issubdtype(array.dtype, np.integer) or array.size == 0:
        return array.astype(np.int64)
    raise ValueError(f"ids must be integers, not {array.dtype}")


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as a uint8 array [rows, row bytes]: the kernels move bytes and know no dtypes."""
    if not array.flags.c_contiguous:
        raise ValueError("table: rows must be C-contiguous")
    rows = array.shape[0]
    width = array.dtype.itemsize * prod(array.shape[1:])
    return array.reshape(-1).view(np.uint8).reshape(rows, width)
