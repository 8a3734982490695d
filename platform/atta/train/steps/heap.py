"""What the C library does with memory that was freed."""

from __future__ import annotations

import ctypes

__all__ = ["give_back_freed"]


def give_back_freed() -> None:
    """Return freed memory to the kernel, wherever in the heap it lies; without glibc nothing happens.

    Trainers keep what they free (``worker.keep_freed_memory``), which is right for steps of one size. The tensors of a batch of
    another size do not fit where those of the last one lay: small objects that live longer lie in between. Then every batch that is
    a little larger takes new memory: with four co-batches a trainer came to hold more than three times what a step needs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
