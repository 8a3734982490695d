"""The format of a log: a header, then records one after another, each with a checksum. Bytes in, bytes out; no files.

All numbers are little endian. A file begins with

| bytes | what |
|---|---|
| 8 | ``ATTALOG`` and a zero byte |
| 4 + 4 | format version; 1 if every group of records is forced to the disk, else 0 |
| 16 | id of the store that the log belongs to |
| 8 | epoch: how often the store has been opened |
| 8 | number of the first record |
| 8 | chain: the checksum of the record before it; 0: there is none |
| 8 | xxh3_64 of the 56 bytes before |

A record is numbered one more than the record before it. It is

| bytes | what |
|---|---|
| 4 | ``ATLR`` |
| 4 | size of the body, a multiple of 8 |
| 8 | its number |
| 8 | all records up to this number were written (or forced to the disk) before this one was begun |
| 8 | chain: xxh3_64 of the body, seeded with the chain before it |
| 8 | xxh3_64 of the 32 bytes before |
| n | body |

So no record can be altered, left out, repeated or moved without being noticed. What a writer that was killed has left
is the beginning of a record at the end of the file: a *torn tail*, which was never acknowledged and is cut off.
Everything else that does not fit is *damage*: it may have been acknowledged, so it is never cut off silently.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

__all__ = ["FILE_HEADER_BYTES", "RECORD_HEADER_BYTES", "LogHeader", "LogPosition", "LogReader", "Record", "frame"]

VERSION = 1
_FILE = struct.Struct("<8sII16sQQQ")
_RECORD = struct.Struct("<4sIQQQ")
_SUM = struct.Struct("<Q")
_FILE_MAGIC, _MAGIC = b"ATTALOG\0", b"ATLR"
FILE_HEADER_BYTES = _FILE.size + _SUM.size
RECORD_HEADER_BYTES = _RECORD.size + _SUM.size

Buffer = Any
"""What has the buffer protocol: bytes, a memoryview, a contiguous array."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log ends: the number of its last record, and that record's chain."""

    lsn: int
    chain: int


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What the header of a file says; see above. ``before``: the record before the first one of the file."""

    store_id: bytes
    epoch: int
    before: LogPosition
    forced: bool

    def encode(self) -> bytes:
        """64 bytes."""
        place = (self.epoch, self.before.lsn + 1, self.before.chain)
        head = _FILE.pack(_FILE_MAGIC, VERSION, int(self.forced), self.store_id, *place)
        return head + _SUM.pack(xxhash.xxh3_64_intdigest(head))

    @classmethod
    def decode(cls, data: Buffer) -> LogHeader:
        """Read what ``encode`` wrote, from the beginning of ``data``; raises ValueError."""
        head = bytes(data[:FILE_HEADER_BYTES])
        if len(head) < FILE_HEADER_BYTES:
            raise ValueError(f"{len(head)} bytes, shorter than a header")
        magic, version, forced, store_id, epoch, first, chain = _FILE.unpack_from(head)
        if magic != _FILE_MAGIC:
            raise ValueError("not a log of tables")
        if version != VERSION:
            raise ValueError(f"format version {version}; this release reads version {VERSION}")
        if _SUM.unpack_from(head, _FILE.size)[0] != xxhash.xxh3_64_intdigest(head[: _FILE.size]):
            raise ValueError("the header is altered: its checksum differs")
        if not first or forced > 1:
            raise ValueError(f"the header is malformed: first record {first}, forced {forced}")
        return cls(store_id, epoch, LogPosition(first - 1, chain), bool(forced))


def frame(parts: Sequence[Buffer], after: LogPosition, stable: int) -> tuple[bytes, LogPosition]:
    """The header of the record after ``after`` whose body is ``parts``, one after another, and the new position.

    ``stable``: see the format. The parts have a multiple of 8 bytes together.
    """
    digest, size = xxhash.xxh3_64(seed=after.chain), 0
    for part in parts:
        digest.update(part)
        size += memoryview(part).nbytes
    if size % 8:
        raise ValueError(f"a body of {size} bytes is not a multiple of 8")
    position = LogPosition(after.lsn + 1, digest.intdigest())
    head = _RECORD.pack(_MAGIC, size, position.lsn, stable, position.chain)
    return head + _SUM.pack(xxhash.xxh3_64_intdigest(head)), position


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it lies in a file. ``body`` is a view of the file."""

    lsn: int
    body: memoryview


