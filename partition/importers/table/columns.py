"""Turns columns of Arrow into arrays by the rules of the schema, and says which values it cannot turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import pa, pc
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.rules import (
    LISTS,
    NUMBERS,
    TEXT,
    TIMES,
    UNITS,
    ColumnRule,
    Refusals,
    category,
    is_categorical,
    plain,
    quoted,
    result_dtype,
)

Array = npt.NDArray[Any]
_MAX_CLASSES = 1 << 16
"""At most this many classes of a column."""
_ARROW_UNITS = ("s", "ms", "us", "ns")
_ZONE = r"(?i:z|[-+][0-9]{2}:?[0-9]{2})$"


class ColumnReader:
    """Reads one column of all files by its rule. ``names``: of classes, by number; None: it has none. ``empty``: masks
    of empty cells of the pieces read, if these are labels."""

    def __init__(
        self, rule: ColumnRule, files: TypeFiles, refusals: Refusals, *, unit: str = "s", labels: bool = False
    ) -> None:
        """``unit``: of times that have none. ``labels``: whether these are the labels of vertices. Raises DataError
        (without its path) if the rule does not fit the types of the column."""
        kinds = files.of(rule.name)
        texts = [kind for kind in kinds if category(kind) == TEXT]
        if texts and rule.time_unit is None and (labels or all(map(is_categorical, kinds))):
            rule = replace(rule, classes=rule.classes or True)
        self.rule, self._refusals, self._labels = rule, refusals, labels
        self._unit = rule.time_unit or unit
        self._mean = 0.0
        self._blanks = ["", *files.entry.empty]
        words = files.words(rule.name) if texts and not rule.classes and rule.time_unit is None else ""
        self.dtype = result_dtype(rule, kinds, labels=labels, words=words)
        self.names = None if isinstance(rule.classes, bool) else list(rule.classes)
        self._is_text = bool(texts)
        self.empty: list[npt.NDArray[np.bool_]] = []
        self._check_fill(numbers=all(category(kind) == NUMBERS for kind in kinds))

    def _check_fill(self, *, numbers: bool) -> None:
        """Check that empty cells can get what the rule says; raises DataError (without its path)."""
        fill = self.rule.fill
        wanted = "a class" if self.rule.classes else "a number or 'mean'"
        if fill is not None and isinstance(fill, str) != bool(self.rule.classes) and (fill != "mean" or not numbers):
            why = ", and only numbers have one" if fill == "mean" else f", wanted is {wanted}"
            raise DataError("", f"the column {self.rule.name!r}: 'fill' is {fill!r}{why}")

    @property
    def must_learn(self) -> bool:
        """Whether all values must be seen before the first can be read."""
        return (bool(self.rule.classes) and self.names is None) or self.rule.fill == "mean"

    def learn(self, pieces: Iterable[FilePiece]) -> None:
        """Find the classes, or the mean, of all values."""
        if self.rule.fill == "mean" and not self.rule.classes:
            self._learn_mean(pieces)
        else:
            self._learn_names(pieces)

    def _learn_mean(self, pieces: Iterable[FilePiece]) -> None:
        total, count = 0.0, 0
        for piece in pieces:
            values, empty = self._numbers(piece, self._flat(piece.rows.column(self.rule.name)))
            known = values[~empty].astype(np.float64)
            total, count = total + float(known.sum()), count + len(known)
        self._mean = total / count if count else 0.0

    def _learn_names(self, pieces: Iterable[FilePiece]) -> None:
        ordered: dict[Any, None] = {}  # categories keep their order
        others: set[Any] = set()
        for piece in pieces:
            column = piece.rows.column(self.rule.name)
            if pa.types.is_dictionary(column.type):
                ordered.update(dict.fromkeys(self._as_names(column.dictionary).to_pylist()))
            else:
                others.update(pc.unique(self._as_names(column)).to_pylist())
            if max(len(ordered), len(others)) > _MAX_CLASSES:
                raise DataError(piece.path, f"the column {self.rule.name!r} has more than {_MAX_CLASSES} classes")
        others -= ordered.keys()
        names = [*ordered, *sorted(others - {None})]
        if self.rule.fill is not None and self.rule.fill not in names:
            names.append(self.rule.fill)
        self.names = [str(name).lower() if isinstance(name, bool) else str(name) for name in names if name is not None]

    def _as_names(self, column: Any) -> Any:
        """A column of classes without empty text."""
        values = plain(self.rule.name, column)
        if not pa.types.is_large_string(values.type):
            return values
        blank = pc.is_in(values, value_set=pa.array(self._blanks, values.type))
        return pc.if_else(blank, pa.scalar(None, values.type), values)

    def values(self, piece: FilePiece) -> tuple[Array, npt.NDArray[np.bool_]]:
        """The rows of a piece, [n] or [n, k] for lists of k numbers, and a mask [n] of those whose cell is empty."""
        column = piece.rows.column(self.rule.name)
        if category(column.type) == LISTS:
            return self._lists(piece, column)
        flat = self._flat(column)
        if self.rule.classes:
            found, empty = self._codes(piece, flat)
        else:
            found, empty = self._numbers(piece, flat)
        if self._labels and not isinstance(piece.rows, _ListValues):
            self.empty.append(empty)
        return self._filled(piece, found, empty), empty

    def _flat(self, column: Any) -> Any:
        """The column as ``plain`` gives it; times stay what they are. Raises DataError (without its path)."""
        if category(column.type) == TIMES:
            return column
        values = plain(self.rule.name, column)
        if self._is_text or self.rule.classes or not pa.types.is_large_string(values.type):
            return values
        try:  # ids in CSV, which are read as text
            return pc.utf8_trim_whitespace(values).cast(pa.from_numpy_dtype(self.dtype))
        except pa.ArrowInvalid as error:
            raise DataError("", f"the column {self.rule.name!r}: {error}") from None

    def _lists(self, piece: FilePiece, column: Any) -> tuple[Array, npt.NDArray[np.bool_]]:
        none = np.zeros(len(column), np.bool_)
        name = self.rule.name
        if column.null_count:
            self._refuse(piece, "has empty cells where lists are", column.is_null().to_numpy(zero_copy_only=False))
            return np.zeros((len(column), 0), self.dtype), none
        lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise DataError(piece.path, f"the column {name!r} has lists of {lengths[0]} to {lengths[-1]} values")
        width = int(lengths[0]) if len(lengths) else getattr(column.type, "list_size", 0)
        inner = FilePiece(piece.path, piece.first, _ListValues(name, pc.list_flatten(column), max(width, 1)))
        flat, _ = self.values(inner)
        return flat.reshape(len(column), width), none

    def _numbers(self, piece: FilePiece, column: Any) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Numbers, and times as numbers, with 0 in empty cells."""
        kind = column.type
        if pa.types.is_large_string(kind):
            column = self._read_times(piece, column)
            kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(len(column), self.dtype), np.ones(len(column), np.bool_)
        asked = self.rule.fill is not None or self.rule.known
        empty = column.is_null(nan_is_null=asked and pa.types.is_floating(kind)).to_numpy(zero_copy_only=False)
        is_time = category(kind) == TIMES
        values = _without_empty(plain(self.rule.name, column) if is_time else column)
        if is_time:
            unit = "d" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else str(kind.unit)
            values = self._in_unit(piece, values, UNITS[unit])
        if empty.any() and asked:
            values = np.where(empty, values.dtype.type(0), values)
        return values, empty

    def _in_unit(self, piece: FilePiece, values: Array, length: int) -> Array:
        """Times of ``length`` nanoseconds in the unit of the column; refuse those that are no whole number of it."""
        wanted = UNITS[self._unit]
        if length >= wanted:
            factor = length // wanted
            bad = np.abs(values) > (2**63 - 1) // factor
            self._refuse(piece, f"has times that do not fit into int64 as {self._unit}", bad)
            return np.where(bad, 0, values) * factor
        factor = wanted // length
        if (bad := values % factor != 0).any():
            fine = next(
                u for u in reversed(UNITS) if UNITS[u] < wanted and not (values % max(1, UNITS[u] // length)).any()
            )
            self._refuse(piece, f"has times that are no whole {self._unit}", bad, f'"time_unit": "{fine}" keeps them')
        return values // factor

    def _read_times(self, piece: FilePiece, column: Any) -> Any:
        """Text as times: ISO 8601, with a zone or without (UTC)."""
        text = self._as_names(column)
        zone = "UTC" if pc.any(pc.match_substring_regex(text, "(?i)[:0-9]{5}" + _ZONE)).as_py() else None
        for unit in _ARROW_UNITS:
            try:
                return text.cast(pa.string()).cast(pa.timestamp(unit, zone))
            except pa.ArrowInvalid as error:
                last = str(error)
        raise DataError(piece.path, f"the column {self.rule.name!r} holds text that is no time in ISO 8601: {last}")

    def _codes(self, piece: FilePiece, column: Any) -> tuple[Array, npt.NDArray[np.bool_]]:
        assert self.names is not None, "classes are learnt before they are read"
        values = self._as_names(column)
        empty = values.is_null().to_numpy(zero_copy_only=False)
        if isinstance(self.rule.classes, tuple) and pa.types.is_integer(values.type):
            codes = _without_empty(values)
            bad = (codes < 0) | (codes >= len(self.names))
        else:
            text = values.cast(pa.large_string())
            found = pc.index_in(text, value_set=pa.array(self.names, pa.large_string()))
            bad = found.is_null().to_numpy(zero_copy_only=False)
            codes = _without_empty(found).astype(np.int64)
        self._refuse(piece, "has the value {}, which is not in 'classes'", bad & ~empty, values=values)
        return codes, empty

    def _filled(self, piece: FilePiece, values: Array, empty: npt.NDArray[np.bool_]) -> Array:
        """``values`` in the dtype of the column, with what the rule says in empty cells."""
        values = self.cast(piece, values, self.dtype)
        if not empty.any():
            return values
        fill: Any = self.rule.fill
        if self.names is not None and fill is not None:
            fill = self.names.index(fill) if fill in self.names else None
        elif fill == "mean":
            fill = self._mean
        elif fill is None and self.rule.known:
            fill = 0
        elif fill is None and self._labels:
            fill = np.nan if self.dtype.kind == "f" else -1
        if fill is None:
            self._refuse(piece, "has empty values", empty, '"fill" in schema.json accepts them')
            return values
        return np.where(empty, self.dtype.type(fill), values)

    def cast(self, piece: FilePiece, values: Array, dtype: np.dtype[Any], accept: str = "") -> Array:
        """``values`` as ``dtype``; refuse whole numbers that it cannot hold."""
        if values.dtype == dtype:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            held = values.astype(dtype)
        bad = inexact(values, dtype)
        if dtype.kind == "f":
            bad = bad | (np.isinf(held) & np.isfinite(values))
        self._refuse(piece, f"has the number {{}}, which {dtype} cannot hold", bad, accept, values)
        return held

    def _refuse(self, piece: FilePiece, what: str, bad: Array, accept: str = "", values: Any = None) -> None:
        """Refuse the rows of a piece where ``bad`` [n] or [n, k] is set."""
        if not bad.any():
            return
        step = getattr(piece.rows, "width", 1)
        places = np.flatnonzero(bad)
        flat = values.reshape(-1) if isinstance(values, np.ndarray) else values
        shown = [] if values is None else [flat[int(p)] for p in places[:8]]
        if bad.ndim == 2:
            step = bad.shape[1]
        shown = [one.as_py() if hasattr(one, "as_py") else one.item() for one in shown]
        self._refusals.add(
            piece.path,
            f"the column {quoted(self.rule.name)} {what}",
            rows=piece.first + places // step,
            values=shown,
            accept=accept,
        )


class _ListValues:
    """The values of lists as a column, ``width`` in each row."""

    def __init__(self, name: str, values: Any, width: int) -> None:
        self._name, self._values, self.width = name, values, width

    def column(self, name: str) -> Any:
        return self._values


def _without_empty(column: Any) -> Array:
    """Numbers as numpy, 0 in empty cells."""
    if column.null_count:
        zero = pa.scalar(False if pa.types.is_boolean(column.type) else 0).cast(column.type)
        column = pc.fill_null(column, zero)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
