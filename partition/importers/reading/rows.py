"""Tables in files of several formats, read block by block: they may be larger than memory."""

from __future__ import annotations

import gzip
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.disk.files import chunks
from atta.partition.importers.reading.common import first_line, load_array

__all__ = [
    "BLOCK_BYTES",
    "FileRows",
    "array_rows",
    "check_index",
    "csv_rows",
    "joined",
    "npy_edges",
    "npy_rows",
    "parquet_rows",
    "torch_rows",
]

Array = npt.NDArray[Any]
BLOCK_BYTES = 16 << 20
"""About how much of a table is read at a time."""
_LINES = 1 << 16
_FRACTION = re.compile(rb"[.eEnN]")


@dataclass(frozen=True)
class FileRows:
    """A table in files.

    Attributes:
        path: a file of it, for messages.
        dtype: of its values.
        row_shape: shape of a row.
        pieces: begins to read; gives arrays [any number, *row_shape], which raise DataError where a file is damaged.
        count: number of rows; None where only reading tells.
    """

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
        """Number of rows in a block."""
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

    Raises DataError if their rows have different shapes.
    """
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
    return FileRows(
        path,
        array.dtype,
        array.shape[1:],
        lambda: (np.asarray(array[lo:hi]) for lo, hi in chunks(len(array), rows)),
        len(array),
    )


def torch_rows(path: Path) -> FileRows:
    """The rows of a tensor that ``torch.save`` wrote; raises DataError."""
    torch = load("reading tensors", "torch")
    try:
        tensor = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
        return array_rows(path, tensor.detach().numpy())
    except DataError:
        raise
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(path, f"not a readable tensor: {first_line(error)}") from None


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
    path: Path,
    dtype: npt.DTypeLike | None = None,
    *,
    delimiter: str = ",",
    skip: int = 0,
    empty: str | None = None,
) -> FileRows:
    """The rows [columns] of a file of numbers without a heading, gzipped if its name says so; raises DataError.

    ``dtype``: of the values; by default int64, or float64 if the file has fractions. ``skip``: number of lines before
    the numbers. ``empty``: what an empty cell means; None: it is an error, and empty lines are none.
    """
    kind = np.dtype(dtype or (np.float64 if _has_fractions(path, skip) else np.int64))

    def pieces() -> Iterator[Array]:
        with _text(path) as text, warnings.catch_warnings():
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
        with _opened(path) as raw:
            for _ in range(skip):
                raw.readline()
            while content := raw.read(BLOCK_BYTES):
                yield _FRACTION.search(content) is not None

    return any(_checked(path, pieces))


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_opened(path), "ascii")


def _checked(path: Path, pieces: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Raise DataError naming the file for what reading it raises."""
    kind = "csv.gz" if path.suffix == ".gz" else "csv"
    try:
        yield from pieces()
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(path, f"not a readable {kind} file: {first_line(error)}") from None


def parquet_rows(path: Path) -> FileRows:
    """The rows of a Parquet file: its columns side by side, in the shape that its metadata state if they do.

    DGL's pipeline states the shape of arrays of more than two dimensions. Raises DataError.
    """
    load("reading Parquet files", "pyarrow", "pyarrow.parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
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
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_LINES):
                if any(column.null_count for column in batch.columns):
                    raise DataError(path, "has empty cells")
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield np.stack(columns, axis=1).astype(dtype, copy=False).reshape(batch.num_rows, *shape)

    return FileRows(path, dtype, shape, lambda: _checked(path, pieces), count)
