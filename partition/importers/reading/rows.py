"""Tables in files of several formats, read block by block: they may be larger than memory."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csc_array, csr_array

from atta.errors import DataError, blaming
from atta.observe.packages import load
from atta.partition.disk.files import chunks
from atta.partition.importers.reading.source import Array, first_line, open_content, pa, parquet, unreadable

BLOCK_BYTES = 16 << 20
"""About how much of a table is read at a time."""
_LINES = 1 << 16
_FRACTION = re.compile(rb"[.eEnN]")


@dataclass(frozen=True)
class FileRows:
    """A table in files: one of its files, for messages; dtype; shape of a row; ``pieces``, which begins to read and
    gives arrays [any number, *row_shape] or raises DataError; number of rows, None where only reading tells."""

    path: Path
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]
    count: int | None = None

    def blocks(self, rows: int | None = None) -> Iterator[Array]:
        """Read ``rows`` rows at a time; the last block has what is left. By default a block takes some megabytes."""
        size = rows or self.block_rows
        kept: list[Array] = []
        for piece in self.pieces():
            kept.append(piece)
            if sum(map(len, kept)) >= size:
                whole = np.concatenate(kept) if len(kept) > 1 else piece
                full = len(whole) - len(whole) % size
                yield from (whole[lo:hi] for lo, hi in chunks(full, size))
                kept = [whole[full:]]
        if sum(map(len, kept)):
            yield np.concatenate(kept)

    @property
    def block_rows(self) -> int:
        """Rows of a block of some megabytes, at least one."""
        return max(1, BLOCK_BYTES // max(1, self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))))

    def whole(self) -> Array:
        """Read all rows."""
        found = list(self.pieces())
        return np.concatenate(found) if found else np.empty((0, *self.row_shape), self.dtype)

    def column(self, what: str) -> Array:
        """Read all of a table of one column as a vector; raises DataError naming ``what`` if it has others."""
        rows = self.whole()
        if rows.size != len(rows):
            raise DataError(self.path, f"{what}: {int(np.prod(self.row_shape))} columns instead of 1")
        return rows.reshape(-1)


def joined(parts: Sequence[FileRows]) -> FileRows:
    """One table of the rows of several ones, of which whole numbers become fractions where others have fractions.
    Raises DataError if their rows have different shapes."""
    filled = [part for part in parts if part.count != 0] or parts[:1]
    for part in filled:
        if part.row_shape != filled[0].row_shape:
            raise DataError(
                part.path, f"rows {list(part.row_shape)}; {filled[0].path.name} has {list(filled[0].row_shape)}"
            )
    dtype = np.result_type(*(part.dtype for part in filled))
    counts = [part.count for part in filled]

    def pieces() -> Iterator[Array]:
        for part in filled:
            for piece in part.pieces():
                yield piece.astype(dtype, copy=False)

    count = None if None in counts else sum(c for c in counts if c is not None)
    return FileRows(filled[0].path, dtype, filled[0].row_shape, pieces, count)


def npy_rows(path: Path) -> FileRows:
    """The rows of an ``.npy`` file, memory-mapped."""
    return array_rows(path, load_array(path))


def array_rows(path: Path, array: Array) -> FileRows:
    """The rows of an array that ``path`` holds; raises DataError if it is a single number."""
    if not array.ndim:
        raise DataError(path, "holds a single number instead of a table")
    rows = max(1, BLOCK_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))

    def pieces() -> Iterator[Array]:
        return (np.asarray(array[lo:hi]) for lo, hi in chunks(len(array), rows))

    return FileRows(path, array.dtype, array.shape[1:], pieces, len(array))


def check_index(path: Path, shape: tuple[int, ...]) -> None:
    """Check that an edge index has the shape [2, E]; raises DataError."""
    if len(shape) != 2 or shape[0] != 2:
        raise DataError(path, f"an edge index of the shape {list(shape)} instead of [2, E]")


def npy_edges(path: Path) -> FileRows:
    """The edges [E, 2] of an edge index [2, E] in an ``.npy`` file, memory-mapped; raises DataError."""
    index = load_array(path)
    check_index(path, index.shape)
    return array_rows(path, index.T)


def csv_rows(
    path: Path, dtype: npt.DTypeLike | None = None, *, delimiter: str = ",", skip: int = 0, empty: str | None = None
) -> FileRows:
    """The rows [columns] of a file of numbers without a heading, gzipped if its name says so; raises DataError.
    ``dtype``: of the values; by default int64, or float64 if the file has fractions. ``skip``: number of lines before
    the numbers. ``empty``: what an empty cell means; None: it is an error, and empty lines are none."""
    kind = np.dtype(dtype or (np.float64 if _has_fractions(path, skip) else np.int64))

    def pieces() -> Iterator[Array]:
        with open_content(path) as raw, io.TextIOWrapper(raw, "ascii") as text, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
            for _ in range(skip):
                text.readline()
            lines = text if empty is None else _filled(text, empty)
            while True:
                rows = np.loadtxt(lines, dtype=kind, delimiter=delimiter, ndmin=2, max_rows=_LINES, comments=None)
                if len(rows):
                    yield rows
                if len(rows) < _LINES:
                    return

    first = next(_checked(path, pieces), np.empty((0, 1), kind))
    return FileRows(path, kind, first.shape[1:], lambda: _checked(path, pieces), None if len(first) else 0)


def _filled(lines: Iterable[str], empty: str) -> Iterator[str]:
    """Lines of a csv file with ``empty`` in empty cells, which pandas writes as ``""`` if they are alone in a line."""
    for line in lines:
        yield ",".join(cell.strip().strip('"') or empty for cell in line.split(","))


def _has_fractions(path: Path, skip: int) -> bool:
    def pieces() -> Iterator[bool]:
        with open_content(path) as raw:
            for _ in range(skip):
                raw.readline()
            while content := raw.read(BLOCK_BYTES):
                yield _FRACTION.search(content) is not None

    return any(_checked(path, pieces))


def _checked(path: Path, pieces: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    with unreadable(path, f"not a readable {''.join(path.suffixes)[1:]} file", (OSError, ValueError)):
        yield from pieces()


def parquet_rows(path: Path) -> FileRows:
    """The rows of a Parquet file: its columns side by side, in the shape that its metadata state if they do. DGL's
    pipeline states the shape of arrays of more than two dimensions. Raises DataError."""
    load("reading Parquet files", "pyarrow", "pyarrow.parquet")

    try:
        with parquet.ParquetFile(path) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(path, f"not a readable Parquet file: {first_line(error)}") from None
    stated = [int(n) for n in re.findall(rb"\d+", (schema.metadata or {}).get(b"shape", b""))]
    shape = tuple(stated[1:]) if stated[:1] == [count] else (len(schema.names),)
    for field in schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type)):
            raise DataError(path, f"the column {field.name!r} holds {field.type}, wanted are numbers")
    dtype = np.result_type(*(field.type.to_pandas_dtype() for field in schema)) if len(schema) else np.dtype(np.int64)

    def pieces() -> Iterator[Array]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_LINES):
                if any(column.null_count for column in batch.columns):
                    raise DataError(path, "has empty cells")
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield np.stack(columns, axis=1).astype(dtype, copy=False).reshape(batch.num_rows, *shape)

    return FileRows(path, dtype, shape, lambda: _checked(path, pieces), count)


def load_array(path: Path) -> Array:
    """Memory-map an ``.npy`` file that holds no objects; raises DataError."""
    # numpy's header parser lets errors of Python's tokenizer through, among others
    with blaming(DataError, path, "not a readable array", of=Exception, say=str):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def load_npz(path: Path) -> dict[str, Array]:
    """Read an ``.npz`` file whose arrays hold no objects; raises DataError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except Exception as error:  # zipfile, zlib and numpy raise half a dozen unrelated types here
        raise DataError(path, f"not a readable npz archive: {error}") from None


