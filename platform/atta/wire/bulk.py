"""Packs and unpacks messages whose payload is megabytes, without the two copies that a protobuf runtime makes of every
``bytes`` field on each side. The bytes on the wire are valid protobuf."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from atta.errors import ConfigError, QuotaExceededError, UnknownNameError, blaming
from atta.partition.graph.strings import as_strings, to_rows, to_strings
from atta.protos.v1 import graph_pb2, kv_pb2, query_pb2, session_pb2, table_pb2, weights_pb2
from atta.samplers.arguments import integers

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

_MAX_FIELDS = 256
"""A message with large fields has a dozen fields in all. Python looks at each of them."""

M = TypeVar("M", bound="Message")


def bytes_fields(kind: type[Message], *names: str) -> tuple[int, ...]:
    """The numbers of bytes fields of a message type, by their names in the .proto file. Raises ValueError: the message
    has no such field, or it does not hold bytes once."""
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
    """Parse ``raw`` as ``kind``. The bytes fields with numbers in ``fields`` come back as views of ``raw``. Raises
    ValueError: ``raw`` is not a valid message; google.protobuf.message.DecodeError: the remaining fields are not valid.
    """
    rest, payloads, view = bytearray(), {}, memoryview(raw)
    for count, (number, start, body, stop) in enumerate(scan_fields(raw, 0, len(raw))):
        if count == _MAX_FIELDS:
            raise ValueError(f"malformed message: more than {_MAX_FIELDS} fields")
        if body >= 0 and number in fields:
            payloads[number] = view[body:stop]
        else:
            rest += view[start:stop]
    return kind.FromString(bytes(rest)), payloads


def rows_to_wire(rows: np.ndarray) -> tuple[bytes, bool]:
    """Row positions as bytes, int32 when they fit, and whether they are wide (int64)."""
    wide = bool(len(rows)) and int(rows.max()) > np.iinfo(np.int32).max
    return rows.astype(np.int64 if wide else np.int32, copy=False).tobytes(), wide


def as_array(data: Any, *, wide: bool) -> np.ndarray:
    """Ids from the wire as a read-only int64 (``wide``) or int32 array, without a copy. Raises ConfigError: the bytes
    are not a whole number of ids."""
    dtype = np.dtype(np.int64 if wide else np.int32)
    if len(data) % dtype.itemsize:
        raise ConfigError(f"malformed message: {len(data)} bytes are no whole number of {dtype.itemsize}-byte ids")
    return np.frombuffer(data, dtype=dtype)


def bits_of(marks: np.ndarray) -> bytes:
    """Marks, bool [n], on the wire: a bit each."""
    return np.packbits(marks).tobytes()


def marks_of(data: bytes, count: int) -> np.ndarray:
    """bool [count]: marks from the wire. Raises ConfigError: it has bytes for another number."""
    if len(data) != (count + 7) // 8:
        raise ConfigError(f"malformed message: {len(data)} bytes are not the bits of {count} vertices")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count).view(np.bool_)


def vertex_ids(ids: np.ndarray) -> query_pb2.VertexIds:
    """User ids of vertices, int64 or str [n], for the wire. Raises ConfigError: a string is no Unicode."""
    if ids.dtype.kind != "U":
        return query_pb2.VertexIds(numbers=ids.tobytes())
    rows = to_rows(ids)
    return query_pb2.VertexIds(width=rows.shape[1], strings=rows.tobytes())


def ids_of(message: query_pb2.VertexIds, most_bytes: int) -> np.ndarray:
    """The same ids again, int64 or str [n]. Raises ConfigError: the bytes are no ids; QuotaExceededError: there are more
    than ``most_bytes`` of strings."""
    if not message.width:
        return as_array(message.numbers, wide=True)
    if len(message.strings) > most_bytes:
        raise QuotaExceededError(f"{len(message.strings)} bytes of string ids: at most {most_bytes} are possible")
    if len(message.strings) % message.width:
        raise ConfigError(f"malformed message: {len(message.strings)} bytes are no rows of {message.width}")
    return to_strings(np.frombuffer(message.strings, np.uint8).reshape(-1, message.width))


def given_ids(what: str, given: Any) -> np.ndarray:
    """User ids of vertices as callers give them, int64 or str [n]. Raises ConfigError: these are none."""
    strings = as_strings(what, given)
    ids: np.ndarray = integers(what, given) if strings is None else strings
    if ids.ndim != 1:
        raise ConfigError(f"{what}: must be a list of vertices, not of shape {list(ids.shape)}")
    return ids


MOST_NEW_EDGES = 4096
"""Edges of the new vertices of a query."""


@dataclass(frozen=True)
class UnseenVertices:
    """Vertices that the graph does not have, with features ``x``, float32 [n, channels]. ``edges``: by edge type, or the
    name of its relation, what edges come from, user ids int64 or str [e], and which of the new vertices they lead to,
    int64 [e]. Raises ConfigError: that makes no sense, or is too much."""

    x: np.ndarray
    edges: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def __post_init__(self) -> None:
        if not np.isfinite(self.x).all():
            raise ConfigError("x: must be finite numbers")
        if (count := sum(len(sources) for sources, _ in self.edges.values())) > MOST_NEW_EDGES:
            raise ConfigError(f"edges: {count} of new vertices in one request: at most {MOST_NEW_EDGES}")
        for name, (sources, targets) in self.edges.items():
            if len(sources) != len(targets):
                raise ConfigError(f"edges {name}: {len(sources)} sources for {len(targets)} targets")
            if len(targets) and not 0 <= targets.min() <= targets.max() < len(self.x):
                raise ConfigError(f"malformed message: edges {name} lead to more than {len(self.x)} new vertices")

    @classmethod
    def of(cls, ids: np.ndarray, given: Any) -> UnseenVertices:
        """``given``, a mapping with ``x`` and ``edges``, of vertices that it calls ``ids`` [n]."""
        if not isinstance(given, Mapping) or not isinstance(ends_of := given.get("edges") or {}, Mapping):
            raise ConfigError('new: must have features, "x", and by edge type "edges" from vertices of the graph')
        if other := sorted({*map(str, given)} - {"x", "edges"}):
            raise UnknownNameError.of("field of new vertices", other[0], ("x", "edges"))
        no_numbers = blaming(ConfigError, "x: must be numbers", of=(TypeError, ValueError, OverflowError))
        with no_numbers, np.errstate(over="ignore"):
            x = np.asarray(given.get("x"), np.float32)
        if x.ndim != 2 or len(x) != len(ids):
            raise ConfigError(f"x: must be a row of features for each of {len(ids)} ids, not of shape {list(x.shape)}")
        places, edges = {name: place for place, name in enumerate(ids.tolist())}, {}
        if len(places) < len(ids):
            raise ConfigError("ids: are the names of new vertices, and two are equal")
        for name, ends in ends_of.items():
            if not isinstance(ends, list | tuple | np.ndarray) or len(ends) != 2:
                raise ConfigError(f"edges {name}: must be two lists, of sources and of targets")
            sources, targets = (given_ids(f"edges {name}", end) for end in ends)
            if other := [target for target in targets.tolist() if target not in places]:
                raise ConfigError(f"edges {name}: lead to {other[0]!r}, which is none of the ids")
            edges[str(name)] = sources, np.array([places[target] for target in targets.tolist()], np.int64)
        return cls(x, edges)

    def message(self) -> query_pb2.NewVertices:
        """For the wire."""
        ends = [
            query_pb2.NewEdges(edge_type=name, sources=vertex_ids(sources), targets=targets.tobytes())
            for name, (sources, targets) in self.edges.items()
        ]
        return query_pb2.NewVertices(x=self.x.tobytes(), edges=ends)

    @classmethod
    def parse(cls, request: Any, count: int, most_bytes: int) -> UnseenVertices | None:
        """From the wire, of a request with ``count`` ids. Raises as ``ids_of``."""
        if not request.HasField("new"):
            return None
        if not count or len(request.new.x) % (4 * count):
            raise ConfigError(f"malformed message: {len(request.new.x)} bytes are no features of {count} vertices")
        edges = {
            one.edge_type: (ids_of(one.sources, most_bytes), as_array(one.targets, wide=True))
            for one in request.new.edges
        }
        return cls(np.frombuffer(request.new.x, np.float32).reshape(count, -1), edges)


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

_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types, and the sizes of numbers that have a fixed one."""
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
    """Check a request before it is parsed. Raises QuotaExceededError: it has too many bytes or fields; ValueError: it
    is not a valid message."""
    if len(raw) <= _UNCHECKED_BYTES:
        return
    check_size(kind, len(raw))
    if count_fields(kind, raw, MAX_FIELDS) > MAX_FIELDS:
        raise QuotaExceededError(f"a {kind.DESCRIPTOR.name} of {len(raw)} bytes has more than {MAX_FIELDS} fields")


