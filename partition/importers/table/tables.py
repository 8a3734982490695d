"""Tables of several columns, labels, splits and the users' ids, by the rules of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import arrow_csv, as_masks, check_numbers, pa, pc
from atta.partition.importers.table.columns import ColumnReader
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.rules import ColumnRule, Refusals, TableRule, category, plain, quoted

Array = npt.NDArray[Any]
_BEYOND = 2.0**63
"""The least whole number that int64 does not hold."""


class TableReader:
    """Reads a table piece by piece. ``is_stated``: whether the schema says the dtype. ``is_wide``: whether it may have
    several columns."""

    def __init__(
        self, name: str, rule: TableRule, files: TypeFiles, refusals: Refusals, *, unit: str, nodes: bool = False
    ) -> None:
        """``unit``: of times. ``nodes``: whether the table is one of vertices, in which ``x`` and ``y`` have their
        usual meanings. Columns that no rule makes numbers are refused."""
        labels = nodes and name == "y" and not rule.wide
        self.is_wide = rule.wide
        self._name = name
        self._shape: tuple[int, ...] | None = None
        self.is_stated = rule.dtype is not None
        self.columns: list[ColumnReader] = []
        for one in rule.columns:
            with refusals.held(files.entry.files[0]):
                column = ColumnReader(one, files, refusals, unit=unit, labels=labels)
                if column.must_learn:
                    column.learn(files.pieces([one.name]))
                self.columns.append(column)
        self._refusals, self._files = refusals, files
        features = nodes and name == "x"
        self._accept = ""
        self.dtype = rule.dtype or np.result_type(np.bool_, *(column.dtype for column in self.columns))
        if features and rule.dtype is None:
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
            with self._refusals.held(piece.path):
                found += self._parts(column, piece)
        if self._refusals:
            return np.zeros(piece.rows.num_rows, self.dtype)
        if not self.is_wide:
            rows = found[0]
        elif len({part.shape for part in found}) == 1:
            rows = np.stack(found, axis=1)
        else:
            rows = np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)
        if self._shape not in (None, rows.shape[1:]):
            raise DataError(piece.path, f"rows of the table {self._name!r} have lists of different lengths")
        self._shape = rows.shape[1:]
        return rows

    def _parts(self, column: ColumnReader, piece: FilePiece) -> list[Array]:
        """A column, and beside it whether each value is known if the rule asks for that."""
        values, empty = column.values(piece)
        self._check_rounding(piece, column.rule.name, values)
        parts = [column.cast(piece, values, self.dtype, self._accept)]
        if column.rule.known:
            parts.append((~empty).astype(self.dtype))
        return parts

    def _check_rounding(self, piece: FilePiece, name: str, values: Array) -> None:
        """Check that Arrow has not made doubles of whole numbers in CSV that int64 does not hold; raises DataError."""
        large = self._files.is_csv and values.dtype == np.float64 and bool((np.abs(values) >= _BEYOND).any())
        if large and not self._files.has_fractions(piece.path, name):
            raise DataError(piece.path, f"the column {name!r} has whole numbers beyond int64, which float64 rounds")


def labels_of(reader: TableReader, rows: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Labels [n], and a mask [n] of the vertices without one. A cell that is empty is -1; it is NaN in numbers with
    fractions, or if the schema asks for floats. Whole numbers are floats if pandas has written them beside an empty
    cell."""
    column = reader.columns[0]
    empty = np.concatenate([np.zeros(0, np.bool_), *column.empty])
    if column.rule.fill is not None or not empty.any():
        return rows, np.zeros(len(rows), np.bool_)
    known = rows[~empty]
    if rows.dtype.kind == "f" and not reader.is_stated and (known == np.floor(known)).all():
        return np.where(empty, -1, rows).astype(np.int64), empty
    return rows, empty


