"""Memory for what a consumer makes of its batches (wider ids, edge lists): reused when the last view of it dies.

A fresh page costs several times the copy that fills it, and every batch asks for the same few sizes again.
"""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import numpy as np

from atta.samplers import kernels

__all__ = ["Scratch", "widen_into"]

_LEAST_BYTES = 64 << 10
"""Smaller arrays come from the allocator, which keeps their pages by itself."""


def widen_into(out: np.ndarray, array: np.ndarray) -> None:
    """Copy integers of any width to ``out`` (int64, one dimension)."""
    if array.dtype == np.int32 and array.flags.c_contiguous:
        kernels.widen_ids(array, out)
    else:
        out[...] = array


class _Loan:
    """Memory of one array. Views keep it alive; when the last one dies, so does the loan."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class Scratch:
    """Hands out uninitialised arrays. Safe to use from several threads; collection may end a loan anywhere."""

    def __init__(self, keep_bytes: int = 256 << 20) -> None:
        """Up to ``keep_bytes`` of memory without views are kept for reuse."""
        self._keep_bytes, self._kept_bytes = keep_bytes, 0
        self._free: dict[int, list[np.ndarray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array like ``numpy.empty``'s; its memory comes back when no view of it is left."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        size = _class_of(nbytes)
        try:
            memory = self._free[size].pop()
            self._kept_bytes -= size
        except (KeyError, IndexError):
            memory = np.empty(size, np.uint8)
        loan = _Loan(memory)
        weakref.finalize(loan, self._back, memory).atexit = False
        array: np.ndarray = np.asarray(loan)[:nbytes].view(dtype).reshape(shape)
        return array

    def widened(self, array: np.ndarray) -> np.ndarray:
        """A copy of ``array`` (one dimension) as int64."""
        out = self.empty(array.shape, np.int64)
        widen_into(out, array)
        return out

    def _back(self, memory: np.ndarray) -> None:
        # Runs inside garbage collection: no locks. A lost update of the sum costs nothing but accuracy of the bound.
        if self._kept_bytes + memory.nbytes <= self._keep_bytes:
            self._kept_bytes += memory.nbytes
            self._free.setdefault(memory.nbytes, []).append(memory)


def _class_of(nbytes: int) -> int:
    """The next of eight sizes per power of two: batches differ a little, their memory should fit all of them."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
