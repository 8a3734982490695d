"""What the records of a log say, one entry per change of a table, and how tables are made from them again.

A table is named by its *key*, a random number of 63 bits that no other table of the store ever has. A body begins with
kind, operation, flags, count and key. Behind them ``count`` words follow, and the description of a table that was
created. A push has six words, then the numbers of ``count`` rows, as positions in the daemon's shard, and their values.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from atta.kvstore.mutable.requests import ARRAYS, OPERATIONS, Push
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, RowIds

_HEAD = struct.Struct("<BBHIQ")
_PUSHED = struct.Struct("<6Q")
_VERSION, _STEP, _ARRAY = 1, 2, 4  # flags of a push; the place of its array is in the bits above them
_PUSH = 7

Buffer = Any


class ChangeKind(enum.IntEnum):
    """What happened to a table."""

    CREATED = 1
    """With a description. Words: the first global row, the number of rows, the table's id."""
    DELETED = 2
    WHOLE = 3
    """All shards have been created."""
    GROWN = 4
    """Word: the number of rows from now on."""
    REGISTERED = 5
    """Word: the client, which may push."""
    FORGOTTEN = 6
    """Words: the clients."""


_WORDS = {
    ChangeKind.CREATED: 3,
    ChangeKind.DELETED: 0,
    ChangeKind.WHOLE: 0,
    ChangeKind.GROWN: 1,
    ChangeKind.REGISTERED: 1,
}


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of a table, but for its rows. ``words``: see ``ChangeKind``; ``spec``: of a table that was created."""

    kind: ChangeKind
    key: int
    words: tuple[int, ...] = ()
    spec: MutableSpec | None = None

    def encode(self) -> Sequence[Buffer]:
        """The body."""
        text = b"" if self.spec is None else json.dumps(self.spec.to_dict()).encode()
        head = _HEAD.pack(self.kind, 0, 0, len(self.words), self.key)
        body = head + struct.pack(f"<{len(self.words)}Q", *self.words) + text
        return [body + bytes(-len(body) % 8)]


@dataclass(frozen=True, slots=True)
class RowsPushed:
    """A client's push number ``sequence`` changed rows. Numbers of the client below ``settled`` will not come again."""

    key: int
    client: int
    sequence: int
    settled: int
    push: Push

    def encode(self) -> Sequence[Buffer]:
        """The body. Rows and values are not copied."""
        push, nbytes = self.push, self.push.values.nbytes
        flags = _VERSION * (push.version is not None) | _STEP * (push.step is not None)
        flags |= _ARRAY * ARRAYS.index(push.array)
        head = _HEAD.pack(_PUSH, OPERATIONS.index(push.op), flags, len(push.rows), self.key)
        words = _PUSHED.pack(self.client, self.sequence, self.settled, push.version or 0, push.step or 0, nbytes)
        return [head + words, push.rows, push.values.reshape(-1).view(np.uint8), bytes(-nbytes % 8)]

    def shaped(self, spec: MutableSpec) -> Push:
        """The push with its values in the table's dtype and shape; raises ValueError where they do not fit."""
        push, count = self.push, len(self.push.rows)
        if push.values.nbytes != count * spec.row_bytes:
            raise ValueError(f"{push.values.nbytes} bytes for {count} rows of {spec.row_bytes}")
        return replace(push, values=push.values.view(spec.dtype).reshape(count, *spec.row_shape))


Entry = TableChange | RowsPushed


def decode_entry(body: memoryview) -> Entry:
    """Read what ``encode`` of an entry wrote. A push has its values as bytes, uint8 [n]; see ``RowsPushed.shaped``.
    Raises ValueError: the body is none of an entry. Its checksum was right, so a later release has written it."""
    try:
        kind, op, flags, count, key = _HEAD.unpack_from(body)
        if kind == _PUSH:
            return _decoded_push(body, op, flags, count, key)
        kind, at = ChangeKind(kind), _HEAD.size + 8 * count
        words = struct.unpack_from(f"<{count}Q", body, _HEAD.size)
        if count != _WORDS.get(kind, count):
            raise ValueError(f"{count} words for a change of kind {kind.name}")
        text = bytes(body[at:]).rstrip(b"\0").decode() if kind is ChangeKind.CREATED else None
        return TableChange(kind, key, words, None if text is None else MutableSpec.from_json(text))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"an entry of {len(body)} bytes is malformed: {error}") from None


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


class Replay:
    """Tables by their keys. Entries are applied in the order of the log, by one thread, so the result is always the
    same. A checkpoint holds each table as it was at some moment after the first entry that follows the checkpoint. Its
    ``lsn`` says at which: entries up to there are left out. Entries of a table that was deleted are left out, too."""

    def __init__(self, tables: Iterable[MutableTable], ids: Callable[[MutableSpec], RowIds | None]) -> None:
        """``tables``: of the checkpoint. ``ids`` of a new table's rows; None: they are numbers."""
        self._tables, self._ids = {table.key: table for table in tables}, ids

    def by_name(self) -> dict[str, MutableTable]:
        """The tables."""
        return {table.spec.name: table for table in self._tables.values()}

    def apply(self, lsn: int, entry: Entry) -> None:
        """Apply record ``lsn``; raises ValueError or ConfigError if it contradicts the table."""
        table = self._tables.get(entry.key)
        if isinstance(entry, RowsPushed):
            if table is not None and lsn > table.lsn:
                table.replay(entry.shaped(table.spec), entry.client, entry.sequence, entry.settled, lsn)
        elif entry.spec is not None:
            if table is None:
                first_row, rows, table_id = entry.words
                table = MutableTable(entry.spec, first_row, rows, table_id=table_id, ids=self._ids(entry.spec))
                table.key, table.lsn = entry.key, lsn
                self._tables[entry.key] = table
        elif table is not None:
            self._change(table, entry)

    def _change(self, table: MutableTable, entry: TableChange) -> None:
        match entry.kind:
            case ChangeKind.REGISTERED:
                table.know(entry.words[0])
            case ChangeKind.FORGOTTEN:
                for client in entry.words:
                    table.forget(client)
            case ChangeKind.GROWN:
                if entry.words[0] > table.rows:
                    table.grow(entry.words[0])
            case ChangeKind.WHOLE:
                table.whole = True
            case ChangeKind.DELETED:
                del self._tables[entry.key]


class TableRecorder(Protocol):
    """Keeps a record of every change of tables. The threads that change tables wait for it; see ``Journal``."""

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        """Write the entry, then let ``apply(number of the record)`` make the change, which moves ``nbytes``. Raises
        QuotaExceededError: the entry cannot be written, for example because the disk is full."""

    def note(self, entry: Entry) -> None:
        """Write an entry some time: it may be lost. Does not wait."""

    def replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        """Keep ``tables`` instead of all present ones, then let ``apply`` exchange them; raises DataError."""
