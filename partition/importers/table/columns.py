"""Turns columns of Arrow into arrays by the rules of the schema, and says which values it cannot turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from atta.errors import DataError, blaming
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import Array, Mask, first_line, pa, pc
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.schema import UNITS, VALUE, ColumnRule

NUMBERS, TIMES, TEXT, LISTS, OTHERS = "numbers", "times", "text", "lists", "others"
_MAX_CLASSES = 1 << 16
"""At most this many classes of a column."""
_ARROW_UNITS = ("s", "ms", "us", "ns")
_ZONE = r"(?i:z|[-+][0-9]{2}:?[0-9]{2})$"
_NUMBER = r"^\s*([-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|(?i:nan|inf))?\s*$"
EPOCH = {10: "s", 13: "ms", 16: "us", 19: "ns"}
"""Units of numbers that count from 1970, by the digits that they have from 2001 to 2033, the first a 1."""
_UUID_BYTES = 16
_DASHES = (8, 12, 16, 20)
"""The digits of a UUID before which a dash stands."""


def category(kind: Any) -> str:
    """What values of an Arrow type are; a categorical column is what its categories are."""
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return category(kind.value_type)
    if _is_text(kind) or _is_uuid(kind):
        return TEXT
    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return NUMBERS
    if t.is_temporal(kind) and not t.is_interval(kind):
        return TIMES
    lists = t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)
    return LISTS if lists and category(kind.value_type) in (NUMBERS, TIMES) else OTHERS


def _is_text(kind: Any) -> bool:
    t = pa.types
    text = t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
    return bool(text or t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind))


def _is_uuid(kind: Any) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_fixed_size_binary(storage) and storage.byte_width == _UUID_BYTES)


def unit_of(kind: Any) -> int:
    """The nanoseconds of the unit of Arrow's times."""
    return UNITS["d" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else str(kind.unit)]


