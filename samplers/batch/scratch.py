"""Memory for arrays that a consumer makes from its batches (wider ids, edge lists), reused when its last view dies: a
fresh page costs several times the copy that fills it."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import numpy as np

from atta.samplers import kernels

_LEAST_BYTES = 64 << 10
"""Number of bytes below which an array comes from the allocator, which keeps its pages by itself."""


def widen_into(out: np.ndarray, array: np.ndarray) -> None:
    """Copy integers of any width into ``out`` (int64, one dimension)."""
    if array.dtype == np.int32 and array.flags.c_contiguous:
        kernels.widen_ids(array, out)
    else:
        out[...] = array


class _Loan:
    """Memory of one array. Views keep it alive. When the last view dies, the loan ends."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class Scratch:
    """Hands out uninitialised arrays, on many threads. Garbage collection may end a loan at any time."""

    def __init__(self, keep_bytes: int = 256 << 20) -> None:
        """Keep at most ``keep_bytes`` of memory without views for reuse."""
        self._keep_bytes, self._kept_bytes = keep_bytes, 0
        self._free: dict[int, list[np.ndarray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array as from ``numpy.empty``. Its memory comes back when it has no views left."""
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
        # This runs inside garbage collection, so it takes no locks. A lost update of the sum makes the bound less
        # exact, nothing more.
        if self._kept_bytes + memory.nbytes <= self._keep_bytes:
            self._kept_bytes += memory.nbytes
            self._free.setdefault(memory.nbytes, []).append(memory)


def _class_of(nbytes: int) -> int:
    """Round up to one of eight sizes per power of two. Batches differ a little in size, and the memory of one should
    fit the next."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
