"""Returns freed memory from the C library to the kernel."""

from __future__ import annotations

import ctypes

__all__ = ["give_back_freed"]


def give_back_freed() -> None:
    """Return freed memory anywhere in the heap to the kernel; without glibc nothing happens.

    Trainers keep memory that they free (``worker.keep_freed_memory``), which suits steps of equal size. Tensors of a larger batch do
    not fit into the gaps that the last batch left, because small objects lie between them. So each larger batch takes new memory:
    with four co-batches a trainer held more than three times the memory of a step.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
