"""What the columns of a folder's files look like: the facts from which a schema is guessed."""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import ImportOptions, pa, parquet, pc
from atta.partition.importers.table.columns import NUMBERS, TEXT, TIMES, category, plain, unit_of
from atta.partition.importers.table.files import TypeFiles, delimiter_of, heading, reading, usual_delimiter
from atta.partition.importers.table.schema import (
    KINDS,
    SCHEMA,
    UNITS,
    ColumnRule,
    Refusals,
    TableRule,
    TypeEntry,
    kind_of,
)
from atta.partition.names import check_type_name

_MOST_ROWS = 5_000_000
"""At most this many rows of a file are looked at."""
_SHOWN = 100
"""A category has at most this many different values; those of text are kept."""


@dataclass(frozen=True)
class ColumnLook:
    """Facts about a column. ``sort``: ``numbers``, ``times``, ``text``, ``lists`` or ``others``. ``distinct``: number
    of different values. ``values``: of text, the different ones if they are few. ``keys``: the different values if they
    may be ids, as int64 or large_string. ``is_mask``: truth values, or zeros and ones. ``time_unit``: ``{"time_unit":
    ...}`` if times are no whole seconds."""

    sort: str
    has_empty: bool
    count: int
    distinct: int = 0
    is_whole: bool = False
    values: tuple[str, ...] = ()
    keys: Any = None
    is_mask: bool = False
    fits_float32: bool = True
    time_unit: Mapping[str, str] | None = None

    @property
    def is_id(self) -> bool:
        return self.keys is not None and not self.has_empty and self.distinct == self.count > 0

    @property
    def is_category(self) -> bool:
        """Whether it holds whole numbers or text, and few different ones."""
        return (self.is_whole or self.sort == TEXT) and self.distinct <= min(_SHOWN, self.count // 2)

    @property
    def has_type_names(self) -> bool:
        """Whether its values can be names of relations."""
        try:
            return bool(self.values) and all(check_type_name("relation", value) for value in self.values)
        except ConfigError:
            return False

    def share_within(self, other: ColumnLook) -> float:
        """The share of its different values that are values of ``other``."""
        if self.keys is None or other.keys is None or self.keys.type != other.keys.type or not len(self.keys):
            return 0.0
        return float(pc.mean(pc.is_in(self.keys, value_set=other.keys)).as_py())


@dataclass(frozen=True)
class FileLook:
    """Facts about files with the same columns whose names differ in numbers only, so that one ``pattern`` names them.
    ``count``: of rows that were looked at; ``is_cut``: there are more. ``options``: what the schema must say to read
    them."""

    name: str
    pattern: str
    columns: Mapping[str, ColumnLook]
    count: int
    is_cut: bool
    options: Mapping[str, str]


def look_at(folder: Path) -> list[FileLook]:
    """Look at all Parquet and CSV files directly in ``folder``, by name; raises DataError."""
    found: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if kind_of(path) is not None and path.name[0] not in "._":
            found.setdefault((re.sub(r"\d+", "*", path.name), _names(path)), []).append(path)
    looks: list[FileLook] = []
    for (pattern, names), paths in found.items():
        looks.append(_look(paths, pattern if len(paths) > 1 else paths[0].name, names, {one.name for one in looks}))
    return looks


def _parts(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if kind_of(one) and one.name[0] not in "._" and one.stat().st_size)


def _names(path: Path) -> tuple[str, ...]:
    first = (_parts(path) or [path])[0]
    if kind_of(first) == "parquet":
        with reading(first):
            return tuple(parquet.read_schema(first).names)
    return tuple(next(csv.reader([heading(first)], delimiter=delimiter_of(first, len)), []))


def _look(paths: list[Path], pattern: str, names: tuple[str, ...], taken: set[str]) -> FileLook:
    files = [part for path in paths for part in _parts(path)]
    mark = delimiter_of(files[0], len) if kind_of(files[0]) != "parquet" else None
    rule = TableRule(tuple(ColumnRule(name) for name in names), wide=True)
    refusals = Refusals(paths[0].parent / SCHEMA)
    reader = TypeFiles(TypeEntry("", tuple(files), (), {"all": rule}, delimiter=mark), ImportOptions(), refusals)
    refusals.check()
    reader.settle(())
    batches, rows = [], 0
    for piece in reader.pieces():
        batches.append(piece.rows)
        rows += piece.rows.num_rows
        if rows >= _MOST_ROWS:
            break
    columns = {name: _column(name, pa.chunked_array([batch.column(name) for batch in batches])) for name in names}
    options = {"delimiter": mark} if mark is not None and mark != usual_delimiter(files[0]) else {}
    stem = next(pattern[: -len(end)] for end in sorted(KINDS, key=len, reverse=True) if pattern.lower().endswith(end))
    name = free_name(plain_name(stem.replace("*", "")) or "table", taken)
    return FileLook(name, pattern, columns, rows, rows >= _MOST_ROWS, options)


def plain_name(name: str) -> str:
    """``name`` of letters, digits, '.', '-' and single '_'; perhaps nothing is left."""
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9.-]", "_", name)).strip("_.-")[:80]


def free_name(name: str, taken: Container[str]) -> str:
    """``name``, or with the first number that makes it free."""
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def _column(name: str, column: Any) -> ColumnLook:
    sort, whole = category(column.type), column.combine_chunks()
    if sort not in (NUMBERS, TEXT, TIMES):
        return ColumnLook(sort, column.null_count > 0, len(column))
    values = plain(name, whole)
    if sort == TEXT:
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    known = values.drop_null()
    unique = pc.unique(known)
    numbers = unique.to_numpy(zero_copy_only=False) if sort == NUMBERS and len(unique) else np.zeros(0)
    return ColumnLook(
        sort,
        len(known) < len(values),
        len(values),
        len(unique),
        pa.types.is_integer(values.type) or pa.types.is_boolean(values.type),
        tuple(unique.to_pylist()) if sort == TEXT and len(unique) <= _SHOWN else (),
        _keys(unique, numbers),
        sort == NUMBERS and len(unique) > 0 and bool(np.isin(numbers, (0, 1)).all()),
        not inexact(numbers, np.dtype(np.float32)).any(),
        _unit(unit_of(whole.type), known.to_numpy(zero_copy_only=False)) if sort == TIMES else None,
    )


def _keys(unique: Any, numbers: Any) -> Any:
    """Different values as ids: int64 (also of whole floats) or large_string; None if they cannot be ids."""
    if pa.types.is_large_string(unique.type):
        return unique
    fits = pa.types.is_integer(unique.type) or pa.types.is_floating(unique.type)
    if not fits or not len(unique) or inexact(numbers, np.dtype(np.int64)).any():
        return None
    return pa.array(numbers.astype(np.int64))


def _unit(length: int, times: Any) -> dict[str, str]:
    """The key of the schema without which times of ``length`` nanoseconds would be refused; nothing if they are whole
    seconds."""
    for unit in ("s", "ms", "us"):
        if length >= UNITS[unit] or not (times % (UNITS[unit] // length)).any():
            return {} if unit == "s" else {"time_unit": unit}
    return {"time_unit": "ns"}
