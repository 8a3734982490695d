"""Writes the arrays of a table as ``.npy`` files, block by block, so that a writer can tell when the system slows it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import xxhash

from atta.errors import DataError
from atta.partition.disk.files import FileRecord
from atta.partition.disk.staging import disk_full

__all__ = ["ArrayFiles", "writing"]

BLOCK_BYTES = 4 << 20
SLOW_S = 0.02
"""A block takes 1 ms, or 10 ms where the system has to find fresh pages for it. Longer means that it waits for the disk."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while ``path`` is written into a DataError that names the path.

    ``Staging`` handles a full disk. It names the snapshot, because the file has only a temporary name.
    """
    try:
        yield
    except OSError as error:
        if disk_full(path, error):
            raise
        raise DataError(path, f"cannot be written: {error.strerror or error}") from error


class ArrayFiles:
    """The files of all arrays of a table, under construction. Use it in a ``with`` block."""

    def __init__(self, folder: Path, arrays: Mapping[str, np.ndarray], over: Path | None = None) -> None:
        """Write ``name.npy`` into ``folder`` for each array. A file of that name in the folder ``over`` is taken from
        there and written over: see ``LogFile``."""
        self._files = {
            name: _ArrayFile(folder / f"{name}.npy", array, over and over / f"{name}.npy")
            for name, array in arrays.items()
        }

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()

    def write(self, *, slow_s: float = math.inf) -> None:
        """Write what is not written yet, unless a block takes longer than ``slow_s`` seconds; raises as ``writing``."""
        for file in self._files.values():
            with writing(file.path):
                if not file.write(slow_s):
                    return

    def copy(self) -> None:
        """Let go of the arrays: copy what is not written yet."""
        for file in self._files.values():
            file.copy()

    def finish(self) -> dict[str, FileRecord]:
        """Write the rest, and return what a manifest says of the files by the arrays' names; raises as ``writing``."""
        self.write()
        records = {}
        for name, file in self._files.items():
            with writing(file.path):
                records[name] = file.finish()
        return records


class _ArrayFile:
    def __init__(self, path: Path, array: np.ndarray, over: Path | None) -> None:
        self.path, self._fd = path, -1
        self._dtype, self._shape = array.dtype.str, array.shape
        head = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(array.dtype)
        np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": array.shape})
        self._head, self._digest = head.getvalue(), xxhash.xxh3_64()
        self._rest, self._size = array.reshape(-1).view(np.uint8), 0
        self._over = over if over is not None and over.is_file() else None

    def write(self, slow_s: float) -> bool:
        """Whether all is written; False: a block took longer than ``slow_s``."""
        if self._fd < 0:
            if self._over is not None:
                self._over.rename(self.path)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._put(memoryview(self._head))
        while len(self._rest):
            began = time.monotonic()
            self._put(self._rest[:BLOCK_BYTES].data)
            self._rest = self._rest[BLOCK_BYTES:]
            if time.monotonic() - began > slow_s:
                return False
        return True

    def _put(self, data: memoryview) -> None:
        self._digest.update(data)
        while data:
            count = os.pwrite(self._fd, data, self._size)
            self._size += count
            data = data[count:]

    def copy(self) -> None:
        self._rest = self._rest.copy()

    def finish(self) -> FileRecord:
        os.ftruncate(self._fd, self._size)
        self.close()
        return FileRecord(self._size, self._digest.hexdigest(), self._dtype, self._shape)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
