"""Helpers of the importers: dense and sparse feature matrices, arrays read without pickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import chunks
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import to_rows
from atta.partition.importers.reading.options import ImportOptions

__all__ = [
    "add_features",
    "as_csr",
    "as_float32",
    "first_line",
    "inexact",
    "load_array",
    "load_npz",
    "name_bytes",
    "write_features",
]

Array = npt.NDArray[Any]
_CHUNK_VALUES = 8 << 20
_MAX_NAME_BYTES = 256
_MESSAGE = 300


def first_line(error: Exception) -> str:
    """The first line of a library's message, at most 300 printable characters, or the name of the error's class."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in line[:_MESSAGE])


def load_array(path: Path) -> Array:
    """Memory-map an ``.npy`` file that holds no objects; raises DataError."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's header parser lets errors of Python's tokenizer through, among others
        raise DataError(path, f"not a readable array: {error}") from None
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


def as_csr(arrays: Mapping[str, Array], path: Path) -> csr_array:
    """Check the arrays of a saved scipy CSR matrix and build it; raises DataError."""
    try:
        shape = tuple(int(n) for n in arrays["shape"])
        kind = arrays["format"].item() if "format" in arrays else b"csr"
        if kind not in (b"csr", "csr"):
            raise DataError(path, f"a sparse matrix in the format {kind!r}; only csr is read")
        matrix = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        # Compiled code later uses the indices without checking them.
        matrix.check_format(full_check=True)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(path, f"not a sparse matrix: {error}") from None
    if matrix.dtype.kind not in "biuf":
        raise DataError(path, f"a sparse matrix of {matrix.dtype}, wanted are numbers")
    return matrix


def add_features(out: GraphWriter, matrix: Any, node_type: str, options: ImportOptions, name: str = "x") -> None:
    """Write a dense array or a CSR matrix [n, d] as float32 rows, chunk by chunk.

    Raises ConfigError naming the table if its values are no real numbers, too large for float32, or whole numbers that
    float32 rounds.
    """
    what = f"table {name!r} of {node_type!r}"
    if matrix.dtype.kind not in "biuf":
        raise ConfigError(f"{what}: holds {matrix.dtype}, wanted are numbers")
    write_features(out, matrix, node_type, options, name=name, converted=lambda values: as_float32(what, values))


def write_features(
    out: GraphWriter,
    matrix: Any,
    node_type: str,
    options: ImportOptions,
    *,
    name: str = "x",
    converted: Callable[[Array], Array] = np.asarray,
) -> None:
    """Write a dense array or a CSR matrix [n, d] of floats, or of what ``converted`` makes floats, chunk by chunk.

    Rows are normalised if the options say so.
    """

    def rows(lo: int, hi: int) -> Array:
        return converted(matrix[lo:hi] if isinstance(matrix, np.ndarray) else matrix[lo:hi].toarray())

    count, columns = matrix.shape[0], int(np.prod(matrix.shape[1:], dtype=np.int64))
    table = out.open_table(name, rows(0, 0).dtype, matrix.shape[1:], node_type)
    options.progress.stage(f"features {node_type}", count)
    for lo, hi in chunks(count, max(1, _CHUNK_VALUES // max(1, columns))):
        values = rows(lo, hi)
        if options.normalize_features and values.ndim == 2:
            total = np.abs(values).sum(axis=1, keepdims=True)
            values = values / np.where(total == 0, np.float32(1), total)
        table.append(values)
        options.progress.advance(hi - lo)


def as_float32(what: str, values: Array) -> npt.NDArray[np.float32]:
    """``values`` as float32; raises ConfigError if a finite one would become an infinity, or a whole one another."""
    if (bad := inexact(values, np.dtype(np.float32))).any():
        lost = values[bad][0]
        raise ConfigError(f"{what}: holds the whole number {lost:.0f}, which float32 rounds to {np.float32(lost):.0f}")
    try:
        with np.errstate(over="raise"):
            return np.asarray(values, dtype=np.float32)
    except FloatingPointError:
        raise ConfigError(f"{what}: holds numbers beyond float32, whose largest is 3.4e38") from None


def inexact(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Mark the numbers that ``dtype`` cannot hold: whole ones that it rounds, and for an integer ``dtype`` fractions.

    Fractions may be rounded to another float. Doubles from 2**53 on count as fractions: they have no more digits.
    """
    if dtype.kind in "iu" and not np.can_cast(values.dtype, dtype):
        return _outside(values, np.iinfo(dtype))
    if dtype.kind == "f" and values.dtype.kind in "iu":
        return _rounded_integers(values, dtype)
    if dtype.kind == "f" and values.dtype.kind == "f" and not np.can_cast(values.dtype, dtype):
        return _rounded_floats(values, dtype)
    return np.zeros(values.shape, np.bool_)


def _outside(values: Array, limits: np.iinfo[Any]) -> npt.NDArray[np.bool_]:
    """Mark the numbers that are no whole ones from the least to the largest of an integer dtype."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # the largest number of int64 is no double, but one more is
            inside = (values >= float(limits.min)) & (values < float(limits.max) + 1) & (values % 1 == 0)
        return np.asarray(~inside)
    return np.asarray((values < limits.min) | (values > limits.max))


def _rounded_floats(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Mark the whole numbers that a narrower float dtype rounds."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(values)
        large = np.asarray((size > _largest_exact(dtype)) & (size < 2.0**53))
        if not large.any():
            return large
        return np.asarray(large & (values % 1 == 0) & (values.astype(dtype) != values))


def _rounded_integers(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Mark the integers that a float dtype rounds."""
    exact, limits = _largest_exact(dtype), np.iinfo(values.dtype)
    if not values.size or (-exact <= int(values.min()) and int(values.max()) <= exact):
        return np.zeros(values.shape, np.bool_)
    with np.errstate(over="ignore"):
        found = values.astype(dtype).astype(np.float64)
    inside = (found >= float(limits.min)) & (found < float(limits.max) + 1)
    return np.asarray(~inside | (np.where(inside, found, 0).astype(values.dtype) != values))


def _largest_exact(dtype: np.dtype[Any]) -> int:
    """The integer up to which a float dtype holds all integers."""
    return 1 << int(np.finfo(dtype).nmant) + 1


def name_bytes(where: str | Path, names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return the table ``name`` [n, bytes]: UTF-8, padded with zeros; raises DataError."""
    if strange := next((text for text in names if text.endswith("\0")), None):
        raise DataError(where, f"the id {strange!r} ends in a zero, which pads ids")
    rows = to_rows(np.array(names, dtype=np.str_))
    if rows.shape[1] > _MAX_NAME_BYTES:
        raise DataError(where, f"an id takes {rows.shape[1]} bytes, at most {_MAX_NAME_BYTES} are kept")
    return rows
