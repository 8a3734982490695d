"""The format of a log: a header, then records one after another, and an end mark behind the last one. Bytes in, bytes
out; no files.

Checksums are chained, so no record can be altered, left out, repeated or moved without being noticed. A writer that is
killed leaves the beginning of what it was writing, without the mark at its end: a *torn tail*, which was never
acknowledged and is cut off. If a record does not fit and the mark, or a later record, says that it had been written, it
is *damage*: it may have been acknowledged, so it is never cut off silently. If groups are forced to the disk, a mark
proves nothing: a power cut may have left it without its group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

VERSION = 2
# Magic, version, whether groups of records are forced to the disk, id of the store, epoch (how often the store has been
# opened), number of the first record, chain: the checksum of the record before it (0: there is none).
_FILE = struct.Struct("<8sII16sQQQ")
# Magic, size of the body (a multiple of 8), number, up to which number records were written (or forced) before this one
# was begun, chain: xxh3_64 of the body, seeded with the chain before it. The body follows. An end mark has the number of
# the next record, the size 0, and the chain of the last record. Each group of records is written with its mark, over the
# mark before. What follows the mark is of no account: it may be left from a file that is written over.
_RECORD = struct.Struct("<4sIQQQ")
_SUM = struct.Struct("<Q")  # xxh3_64 of the header before it
_FILE_MAGIC, _MAGIC, _END_MAGIC = b"ATTALOG\0", b"ATLR", b"ATLE"
FILE_HEADER_BYTES = _FILE.size + _SUM.size
RECORD_HEADER_BYTES = END_BYTES = _RECORD.size + _SUM.size

Buffer = Any
"""What has the buffer protocol: bytes, a memoryview, a contiguous array."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log ends: the number of its last record, and that record's chain."""

    lsn: int
    chain: int


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What the header of a file says. ``before``: the record before the first one of the file."""

    store_id: bytes
    epoch: int
    before: LogPosition
    forced: bool

    def encode(self) -> bytes:
        """The header's bytes."""
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
    ``stable``: records up to this number are written. The parts have a multiple of 8 bytes together."""
    digest, size = xxhash.xxh3_64(seed=after.chain), 0
    for part in parts:
        digest.update(part)
        size += memoryview(part).nbytes
    if size % 8:
        raise ValueError(f"a body of {size} bytes is not a multiple of 8")
    position = LogPosition(after.lsn + 1, digest.intdigest())
    return _head(_MAGIC, size, position.lsn, stable, position.chain), position


def end_mark(last: LogPosition, *, forced: bool) -> bytes:
    """What lies behind the record ``last``."""
    return _head(_END_MAGIC, 0, last.lsn + 1, 0 if forced else last.lsn, last.chain)


def _head(magic: bytes, size: int, lsn: int, stable: int, chain: int) -> bytes:
    head = _RECORD.pack(magic, size, lsn, stable, chain)
    return head + _SUM.pack(xxhash.xxh3_64_intdigest(head))


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it lies in a file. ``body`` is a view of the file."""

    lsn: int
    body: memoryview


class LogReader:
    """Reads the records of one file. Iterating yields the whole records in order. Then ``end`` is where they end in the
    file, ``position`` is the last record, and ``damage`` says what is wrong behind it: "" if there is the end mark, the
    end of the file, or a torn tail."""

    def __init__(self, data: Buffer) -> None:
        """``data``: the whole file. Raises ValueError: its header is damaged, or of another version."""
        self._data, self.header = memoryview(data), LogHeader.decode(data)
        self.end, self.position, self.damage = FILE_HEADER_BYTES, self.header.before, ""
        self._marked = False

    @property
    def torn_bytes(self) -> int:
        """After iterating: bytes behind the last whole record, unless the end mark is there."""
        return 0 if self._marked else len(self._data) - self.end

    def __iter__(self) -> Iterator[Record]:
        while self.end < len(self._data):
            cause, size = self._next()
            if cause:
                head = _header_at(self._data, self.end, _END_MAGIC)
                self._marked = head is not None and (head[1], head[3]) == (self.position.lsn + 1, self.position.chain)
                self.damage = cause if not self._marked and self._was_written() else ""
                return
            start = self.end + RECORD_HEADER_BYTES
            self.end = start + size
            yield Record(self.position.lsn, self._data[start : self.end])

    def _next(self) -> tuple[str, int]:
        """What is wrong with the record at ``end`` ("": nothing), and the size of its body."""
        data, at = self._data, self.end
        head = _header_at(data, at)
        if head is None:
            return "the header of a record is altered", 0
        size, lsn, _, chain = head
        if lsn != self.position.lsn + 1:
            return f"record {lsn} follows record {self.position.lsn}", size
        body = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + size]
        if len(body) != size or xxhash.xxh3_64_intdigest(body, seed=self.position.chain) != chain:
            return f"record {lsn} is altered: its checksum differs", size
        self.position = LogPosition(lsn, chain)
        return "", size

    def _was_written(self) -> bool:
        """Whether a later record, or the end mark, says that the record at ``end`` had been written: it is damaged."""
        missing = self.position.lsn + 1
        for at in _later(self._data, self.end + 8, missing):
            head = _header_at(self._data, at) or _header_at(self._data, at, _END_MAGIC)
            if head is not None and head[2] >= missing:
                return True
        return False


def _header_at(data: memoryview, at: int, magic: bytes = _MAGIC) -> tuple[int, int, int, int] | None:
    """(size of the body, number, stable, chain) of the record at ``at``; None: no intact header lies there."""
    head = bytes(data[at : at + RECORD_HEADER_BYTES])
    if len(head) < RECORD_HEADER_BYTES or head[:4] != magic:
        return None
    if _SUM.unpack_from(head, _RECORD.size)[0] != xxhash.xxh3_64_intdigest(head[: _RECORD.size]):
        return None
    _, size, lsn, stable, chain = _RECORD.unpack_from(head)
    return size, lsn, stable, chain


_WINDOW = 1 << 17


def _later(data: memoryview, start: int, number: int) -> Iterator[int]:
    """Where what looks like a header with a number above ``number`` lies, from ``start`` on. All lie at multiples of 8.
    In a file that is written over, most of what looks like a header has a lower number."""
    words = np.frombuffer(data[start : start + max(0, len(data) - start) // 8 * 8], "<u8")
    magics = [int.from_bytes(magic, "little") for magic in (_MAGIC, _END_MAGIC)]
    for first in range(0, len(words) - 1, _WINDOW):
        window = words[first : first + _WINDOW + 1]
        begins = window[:-1] & 0xFFFFFFFF
        found = ((begins == magics[0]) | (begins == magics[1])) & (window[1:] > number)
        yield from (start + 8 * (first + np.flatnonzero(found))).tolist()