def count_fields(kind: type[Message], raw: bytes, at_most: int) -> int:
    """Number of fields in ``raw``, a message of type ``kind``. The count ends above ``at_most``. Raises
    QuotaExceededError: a text is too long; ValueError: ``raw`` is not a valid message."""
    count, todo = 0, [(0, len(raw), _shape(kind.DESCRIPTOR))]
    while todo:
        at, end, shape = todo.pop()
        for number, _, body, stop in scan_fields(raw, at, end):
            if (count := count + 1) > at_most:
                return count
            inner = shape.inner.get(number) if body >= 0 else None
            if isinstance(inner, _Shape):
                todo.append((body, stop, inner))
            elif inner == _TEXT:
                _check_text(kind, stop - body)
            elif inner is not None:
                count += _numbers(raw, body, stop, inner, at_most)
    return count


def scan_fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The number of each field in ``raw[at:end]``, where it begins, where its bytes begin (-1: it has none), and where it
    ends. Raises ValueError where it is not a valid message."""
    while at < end:
        start, body = at, -1
        tag, at = (raw[at], at + 1) if raw[at] < 0x80 else read_varint(raw, at)  # nearly all have one byte
        wire = tag & 7
        if wire == _VARINT:
            _, at = read_varint(raw, at)
        elif wire == _BYTES:
            length, body = (raw[at], at + 1) if at < end and raw[at] < 0x80 else read_varint(raw, at)
            at = body + length
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"malformed message: wire type {wire}")
        if at > end:
            raise ValueError("malformed message: field passes its end")
        yield tag >> 3, start, body, at


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
