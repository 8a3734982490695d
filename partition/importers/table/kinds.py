"""What Arrow's types mean to an import: numbers, times, classes or lists, and the dtype that each becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.importers.table.rules import ColumnRule

__all__ = ["LISTS", "NUMBERS", "TEXT", "TIMES", "category", "is_categorical", "is_integer", "plain", "result_dtype"]

NUMBERS, TIMES, TEXT, LISTS, OTHERS = "numbers", "times", "text", "lists", "others"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)
_UUID_BYTES = 16


def category(kind: Any) -> str:
    """What values of an Arrow type are; a categorical column is what its categories are."""
    import pyarrow as pa

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
    import pyarrow as pa

    t = pa.types
    text = t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
    return bool(text or t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind))


def _is_uuid(kind: Any) -> bool:
    import pyarrow as pa

    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_fixed_size_binary(storage) and storage.byte_width == _UUID_BYTES)


def is_categorical(kind: Any) -> bool:
    """Whether an Arrow type is that of a categorical column."""
    import pyarrow as pa

    return bool(pa.types.is_dictionary(kind))


def is_integer(column: Any) -> bool:
    """Whether an Arrow array holds integers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(column.type))


def plain(name: str, column: Any) -> Any:
    """A column without Arrow's ways to store it: text is ``large_string``, a UUID too, whole decimals are int64, other
    decimals float64; times are int64 of their own unit.

    Raises:
        DataError: bytes are not UTF-8, or a decimal does not fit into int64. The path is missing: the caller knows it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

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
    """The dtype of a column of these Arrow types: the smallest that holds the values of all files.

    Whole numbers and fractions together are float64. Times and classes are int64, and so are whole numbers that have
    empty cells to fill. ``words``: what a message says of text among numbers. Raises DataError (without its path) for a
    type that is no number.
    """
    found = {_dtype(rule, kind, words) for kind in kinds}
    sorts = {dtype.kind.replace("u", "i") for dtype in found}
    dtype = np.dtype(np.float64) if {"i", "f"} <= sorts or rule.fill == "mean" else np.result_type(*found)
    scalars = not any(category(kind) == LISTS for kind in kinds)
    if dtype.kind == "f" or not ((labels and scalars) or rule.fill is not None or rule.known):
        return dtype
    return np.dtype(np.float64 if isinstance(rule.fill, float) and rule.fill % 1 else np.int64)


def _dtype(rule: ColumnRule, kind: Any, words: str) -> np.dtype[Any]:
    import pyarrow as pa

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
