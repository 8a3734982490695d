"""What the records of a log say, one entry per change of a table, and how tables are made from them again.

A table is named by its *key*, a random number of 63 bits that no other table of the store ever has. Rows are positions
in the daemon's shard. A body begins with kind, operation, flags, count and key; a kind's own numbers follow.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from atta.kvstore.initial import RowIds
from atta.kvstore.mutable.requests import ARRAYS, OPERATIONS, Push
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec

_HEAD = struct.Struct("<BBHIQ")
_PUSHED = struct.Struct("<QQQqqQ")
_CREATED = struct.Struct("<QQQ")
_WORD = struct.Struct("<Q")
_VERSION, _STEP, _ARRAY = 1, 2, 4  # flags of a push; the place of its array is in the bits above them
_BY_ID = 1  # flag of every creation: its rows begin with what their ids say, not their numbers

Buffer = Any


@dataclass(frozen=True, slots=True)
class Created:
    """A table was created: ``rows`` rows from global row ``first_row`` on."""

    KIND: ClassVar[int] = 1
    key: int
    spec: MutableSpec
    first_row: int
    rows: int
    table_id: int

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        text = json.dumps(self.spec.to_dict()).encode()
        head = _HEAD.pack(self.KIND, 0, _BY_ID, len(text), self.key)
        return [_padded(head + _CREATED.pack(self.first_row, self.rows, self.table_id) + text)]


@dataclass(frozen=True, slots=True)
class Deleted:
    """A table was deleted."""

    KIND: ClassVar[int] = 2
    key: int

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        return [_HEAD.pack(self.KIND, 0, 0, 0, self.key)]


@dataclass(frozen=True, slots=True)
class Whole:
    """All shards of the table have been created."""

    KIND: ClassVar[int] = 3
    key: int

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        return [_HEAD.pack(self.KIND, 0, 0, 0, self.key)]


@dataclass(frozen=True, slots=True)
class Grown:
    """The shard has ``rows`` rows from now on."""

    KIND: ClassVar[int] = 4
    key: int
    rows: int

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        return [_HEAD.pack(self.KIND, 0, 0, 0, self.key) + _WORD.pack(self.rows)]


@dataclass(frozen=True, slots=True)
class Registered:
    """A client may push."""

    KIND: ClassVar[int] = 5
    key: int
    client: int

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        return [_HEAD.pack(self.KIND, 0, 0, 0, self.key) + _WORD.pack(self.client)]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Clients were forgotten."""

    KIND: ClassVar[int] = 6
    key: int
    clients: tuple[int, ...]

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        count = len(self.clients)
        return [_HEAD.pack(self.KIND, 0, 0, count, self.key) + struct.pack(f"<{count}Q", *self.clients)]


@dataclass(frozen=True, slots=True)
class RowsPushed:
    """A client's push number ``sequence`` changed rows. Numbers of the client below ``settled`` will not come again."""

    KIND: ClassVar[int] = 7
    key: int
    client: int
    sequence: int
    settled: int
    push: Push

    def encode(self) -> Sequence[Buffer]:
        """The body. Rows and values are not copied."""
        push, flags = self.push, 0
        flags |= _VERSION if push.version is not None else 0
        flags |= _STEP if push.step is not None else 0
        flags |= _ARRAY * ARRAYS.index(push.array)
        nbytes = push.values.nbytes
        head = _HEAD.pack(self.KIND, OPERATIONS.index(push.op), flags, len(push.rows), self.key)
        numbers = (self.client, self.sequence, self.settled, push.version or 0, push.step or 0, nbytes)
        values = push.values.reshape(-1).view(np.uint8)
        return [head + _PUSHED.pack(*numbers), push.rows, values, bytes(-nbytes % 8)]

    def shaped(self, spec: MutableSpec) -> Push:
        """The push with its values in the table's dtype and shape; raises ValueError where they do not fit."""
        push, shape = self.push, (len(self.push.rows), *spec.row_shape)
        if push.values.nbytes != len(push.rows) * spec.row_bytes:
            raise ValueError(f"{push.values.nbytes} bytes for {len(push.rows)} rows of {spec.row_bytes}")
        return Push(
            push.rows, push.values.view(spec.dtype).reshape(shape), push.op, push.version, push.step, push.array
        )


Entry = Created | Deleted | Whole | Grown | Registered | Forgotten | RowsPushed


def decode_entry(body: memoryview) -> Entry:
    """Read what ``encode`` of an entry wrote. A push has its values as bytes, uint8 [n]; see ``RowsPushed.shaped``.

    Raises:
        ValueError: the body is none of an entry. Its checksum was right, so a later release has written it.
    """
    try:
        return _decoded(body)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"an entry of {len(body)} bytes is malformed: {error}") from None


