"""The users' string ids of vertices as rows of bytes: the table ``name`` of a node type, UTF-8 padded with zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.schema import Schema

NAME = "name"
"""The node table that holds string ids."""
_ASCII = 128

Rows = npt.NDArray[np.uint8]
Strings = npt.NDArray[np.str_]


def string_width(schema: Schema, node_type: str) -> int | None:
    """Bytes of the longest string id of a node type; None if its vertices have no string ids. Raises UnknownNameError:
    there is no such node type."""
    spec = schema.node_tables[schema.check_node_type(node_type)].get(NAME)
    return spec.row_shape[0] if spec is not None and spec.dtype == "|u1" and len(spec.row_shape) == 1 else None


def as_strings(what: str, given: Any) -> Strings | None:
    """``given`` as an array of strings of the same shape; None if it does not hold strings. ``given``: a list, or an
    array of numpy, pandas or Arrow. Bytes are read as UTF-8. ``what``: for messages. Raises ConfigError: some are
    strings and some are not, or bytes are not UTF-8."""
    if given is None or isinstance(given, str | bytes):
        return None
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, OverflowError):
        return None
    if array.dtype.kind == "S":
        return _decoded(what, array)
    if array.dtype.kind == "U" and isinstance(given, np.ndarray):
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind not in "OUT" or not array.size:
        return None
    # numpy makes strings of the numbers in a mixed list, so the list itself is looked at.
    kinds = set(map(type, np.asarray(given, dtype=object).reshape(-1).tolist()))
    if not any(issubclass(kind, str) for kind in kinds):
        return None
    if others := sorted(kind.__name__ for kind in kinds if not issubclass(kind, str)):
        raise ConfigError(f"{what}: some ids are strings, others are {', '.join(others)}")
    return array.astype(np.str_)


def to_rows(strings: Strings) -> Rows:
    """uint8 [n, w]: each of ``strings`` [n] in UTF-8, padded with zeros; w is that of the longest, at least 1. Raises
    ConfigError: a string has half a character, which UTF-8 cannot express."""
    letters = strings.dtype.itemsize // 4
    if not letters or not len(strings):
        return np.zeros((len(strings), 1), np.uint8)
    codes = np.ascontiguousarray(strings).view(np.uint32).reshape(len(strings), letters)
    if codes.max() < _ASCII:
        return codes.astype(np.uint8)
    try:
        encoded = np.char.encode(strings, "utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the string id {error.object!r} cannot be written in UTF-8: {error.reason}") from None
    return np.ascontiguousarray(encoded).view(np.uint8).reshape(len(strings), -1)


def to_strings(rows: Rows) -> Strings:
    """The strings [n] that ``rows`` uint8 [n, w] hold. Raises ConfigError: a row is not UTF-8."""
    if not rows.size:
        return np.zeros(len(rows), np.str_)
    if rows.max() < _ASCII:
        return np.ascontiguousarray(rows, np.uint32).view(f"<U{rows.shape[1]}").reshape(len(rows))
    return _decoded("string ids", np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(len(rows)))


def _decoded(what: str, encoded: npt.NDArray[np.bytes_]) -> Strings:
    try:
        return np.char.decode(encoded, "utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: {error.object!r} is not UTF-8") from None
