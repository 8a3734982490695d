"""What ``schema.json`` says of every type, table and column, after it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ANY", "DTYPES", "SCHEMA", "UNITS", "ColumnRule", "GraphSchema", "TableRule", "TypeEntry"]

SCHEMA = "schema.json"
ANY = "*"
"""The relation of an edge type whose edges name their relations in the column ``type``."""
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
"""Units of times, and the nanoseconds of each."""


@dataclass(frozen=True)
class ColumnRule:
    """How a column becomes numbers.

    Attributes:
        name: of the column.
        fill: what empty cells get: a number, a class, or ``"mean"``; None: empty cells are refused.
        known: add a column beside that has 1 where this one has a value, and 0 where it is empty.
        time_unit: unit of dates and times; None: that of the graph.
        classes: distinct values become the numbers 0, 1, ...: True: in their order; or the list of their names.
    """

    name: str
    fill: float | int | str | None = None
    known: bool = False
    time_unit: str | None = None
    classes: bool | tuple[str, ...] = False


@dataclass(frozen=True)
class TableRule:
    """The columns of a table, side by side.

    Attributes:
        columns: in order.
        wide: whether a row has an axis for the columns, also if there is one.
        dtype: of the table; None: that of the columns (float32 for ``x``).
    """

    columns: tuple[ColumnRule, ...]
    wide: bool
    dtype: np.dtype[Any] | None = None


@dataclass(frozen=True)
class TypeEntry:
    """A node type or an edge type.

    Attributes:
        name: ``"user"``, ``"user__buys__item"`` or ``"user__*__item"``.
        files: paths, in the order in which they are read; folders are resolved.
        ids: the column ``id``, or ``src`` and ``dst``.
        tables: rules by name of table.
        splits: column by name of split, or the column that names the split of each vertex.
        ignore: columns to leave out.
        type: column that names the relation of each edge.
        delimiter: between the columns of CSV files; None: as the heading shows.
        decimal: what separates the fraction of a number in CSV files.
        empty: texts that stand for an empty cell.
        drops_unknown: whether edges are left out of which an end is empty, or in no node file.
    """

    name: str
    files: tuple[Path, ...]
    ids: tuple[str, ...]
    tables: Mapping[str, TableRule]
    splits: Mapping[str, str] | str
    ignore: frozenset[str]
    type: str | None
    delimiter: str | None = None
    decimal: str = "."
    empty: tuple[str, ...] = ()
    drops_unknown: bool = False

    @property
    def columns(self) -> list[str]:
        """Every column that is read, once."""
        rules = [rule.name for table in self.tables.values() for rule in table.columns]
        kinds = [] if self.type is None else [self.type]
        splits = [self.splits] if isinstance(self.splits, str) else self.splits.values()
        return list(dict.fromkeys([*self.ids, *kinds, *rules, *splits]))


@dataclass(frozen=True)
class GraphSchema:
    """``schema.json``.

    Attributes:
        path: of the file.
        nodes, edges: the types, in the order of the file.
        named: the paths that ``files`` of all types name, folders unresolved.
        num_classes: what the file states, unchecked.
        time_unit: unit of dates and times.
    """

    path: Path
    nodes: tuple[TypeEntry, ...]
    edges: tuple[TypeEntry, ...]
    named: tuple[Path, ...]
    num_classes: Any
    time_unit: str
