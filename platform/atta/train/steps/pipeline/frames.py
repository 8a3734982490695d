"""Arrays and a description of them as bytes, for messages between trainers and workers.

The bytes are those of a safetensors file (https://github.com/huggingface/safetensors): 8 bytes with the length of a JSON
header, the header, then the arrays. Nothing in them can run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from atta.errors import ConfigError

__all__ = ["MAX_FRAME_BYTES", "Arrays", "packed", "unpacked"]

Arrays = Mapping[str, np.ndarray]
MAX_FRAME_BYTES = 1 << 30
"""Largest message; its receiver has memory for one of each sender."""
_MAX_HEADER_BYTES = 1 << 20
_NAMES = {"<f8": "F64", "<f4": "F32", "<i8": "I64"}
_TYPES = {name: np.dtype(code) for code, name in _NAMES.items()}
_ABOUT = "__metadata__"
_ALIGNED = 8


def packed(about: Mapping[str, Any], arrays: Arrays) -> bytes:
    """A message: ``about`` as JSON, and arrays of float64, float32 or int64.

    Raises:
        ConfigError: the message would be too large.
    """
    header: dict[str, Any] = {_ABOUT: {"about": json.dumps(about)}}
    pieces, end = [], 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array)
        header[name] = {
            "dtype": _NAMES[flat.dtype.str], "shape": list(array.shape), "data_offsets": [end, end + flat.nbytes]
        }  # fmt: skip
        pieces.append(flat.tobytes())
        end += flat.nbytes
    if end > MAX_FRAME_BYTES - _MAX_HEADER_BYTES:
        raise ConfigError(f"a task of {end} bytes is too large for a message; take more intervals")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def unpacked(raw: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What ``packed`` was given. Arrays are read-only views of ``raw``.

    Raises:
        ConfigError: the bytes are no such message.
    """
    try:
        return _parts(raw)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"a message of {len(raw)} bytes cannot be read: {error}") from error


def _parts(raw: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    size = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or size > min(_MAX_HEADER_BYTES, len(raw) - 8):
        raise ValueError("the header is not complete")
    header = json.loads(raw[8 : 8 + size])
    about = json.loads(header.pop(_ABOUT)["about"])
    if not isinstance(about, dict):
        raise TypeError("the description is not an object")
    body, arrays, end = memoryview(raw)[8 + size :], {}, 0
    for name, found in header.items():
        dtype, shape = _TYPES[found["dtype"]], tuple(found["shape"])
        first, last = found["data_offsets"]
        if not all(type(n) is int and 0 <= n < 1 << 40 for n in (first, last, *shape)):
            raise ValueError(f"{name}: numbers are out of range")
        count = int(np.prod(shape, dtype=object))
        if first != end or last - first != count * dtype.itemsize or last > len(body):
            raise ValueError(f"{name}: shape {list(shape)} does not go with bytes {first} to {last} of {len(body)}")
        arrays[name], end = np.frombuffer(body, dtype, count, first).reshape(shape), last
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes belong to no array")
    return about, arrays