def plain(name: str, column: Any) -> Any:
    """A column without Arrow's ways to store it: text is ``large_string``, a UUID too, whole decimals are int64, other
    decimals float64; times are int64 of their own unit. Raises DataError: bytes are not UTF-8, or a decimal does not
    fit into int64. The path is missing: the caller knows it."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(name, column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(name, pc.run_end_decode(column))
    if _is_uuid(kind):
        return _uuids(column.storage if isinstance(column, pa.ExtensionArray) else column)
    with blaming(DataError, "", f"the column {name!r} holds {kind}", of=pa.ArrowInvalid, say=first_line):
        if _is_text(kind):
            return column.cast(pa.large_string())
        if pa.types.is_decimal(kind):
            # By way of text: Arrow's own cast multiplies by a power of ten, which misses the nearest number.
            return column.cast(pa.int64()) if kind.scale <= 0 else column.cast(pa.string()).cast(pa.float64())
        if category(kind) == TIMES:
            return column.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else column.cast(pa.int64())
    return column


def _uuids(column: Any) -> Any:
    filled = column.fill_null(bytes(_UUID_BYTES))
    held = filled.buffers()[1].slice(filled.offset * _UUID_BYTES, len(filled) * _UUID_BYTES)
    digits = np.frombuffer(held.hex(), np.uint8).reshape(-1, 2 * _UUID_BYTES)
    text = np.insert(digits, _DASHES, ord("-"), axis=1)
    rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(text.shape[1]), len(text), [None, pa.py_buffer(text)])
    return pc.if_else(column.is_valid(), rows.cast(pa.large_binary()).cast(pa.large_string()), None)


def time_in(text: str, form: str) -> datetime | None:
    """The time of a text by a format of ``strftime``, UTC unless the text says another zone; None: it is none."""
    try:
        found = datetime.strptime(text.strip(), form)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def times_in(column: Any, form: str) -> Any:
    """A column as Arrow's timestamps: texts by a format, or numbers (in texts, too) that count the unit ``form`` from
    1970. Null where there is none."""
    if form not in EPOCH.values():
        coded = column.cast(pa.large_string()).dictionary_encode()
        times = [time_in(text, form) for text in coded.dictionary.to_pylist()]
        return pa.array(times, pa.timestamp("us", "UTC")).take(coded.indices)
    text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    whole = pc.match_substring_regex(text, r"^-?[0-9]{1,18}(\.0*)?$|^1[0-9]{18}$")
    digits = pc.replace_substring_regex(pc.if_else(whole, text, None), r"\..*", "")
    return digits.cast(pa.int64()).cast(pa.timestamp(form, "UTC"))


class ColumnReader:
    """Reads one column of all files by its rule. ``names``: of classes, by number; None: it has none. ``empty``: masks
    of empty cells of the pieces read, if these are labels. ``filled``: how many cells read were empty and got a
    value."""

    def __init__(self, rule: ColumnRule, files: TypeFiles, *, unit: str = "s", labels: bool = False) -> None:
        """``unit``: of times that have none. ``labels``: whether these are the labels of vertices. Where the rule asks
        for all values, for classes or a mean, they are read. Raises DataError (without its path) if the rule does not
        fit the types of the column."""
        kinds = files.of(rule.name)
        sorts = {category(kind) for kind in kinds}
        if rule.onehot:
            rule = replace(rule, classes=rule.classes or True)
        named = TEXT in sorts and (labels or all(map(pa.types.is_dictionary, kinds)))
        if named and not (rule.time_unit or rule.time_format):
            rule = replace(rule, classes=rule.classes or True)
        self.rule, self._files, self._labels = rule, files, labels
        self._unit = rule.time_unit or unit
        self._is_text = TEXT in sorts
        self._mean, self._deviation = 0.0, 1.0
        self.dtype = self._result_dtype(kinds)
        self.names = None if isinstance(rule.classes, bool) else list(rule.classes)
        self.empty: list[Mask] = []
        self.filled = 0
        fill = rule.fill
        if fill is not None and isinstance(fill, str) != bool(rule.classes) and (fill != "mean" or sorts != {NUMBERS}):
            wanted = "a class" if rule.classes else "a number or 'mean'"
            why = "and only numbers have one" if fill == "mean" else f"wanted is {wanted}"
            raise DataError("", f"the column {rule.name!r}: 'fill' is {fill!r}, {why}")
        if rule.scale and (rule.classes or sorts != {NUMBERS}):
            raise DataError("", f"the column {rule.name!r}: 'scale' is true, and only numbers have a mean")
        if rule.classes is True:
            self.names = self._learnt_names()
        elif (fill == "mean" or rule.scale) and not rule.classes:
            self._mean, self._deviation = self._learnt_moments()

    def _result_dtype(self, kinds: list[Any]) -> np.dtype[Any]:
        """The smallest dtype that holds the values of all files. Whole numbers and fractions together are float64. Times
        and classes are int64, and so are whole numbers that have empty cells to fill."""
        rule, found = self.rule, {self._dtype(kind) for kind in kinds}
        sorts = {dtype.kind.replace("u", "i") for dtype in found}
        fractions = {"i", "f"} <= sorts or rule.fill == "mean" or rule.scale
        dtype = np.dtype(np.float64) if fractions else np.result_type(*found)
        scalars = not any(category(kind) == LISTS for kind in kinds)
        if dtype.kind == "f" or not ((self._labels and scalars) or rule.fill is not None or rule.known):
            return dtype
        return np.dtype(np.float64 if isinstance(rule.fill, float) and rule.fill % 1 else np.int64)

    def _dtype(self, kind: Any) -> np.dtype[Any]:
        what, holds = category(kind), f"the column {self.rule.name!r} holds {kind}"
        if self.rule.classes and what != OTHERS:
            if what in (TEXT, NUMBERS) and not pa.types.is_floating(kind):
                return np.dtype(np.int64)
            raise DataError("", f"{holds}: classes are text, whole numbers or truth values")
        if what == TIMES or self.rule.time_format or (what == TEXT and self.rule.time_unit is not None):
            return np.dtype(np.int64)
        if what in (TEXT, OTHERS):
            words, accept = "", '"ignore" leaves it out'
            if what == TEXT:
                words = self._words()
                accept = (
                    '"classes": true in schema.json numbers its values, "onehot": true gives each a column, "time_format" '
                    'reads times, "empty" takes words away'
                )
            raise DataError("", f"{holds}, wanted are numbers or lists of numbers{words}; {accept}")
        if what == LISTS or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            return self._dtype(kind.value_type)
        if pa.types.is_decimal(kind):
            return np.dtype(np.int64 if kind.scale <= 0 else np.float64)
        return np.dtype(np.float32 if pa.types.is_null(kind) else kind.to_pandas_dtype())

    def _words(self) -> str:
        cells, words, first = 0, 0, ""
        for piece in self._files.pieces([self.rule.name]):
            column = piece.rows.column(0)
            strange = pc.invert(pc.match_substring_regex(plain(self.rule.name, column), _NUMBER)).fill_null(False)
            places = np.flatnonzero(strange.to_numpy(zero_copy_only=False))
            if len(places) and not first:
                first = f" ({column[int(places[0])].as_py()!r} in row {piece.first + int(places[0])})"
            cells, words = cells + len(column), words + len(places)
        return first if words * 2 < cells else ""

    def _learnt_moments(self) -> tuple[float, float]:
        """The mean of the values that there are, and their standard deviation (1 if they are all the same)."""
        total, squares, count = 0.0, 0.0, 0
        for piece in self._files.pieces([self.rule.name]):
            values, empty = self._numbers(piece, self._flat(piece.rows.column(0)))
            known = values[~empty].astype(np.float64)
            total, squares, count = total + float(known.sum()), squares + float(known @ known), count + len(known)
        mean = total / max(count, 1)
        return mean, max(squares / max(count, 1) - mean**2, 0.0) ** 0.5 or 1.0

    def _learnt_names(self) -> list[str]:
        """The names of all classes: categories keep their order, other values are sorted."""
        ordered: dict[Any, None] = {}
        others: set[Any] = set()
        for piece in self._files.pieces([self.rule.name]):
            column = piece.rows.column(0)
            if pa.types.is_dictionary(column.type):
                ordered.update(dict.fromkeys(self._as_names(column.dictionary).to_pylist()))
            else:
                others.update(pc.unique(self._as_names(column)).to_pylist())
            if max(len(ordered), len(others)) > _MAX_CLASSES:
                raise DataError(piece.path, f"the column {self.rule.name!r} has more than {_MAX_CLASSES} classes")
        names = [*ordered, *sorted(others - ordered.keys() - {None})]
        if self.rule.fill is not None and self.rule.fill not in names:
            names.append(self.rule.fill)
        return [str(name).lower() if isinstance(name, bool) else str(name) for name in names if name is not None]

    def _as_names(self, column: Any) -> Any:
        values = plain(self.rule.name, column)
        if not pa.types.is_large_string(values.type):
            return values
        blank = pc.is_in(values, value_set=pa.array(["", *self._files.entry.empty], values.type))
        return pc.if_else(blank, pa.scalar(None, values.type), values)

    def values(self, piece: FilePiece) -> tuple[Array, Mask]:
        """The rows of a piece, [n] or [n, k] for lists of k numbers, and a mask [n] of those whose cell is empty."""
        column = piece.rows.column(self.rule.name)
        if category(column.type) == LISTS:
            return self._lists(piece, column), np.zeros(len(column), np.bool_)
        values, empty = self._cells(piece, column)
        if self._labels:
            self.empty.append(empty)
        return values, empty

    def _cells(self, piece: FilePiece, column: Any) -> tuple[Array, Mask]:
        flat = self._flat(column)
        found, empty = self._codes(piece, flat) if self.rule.classes else self._numbers(piece, flat)
        rows = self._filled(piece, found, empty)
        if self.rule.onehot:
            return rows[:, None] == np.arange(len(self.names or ())), empty
        return ((rows - self._mean) / self._deviation if self.rule.scale else rows), empty

    def _flat(self, column: Any) -> Any:
        """The column as ``plain`` gives it; times stay what they are. Raises DataError (without its path)."""
        if category(column.type) == TIMES:
            return column
        values = plain(self.rule.name, column)
        if self._is_text or self.rule.classes or not pa.types.is_large_string(values.type):
            return values
        # ids in CSV, which are read as text
        with blaming(DataError, "", f"the column {self.rule.name!r}", of=pa.ArrowInvalid):
            return pc.utf8_trim_whitespace(values).cast(pa.from_numpy_dtype(self.dtype))

    def _lists(self, piece: FilePiece, column: Any) -> Array:
        if column.null_count:
            self._refuse(piece, "has empty cells where lists are", column.is_null().to_numpy(zero_copy_only=False))
            return np.zeros((len(column), 0), self.dtype)
        lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            cause = f"the column {self.rule.name!r} has lists of {lengths[0]} to {lengths[-1]} values"
            raise DataError(piece.path, cause)
        width = int(lengths[0]) if len(lengths) else getattr(column.type, "list_size", 0)
        flat, _ = self._cells(replace(piece, width=max(width, 1)), pc.list_flatten(column))
        return flat.reshape(len(column), width)

    def _numbers(self, piece: FilePiece, column: Any) -> tuple[Array, Mask]:
        """Numbers, and times as numbers, with 0 in empty cells."""
        if pa.types.is_large_string(column.type) or (self.rule.time_format and category(column.type) != TIMES):
            column = self._read_times(piece, column)
        kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(len(column), self.dtype), np.ones(len(column), np.bool_)
        asked = self.rule.fill is not None or self.rule.known or self.rule.scale
        empty = column.is_null(nan_is_null=asked and pa.types.is_floating(kind)).to_numpy(zero_copy_only=False)
        if category(kind) == TIMES:
            values = self._in_unit(piece, _without_empty(plain(self.rule.name, column)), unit_of(kind))
        else:
            values = _without_empty(column)
        if empty.any() and asked:
            values = np.where(empty, values.dtype.type(0), values)
        return values, empty

    def _in_unit(self, piece: FilePiece, values: Array, length: int) -> Array:
        wanted = UNITS[self._unit]
        if length >= wanted:
            factor = length // wanted
            bad = np.abs(values) > (2**63 - 1) // factor
            self._refuse(piece, f"has times that do not fit into int64 as {self._unit}", bad)
            return np.where(bad, 0, values) * factor
        factor = wanted // length
        if (bad := values % factor != 0).any():
            finer = [u for u in reversed(UNITS) if UNITS[u] < wanted]
            fine = next(u for u in finer if not (values % max(1, UNITS[u] // length)).any())
            self._refuse(piece, f"has times that are no whole {self._unit}", bad, f'"time_unit": "{fine}" keeps them')
        return values // factor

    def _read_times(self, piece: FilePiece, column: Any) -> Any:
        text, form = self._as_names(column), self.rule.time_format
        if form is None:
            return self._read_iso(piece, text)
        times = times_in(text, form)
        bad = pc.and_not(times.is_null(), text.is_null())
        what = f"has {VALUE}, which is no time by 'time_format': {form!r}"
        self._refuse(piece, what, bad.to_numpy(zero_copy_only=False), values=text)
        return pc.if_else(bad, pa.scalar(0, times.type), times)

    def _read_iso(self, piece: FilePiece, text: Any) -> Any:
        zone = "UTC" if pc.any(pc.match_substring_regex(text, "(?i)[:0-9]{5}" + _ZONE)).as_py() else None
        for unit in _ARROW_UNITS:
            try:
                return text.cast(pa.string()).cast(pa.timestamp(unit, zone))
            except pa.ArrowInvalid as error:
                last = str(error)
        cause = f"the column {self.rule.name!r} holds text that is no time in ISO 8601: {last}"
        raise DataError(piece.path, f'{cause}; "time_format", such as "%d/%m/%Y", reads other times')

    def _codes(self, piece: FilePiece, column: Any) -> tuple[Array, Mask]:
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
        self._refuse(piece, f"has the value {VALUE}, which is not in 'classes'", bad & ~empty, values=values)
        return codes, empty

    def _filled(self, piece: FilePiece, values: Array, empty: Mask) -> Array:
        """``values`` in the dtype of the column, with what the rule says in empty cells."""
        values = self.cast(piece, values, self.dtype)
        if not empty.any():
            return values
        fill: Any = self.rule.fill
        if fill is not None or self.rule.known:
            self.filled += int(empty.sum())
        if self.names is not None and fill is not None:
            fill = self.names.index(fill) if fill in self.names else None
        elif fill == "mean":
            fill = self._mean
        elif fill is None and self.rule.known:
            fill = self._mean  # 0 but for columns that are scaled
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
        self._refuse(piece, f"has the number {VALUE}, which {dtype} cannot hold", bad, accept, values)
        return held

    def _refuse(self, piece: FilePiece, what: str, bad: Array, accept: str = "", values: Any = None) -> None:
        piece.refuse(f"the column {self.rule.name!r} {what}", bad, accept=accept, values=values)


def _without_empty(column: Any) -> Array:
    if column.null_count:
        zero = pa.scalar(False if pa.types.is_boolean(column.type) else 0).cast(column.type)
        column = pc.fill_null(column, zero)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
