"""Rows of float32 in fewer bytes for the wire.

| codec | bytes of a row of d numbers | what is lost |
|---|---|---|
| ``fp16`` | 2 d | IEEE binary16, rounded to nearest even: 11 significant bits, infinite from 65520 on |
| ``bf16`` | 2 d | bfloat16, rounded to nearest even: 8 significant bits, the range of float32 |
| ``int8`` | 4 + d | a scale (largest magnitude / 127), then signed bytes: up to half a scale; rows with infinities become NaN |
"""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.kvstore.spec import MutableSpec

CODECS = ("fp16", "bf16", "int8")


def check_codec(spec: MutableSpec, codec: str) -> None:
    """Raise ConfigError unless values of the table can travel in ``codec``; "" is none."""
    if codec and codec not in CODECS:
        raise ConfigError(f"table {spec.name}: codec {codec!r} is none of {', '.join(CODECS)}")
    if codec and spec.dtype != "<f4":
        raise ConfigError(f"table {spec.name}: codec {codec!r} is for float32, not for {np.dtype(spec.dtype)}")


def encoded_bytes(codec: str, columns: int) -> int:
    """Bytes of one encoded row of ``columns`` numbers."""
    return _native.encoded_bytes(codec, columns)


def encode(codec: str, values: np.ndarray) -> np.ndarray:
    """uint8 [n, encoded bytes] of ``values`` float32 [n, d]. Raises ValueError: an unknown codec."""
    values = np.require(values, np.float32, ["C", "A"])
    out = np.empty((len(values), encoded_bytes(codec, values.shape[1])), dtype=np.uint8)
    _native.encode_rows(codec, values, out)
    return out


def decode(codec: str, encoded: np.ndarray, out: np.ndarray, positions: np.ndarray | None = None) -> None:
    """``out[i]``, or ``out[positions[i]]``, is row i of ``encoded`` uint8 [n, encoded bytes]. ``out`` float32 [m, d],
    C-contiguous; ``positions`` int64 [n]. Raises ValueError: an unknown codec, rows of the wrong size, or a position
    outside ``out``. Then nothing is written."""
    if out.dtype != np.float32 or not out.flags.carray:
        raise ValueError("out: must be a C-contiguous float32 array")
    places = None if positions is None else np.ascontiguousarray(positions, dtype=np.int64)
    _native.decode_rows(codec, np.ascontiguousarray(encoded), out, places)