_SPARSE = {"csr": csr_array, "csc": csc_array, "coo": coo_array}


def as_csr(arrays: Mapping[str, Array], path: Path) -> csr_array:
    """Check the arrays of a saved scipy matrix (CSR, CSC, or COO, whose duplicates are added up); raises DataError."""
    with blaming(DataError, path, "not a sparse matrix", of=(KeyError, ValueError, TypeError)):
        shape, kind = tuple(int(n) for n in arrays["shape"]), str(np.asarray(arrays.get("format", "csr")).astype(str))
        if kind not in _SPARSE:
            raise DataError(path, f"a sparse matrix in the format {kind!r}; {', '.join(_SPARSE)} are read")
        ends = ((arrays["row"], arrays["col"]),) if kind == "coo" else (arrays["indices"], arrays["indptr"])
        made = _SPARSE[kind]((arrays["data"], *ends), shape=shape)
        if kind != "coo":  # compiled code later uses the indices without checking them
            made.check_format(full_check=True)
        matrix = csr_array(made)
    if matrix.dtype.kind not in "biuf":
        raise DataError(path, f"a sparse matrix of {matrix.dtype}, wanted are numbers")
    return matrix


def npz_rows(path: Path) -> dict[str, FileRows]:
    """The tables of an ``.npz`` archive, read from it block by block; raises DataError. An array that is stored by
    columns is read as a whole."""
    with _archive(path) as archive:
        found = [_ArchiveEntry.open(archive, path, entry) for entry in archive.namelist()]
    return {
        each.entry.removesuffix(".npy"): FileRows(
            path, each.dtype, each.shape[1:], each.rows, each.shape[0] if each.shape else 1
        )
        for each in found
    }


