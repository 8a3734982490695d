"""Files with the users' ids of vertices, or of pairs: ``.npy`` or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import open_regular
from atta.samplers.arguments import integers

_SEPARATORS = ("\t", ",")


def read_ids(path: str | Path, columns: int = 1, *, strings: bool = False) -> npt.NDArray[Any]:
    """User ids of a ``.npy`` file, or of a text file with one line per row: [n], or [n, columns] if there are several.

    strings: the ids are strings, so a line with one column is an id. Columns are separated by tabs, by commas if the
        first line has no tab, or by blanks if it has no comma either. Otherwise ids are int64, and all three separate.

    Raises:
        DataError: the file is missing, or has something else.
    """
    kinds, wanted = ("iuU", "strings") if strings else ("iu", "whole numbers")
    shape = "[n]" if columns == 1 else f"[n, {columns}]"
    try:
        with open_regular(Path(path)) as file:
            if Path(path).suffix == ".npy":
                found = np.load(file, allow_pickle=False)
            else:
                lines = [line for line in file.read().decode("utf-8-sig").splitlines() if line.strip()]
                found = _texts(lines, columns) if strings else _numbers(lines, columns)
    except OSError as error:
        raise DataError(path, error.strerror or str(error)) from None
    except (ValueError, OverflowError, EOFError) as error:
        raise DataError(path, f"wanted are {wanted} {shape}, {columns} per line: {error}") from None
    if found.shape[1:] != ((columns,) if columns > 1 else ()) or found.ndim == 0 or found.dtype.kind not in kinds:
        raise DataError(path, f"wanted are {wanted} {shape}, not {found.dtype} of shape {list(found.shape)}")
    if not len(found):
        raise DataError(path, "has no ids")
    try:
        return found if found.dtype.kind == "U" else integers("ids", found)
    except ConfigError as error:
        raise DataError(path, str(error)) from None


def _numbers(lines: list[str], columns: int) -> npt.NDArray[np.int64]:
    """int64 [n], or [n, columns]. Raises ValueError."""
    rows = [[int(word) for word in line.replace(",", " ").split()] for line in lines]
    return _shaped(np.array(_checked(rows, columns), dtype=np.int64), columns)


def _texts(lines: list[str], columns: int) -> npt.NDArray[np.str_]:
    """str [n], or [n, columns]. Raises ValueError."""
    if columns == 1:
        return np.array([line.strip() for line in lines], dtype=np.str_)
    separator = next((mark for mark in _SEPARATORS if lines and mark in lines[0]), None)
    rows = [[word.strip() for word in line.split(separator)] for line in lines]
    return _shaped(np.array(_checked(rows, columns), dtype=np.str_), columns)


def _checked(rows: list[list[Any]], columns: int) -> list[list[Any]]:
    if wrong := next((row for row in rows if len(row) != columns), None):
        raise ValueError(f"a line has {len(wrong)}")
    return rows


def _shaped(found: npt.NDArray[Any], columns: int) -> npt.NDArray[Any]:
    rows = found.reshape(-1, columns)
    return rows[:, 0] if columns == 1 else rows
