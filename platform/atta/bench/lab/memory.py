"""Touches the machine's free memory, as a machine that has run for days has done."""

from __future__ import annotations

import ctypes
import mmap
import time

from atta.errors import AttaError
from atta.observe.machine.memory import available_bytes
from atta.wire import memfiles

__all__ = ["touch_free"]

MOST_BYTES = 16 << 30


def touch_free(share: float = 0.5) -> float:
    """Touch a share of the free memory, ``MOST_BYTES`` at most, and free it again; returns microseconds per page.

    A virtual machine gets memory from its host when it first touches it. That takes the host longer than it takes the
    kernel to make a page, and it is charged to whichever program comes first.

    Raises:
        AttaError: the kernel has no such memory.
    """
    nbytes = min(int(available_bytes() * share), MOST_BYTES) // memfiles.PAGE * memfiles.PAGE
    with mmap.mmap(-1, nbytes) as memory:
        first = ctypes.c_char.from_buffer(memory)
        began = time.perf_counter()
        made = memfiles.populate(ctypes.addressof(first), nbytes)
        took = time.perf_counter() - began
        del first  # otherwise the mapping could not be closed
    if not made:
        raise AttaError(f"the kernel does not make {nbytes >> 20} MiB of pages at once (Linux 5.14 does)")
    return 1e6 * took / (nbytes / memfiles.PAGE)
