"""A log read back is what was written, cut off anywhere it is a beginning of that, and no altered byte goes unnoticed."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.kvstore.durable.entries import ChangeKind, Entry, RowsPushed, TableChange, decode_entry
from atta.kvstore.durable.frames import (
    END_BYTES,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    LogHeader,
    LogPosition,
    LogReader,
    end_mark,
    frame,
)
from atta.kvstore.mutable.requests import OPERATIONS, Push
from atta.kvstore.spec import STATE_NAMES, MutableSpec

BEFORE = LogPosition(41, 12345)


def header(*, forced: bool = False, before: LogPosition = BEFORE) -> LogHeader:
    return LogHeader(b"0123456789abcdef", 3, before, forced)


def lives(groups: list[list[bytes]], *, forced: bool = False, before: LogPosition = BEFORE) -> list[bytes]:
    start, position = header(forced=forced, before=before).encode(), before
    found = [start + end_mark(before, forced=forced)]
    for group in groups:
        out, stable = [found[-1][:-END_BYTES]], position.lsn
        for body in group:
            head, position = frame([body[:8], body[8:]], position, stable)
            out += [head, body]
        found.append(b"".join(out) + end_mark(position, forced=forced))
    return found


def written(groups: list[list[bytes]], *, forced: bool = False) -> bytes:
    return lives(groups, forced=forced)[-1]


def over(new: bytes, old: bytes) -> bytes:
    return new + old[len(new) :]


def read(data: bytes) -> tuple[list[tuple[int, bytes]], LogReader]:
    reader = LogReader(data)
    return [(record.lsn, bytes(record.body)) for record in reader], reader


GROUPS = [[b"a" * 8], [b"b" * 16, b"", b"c" * 24], [b"d" * 8, b"e" * 40]]
BODIES = [body for group in GROUPS for body in group]
NUMBERED = list(enumerate(BODIES, 42))
DATA = written(GROUPS)
END = len(DATA) - END_BYTES
"""Of the last record."""


@pytest.mark.parametrize("forced", [False, True])
def test_a_file_cut_off_anywhere_has_the_records_before_the_cut(forced: bool) -> None:
    data = written(GROUPS, forced=forced)
    ends = [FILE_HEADER_BYTES]
    for body in BODIES:
        ends.append(ends[-1] + RECORD_HEADER_BYTES + len(body))
    for size in range(FILE_HEADER_BYTES, len(data)):
        records, reader = read(data[:size])
        whole = sum(end <= size for end in ends) - 1
        assert records == NUMBERED[:whole]
        assert (reader.damage, reader.end, reader.torn_bytes) == ("", ends[whole], size - ends[whole])
    for size in range(FILE_HEADER_BYTES):
        with pytest.raises(ValueError, match="shorter than a header"):
            LogHeader.decode(data[:size])


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_damage(bit: int, forced: bool) -> None:
    """In a log forced to the disk but for the last group: a crash of the machine may leave anything of one that was never
    acknowledged."""
    data, last = written(GROUPS, forced=forced), sum(RECORD_HEADER_BYTES + len(body) for body in GROUPS[-1])
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << bit
        if at < FILE_HEADER_BYTES:
            with pytest.raises(ValueError, match=r"not a log|format version|altered"):
                LogHeader.decode(altered)
            continue
        records, reader = read(bytes(altered))
        assert records == NUMBERED[: len(records)]
        assert (len(records) < len(NUMBERED)) == (at < END)
        assert bool(reader.damage) == (at < END - last * forced)


def test_zeros_at_the_end_are_a_torn_tail_and_what_follows_the_end_mark_is_of_no_account() -> None:
    assert LogHeader.decode(DATA) == header()
    for zeros in (1, RECORD_HEADER_BYTES, 5000):
        records, reader = read(DATA[:END] + bytes(zeros))
        assert (records, reader.damage, reader.torn_bytes) == (NUMBERED, "", zeros)
    for rest in (b"", b"x", bytes(5000), DATA, DATA[FILE_HEADER_BYTES:]):
        records, reader = read(DATA + rest)
        assert (records, reader.end, reader.torn_bytes, reader.damage) == (NUMBERED, END, 0, "")
        assert reader.position.lsn == 47
    records, reader = read(DATA[:END] + end_mark(LogPosition(47, 1), forced=False))  # of another record
    assert (records, reader.torn_bytes) == (NUMBERED, END_BYTES)


def test_records_left_out_repeated_or_moved_are_noticed() -> None:
    first, second = 42, 43
    at = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 8
    one, rest = DATA[FILE_HEADER_BYTES:at], DATA[at:]
    start = DATA[:FILE_HEADER_BYTES]
    for data, wrong in ((start + rest, second), (start + one + one + rest, first)):
        records, reader = read(data)
        assert records == NUMBERED[: len(records)]
        assert reader.damage == f"record {wrong} follows record {41 + len(records)}"
    other = header(before=LogPosition(41, 54321)).encode()
    records, reader = read(other + one + rest)  # the same numbers, but behind another record
    assert (records, reader.damage) == ([], "record 42 is altered: its checksum differs")


BODY = st.binary(max_size=5).map(lambda b: b * 8)


@given(st.lists(st.lists(BODY, max_size=4), max_size=4), st.lists(st.lists(BODY, min_size=1, max_size=3), min_size=1, max_size=3),
       st.booleans(), st.booleans(), st.integers(0, 1 << 32))  # fmt: skip
def test_a_file_written_over_has_nothing_of_its_former_life(
    before: list[list[bytes]], groups: list[list[bytes]], forced: bool, follows: bool, seed: int
) -> None:
    """Wherever a kill stops the writer, and whatever a power cut leaves of a group that was being forced."""
    rng, old = np.random.default_rng(seed), written(before, forced=forced)
    # Numbers may go on where the former life ended.
    position = read(old)[1].position if follows else LogPosition(1000, 5)
    files = [over(new, old) for new in lives(groups, forced=forced, before=position)]
    bodies = list(enumerate((body for group in groups for body in group), position.lsn + 1))
    found, reader = read(files[-1])
    assert (found, reader.torn_bytes, reader.damage) == (bodies, 0, "")
    start, size = read(files[-2])[1].end, reader.end + END_BYTES
    cut = int(rng.integers(start, size + 1))
    was = np.frombuffer(files[-2].ljust(size, b"\0"), np.uint8)
    now = np.frombuffer(files[-1][:size].ljust(len(was), b"\0"), np.uint8)
    written_bytes = np.arange(len(was)) < cut
    if forced:  # in any order
        written_bytes &= np.repeat(rng.random(len(was) // 8 + 1) < 0.7, 8)[: len(was)]
    found, reader = read(np.where(written_bytes, now, was).tobytes())
    assert found == bodies[: len(found)]
    assert len(found) >= len(bodies) - len(groups[-1])
    assert not reader.damage
    at = int(rng.integers(FILE_HEADER_BYTES, size - END_BYTES))
    altered = bytearray(files[-1])
    altered[at] ^= 1 << int(rng.integers(8))
    found, reader = read(bytes(altered))
    assert found == bodies[: len(found)]
    assert len(found) < len(bodies)
    assert reader.damage or (forced and at >= start)


SPEC = MutableSpec("rows", 10, "<f4", (2, 3), versioned=True)
ROWS = np.array([1, 5, 1], dtype=np.int64)
VALUES = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
ENTRIES = [
    TableChange(ChangeKind.CREATED, 7, (3, 4, 2**64 - 1), SPEC),
    TableChange(ChangeKind.DELETED, 7),
    TableChange(ChangeKind.WHOLE, 2**63 - 1),
    TableChange(ChangeKind.GROWN, 7, (2**48,)),
    TableChange(ChangeKind.REGISTERED, 7, (2**64 - 1,)),
    TableChange(ChangeKind.FORGOTTEN, 7, (1, 2**64 - 1)),
    TableChange(ChangeKind.FORGOTTEN, 7),
]


def body_of(entry: Entry) -> bytes:
    body = b"".join(bytes(part) for part in entry.encode())
    assert len(body) % 8 == 0
    return body


ARRAYS = ["", *(name for names in STATE_NAMES.values() for name in names)]
HOW = [*itertools.product(OPERATIONS, (None, 0, 2**63 - 1), (None, 1, 2**63 - 1))]
PUSHES = [Push(ROWS[:count], VALUES[:count], *how) for count in (0, 1, 3) for how in HOW]
PUSHES += [Push(ROWS, VALUES, "write", None, None, array) for array in ARRAYS]
PUSHES += [Push(ROWS, np.ones(3, dtype), "write", None, None) for dtype in ("|b1", "|u1", "<f2", "<i8")]


def test_entries_come_back() -> None:
    for push in PUSHES:
        found = decode_entry(memoryview(body_of(RowsPushed(9, 2**64 - 1, 2**63 - 1, 5, push))))
        assert (found.key, found.client, found.sequence, found.settled) == (9, 2**64 - 1, 2**63 - 1, 5)
        shaped = found.shaped(MutableSpec("rows", 10, push.values.dtype.str, push.values.shape[1:]))
        assert (shaped.op, shaped.version, shaped.step, shaped.array) == (push.op, push.version, push.step, push.array)
        assert np.array_equal(shaped.rows, push.rows)
        assert np.array_equal(shaped.values, push.values)
        assert shaped.values.dtype == push.values.dtype
    with pytest.raises(ValueError, match="bytes for 3 rows of 24"):
        found.shaped(SPEC)
    for entry in ENTRIES:
        assert decode_entry(memoryview(body_of(entry))) == entry


def test_bodies_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="a body of 9 bytes is not a multiple of 8"):
        frame([b"x" * 9], BEFORE, 0)
    push = body_of(RowsPushed(1, 2, 3, 0, Push(ROWS, VALUES, "add", None, None)))
    for size in range(0, len(push), 8):
        with pytest.raises(ValueError, match=r"malformed|body of"):
            decode_entry(memoryview(push[:size]))
    with pytest.raises(ValueError, match="99"):
        decode_entry(memoryview(struct.pack("<BBHIQ", 99, 0, 0, 0, 1)))
    with pytest.raises(ValueError, match="malformed"):
        decode_entry(memoryview(push[:1] + b"\x03" + push[2:]))  # no such operation
    with pytest.raises(ValueError, match="1 words for a change of kind DELETED"):
        decode_entry(memoryview(struct.pack("<BBHIQQ", 2, 0, 0, 1, 1, 0)))
    with pytest.raises(ConfigError):
        decode_entry(memoryview(struct.pack("<BBHIQQQQ", 1, 0, 0, 3, 1, 0, 0, 0) + b"{}"))


@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(data: bytes) -> None:
    try:
        entry = decode_entry(memoryview(data))
    except ValueError:
        return
    assert decode_entry(memoryview(body_of(entry))).key == entry.key