class SplitReader:
    """Reads the splits of a node type from columns piece by piece."""

    def __init__(self, splits: Mapping[str, str] | str, files: TypeFiles, refusals: Refusals) -> None:
        """``splits``: the column of each split, or the one column that names the split of each vertex."""
        self._splits = splits
        if isinstance(splits, str):
            named = ColumnRule(splits, classes=True)
            self._readers = {splits: ColumnReader(named, files, refusals, labels=True)}
            self._readers[splits].learn(files.pieces([splits]))
        else:
            self._readers = {
                column: ColumnReader(ColumnRule(column, fill=0), files, refusals) for column in splits.values()
            }
        self._rows: dict[str, list[Array]] = {column: [] for column in self._readers}

    def read(self, piece: FilePiece) -> None:
        """Note the rows of a piece."""
        for column, reader in self._readers.items():
            self._rows[column].append(reader.values(piece)[0])

    def masks(self, where: Path) -> dict[str, npt.NDArray[np.bool_]]:
        """The mask [n] of each split, without vertices whose cell is empty; raises DataError if a column holds none."""
        rows = {column: np.concatenate(found or [np.zeros(0, np.int64)]) for column, found in self._rows.items()}
        if isinstance(self._splits, str):
            names = self._readers[self._splits].names or []
            return {name: rows[self._splits] == code for code, name in enumerate(names)}
        return {
            split: mask
            for name, column in self._splits.items()
            for split, mask in as_masks(where, f"the column {column!r}", name, rows[column]).items()
        }


_WHOLE = r"^\s*\+?(-?[0-9]+)(?:\.0*)?\s*$"
_DROP = '"unknown": "drop" in schema.json leaves such edges out'
_INTEGER = "^(0|-?[1-9][0-9]*)$"


def node_ids(files: TypeFiles, pieces: Sequence[FilePiece], refusals: Refusals) -> Any:
    """The ids of all vertices of a type as an Arrow array of int64 or large_string; None if some are refused."""
    name = files.entry.ids[0]
    parts = [part for piece in pieces if (part := _piece_ids(files, name, piece, refusals)) is not None]
    if len(parts) < len(pieces):
        return None
    kinds = {part.type for part in parts}
    if len(kinds) > 1:
        refusals.add(files.entry.files[0], f"the column {name!r} holds text in some files, and numbers in others")
        return None
    whole = pa.concat_arrays(parts) if parts else pa.array([], pa.large_string() if files.is_csv else pa.int64())
    where = files.entry.files[0]
    ids = _integers(where, name, whole) if files.is_csv else whole
    if _repeated(where, ids, refusals):
        return None
    return ids


def _piece_ids(files: TypeFiles, name: str, piece: FilePiece, refusals: Refusals) -> Any:
    """Ids of a piece: those of CSV as they are written, others as ``_of_one_sort`` gives them; None if some are
    refused."""
    column = piece.rows.column(name)
    if files.is_csv:
        column = plain(name, column)
        if not pa.types.is_string(files.guessed[piece.path][name]):
            blank = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(_blanks(), column.type))
            column = pc.if_else(blank, pa.scalar(None, column.type), column)
    if _has_empty(piece, name, column, refusals):
        return None
    return column if files.is_csv else _of_one_sort(piece, name, column, refusals, "wanted are integers or strings")


def _blanks() -> list[str]:
    """What an empty cell looks like in a CSV column of numbers."""
    return list(arrow_csv.ConvertOptions().null_values)


def _has_empty(piece: FilePiece, name: str, column: Any, refusals: Refusals, accept: str = "") -> bool:
    if column.null_count:
        places = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        refusals.add(piece.path, f"the column {quoted(name)} has empty ids", rows=piece.first + places, accept=accept)
    return bool(column.null_count)


def _of_one_sort(piece: FilePiece, name: str, column: Any, refusals: Refusals, wanted: str) -> Any:
    """Ids as int64 or large_string. Whole numbers that are written as floats or decimals are integers. None if some are
    refused. Raises DataError (without its path) for an id that does not fit into 64 bits."""
    kind = column.type
    values = plain(name, column) if category(kind) != "times" else column
    if pa.types.is_large_string(values.type):
        return values
    if pa.types.is_integer(values.type):
        check_numbers(piece.path, f"the column {name!r}", values.to_numpy(zero_copy_only=False), negative=True)
        return values.cast(pa.int64())
    if pa.types.is_null(kind):
        return values.cast(pa.int64())
    if not pa.types.is_floating(values.type):
        refusals.add(piece.path, f"the column {quoted(name)} holds {kind}, {wanted}")
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    bad = inexact(numbers, np.dtype(np.int64)) | (np.abs(numbers) > 2.0**53)
    if bad.any():
        places = np.flatnonzero(bad)
        what = f"the column {quoted(name)} holds {kind}, {wanted}: {{}} is no whole number below 2**53"
        refusals.add(piece.path, what, rows=piece.first + places, values=numbers[places[:8]].tolist())
        return None
    return pa.array(numbers.astype(np.int64))


