"""The heap of a process: keep freed memory, or give it back. Without glibc nothing happens."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_APART, _KEPT = 1 << 20, 32 << 20
"""Bytes of the smallest blocks that lie apart from the heap, meanwhile and otherwise."""
_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_"}


def keep_freed() -> None:
    """Let glibc reuse large blocks instead of returning them to the kernel, unless the environment sets it up.

    Each step allocates the same few large tensors. By default each of them is a new mapping, whose pages the kernel
    must fill with zeros. With wide features this took a third of a step's time on the CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not _SETTINGS & os.environ.keys():
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed() -> None:
    """Return freed memory anywhere in the heap to the kernel.

    Trainers keep memory that they free (``keep_freed``), which suits steps of equal size. Tensors of a larger batch do
    not fit into the gaps that the last batch left, because small objects lie between them. So each larger batch takes
    new memory: with four co-batches a trainer held more than three times the memory of a step.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def apart_from_heap() -> Iterator[None]:
    """Within this, large blocks lie apart from the heap: when they are freed, they go back to the kernel.

    A daemon keeps what it frees, for its batches. Work that takes much memory once should leave nothing behind.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _APART)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _KEPT)
