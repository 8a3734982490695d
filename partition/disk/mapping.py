"""Memory-maps files without keeping them open.

Python's ``mmap`` keeps a descriptor for each map, unless told otherwise (``trackfd``, from Python 3.13 on). A dataset of
many parts and types has more files than a process may have open.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import BinaryIO

__all__ = ["map_bytes"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_bytes(file: BinaryIO, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file, at least one, read-only. The map goes when nothing refers to its bytes.

    Raises:
        OSError: the system refuses.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    held = (ctypes.c_char * size).from_address(address)
    # Not at exit: threads may still read then, and the map goes with the process.
    weakref.finalize(held, _LIBC.munmap, address, size).atexit = False
    return memoryview(held).toreadonly().cast("B")