def npz_edges(path: Path, name: str) -> FileRows:
    """The edges [E, 2] of the edge index [2, E] with this name in an ``.npz`` archive; raises DataError."""
    with _archive(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise DataError(path, f"has no array {name!r}")
        found = _ArchiveEntry.open(archive, path, f"{name}.npy")
    check_index(path, found.shape)
    return FileRows(path, found.dtype, (2,), found.pairs, found.shape[1])


@dataclass(frozen=True)
class _ArchiveEntry:
    """An array in an ``.npz`` archive: ``by_columns``: in Fortran's order; ``start``: its first byte in the entry."""

    path: Path
    entry: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    start: int

    @classmethod
    def open(cls, archive: zipfile.ZipFile, path: Path, entry: str) -> _ArchiveEntry:
        with archive.open(entry) as file:
            # numpy's header parser lets errors of Python's tokenizer through
            with unreadable(path, f"{entry}: not a readable array", Exception):
                first = np.lib.format.read_magic(file) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                shape, by_columns, dtype = read(file)
            if dtype.hasobject:
                raise DataError(path, f"{entry}: it holds objects, which are not read")
            return cls(path, entry, dtype, shape, by_columns and len(shape) > 1, file.tell())

    def rows(self) -> Iterator[Array]:
        count, width = self.shape[0] if self.shape else 1, int(np.prod(self.shape[1:], dtype=np.int64))
        if self.by_columns:
            values = np.concatenate(list(self._values(0, count * width)))
            yield np.ascontiguousarray(values.reshape(self.shape[::-1]).T)
            return
        size = max(1, BLOCK_BYTES // max(1, self.dtype.itemsize * width))
        for values in self._values(0, count * width, size * max(1, width)):
            yield values.reshape(-1, *self.shape[1:])

    def pairs(self) -> Iterator[Array]:
        edges = self.shape[1]
        if self.by_columns:
            yield from (values.reshape(-1, 2) for values in self._values(0, 2 * edges))
        else:
            ends = zip(self._values(0, edges), self._values(edges, 2 * edges), strict=True)
            yield from (np.stack(pair, axis=1) for pair in ends)

    def _values(self, lo: int, hi: int, size: int = 0) -> Iterator[Array]:
        """Read the values from ``lo`` to ``hi`` as they are stored, ``size`` at a time."""
        item = self.dtype.itemsize
        damaged = unreadable(self.path, f"{self.entry}: not readable", _DAMAGED)
        with _archive(self.path) as archive, archive.open(self.entry) as file, damaged:
            file.seek(self.start + lo * item)
            for first, last in chunks(hi - lo, size or max(2, BLOCK_BYTES // item // 2 * 2)):
                content = file.read((last - first) * item)
                if len(content) < (last - first) * item:
                    raise DataError(self.path, f"{self.entry}: the array ends too early")
                yield np.frombuffer(content, self.dtype)


_DAMAGED = OSError, EOFError, zlib.error, zipfile.BadZipFile


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(path, f"not a readable npz archive: {first_line(error)}") from None