def _integers(where: Path, name: str, ids: Any) -> Any:
    """Ids [n] that are text as int64 if each is written as an integer is, otherwise unchanged: they are names."""
    if not len(ids):
        return ids.cast(pa.int64())
    trimmed = pc.utf8_trim_whitespace(ids)
    if not pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py():
        return ids
    return _as_int64(where, name, trimmed)


def _repeated(where: Path, ids: Any, refusals: Refusals) -> bool:
    """Whether an id occurs twice; then it is refused."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return False
    counts = pc.value_counts(ids)
    twice = counts.field(0).filter(pc.greater(counts.field(1), 1))
    more = f", and so do {len(twice) - 1} more" if len(twice) > 1 else ""
    refusals.add(where, f"the id {quoted(twice[0].as_py())} occurs twice{more}")
    return True


def end_rows(files: TypeFiles, name: str, piece: FilePiece, ids: Any, refusals: Refusals) -> npt.NDArray[np.int64]:
    """Rows of the vertices ``ids`` that a column of a piece names. -1 where it names none. That is refused, unless the
    schema says that such edges are dropped."""
    column = piece.rows.column(name)
    if files.is_csv and pa.types.is_string(column.type):
        column = _from_text(files, piece, name, ids, refusals)
    rows = np.full(len(column), -1, np.int64)
    if not files.entry.drops_unknown and _has_empty(piece, name, column, refusals, _DROP):
        return rows
    asked = _of_one_sort(piece, name, column.drop_null(), refusals, f"the ids of vertices are {_sort(ids)}")
    if asked is None or not len(asked):
        return rows
    if asked.type != ids.type:
        refusals.add(piece.path, f"the column {quoted(name)} holds {column.type}, the ids of vertices are {_sort(ids)}")
        return rows
    found = pc.index_in(asked, value_set=ids)
    if found.null_count and not files.entry.drops_unknown:
        _refuse_strangers(piece, name, asked, found.is_null(), refusals)
    rows[column.is_valid().to_numpy(zero_copy_only=False)] = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return rows


def _from_text(files: TypeFiles, piece: FilePiece, name: str, ids: Any, refusals: Refusals) -> Any:
    """Ends of edges that are read from CSV as text: integers if those of vertices are, also where they are written as
    1.0. Text that is no number is refused, or empty if such edges are dropped."""
    text = piece.rows.column(name).cast(pa.large_string())
    if not pa.types.is_integer(ids.type):
        return text
    text = pc.if_else(pc.is_in(text, value_set=pa.array(_blanks(), text.type)), pa.scalar(None, text.type), text)
    strange = pc.fill_null(pc.invert(pc.match_substring_regex(text, _WHOLE)), False)
    if pc.any(strange).as_py():
        if not files.entry.drops_unknown:
            _refuse_strangers(piece, name, text, strange, refusals)
        text = pc.if_else(strange, pa.scalar("0" if not files.entry.drops_unknown else None, text.type), text)
    return _as_int64(piece.path, name, pc.replace_substring_regex(text, _WHOLE, r"\1"))


def _as_int64(where: Path, name: str, text: Any) -> Any:
    """Text that is digits as int64; raises DataError for a number beyond it."""
    try:
        return text.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(where, f"the column {name!r} has an id that does not fit into 64 bits: {error}") from None


def _refuse_strangers(piece: FilePiece, name: str, ends: Any, strange: Any, refusals: Refusals) -> None:
    """Refuse the ``ends`` of edges that are ``strange``: no vertex has such an id."""
    places = np.flatnonzero(strange.to_numpy(zero_copy_only=False))
    refusals.add(
        piece.path,
        f"the column {quoted(name)} names the vertex {{}}, which is in no node file",
        rows=piece.first + places,
        values=[ends[int(place)].as_py() for place in places[:8]],
        accept=_DROP,
    )


def _sort(ids: Any) -> str:
    return "int64" if pa.types.is_integer(ids.type) else "string"
