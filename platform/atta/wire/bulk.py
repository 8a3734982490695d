"""Bulk messages without protobuf's copies, byte for byte valid protobuf on the wire.

A protobuf runtime copies every ``bytes`` field twice on each side: into the message and out of the serialised form. For the
few messages whose payload is megabytes (``SampleChunk``, ``PullChunk``, ``BatchChunk``) the payload fields are appended to the
serialised rest by hand on the way out, and cut out as views on the way in. A plain protobuf peer reads the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

__all__ = ["pack", "prefix", "unpack"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound="Message")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack(message: Message, payloads: Mapping[int, Buffer]) -> bytes:
    """Serialise ``message`` with ``payloads`` (field number -> contiguous buffer) as its bytes fields; one copy."""
    parts: list[Buffer] = [message.SerializeToString()]
    for number, payload in payloads.items():
        view = memoryview(payload).cast("B") if memoryview(payload).nbytes else b""
        parts += (_varint(number << 3 | _BYTES), _varint(len(view)), view)
    return b"".join(parts)


def prefix(message: Message, number: int, nbytes: int) -> bytes:
    """What precedes the ``nbytes`` of bytes field ``number`` when they are the last thing of ``message``."""
    return message.SerializeToString() + _varint(number << 3 | _BYTES) + _varint(nbytes)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise ValueError("malformed message: truncated or overlong varint")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def unpack(kind: type[M], raw: bytes, fields: frozenset[int]) -> tuple[M, dict[int, memoryview]]:
    """Parse ``raw`` as ``kind``; the top-level bytes fields numbered in ``fields`` come back as views into ``raw``.

    Raises:
        ValueError: ``raw`` is no valid message (google.protobuf's DecodeError for the remaining fields).
    """
    rest = bytearray()
    payloads: dict[int, memoryview] = {}
    view, at = memoryview(raw), 0
    while at < len(raw):
        start = at
        tag, at = _read_varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, at = _read_varint(raw, at)
        elif wire == _BYTES:
            length, at = _read_varint(raw, at)
            if number in fields:
                payloads[number] = view[at : at + length]
                start = at + length
            at += length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"malformed message: wire type {wire}")
        if at > len(raw):
            raise ValueError("malformed message: field passes its end")
        rest += view[start:at] if start < at else b""
    return kind.FromString(bytes(rest)), payloads