class LogReader:
    """Reads the records of one file.

    Iterating yields the whole records in order. Then ``end`` is where they end in the file, ``position`` is the last
    record, and ``damage`` says what is wrong behind it: "" if nothing follows but, perhaps, a torn tail.
    """

    def __init__(self, data: Buffer, header: LogHeader) -> None:
        """``data``: the whole file, header included."""
        self._data, self._header = memoryview(data), header
        self.end, self.position, self.damage = FILE_HEADER_BYTES, header.before, ""

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the last whole record."""
        return len(self._data) - self.end

    def __iter__(self) -> Iterator[Record]:
        while self.end < len(self._data):
            cause, size = self._next()
            if cause:
                self.damage = self._judge(cause, size)
                return
            start = self.end + RECORD_HEADER_BYTES
            self.end = start + size
            yield Record(self.position.lsn, self._data[start : self.end])

    def _next(self) -> tuple[str, int]:
        """What is wrong with the record at ``end`` ("": nothing), and the size of its body (-1: not known)."""
        data, at = self._data, self.end
        head = _header_at(data, at)
        if head is None:
            return "the header of a record is altered", -1
        size, lsn, _, chain = head
        if lsn != self.position.lsn + 1:
            return f"record {lsn} follows record {self.position.lsn}", size
        body = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + size]
        if len(body) != size or xxhash.xxh3_64_intdigest(body, seed=self.position.chain) != chain:
            return f"record {lsn} is altered: its checksum differs", size
        self.position = LogPosition(lsn, chain)
        return "", size

    def _judge(self, cause: str, size: int) -> str:
        """``cause``, or "" if the bytes from ``end`` on are what a writer has left that was killed."""
        rest = self._data[self.end :]
        whole = RECORD_HEADER_BYTES + max(0, size)
        if self._followed():
            return cause
        if len(rest) < whole or self._header.forced:
            return ""  # forced to the disk together with all before it, or else never acknowledged
        return cause if _any(rest) else ""  # a file system that crashed leaves zeros

    def _followed(self) -> bool:
        """Whether a record comes later that was begun when the next one had been written: that one is damaged."""
        missing, data, at = self.position.lsn + 1, self._data, self.end
        while (at := _find(data, at + 1)) >= 0:
            head = _header_at(data, at)
            if head is not None and head[2] >= missing and head[1] > missing:
                return True
        return False


def _header_at(data: memoryview, at: int) -> tuple[int, int, int, int] | None:
    """(size of the body, number, stable, chain) of the record at ``at``; None: no intact header lies there."""
    head = bytes(data[at : at + RECORD_HEADER_BYTES])
    if len(head) < RECORD_HEADER_BYTES or head[:4] != _MAGIC:
        return None
    if _SUM.unpack_from(head, _RECORD.size)[0] != xxhash.xxh3_64_intdigest(head[: _RECORD.size]):
        return None
    _, size, lsn, stable, chain = _RECORD.unpack_from(head)
    return size, lsn, stable, chain


_WINDOW = 1 << 20


def _find(data: memoryview, start: int) -> int:
    """Where a record's first bytes come next, from ``start`` on; -1: nowhere."""
    for at in range(start, len(data), _WINDOW):
        found = bytes(data[at : at + _WINDOW + len(_MAGIC) - 1]).find(_MAGIC)
        if found >= 0:
            return at + found
    return -1


def _any(data: memoryview) -> bool:
    """Whether any byte is not zero."""
    return any(any(data[at : at + _WINDOW]) for at in range(0, len(data), _WINDOW))
