"""Tables of several columns, labels, splits and the users' ids, by the rules of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError, blaming
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import Array, Ids, Mask, arrow_csv, as_masks, check_numbers, pa, pc
from atta.partition.importers.table.columns import TIMES, ColumnReader, category, plain
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.schema import VALUE, ColumnRule, TableRule

_BEYOND = 2.0**63
"""The least whole number that int64 does not hold."""
_WHOLE = r"^\s*\+?(-?[0-9]+)(?:\.0*)?\s*$"
_INTEGER = "^(0|-?[1-9][0-9]*)$"
_DROP = '"unknown": "drop" in schema.json leaves such edges out'


class TableReader:
    """Reads a table piece by piece. ``is_wide``: whether it may have several columns."""

    def __init__(self, name: str, rule: TableRule, files: TypeFiles, *, unit: str, nodes: bool = False) -> None:
        """``unit``: of times. ``nodes``: whether the table is one of vertices, in which ``x`` and ``y`` have their
        usual meanings. Columns that no rule makes numbers are refused."""
        self._name, self._rule, self._files = name, rule, files
        self.is_wide = rule.wide
        self._shape: tuple[int, ...] | None = None
        self.columns: list[ColumnReader] = []
        for one in rule.columns:
            with files.refusals.held(files.entry.files[0]):
                labels = nodes and name == "y" and not rule.wide
                self.columns.append(ColumnReader(one, files, unit=unit, labels=labels))
        self._accept = ""
        self.dtype = rule.dtype or np.result_type(np.bool_, *(column.dtype for column in self.columns))
        if nodes and name == "x" and rule.dtype is None:
            self.dtype, self._accept = np.dtype(np.float32), '"dtype": "float64" in schema.json keeps them'

    @property
    def classes(self) -> dict[str, list[str]]:
        """The names of classes by column, of columns that have some."""
        return {column.rule.name: column.names for column in self.columns if column.names is not None}

    def rows(self, piece: FilePiece) -> Array:
        """The rows of a piece, [n] or [n, k]; numbers and lists side by side become one row. What they are does not
        matter once something was refused."""
        found: list[Array] = []
        for column in self.columns:
            with piece.refusals.held(piece.path):
                values, empty = column.values(piece)
                self._check_rounding(piece, column.rule.name, values)
                found.append(column.cast(piece, values, self.dtype, self._accept))
                if column.rule.known:
                    found.append((~empty).astype(self.dtype))
        if piece.refusals:
            return np.zeros(piece.rows.num_rows, self.dtype)
        if not self.is_wide:
            rows = found[0]
        elif all(part.ndim == 1 for part in found):
            rows = np.stack(found, axis=1)
        else:
            rows = np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)
        if self._shape not in (None, rows.shape[1:]):
            raise DataError(piece.path, f"rows of the table {self._name!r} have lists of different lengths")
        self._shape = rows.shape[1:]
        return rows

    def _check_rounding(self, piece: FilePiece, name: str, values: Array) -> None:
        large = self._files.is_csv and values.dtype == np.float64 and bool((np.abs(values) >= _BEYOND).any())
        if large and not self._files.has_fractions(piece.path, name):
            raise DataError(piece.path, f"the column {name!r} has whole numbers beyond int64, which float64 rounds")

    def labels_of(self, rows: Array) -> tuple[Array, Mask]:
        """Labels [n], and a mask [n] of the vertices without one. A cell that is empty is -1; it is NaN in numbers with
        fractions, or if the schema asks for floats. Whole numbers are floats if pandas has written them beside an empty
        cell."""
        column = self.columns[0]
        empty = np.concatenate([np.zeros(0, np.bool_), *column.empty])
        if column.rule.fill is not None or not empty.any():
            return rows, np.zeros(len(rows), np.bool_)
        known = rows[~empty]
        if rows.dtype.kind == "f" and self._rule.dtype is None and (known == np.floor(known)).all():
            return np.where(empty, -1, rows).astype(np.int64), empty
        return rows, empty


Splits = Mapping[str, Any] | str


def split_readers(splits: Splits, files: TypeFiles) -> dict[str, ColumnReader]:
    """A reader by column. ``splits``: the column or share of each split, or the column that names each vertex' split."""
    if isinstance(splits, str):
        return {splits: ColumnReader(ColumnRule(splits, classes=True), files, labels=True)}
    columns = [column for column in splits.values() if isinstance(column, str)]
    return {column: ColumnReader(ColumnRule(column, fill=0), files) for column in columns}


def split_masks(
    where: Path, splits: Splits, readers: Mapping[str, ColumnReader], rows: Mapping[str, Array], count: int
) -> dict[str, Mask]:
    """The mask [count] of each split, without vertices whose cell is empty. ``rows``: of each column. Shares are drawn
    by the number of the row, the same for the same file. Raises DataError if a column holds none."""
    if isinstance(splits, str):
        return {name: rows[splits] == code for code, name in enumerate(readers[splits].names or [])}
    if not readers:
        ends = np.cumsum(list(splits.values()))
        drawn = np.searchsorted(ends, np.random.default_rng(0).random(count), side="right")
        return {name: drawn == number for number, name in enumerate(splits)}
    return {
        split: mask
        for name, column in splits.items()
        for split, mask in as_masks(where, f"the column {column!r}", name, rows[column]).items()
    }