def _decoded(body: memoryview) -> Entry:
    kind, op, flags, count, key = _HEAD.unpack_from(body)
    at = _HEAD.size
    match kind:
        case Created.KIND:
            if flags != _BY_ID:
                raise ValueError(f"a creation with the flags {flags}; this release does not know them")
            first_row, rows, table_id = _CREATED.unpack_from(body, at)
            at += _CREATED.size
            spec = MutableSpec.from_json(bytes(body[at : at + count]).decode())
            return Created(key, spec, first_row, rows, table_id)
        case Deleted.KIND:
            return Deleted(key)
        case Whole.KIND:
            return Whole(key)
        case Grown.KIND:
            return Grown(key, _WORD.unpack_from(body, at)[0])
        case Registered.KIND:
            return Registered(key, _WORD.unpack_from(body, at)[0])
        case Forgotten.KIND:
            return Forgotten(key, struct.unpack_from(f"<{count}Q", body, at))
        case RowsPushed.KIND:
            return _decoded_push(body, op, flags, count, key)
    raise ValueError(f"an entry of kind {kind}; this release does not know it")


def _decoded_push(body: memoryview, op: int, flags: int, count: int, key: int) -> RowsPushed:
    client, sequence, settled, version, step, nbytes = _PUSHED.unpack_from(body, _HEAD.size)
    at = _HEAD.size + _PUSHED.size
    if len(body) != at + 8 * count + nbytes + -nbytes % 8:
        raise ValueError(f"a push of {count} rows and {nbytes} bytes has a body of {len(body)} bytes")
    rows = np.frombuffer(body, dtype=np.int64, count=count, offset=at)
    values = np.frombuffer(body, dtype=np.uint8, count=nbytes, offset=at + 8 * count)
    of_row, of_step = version if flags & _VERSION else None, step if flags & _STEP else None
    push = Push(rows, values, OPERATIONS[op], of_row, of_step, ARRAYS[flags // _ARRAY])
    return RowsPushed(key, client, sequence, settled, push)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class Replay:
    """Tables by their keys. Entries are applied in the order of the log, by one thread, so the result is always the
    same.

    A checkpoint holds each table as it was at some moment after the first entry that follows the checkpoint. Its
    ``lsn`` says at which: entries up to there are left out. Entries of a table that was deleted are left out, too.
    """

    def __init__(self, tables: Iterable[MutableTable], ids: Callable[[MutableSpec], RowIds | None]) -> None:
        """``tables``: of the checkpoint. ``ids`` of a new table's rows; None: they are numbers."""
        self._tables, self._ids = {table.key: table for table in tables}, ids

    def by_name(self) -> dict[str, MutableTable]:
        """The tables."""
        return {table.spec.name: table for table in self._tables.values()}

    def apply(self, lsn: int, entry: Entry) -> None:
        """Apply record ``lsn``; raises ValueError or ConfigError if it contradicts the table."""
        if isinstance(entry, Created):
            self._create(lsn, entry)
            return
        table = self._tables.get(entry.key)
        if table is None:
            return
        match entry:
            case RowsPushed():
                if lsn > table.lsn:
                    push = entry.shaped(table.spec)
                    table.replay(push, entry.client, entry.sequence, entry.settled, lsn)
            case Registered():
                table.know(entry.client)
            case Forgotten():
                for client in entry.clients:
                    table.forget(client)
            case Grown():
                if entry.rows > table.rows:
                    table.grow(entry.rows)
            case Whole():
                table.whole = True
            case Deleted():
                del self._tables[entry.key]

    def _create(self, lsn: int, entry: Created) -> None:
        if entry.key in self._tables:
            return
        ids = self._ids(entry.spec)
        table = MutableTable(entry.spec, entry.first_row, entry.rows, table_id=entry.table_id, ids=ids)
        table.key, table.lsn = entry.key, lsn
        self._tables[entry.key] = table


class TableRecorder(Protocol):
    """Keeps a record of every change of tables. The threads that change tables wait for it; see ``Journal``."""

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        """Write the entry, then let ``apply(number of the record)`` make the change, which moves ``nbytes``.

        Raises:
            QuotaExceededError: the entry cannot be written, for example because the disk is full.
        """

    def note(self, entry: Entry) -> None:
        """Write an entry some time: it may be lost. Does not wait."""

    def replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        """Keep ``tables`` instead of all present ones, then let ``apply`` exchange them; raises DataError."""
