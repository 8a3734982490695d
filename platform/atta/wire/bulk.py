"""Packs and unpacks messages whose payload is megabytes, without protobuf's copies.

A protobuf runtime copies every ``bytes`` field twice on each side: into the message and out of the serialised form. For
a few messages (``SampleReply``, ``PullReply``, ``RowsChunk``, ``PushRowsRequest``, ``BatchChunk``) ``pack`` appends the
payload fields to the serialised rest, and ``unpack`` returns them as views of the received bytes. The bytes on the wire
are valid protobuf: a plain protobuf peer reads and writes the same ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from atta.errors import ConfigError
from atta.protos.v1 import graph_pb2, kv_pb2, session_pb2, table_pb2, weights_pb2
from atta.wire.fields import read_varint

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 256
"""A message with large fields has a dozen fields in all. Python looks at each of them."""

M = TypeVar("M", bound="Message")


def bytes_fields(kind: type[Message], *names: str) -> tuple[int, ...]:
    """The numbers of bytes fields of a message type, by their names in the .proto file.

    Raises:
        ValueError: the message has no such field, or it does not hold bytes once.
    """
    fields = kind.DESCRIPTOR.fields_by_name
    for name in names:
        found = fields.get(name)
        if found is None or found.type != FieldDescriptor.TYPE_BYTES or found.default_value != b"":
            raise ValueError(f"{kind.DESCRIPTOR.full_name} has no bytes field {name!r}")
    return tuple(fields[name].number for name in names)


# The large fields of each message that is packed here. Other modules use these constants, never numbers, so renaming a
# field in a .proto file causes an error when this module is imported.
SAMPLE_REPLY = SAMPLE_COUNTS, SAMPLE_NEIGHBORS, SAMPLE_EDGE_IDS, SAMPLE_TABLES = bytes_fields(
    graph_pb2.SampleReply, "counts", "neighbors", "edge_ids", "tables"
)
PULL_REPLY = (PULL_DATA,) = bytes_fields(kv_pb2.PullReply, "data")
ROWS_CHUNK = ROWS_VERSIONS, ROWS_VALUES = bytes_fields(table_pb2.RowsChunk, "versions", "values")
PUSH_REQUEST = PUSH_ROWS, PUSH_VALUES = bytes_fields(table_pb2.PushRowsRequest, "rows", "values")
BATCH_CHUNK = (BATCH_DATA,) = bytes_fields(session_pb2.BatchChunk, "data")
CREATE_REQUEST = CREATE_VALUES, CREATE_MOMENTS = bytes_fields(weights_pb2.CreateWeightsRequest, "values", "moments")
BEGIN_REPLY = (BEGIN_VALUES,) = bytes_fields(weights_pb2.BeginStepReply, "values")
GRADIENT_REQUEST = (GRADIENT_VALUES,) = bytes_fields(weights_pb2.PushGradientRequest, "values")
WEIGHTS_REPLY = WEIGHTS_VALUES, WEIGHTS_MOMENTS = bytes_fields(weights_pb2.PullWeightsReply, "values", "moments")


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
    """The bytes of ``message`` up to its last field: the bytes field ``number``, whose ``nbytes`` follow."""
    return message.SerializeToString() + _varint(number << 3 | _BYTES) + _varint(nbytes)


def unpack(kind: type[M], raw: bytes, fields: Collection[int]) -> tuple[M, dict[int, memoryview]]:
    """Parse ``raw`` as ``kind``. The bytes fields with numbers in ``fields`` come back as views of ``raw``.

    Raises:
        ValueError: ``raw`` is not a valid message.
        google.protobuf.message.DecodeError: the remaining fields are not valid.
    """
    rest = bytearray()
    payloads: dict[int, memoryview] = {}
    view, at, left = memoryview(raw), 0, _MAX_FIELDS
    while at < len(raw):
        if (left := left - 1) < 0:
            raise ValueError(f"malformed message: more than {_MAX_FIELDS} fields")
        start = at
        tag, at = read_varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, at = read_varint(raw, at)
        elif wire == _BYTES:
            length, at = read_varint(raw, at)
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


def rows_to_wire(rows: np.ndarray) -> tuple[bytes, bool]:
    """Row positions as bytes, int32 when they fit, and whether they are wide (int64)."""
    wide = bool(len(rows)) and int(rows.max()) > np.iinfo(np.int32).max
    return rows.astype(np.int64 if wide else np.int32, copy=False).tobytes(), wide


def as_array(data: Any, *, wide: bool) -> np.ndarray:
    """Ids from the wire as a read-only int64 (``wide``) or int32 array, without a copy.

    Raises:
        ConfigError: the bytes are not a whole number of ids.
    """
    dtype = np.dtype(np.int64 if wide else np.int32)
    if len(data) % dtype.itemsize:
        raise ConfigError(f"malformed message: {len(data)} bytes are no whole number of {dtype.itemsize}-byte ids")
    return np.frombuffer(data, dtype=dtype)
