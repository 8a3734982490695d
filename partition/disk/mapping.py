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

from atta import _native

__all__ = ["map_bytes", "torn_files"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_mapped: dict[int, str] = {}
"""The files that are mapped, by address."""


def map_bytes(file: BinaryIO, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file, at least one, read-only. The map goes when nothing refers to its bytes.

    Raises:
        OSError: the system refuses.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    assert address is not None
    held = (ctypes.c_char * size).from_address(address)
    _mapped[address] = str(file.name)
    _native.note_map(address, size)
    # Not at exit: threads may still read then, and the map goes with the process.
    weakref.finalize(held, _unmap, address, size).atexit = False
    return memoryview(held).toreadonly().cast("B")


def _unmap(address: int, size: int) -> None:
    _native.forget_map(address)
    _mapped.pop(address, None)
    _LIBC.munmap(address, size)


def torn_files() -> list[str]:
    """Mapped files that were found too short, or unreadable, when they were read: the reader got zeros instead.

    Only in a process that has called ``_native.outlive_torn_maps``. Others are killed by SIGBUS.
    """
    return [_mapped[address] for address in _native.torn_maps() if address in _mapped]
