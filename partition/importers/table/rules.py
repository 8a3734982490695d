"""What ``schema.json`` says of every type, table and column; what Arrow's types mean to it; and what an import refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError, DiskFullError
from atta.partition.importers.reading.source import pa, pc

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
    """The columns of a table, side by side. ``wide``: whether a row has an axis for the columns, also if there is one.
    ``dtype``: None: that of the columns (float32 for ``x``)."""

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
    """``schema.json``. ``named``: the paths that ``files`` of all types name, folders unresolved. ``num_classes``:
    unchecked."""

    path: Path
    nodes: tuple[TypeEntry, ...]
    edges: tuple[TypeEntry, ...]
    named: tuple[Path, ...]
    num_classes: Any
    time_unit: str


_MOST = 20
"""At most this many refusals are named; the others are counted."""
_ROWS = 5
"""At most this many rows of a column are named."""


@dataclass
class _Refusal:
    """Rows of a file that are refused for one reason: what accepts them, their number, the first of them and what is
    there."""

    what: str
    accept: str
    count: int = 0
    rows: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = self.what.format(self.values[0] if self.values else "")
        if self.count:
            noun = "row" if self.count == 1 else "rows"
            shown = [f"{row}: {value}" for row, value in zip(self.rows, self.values, strict=False)] or self.rows
            dots = ", ..." if self.count > len(self.rows) else ""
            only = self.count == 1
            text += (
                f" ({noun} {self.rows[0]})" if only else f" ({self.count} {noun}: {', '.join(map(str, shown))}{dots})"
            )
        return f"{text}; {self.accept}" if self.accept else text


class Refusals:
    """What is refused, and where. ``check`` raises it all as one DataError."""

    def __init__(self, schema: Path) -> None:
        """``schema``: path of the file that says what is wanted."""
        self._schema = schema
        self._found: dict[tuple[str, str, str], _Refusal] = {}
        self._total = 0

    def __bool__(self) -> bool:
        return self._total > 0

    def add(
        self,
        where: Path | str,
        what: str,
        *,
        rows: Sequence[int] | npt.NDArray[Any] = (),
        values: Sequence[Any] = (),
        accept: str = "",
    ) -> None:
        """Add ``rows`` (from 1) of the file ``where``. Rows with the same reason become one refusal. ``{}`` in ``what``
        is the first of ``values``, which the first rows hold. ``accept``: a sentence about the key of the schema that
        accepts them."""
        key = (str(where), what, accept)
        found = self._found.get(key)
        if found is None:
            self._total += 1
            found = _Refusal(what, accept)
            if len(self._found) < _MOST:
                self._found[key] = found
        found.count += len(rows)
        free = _ROWS - len(found.rows)
        found.rows += [int(row) for row in rows[:free]]
        found.values += [repr(value) for value in values[:free]]

    @contextlib.contextmanager
    def held(self, where: Path | None = None) -> Iterator[None]:
        """Keep an error about the input that is raised in the block, and go on behind it. ``where``: the file that it
        is about if it does not name one."""
        try:
            yield
        except DiskFullError:
            raise
        except DataError as error:
            self.add(error.path or where or self._schema, escaped(error.cause))
        except ConfigError as error:
            self.add(where or self._schema, escaped(str(error)))

    def check(self) -> None:
        """Raise DataError if anything was refused."""
        if not self._total:
            return
        found = [(where, str(refusal)) for (where, _, _), refusal in self._found.items()]
        if self._total == 1:
            raise DataError(*found[0])
        listed = "; ".join(f"({n}) {Path(where).name}: {text}" for n, (where, text) in enumerate(found, 1))
        more = f"; and {self._total - len(found)} more" if self._total > len(found) else ""
        raise DataError(self._schema, f"refused are {self._total} things: {listed}{more}")


def escaped(text: str) -> str:
    """``text`` without braces that ``Refusals.add`` would fill in."""
    return text.replace("{", "{{").replace("}", "}}")


def quoted(name: object) -> str:
    """A name of the input in quotes, for ``Refusals.add``."""
    return escaped(repr(name))


NUMBERS, TIMES, TEXT, LISTS, OTHERS = "numbers", "times", "text", "lists", "others"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)
_UUID_BYTES = 16


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


def is_categorical(kind: Any) -> bool:
    """Whether an Arrow type is that of a categorical column."""
    return bool(pa.types.is_dictionary(kind))


def is_integer(column: Any) -> bool:
    """Whether an Arrow array holds integers."""
    return bool(pa.types.is_integer(column.type))


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
    try:
        if _is_text(kind):
            return column.cast(pa.large_string())
        if pa.types.is_decimal(kind):
            # By way of text: Arrow's own cast multiplies by a power of ten, which misses the nearest number.
            return column.cast(pa.int64()) if kind.scale <= 0 else column.cast(pa.string()).cast(pa.float64())
        if category(kind) == TIMES:
            return column.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError("", f"the column {name!r} holds {kind}: {error}") from None
    return column


def _uuids(column: Any) -> Any:
    """UUIDs of 16 bytes as text, such as ``123e4567-e89b-12d3-a456-426614174000``."""
    empty = column.is_null().to_numpy(zero_copy_only=False)
    filled = column.fill_null(bytes(_UUID_BYTES))
    rows: npt.NDArray[np.uint8] = np.frombuffer(filled.buffers()[1], np.uint8)
    rows = rows.reshape(-1, _UUID_BYTES)[filled.offset : filled.offset + len(filled)]
    digits = _HEX[np.stack([rows >> 4, rows & 15], axis=2).reshape(len(rows), 32)]
    text = np.full((len(rows), 36), ord("-"), np.uint8)
    text[:, [place for place in range(36) if place not in _DASHES]] = digits
    offsets = pa.py_buffer(np.arange(len(rows) + 1, dtype=np.int64) * 36)
    strings = pa.LargeStringArray.from_buffers(len(rows), offsets, pa.py_buffer(np.ascontiguousarray(text)))
    return pa.array(strings.to_pylist(), pa.large_string(), mask=empty) if empty.any() else strings


def result_dtype(rule: ColumnRule, kinds: Sequence[Any], *, labels: bool, words: str = "") -> np.dtype[Any]:
    """The dtype of a column of these Arrow types: the smallest that holds the values of all files. Whole numbers and
    fractions together are float64. Times and classes are int64, and so are whole numbers that have empty cells to fill.
    ``words``: what a message says of text among numbers. Raises DataError (without its path) for a type that is no
    number."""
    found = {_dtype(rule, kind, words) for kind in kinds}
    sorts = {dtype.kind.replace("u", "i") for dtype in found}
    dtype = np.dtype(np.float64) if {"i", "f"} <= sorts or rule.fill == "mean" else np.result_type(*found)
    scalars = not any(category(kind) == LISTS for kind in kinds)
    if dtype.kind == "f" or not ((labels and scalars) or rule.fill is not None or rule.known):
        return dtype
    return np.dtype(np.float64 if isinstance(rule.fill, float) and rule.fill % 1 else np.int64)


def _dtype(rule: ColumnRule, kind: Any, words: str) -> np.dtype[Any]:
    what = category(kind)
    if rule.classes and what in (TEXT, NUMBERS) and not pa.types.is_floating(kind):
        return np.dtype(np.int64)
    if rule.classes and what in (TIMES, LISTS):
        raise DataError("", f"the column {rule.name!r} holds {kind}: classes are text, whole numbers or truth values")
    if what == TIMES or (what == TEXT and rule.time_unit is not None):
        return np.dtype(np.int64)
    if what == LISTS:
        return _dtype(rule, kind.value_type, words)
    if what != NUMBERS:
        accept = '"ignore" leaves it out'
        if what == TEXT:
            accept = (
                '"classes": true in schema.json numbers its values, "time_unit" reads times, "empty" takes words away'
            )
        raise DataError(
            "", f"the column {rule.name!r} holds {kind}, wanted are numbers or lists of numbers{words}; {accept}"
        )
    if rule.classes:
        raise DataError("", f"the column {rule.name!r} holds {kind}: classes are text, whole numbers or truth values")
    if pa.types.is_decimal(kind):
        return np.dtype(np.int64 if kind.scale <= 0 else np.float64)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _dtype(rule, kind.value_type, words)
    return np.dtype(np.float32 if pa.types.is_null(kind) else kind.to_pandas_dtype())
