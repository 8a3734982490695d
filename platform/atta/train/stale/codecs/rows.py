"""Codecs that treat each message alone: the same rows give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atta.errors import ConfigError, UnknownNameError
from atta.kvstore import codecs
from atta.train.stale.codecs.polyline import MOST_DIGITS, decode_polyline, encode_polyline

__all__ = ["ROW_CODECS", "FixedCodec", "PolylineCodec", "RowCodec", "row_codec"]

ROW_CODECS = ("none", *codecs.CODECS)
"""Names of codecs whose rows all have the same number of bytes."""


class RowCodec(Protocol):
    """Turns rows into bytes and back."""

    def encode(self, values: np.ndarray) -> np.ndarray:
        """uint8 [m] of ``values`` float32 [n, d]."""

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """float32 [rows, columns] of ``encoded`` uint8 [m].

        Raises:
            ConfigError: the bytes are not those of as many numbers.
        """


@dataclass(frozen=True)
class FixedCodec:
    """A codec whose rows all have the same number of bytes. ``name``: one of ``ROW_CODECS``."""

    name: str

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of ``rows`` rows of ``columns`` numbers."""
        return rows * (4 * columns if self.name == "none" else codecs.encoded_bytes(self.name, columns))

    def encode(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float32)
        raw = values.view(np.uint8) if self.name == "none" else codecs.encode(self.name, values)
        return raw.reshape(-1)

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        if len(encoded) != self.nbytes(rows, columns):
            raise ConfigError(f"codec {self.name}: {len(encoded)} bytes are not {rows} rows of {columns} numbers")
        if self.name == "none":
            return encoded.view(np.float32).reshape(rows, columns).copy()
        out = np.empty((rows, columns), dtype=np.float32)
        codecs.decode(self.name, encoded.reshape(rows, self.nbytes(1, columns)), out)
        return out


@dataclass(frozen=True)
class PolylineCodec:
    """Numbers rounded to ``digits`` decimal places, see ``atta.train.stale.codecs.polyline``."""

    digits: int

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Raises ConfigError for numbers that are not finite or too large."""
        return encode_polyline(values, self.digits)

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        return decode_polyline(encoded, rows, columns, self.digits).astype(np.float32)


def row_codec(name: str) -> RowCodec:
    """The codec of that name: ``none``, ``fp16``, ``bf16``, ``int8`` or ``polyline:P`` with P digits.

    Raises:
        UnknownNameError: there is no such codec.
        ConfigError: P is not a number of digits.
    """
    if name in ROW_CODECS:
        return FixedCodec(name)
    kind, colon, digits = name.partition(":")
    if kind != "polyline" or not colon:
        raise UnknownNameError.of("codec", name, (*ROW_CODECS, "polyline:P"))
    if not (digits.isascii() and digits.isdigit()) or int(digits) > MOST_DIGITS:
        raise ConfigError(f"codec {name!r}: P must be a number of digits from 0 to {MOST_DIGITS}")
    return PolylineCodec(int(digits))
