"""Arrays for native code: contiguous, and of a type that it knows; and copies of mapped files in this process's own
memory, on huge pages if the system gives them. Random reads of a mapped file miss the TLB as well as the cache. In
measurements they took up to 1.5 times as long."""

from __future__ import annotations

import mmap
from math import prod

import numpy as np

from atta import _native


def ids_of(array: np.ndarray) -> np.ndarray:
    """``array`` as contiguous int32 or int64. Other integers become int64. Raises ValueError for any other type."""
    array = np.ascontiguousarray(array)
    if array.dtype in (np.int32, np.int64):
        return array
    if np.issubdtype(array.dtype, np.integer) or array.size == 0:
        return array.astype(np.int64)
    raise ValueError(f"ids must be integers, not {array.dtype}")


def beside(indices: np.ndarray, edge_ids: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """As ``ids_of`` for sources and edge ids. Both may be every second value of an array (``resident_beside``): then
    they stay where they are."""
    if edge_ids is not None and _every_second(indices) and _every_second(edge_ids):
        return indices, edge_ids
    return ids_of(indices), None if edge_ids is None else ids_of(edge_ids)


def _every_second(ids: np.ndarray) -> bool:
    return ids.dtype in (np.int32, np.int64) and ids.strides == (2 * ids.itemsize,)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as a uint8 array [rows, row bytes]: the kernels move bytes and know no dtypes."""
    if not array.flags.c_contiguous:
        raise ValueError("table: rows must be C-contiguous")
    rows = array.shape[0]
    width = array.dtype.itemsize * prod(array.shape[1:])
    return array.reshape(-1).view(np.uint8).reshape(rows, width)


BLOCK_BYTES = 16 << 20
"""So much of a mapped file is in memory beside its copy."""


_LINE = 64


def empty_lines(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that begins with a cache line, on huge pages if the system gives them. ``np.empty`` begins
    16 bytes later, so that each row of 64 bytes lies in two lines: to gather such rows took 4 times as long."""
    nbytes = prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    array = memory[start : start + nbytes].view(dtype).reshape(shape)
    advise_huge(array)
    return array


def resident(array: np.ndarray) -> np.ndarray:
    """A copy of ``array`` that needs no file. Pages of a file that were read for it are given back."""
    copy = empty_lines(array.shape, array.dtype)
    _copy(array, copy)
    return copy


def resident_beside(sources: np.ndarray, edge_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies as by ``resident``, in which the source and the id of an edge ([E] each) lie side by side: drawing reads
    one cache line per edge and not two. In measurements it took a sixth less time. Arrays of different types cannot lie
    so: they are copied one by one."""
    if sources.dtype != edge_ids.dtype:
        return resident(sources), resident(edge_ids)
    both = empty_lines((len(sources), 2), sources.dtype)
    _copy(sources, both[:, 0])
    _copy(edge_ids, both[:, 1])
    return both[:, 0], both[:, 1]


def zeros_beside(edges: int, sources: np.dtype, edge_ids: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Zeros for the sources and ids of ``edges`` edges, side by side as by ``resident_beside`` if their types are the
    same. Pages take memory when they are first written."""
    if sources != edge_ids:
        apart = np.zeros(edges, sources), np.zeros(edges, edge_ids)
        for array in apart:
            advise_huge(array)
        return apart
    both = np.zeros((edges, 2), sources)
    advise_huge(both)
    return both[:, 0], both[:, 1]


def advise_huge(array: np.ndarray) -> bool:
    """Ask for huge pages under ``array``. Returns False if the system does not give them."""
    return bool(_native.advise_huge(as_bytes(array)))


def _copy(array: np.ndarray, copy: np.ndarray) -> None:
    """Copy block by block, and give the pages of each block back: they would count as this process's memory."""
    file: object = array
    while isinstance(file, np.ndarray):
        file = file.base
    if not isinstance(file, mmap.mmap) or not array.flags.c_contiguous or not array.size:
        np.copyto(copy, array)
        return
    rows = max(1, BLOCK_BYTES // array[:1].nbytes) if array[:1].nbytes else len(array)
    for start in range(0, len(array), rows):
        np.copyto(copy[start : start + rows], array[start : start + rows])
        _give_back(file, array[start : start + rows])


def _give_back(file: mmap.mmap, block: np.ndarray) -> None:
    """Drop the pages that lie within ``block`` from the mapping. The next reader reads them from the file again."""
    whole = np.frombuffer(file, np.uint8)
    if whole.flags.writeable:
        return  # of a private mapping, what was written to it would be lost
    begin = block.ctypes.data - whole.ctypes.data
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    file.madvise(mmap.MADV_DONTNEED, first, begin + block.nbytes - first)
