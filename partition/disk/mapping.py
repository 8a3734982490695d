"""Memory-maps files without keeping them open, as Python's ``mmap`` does until 3.13: a dataset of many parts and types has
more files than a process may have open."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import BinaryIO

from atta import _native

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_mapped: dict[int, tuple[str, int]] = {}
"""Path and number of bytes of the files that are mapped, by address."""
_advised: set[int] = set()
"""What the system is told of each."""


def map_bytes(file: BinaryIO, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file, at least one, read-only. The map goes when nothing refers to its bytes.
    Raises OSError: the system refuses."""
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    assert address is not None
    held = (ctypes.c_char * size).from_address(address)
    _mapped[address] = str(file.name), size
    _advise(address, size)
    _native.note_map(address, size)
    # Not at exit: threads may still read then, and the map goes with the process.
    weakref.finalize(held, _unmap, address, size).atexit = False
    return memoryview(held).toreadonly().cast("B")


def _unmap(address: int, size: int) -> None:
    _native.forget_map(address)
    _mapped.pop(address, None)
    _LIBC.munmap(address, size)


def read_page_by_page() -> None:
    """Have the system read no more than the page that is asked for, from every file that is mapped now or later. Random
    reads of files that do not stay in memory are slow otherwise: around each row the system reads up to hundreds of
    KiB, which push out what others need."""
    _advised.add(mmap.MADV_RANDOM)
    for address, (_, size) in list(_mapped.items()):
        _advise(address, size)


def _advise(address: int, size: int) -> None:
    for advice in _advised:  # a system that does not take it reads as before
        _LIBC.madvise(address, size, advice)


def torn_files() -> list[str]:
    """Mapped files that were found too short, or unreadable, when they were read: the reader got zeros instead. Only in
    a process that has called ``_native.outlive_torn_maps``. Others are killed by SIGBUS."""
    return [_mapped[address][0] for address in _native.torn_maps() if address in _mapped]
