"""Counts the fields of a message before it is parsed.

A field of two bytes on the wire can become a hundred bytes and a microsecond when it is parsed. So a message of 60 MiB
that consists of tiny fields would take gigabytes, and would hold up whoever parses it for a minute. Honest messages
have few fields: their megabytes lie in a few arrays. The scan steps over an array at once, and it ends where the
message has too many fields. So it takes a few milliseconds at most, whatever the message is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Union

from google.protobuf.descriptor import FieldDescriptor

from atta.errors import QuotaExceededError

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_FIELDS = 8192
"""At most this many fields may be in a request: those of nested messages and the elements of packed fields count."""
ARRAYS_BYTES = 64 << 20
"""Largest request of a method whose requests hold arrays."""
PLAIN_BYTES = 1 << 20
"""Largest request of other methods."""
MAX_TEXT_BYTES = 1 << 16
"""Longest text in a request: a name, or JSON. Arrays of bytes may be longer."""
_UNCHECKED_BYTES = 2 * MAX_FIELDS
"""A message up to this size cannot have too many fields: each takes two bytes, unless it is packed."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_CONTINUED = bytes(range(0x80, 0x100))
_FIXED_SIZES = {
    FieldDescriptor.TYPE_FIXED64: 8, FieldDescriptor.TYPE_SFIXED64: 8, FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED32: 4, FieldDescriptor.TYPE_SFIXED32: 4, FieldDescriptor.TYPE_FLOAT: 4,
}  # fmt: skip
_TEXT = -1
_Inner = Union["_Shape", int]
"""What a field of wire type LEN holds: a message; numbers of so many bytes; 0: numbers of one byte or more; _TEXT."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The fields of a message type that are messages, packed numbers or texts, by number; whether it holds arrays."""

    inner: Mapping[int, _Inner]
    arrays: bool


def check_size(kind: type[Message], nbytes: int) -> None:
    """Raise QuotaExceededError if a request of this type is larger than any that makes sense."""
    most = ARRAYS_BYTES if _shape(kind.DESCRIPTOR).arrays else PLAIN_BYTES
    if nbytes > most:
        raise QuotaExceededError(f"a {kind.DESCRIPTOR.name} of {nbytes} bytes: at most {most} are possible")


def check_fields(kind: type[Message], raw: bytes) -> None:
    """Check a request before it is parsed.

    Raises:
        QuotaExceededError: it has too many bytes or fields.
        ValueError: it is not a valid message.
    """
    if len(raw) <= _UNCHECKED_BYTES:
        return
    check_size(kind, len(raw))
    if count_fields(kind, raw, MAX_FIELDS) > MAX_FIELDS:
        raise QuotaExceededError(f"a {kind.DESCRIPTOR.name} of {len(raw)} bytes has more than {MAX_FIELDS} fields")


def count_fields(kind: type[Message], raw: bytes, at_most: int) -> int:
    """Number of fields in ``raw``, a message of type ``kind``. The count ends above ``at_most``.

    Raises:
        QuotaExceededError: a text is too long.
        ValueError: ``raw`` is not a valid message.
    """
    count, todo = 0, [(0, len(raw), _shape(kind.DESCRIPTOR))]
    while todo:
        at, end, shape = todo.pop()
        while at < end and count <= at_most:
            count += 1
            tag, at = (raw[at], at + 1) if raw[at] < 0x80 else read_varint(raw, at)  # nearly all have one byte
            wire = tag & 7
            if wire == _VARINT:
                _, at = read_varint(raw, at)
            elif wire == _BYTES:
                length, at = (raw[at], at + 1) if at < end and raw[at] < 0x80 else read_varint(raw, at)
                inner = shape.inner.get(tag >> 3)
                if isinstance(inner, _Shape):
                    todo.append((at, min(at + length, end), inner))
                elif inner == _TEXT:
                    _check_text(kind, length)
                elif inner is not None:
                    count += _numbers(raw, at, min(at + length, end), inner, at_most)
                at += length
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"malformed message: wire type {wire}")
            if at > end:
                raise ValueError("malformed message: field passes its end")
    return count


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` and where the next byte is; raises ValueError where there is none of at most 64 bits."""
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


def _check_text(kind: type[Message], nbytes: int) -> None:
    if nbytes > MAX_TEXT_BYTES:
        raise QuotaExceededError(
            f"a {kind.DESCRIPTOR.name} with a text of {nbytes} bytes: at most {MAX_TEXT_BYTES} are possible"
        )


def _numbers(raw: bytes, first: int, end: int, size: int, at_most: int) -> int:
    """How many numbers a packed field holds: of ``size`` bytes each; 0: varints, which end at a byte below 0x80. The count
    ends above ``at_most``."""
    nbytes = end - first
    if size:
        return nbytes // size
    if nbytes > _LONGEST_VARINT * at_most:
        return at_most + 1
    return len(raw[first:end].translate(None, _CONTINUED))


@cache
def _shape(kind: Any) -> _Shape:
    inner: dict[int, _Inner] = {}
    arrays = False
    for field in kind.fields:
        if field.message_type is not None:
            nested = inner[field.number] = _shape(field.message_type)
            arrays = arrays or nested.arrays
        elif field.type == FieldDescriptor.TYPE_STRING:
            inner[field.number] = _TEXT
        elif field.is_repeated and field.type != FieldDescriptor.TYPE_BYTES:
            inner[field.number] = _FIXED_SIZES.get(field.type, 0)
        arrays = arrays or field.type == FieldDescriptor.TYPE_BYTES
    return _Shape(inner, arrays)
