"""Users' ids in columns: of the vertices themselves, and of the ends of edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.importers.reading.common import inexact
from atta.partition.importers.reading.stated import check_numbers
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.kinds import category, plain
from atta.partition.importers.table.refusals import Refusals, quoted

__all__ = ["end_rows", "node_ids"]

_WHOLE = r"^\s*\+?(-?[0-9]+)(?:\.0*)?\s*$"
_DROP = '"unknown": "drop" in schema.json leaves such edges out'
_INTEGER = "^(0|-?[1-9][0-9]*)$"


def node_ids(files: TypeFiles, pieces: Sequence[FilePiece], refusals: Refusals) -> Any:
    """The ids of all vertices of a type as an Arrow array of int64 or large_string; None if some are refused."""
    import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow.csv

    return list(pyarrow.csv.ConvertOptions().null_values)


def _has_empty(piece: FilePiece, name: str, column: Any, refusals: Refusals, accept: str = "") -> bool:
    if column.null_count:
        places = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        refusals.add(piece.path, f"the column {quoted(name)} has empty ids", rows=piece.first + places, accept=accept)
    return bool(column.null_count)


def _of_one_sort(piece: FilePiece, name: str, column: Any, refusals: Refusals, wanted: str) -> Any:
    """Ids as int64 or large_string. Whole numbers that are written as floats or decimals are integers.

    None if some are refused. Raises DataError (without its path) for an id that does not fit into 64 bits.
    """
    import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(ids):
        return ids.cast(pa.int64())
    trimmed = pc.utf8_trim_whitespace(ids)
    if not pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py():
        return ids
    return _as_int64(where, name, trimmed)


def _repeated(where: Path, ids: Any, refusals: Refusals) -> bool:
    """Whether an id occurs twice; then it is refused."""
    import pyarrow.compute as pc

    if pc.count_distinct(ids).as_py() == len(ids):
        return False
    counts = pc.value_counts(ids)
    twice = counts.field(0).filter(pc.greater(counts.field(1), 1))
    more = f", and so do {len(twice) - 1} more" if len(twice) > 1 else ""
    refusals.add(where, f"the id {quoted(twice[0].as_py())} occurs twice{more}")
    return True


def end_rows(files: TypeFiles, name: str, piece: FilePiece, ids: Any, refusals: Refusals) -> npt.NDArray[np.int64]:
    """Rows of the vertices ``ids`` that a column of a piece names.

    -1 where it names none. That is refused, unless the schema says that such edges are dropped.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

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
    import pyarrow as pa

    return "int64" if pa.types.is_integer(ids.type) else "string"
