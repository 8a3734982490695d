"""Arrays in ``.npz`` archives, read block by block: they may be larger than memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.disk.files import chunks
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.rows import BLOCK_BYTES, FileRows, check_index

__all__ = ["npz_edges", "npz_rows"]

Array = npt.NDArray[Any]


def npz_rows(path: Path) -> dict[str, FileRows]:
    """The tables of an ``.npz`` archive, read from it block by block; raises DataError.

    An array that is stored by columns is read as a whole.
    """
    found = {}
    with _archive(path) as archive:
        for entry in archive.namelist():
            member = _ArchiveEntry.open(archive, path, entry)
            found[entry.removesuffix(".npy")] = FileRows(
                path, member.dtype, member.shape[1:], member.rows, member.shape[0] if member.shape else 1
            )
    return found


def npz_edges(path: Path, name: str) -> FileRows:
    """The edges [E, 2] of the edge index [2, E] with this name in an ``.npz`` archive; raises DataError."""
    with _archive(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise DataError(path, f"has no array {name!r}")
        member = _ArchiveEntry.open(archive, path, f"{name}.npy")
    check_index(path, member.shape)
    return FileRows(path, member.dtype, (2,), member.pairs, member.shape[1])


@dataclass(frozen=True)
class _ArchiveEntry:
    """An array in an ``.npz`` archive.

    Attributes:
        path: the archive.
        entry: its file in the archive.
        dtype: of its values.
        shape: its shape.
        by_columns: whether it is stored in Fortran's order.
        start: its first byte in the file.
    """

    path: Path
    entry: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    start: int

    @classmethod
    def open(cls, archive: zipfile.ZipFile, path: Path, entry: str) -> _ArchiveEntry:
        with archive.open(entry) as file:
            try:
                version = np.lib.format.read_magic(file)
                if version == (1, 0):
                    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
                else:
                    shape, by_columns, dtype = np.lib.format.read_array_header_2_0(file)
            except Exception as error:  # numpy's header parser lets errors of Python's tokenizer through
                raise DataError(path, f"{entry}: not a readable array: {first_line(error)}") from None
            if dtype.hasobject:
                raise DataError(path, f"{entry}: it holds objects, which are not read")
            return cls(path, entry, dtype, shape, by_columns and len(shape) > 1, file.tell())

    def rows(self) -> Iterator[Array]:
        """Read its rows."""
        if self.by_columns:
            values = np.concatenate(list(self._values(0, int(np.prod(self.shape, dtype=np.int64)))))
            yield np.ascontiguousarray(values.reshape(self.shape[::-1]).T)
            return
        count, width = self.shape[0] if self.shape else 1, int(np.prod(self.shape[1:], dtype=np.int64))
        size = max(1, BLOCK_BYTES // max(1, self.dtype.itemsize * width))
        for values in self._values(0, count * width, size * max(1, width)):
            yield values.reshape(-1, *self.shape[1:])

    def pairs(self) -> Iterator[Array]:
        """Read the columns of an array [2, E]."""
        edges = self.shape[1]
        if self.by_columns:
            yield from (values.reshape(-1, 2) for values in self._values(0, 2 * edges))
        else:
            ends = zip(self._values(0, edges), self._values(edges, 2 * edges), strict=True)
            yield from (np.stack(pair, axis=1) for pair in ends)

    def _values(self, lo: int, hi: int, size: int = 0) -> Iterator[Array]:
        """Read the values from ``lo`` to ``hi`` as they are stored, ``size`` at a time."""
        step = size or max(2, BLOCK_BYTES // self.dtype.itemsize // 2 * 2)
        with _archive(self.path) as archive, archive.open(self.entry) as file:
            try:
                file.seek(self.start + lo * self.dtype.itemsize)
                for first, last in chunks(hi - lo, step):
                    content = file.read((last - first) * self.dtype.itemsize)
                    if len(content) < (last - first) * self.dtype.itemsize:
                        raise DataError(self.path, f"{self.entry}: the array ends too early")
                    yield np.frombuffer(content, self.dtype)
            except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise DataError(self.path, f"{self.entry}: not readable: {first_line(error)}") from None


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(path, f"not a readable npz archive: {first_line(error)}") from None