def node_ids(files: TypeFiles, pieces: Sequence[FilePiece]) -> Any:
    """The ids of all vertices of a type as an Arrow array of int64 or large_string; None if some are refused."""
    name, where = files.entry.ids[0], files.entry.files[0]
    parts = [part for piece in pieces if (part := _piece_ids(files, name, piece)) is not None]
    if len(parts) < len(pieces):
        return None
    if len({part.type for part in parts}) > 1:
        files.refusals.add(where, f"the column {name!r} holds text in some files, and numbers in others")
        return None
    ids = pa.concat_arrays(parts)
    if files.is_csv:  # integers if each is written as one is
        trimmed = pc.utf8_trim_whitespace(ids)
        if pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py() is not False:
            ids = _as_int64(where, name, trimmed)
    if files.entry.distinct:
        return pc.unique(ids)
    if pc.count_distinct(ids).as_py() == len(ids):
        return ids
    counts = pc.value_counts(ids)
    twice = counts.field(0).filter(pc.greater(counts.field(1), 1))
    more = f", and so do {len(twice) - 1} more" if len(twice) > 1 else ""
    files.refusals.add(where, f"the id {twice[0].as_py()!r} occurs twice{more}")
    return None


def _piece_ids(files: TypeFiles, name: str, piece: FilePiece) -> Any:
    """Ids of a piece: those of CSV as they are written, others as ``_of_one_sort`` gives them; None if some are
    refused."""
    column = piece.rows.column(name)
    if files.is_csv:
        column = plain(name, column)
        if not pa.types.is_string(files.guessed[piece.path][name]):
            column = _without_blanks(column, pc.utf8_trim_whitespace(column))
    if _has_empty(piece, name, column):
        return None
    return column if files.is_csv else _of_one_sort(piece, name, column, "wanted are integers or strings")


def _without_blanks(column: Any, trimmed: Any) -> Any:
    """A CSV column of numbers that is read as text, with nothing in cells that Arrow takes for empty ones."""
    blank = pc.is_in(trimmed, value_set=pa.array(arrow_csv.ConvertOptions().null_values, column.type))
    return pc.if_else(blank, pa.scalar(None, column.type), column)


def _has_empty(piece: FilePiece, name: str, column: Any, accept: str = "") -> bool:
    empty = column.is_null().to_numpy(zero_copy_only=False)
    piece.refuse(f"the column {name!r} has empty ids", empty, accept=accept)
    return bool(empty.any())


def _of_one_sort(piece: FilePiece, name: str, column: Any, wanted: str) -> Any:
    """Ids as int64 or large_string. Whole numbers that are written as floats or decimals are integers. None if some are
    refused. Raises DataError (without its path) for an id that does not fit into 64 bits."""
    kind = column.type
    values = plain(name, column) if category(kind) != TIMES else column
    if pa.types.is_large_string(values.type):
        return values
    if pa.types.is_integer(values.type):
        check_numbers(piece.path, f"the column {name!r}", values.to_numpy(zero_copy_only=False), negative=True)
        return values.cast(pa.int64())
    if pa.types.is_null(kind):
        return values.cast(pa.int64())
    holds = f"the column {name!r} holds {kind}, {wanted}"
    if not pa.types.is_floating(values.type):
        piece.refusals.add(piece.path, holds)
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    bad = inexact(numbers, np.dtype(np.int64)) | (np.abs(numbers) > 2.0**53)
    piece.refuse(f"{holds}: {VALUE} is no whole number below 2**53", bad, values=numbers)
    return None if bad.any() else pa.array(numbers.astype(np.int64))


def end_rows(files: TypeFiles, name: str, piece: FilePiece, ids: Any) -> Ids:
    """Rows of the vertices ``ids`` that a column of a piece names. -1 where it names none. That is refused, unless the
    schema says that such edges are dropped."""
    column = piece.rows.column(name)
    if files.is_csv and pa.types.is_string(column.type):
        column = _from_text(files, piece, name, ids)
    rows = np.full(len(column), -1, np.int64)
    if not files.entry.drops_unknown and _has_empty(piece, name, column, _DROP):
        return rows
    sort = f"the ids of vertices are {'int64' if pa.types.is_integer(ids.type) else 'string'}"
    asked = _of_one_sort(piece, name, column.drop_null(), sort)
    if asked is None or not len(asked):
        return rows
    if asked.type != ids.type:
        piece.refusals.add(piece.path, f"the column {name!r} holds {column.type}, {sort}")
        return rows
    found = pc.index_in(asked, value_set=ids)
    if not files.entry.drops_unknown:
        _refuse_strangers(piece, name, asked, found.is_null())
    rows[column.is_valid().to_numpy(zero_copy_only=False)] = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return rows


def _from_text(files: TypeFiles, piece: FilePiece, name: str, ids: Any) -> Any:
    """Ends of edges that are read from CSV as text: integers if those of vertices are, also where they are written as
    1.0. Text that is no number is refused, or empty if such edges are dropped."""
    text = piece.rows.column(name).cast(pa.large_string())
    if not pa.types.is_integer(ids.type):
        return text
    text = _without_blanks(text, text)
    strange = pc.fill_null(pc.invert(pc.match_substring_regex(text, _WHOLE)), False)
    if not files.entry.drops_unknown:
        _refuse_strangers(piece, name, text, strange)
    text = pc.if_else(strange, pa.scalar(None if files.entry.drops_unknown else "0", text.type), text)
    return _as_int64(piece.path, name, pc.replace_substring_regex(text, _WHOLE, r"\1"))


def _as_int64(where: Path, name: str, text: Any) -> Any:
    with blaming(DataError, where, f"the column {name!r} has an id that does not fit into 64 bits", of=pa.ArrowInvalid):
        return text.cast(pa.int64())


def _refuse_strangers(piece: FilePiece, name: str, ends: Any, strange: Any) -> None:
    what = f"the column {name!r} names the vertex {VALUE}, which is in no node file"
    piece.refuse(what, strange.to_numpy(zero_copy_only=False), values=ends, accept=_DROP)
