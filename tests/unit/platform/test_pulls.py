"""Memory that clients lend: the same bits as in messages, applied once, whatever becomes of an owner."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.tables import lending, pulls, remote
from atta.client.tables.lending import Lender
from atta.client.tables.remote import RemoteTable
from atta.daemon.engine import lent
from atta.daemon.engine.lent import LentFiles, UnusableError, lent_values
from atta.daemon.engine.slots import Arena
from atta.daemon.services import tables as tables_service
from atta.errors import ConfigError, QuotaExceededError, RemoteError, StaleRowError, UnavailableError
from atta.kvstore.mutable import sequences
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MutableSpec, Normal, OptimiserSpec
from atta.protos.v1 import table_pb2
from atta.protos.v1.table_pb2 import LentMemory
from atta.wire import memfiles, rpc
from tests.unit.platform.table_owner import CONTEXT, PUSH, Answered, Lost, Owner, event_loop, opened, same_bits

SIZE = 3 * memfiles.PAGE
SECRET = b"\x07" * memfiles.SECRET_BYTES


@pytest.fixture
def loan() -> Iterator[Any]:
    lender = Lender()
    yield lender.lend(1000)
    lender.close()


def mapped() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(memfiles.LENT_NAME)


def files(name: str = memfiles.LENT_NAME) -> int:
    """Number of descriptors of files that are lent, or of other memory files."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found += f"memfd:{name}" in os.readlink(f"/proc/self/fd/{entry}")
    return found


def told(fd: int, **other: object) -> LentMemory:
    of = {"pid": os.getpid(), "descriptor": fd, "inode": os.fstat(fd).st_ino, "secret": SECRET}
    return LentMemory(**{**of, "offset": memfiles.PAGE, "nbytes": 100, **other})


def written(message: LentMemory, nbytes: int | None = None) -> bool:
    """Whether a daemon that is told this would write; it then writes."""
    with LentFiles().taken(message, message.nbytes if nbytes is None else nbytes, "me", 0.0) as view:
        view[:] = 9
    return True


def with_secret(fd: int) -> int:
    os.pwrite(fd, SECRET, 0)
    return fd


def test_a_daemon_writes_where_a_client_reads_and_no_file_can_shrink_or_grow(loan: Any) -> None:
    assert written(loan.message)
    assert (loan.memory == 9).all()
    fd = loan.message.descriptor
    whole = np.frombuffer(os.pread(fd, 3 * memfiles.PAGE, 0), np.uint8)
    assert not whole[memfiles.SECRET_BYTES : memfiles.PAGE].any()
    assert not whole[memfiles.PAGE + 1000 :].any()
    for size in (0, memfiles.PAGE, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.fchmod(fd, 0o700)  # nothing else about it is fixed
    memfiles.punch(fd, 2 * memfiles.PAGE, memfiles.PAGE)
    assert written(loan.message)


@pytest.mark.parametrize(
    "change",
    [
        {"secret": b""},
        {"secret": b"\0" * memfiles.SECRET_BYTES},
        {"pid": 0},
        {"pid": 1},
        {"pid": 2**32 - 1},
        {"descriptor": 2**32 - 1},
        {"descriptor": 0},
        {"inode": 1},
        {"offset": 0},
        {"offset": memfiles.PAGE + 1},
        {"offset": lending.LENT_BYTES},  # the end would be behind the file's
        {"offset": 2**64 - memfiles.PAGE},
        {"nbytes": 999},  # of an answer of 1000
    ],
    ids=str,
)
def test_a_client_that_tells_wrong_things_is_refused(loan: Any, change: dict[str, object]) -> None:
    message = LentMemory()
    message.CopyFrom(loan.message)
    for name, value in change.items():
        setattr(message, name, value)
    if "offset" in change:
        message.nbytes = 2 * memfiles.PAGE
    with pytest.raises(UnusableError):
        written(message, 1000 if "nbytes" in change else None)
    assert not loan.memory.any()


def unsealed(seals: int = 0, flags: int = 0, size: int = SIZE) -> int:
    fd = os.memfd_create(memfiles.LENT_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    if not flags:
        with_secret(fd)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def of_huge_pages() -> int:
    try:
        return unsealed(memfiles.SEALS, os.MFD_HUGETLB, 2 << 20)
    except OSError as error:
        pytest.skip(f"no huge pages: {error}")


def on_disk() -> int:
    with tempfile.TemporaryDirectory() as folder:
        fd = os.open(f"{folder}/{memfiles.LENT_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, SIZE)
    return fd


def a_pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


MADE: dict[str, Callable[[], int]] = {
    "of another name": lambda: memfiles.create("atta-slots", SIZE),
    "unsealed": unsealed,
    "may shrink": lambda: unsealed(fcntl.F_SEAL_GROW),
    "too small": lambda: memfiles.create(memfiles.LENT_NAME, memfiles.PAGE - 1),
    "without room": lambda: memfiles.create(memfiles.LENT_NAME, memfiles.PAGE + 99),
    "cannot be written": lambda: unsealed(memfiles.SEALS | fcntl.F_SEAL_WRITE),
    "of huge pages": of_huge_pages,
    "on disk": on_disk,
    "a folder": lambda: os.open("/tmp", os.O_RDONLY),
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("what", MADE)
def test_a_file_that_was_not_made_to_be_lent_is_refused(what: str) -> None:
    fd = MADE[what]()
    try:
        with contextlib.suppress(OSError):  # not all of them can be written
            with_secret(fd)
        with pytest.raises(UnusableError):
            written(told(fd))
    finally:
        os.close(fd)


def test_a_daemon_does_not_write_into_its_own_batches() -> None:
    arena = Arena(SIZE)
    arena.buffer[: memfiles.SECRET_BYTES] = 7
    with pytest.raises(UnusableError):
        written(told(arena.fd))
    assert not arena.buffer[memfiles.PAGE :].any()
    arena.close()


def test_a_file_of_another_user_or_of_nobody_is_refused(loan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = with_secret(memfiles.create(memfiles.LENT_NAME, SIZE))
    gone = told(fd)
    os.close(fd)
    with pytest.raises(UnusableError):
        written(gone)
    owner = os.geteuid()
    monkeypatch.setattr(memfiles.os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnusableError):
        written(loan.message)


def test_what_is_lent_at_a_time_is_bounded_for_each_client_and_in_all(loan: Any) -> None:
    held = LentFiles(in_all=2500, per_client=1500)
    with held.taken(loan.message, 1000, "one", 0.0) as first, held.taken(loan.message, 1000, "one", 0.0) as second:
        assert first is not None
        assert second is None
        with held.taken(loan.message, 1000, "two", 0.0) as third, held.taken(loan.message, 1000, "three", 0.0) as last:
            assert third is not None
            assert last is None
            assert held.lent_bytes == 2000
    assert held.lent_bytes == 0
    with held.taken(loan.message, 1000, "one", 0.0) as again:
        assert again is not None


def test_as_many_files_are_mapped_as_may_be(loan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "MAX_FILES", 2)
    before = mapped()
    lenders = [Lender() for _ in range(3)]
    others: list[Any] = [lender.lend(1000) for lender in lenders]
    held, messages = LentFiles(), [loan.message, *(other.message for other in others)]
    own = mapped() - before
    for message in messages:
        with held.taken(message, 1000, "me", 0.0) as view:
            assert view is not None
        del view
    assert len(held) == 2
    assert mapped() - before - own == 2
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(held.taken(message, 1000, "me", 0.0)) for message in messages]
    assert [view is None for view in views] == [False, False, True, True]  # those in use stay
    del views
    held.expire(lent.IDLE_S)
    assert len(held) == 2
    held.expire(lent.IDLE_S + 1)
    assert len(held) == 0
    assert mapped() - before == own


def test_a_daemon_without_descriptors_answers_in_messages(loan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memfiles, "open_lent", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
    with LentFiles().taken(loan.message, 1000, "me", 0.0) as view:
        assert view is None


def test_loans_do_not_overlap_and_have_a_bound() -> None:
    lender, size = Lender(), lending.LENT_BYTES // 4
    loans: list[Any] = [lender.lend(size) for _ in range(4)]
    starts = sorted(loan.message.offset for loan in loans)
    assert starts == [memfiles.PAGE + size * number for number in range(4)]
    assert lender.lend(1) is None
    loans[2].end(over=True)
    again: Any = lender.lend(size)
    assert again.message == loans[2].message
    lender.close()


def test_a_file_with_a_loan_that_ended_badly_is_not_lent_again() -> None:
    before, lender = (mapped(), files()), Lender()
    bad, good = lender.lend(5000), lender.lend(5000)
    bad.end(over=False)
    other = lender.lend(5000)
    assert other.message.inode != bad.message.inode
    assert written(bad.message)  # late
    assert written(good.message)
    assert not other.memory.any()
    good.end(over=True)
    other.end(over=True)
    lender.close()
    del bad, good, other
    assert (mapped(), files()) == before


def test_where_no_memory_file_can_be_made_nothing_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    lender, refused = Lender(), Mock(side_effect=OSError(errno.ENOSYS, "no memory files"))
    for name, how in (("create", refused), ("populate", lambda *_: False)):
        with monkeypatch.context() as without:
            without.setattr(memfiles, name, how)
            assert lender.lend(10) is None
    assert lender.lend(lending.LENT_BYTES) is not None  # what was refused takes no room
    lender.close()


CLIENT = 1
DTYPES = ["|b1", "|i1", "<i2", "<i8", "<u4", "<f2", "<f4", "<f8"]
SPEC = MutableSpec("t", 500, row_shape=(4,))
ROWS = np.random.default_rng(3).integers(0, 500, 400)
VALUES = np.random.default_rng(4).normal(size=(400, 4)).astype(np.float32)

loop = pytest.fixture(scope="module")(event_loop)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all sizes be so small that a few rows take many pieces, and more memory than there is."""
    monkeypatch.setattr(pulls, "LEAST_LENT_BYTES", 0)
    monkeypatch.setattr(pulls, "LENT_PIECE_BYTES", 1024)
    monkeypatch.setattr(pulls, "PIECE_ROWS", 40)
    monkeypatch.setattr(lending, "LENT_BYTES", 3 * memfiles.PAGE)
    monkeypatch.setattr(tables_service, "LENT_STEP_BYTES", 300)


def in_messages(table: RemoteTable, owners: list[Owner], rows: np.ndarray, **options: Any) -> Pulled:
    for owner in owners:
        owner.takes_lent = False
        owner.asked.clear()
    found = table.pull(rows, **options)
    assert not any(request.HasField("memory") for owner in owners for request in owner.asked)
    return found


@st.composite
def specs(draw: st.DrawFn) -> MutableSpec:
    dtype, shape = draw(st.sampled_from(DTYPES)), tuple(draw(st.lists(st.integers(1, 5), max_size=2)))
    learns = OptimiserSpec.adam() if dtype == "<f4" and draw(st.booleans()) else None
    return MutableSpec("t", draw(st.integers(2, 200)), dtype, shape, versioned=draw(st.booleans()), optimiser=learns)


CODECS = st.sampled_from(["", "fp16", "bf16", "int8"])


@settings(max_examples=40)
@given(specs(), st.data())
def test_pulls_give_the_same_bits(loop: asyncio.AbstractEventLoop, spec: MutableSpec, data: st.DataObject) -> None:
    draw, dtype, count, versioned, learns = data.draw, spec.dtype, spec.rows, spec.versioned, spec.optimiser
    owners = [Owner(loop, number, 2) for number in range(2)]
    rng = np.random.default_rng(draw(st.integers(0, 99), "seed"))
    shadow = rng.integers(0, 2 if dtype == "|b1" else 100, (count, *spec.row_shape)).astype(dtype)
    ages = rng.integers(0, 2, count)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        table = opened(spec, *owners)
        for owner in owners:
            own = owner.table
            own.register(CLIENT)
            mine = np.arange(own.span.start, own.span.stop)
            for age in (0, 1):
                rows = mine[ages[mine] == age]
                own.push(rows, shadow[rows], "write", client=CLIENT, sequence=age, version=age if versioned else None)
        rows = np.array(draw(st.lists(st.integers(0, count - 1), max_size=300), "asked"), dtype=np.int64)
        options: dict[str, Any] = {"versions": draw(st.booleans(), "with versions")}
        if dtype == "<f4":
            options["codec"] = draw(CODECS, "codec")
        if learns:
            options["array"] = draw(st.sampled_from(["", "exp_avg"]), "array")
        if versioned and not options.get("array") and draw(st.booleans(), "of one version"):
            options["version"] = 1
            rows = rows[ages[rows] == 1]
        found = table.pull(rows, **options)
        assert sum(owner.stat("table_rows_lent") for owner in owners) == len(rows)
        assert same_bits(found, in_messages(table, owners, rows, **options))
    assert found.values.dtype == shadow.dtype
    if not options.get("array") and not options.get("codec"):
        assert np.array_equal(found.values, shadow[rows])
    if found.versions is not None:
        kept = versioned and not options.get("array")
        assert np.array_equal(found.versions, ages[rows] if kept else np.full(len(rows), -1))


@pytest.fixture
def owner(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr(remote, "LEAST_LENT_BYTES", 1)
    return Owner(loop)


@pytest.fixture
def table(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteTable]:
    shrink(monkeypatch)
    made = opened(MutableSpec("t", 500, row_shape=(4,), init=Normal(0, 1, seed=5), versioned=True), owner)
    yield made
    made._lender.close()


def test_nothing_is_left_after_pulls(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what other tests have left
    without = mapped(), files()
    shrink(monkeypatch)
    owner = Owner(loop)
    table = opened(MutableSpec("t", 500, row_shape=(4,), init=Normal(0, 1, seed=5)), owner)
    wanted = owner.table.pull(ROWS).values
    assert np.array_equal(table.pull(ROWS).values, wanted)
    before = mapped(), files()
    for _ in range(1000):
        found = table.pull(ROWS[:18])
    assert np.array_equal(found.values, wanted[:18])
    assert owner.stat("table_rows_lent") == len(ROWS) + 18_000
    assert (mapped(), files()) == before
    table._lender.close()
    owner.service._lent.expire(np.inf)
    assert (mapped(), files()) == without


def test_what_is_small_travels_in_messages(owner: Owner, table: RemoteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "LEAST_LENT_BYTES", 20 * 24)
    monkeypatch.setattr(remote, "LEAST_LENT_BYTES", 20 * 16)
    for count in (19, 20):
        table.pull(ROWS[:count])
        table.push(ROWS[:count], VALUES[:count]).wait()
        assert owner.asked[-1].HasField("memory") is owner.sent[-1] is (count == 20)


def test_a_daemon_that_cannot_open_the_memory_is_lent_none_again(owner: Owner, table: RemoteTable) -> None:
    wanted = owner.table.pull(ROWS)
    table.pull(ROWS)
    table._lender._file.secret = b"guessed"
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert not owner.takes_lent
    assert same_bits(in_messages(table, [owner], ROWS, versions=True), wanted)


def test_an_owner_that_has_been_lent_too_much_is_lent_again(owner: Owner, table: RemoteTable) -> None:
    for most, rows in ((0, 0), (1 << 20, len(ROWS))):
        owner.service._lent._in_all = most
        assert same_bits(table.pull(ROWS, versions=True), owner.table.pull(ROWS))
        table.push(ROWS, VALUES).wait()
        assert owner.stat("table_rows_lent") == owner.stat("table_rows_pushed_lent") == rows
    assert owner.sent == [True, False, True]


def test_an_owner_without_memory(owner: Owner, table: RemoteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memfiles, "populate", lambda *_: False)
    monkeypatch.setattr(lending._LoanFile, "touch", lambda *_: True)
    assert same_bits(table.pull(ROWS, versions=True), owner.table.pull(ROWS))
    assert owner.takes_lent
    table.push(np.arange(500), np.ones((500, 4), np.float32)).wait()
    assert owner.sent == [True, False]
    assert (owner.rows().values == 1).all()


@pytest.mark.parametrize("lost", range(3))
def test_an_owner_that_is_killed_in_the_middle_tears_no_row(owner: Owner, table: RemoteTable, lost: int) -> None:
    """It has written some rows, told of fewer, and writes on although nobody waits any more."""
    wanted, killed = owner.table.pull(ROWS), []

    def kill(count: int) -> None:
        if count == lost and not killed:
            killed.append(table._lender._file)
            raise Lost

    owner.between, owner.lasts = kill, True
    found = table.pull(ROWS, versions=True)
    (file,) = killed
    assert same_bits(found, wanted)
    for _ in range(3):
        file.bytes[memfiles.PAGE :] = 255
        assert same_bits(found, wanted)
        assert table._lender._file is not file
        found = table.pull(ROWS, versions=True)
    owner.lasts, killed[:] = False, []
    with pytest.raises(UnavailableError):
        table.pull(ROWS)
    assert table._lender._file is not killed[0]


def test_a_stale_row_ends_the_loan_well(owner: Owner, table: RemoteTable) -> None:
    table.pull(ROWS)
    file = table._lender._file
    with pytest.raises(ConfigError, match="codec 'zip'"):
        table.pull(ROWS, codec="zip")
    for _ in range(3):
        with pytest.raises(StaleRowError, match="was never written"):
            table.pull(ROWS[:20], version=3)
    assert table._lender._file is file
    assert file.gaps.whole


LIES = {"first_row": 390, "rows": 20}, {"first_row": 2**63, "rows": 1}, {"rows": 2**40}, {"rows": 3}  # of all


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("lent", [True, False])
def test_an_owner_that_lies_is_an_error(owner: Owner, table: RemoteTable, lie: dict[str, int], lent: bool) -> None:
    owner.start = lambda *_: [rpc.Bulk(table_pb2.RowsChunk(lent=True, **lie))]
    owner.takes_lent = lent
    with pytest.raises(RemoteError):
        table.pull(ROWS)


def is_nothing_lent(table: RemoteTable) -> bool:
    return table._lender._file is None or table._lender._file.gaps.whole


@settings(max_examples=40)
@given(specs(), st.data())
def test_pushes_by_memory_and_messages_give_the_same_bits(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory, spec: MutableSpec, data: st.DataObject
) -> None:
    draw, dtype = data.draw, spec.dtype
    kept = draw(st.booleans(), "kept")
    pair = [Owner(loop, folder=tmp_path_factory.mktemp("kept") if kept else None) for _ in range(2)]
    pair[1].reads_lent = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "LEAST_LENT_BYTES", 1)
        patch.setattr(remote, "PIECE_BYTES", 1024)
        tables = [opened(spec, owner) for owner in pair]
        for number in range(draw(st.integers(1, 4), "pushes")):
            ops = ["write", *([] if dtype == "|b1" else ["add"]), *(["step"] if spec.optimiser else [])]
            op = draw(st.sampled_from(ops), "op")
            rows = np.array(draw(st.lists(st.integers(0, spec.rows - 1), min_size=1, max_size=99), "of rows"))
            values = np.random.default_rng(number).integers(
                0, 2 if dtype == "|b1" else 100, (len(rows), *spec.row_shape)
            )
            options: dict[str, Any] = {"step": None} if op == "step" else {}
            if dtype == "<f4":
                options["codec"] = draw(CODECS, "codec")
            if spec.versioned and op == "write" and draw(st.booleans(), "with version"):
                options["version"] = number
            for table in tables:
                table.push(rows, values.astype(dtype), op, **options).wait()
                assert is_nothing_lent(table)
    assert {*pair[0].sent} == {True}
    assert not any(pair[1].sent)
    assert same_bits(pair[0].rows(), pair[1].rows())
    for owner in pair:
        owner.close()


def test_values_are_those_of_the_call_whatever_the_caller_writes_later(owner: Owner) -> None:
    table, values = opened(SPEC, owner), VALUES.copy()
    ticket = table.push(ROWS, values)
    values[:] = 0
    ticket.wait()
    wanted = np.zeros((500, 4), np.float32)
    wanted[ROWS] = VALUES
    assert np.array_equal(owner.rows().values, wanted)
    assert owner.stat("table_rows_pushed_lent") == len(ROWS)


def test_what_is_kept_does_not_change_with_the_memory() -> None:
    memory = np.zeros(32, np.uint8)
    for dtype, keep, copied in (("<f4", True, True), ("<f4", False, False), ("|b1", False, True)):
        values = lent_values(MutableSpec("t", 9, dtype, (2,)), "", memory, keep=keep)
        assert values.shape == (32 // np.dtype(dtype).itemsize // 2, 2)
        assert np.shares_memory(values, memory) is not copied


def test_a_push_whose_answer_is_lost_is_applied_once(owner: Owner) -> None:
    table = opened(SPEC, owner)
    owner.lose = 1
    first = table.push(np.arange(300), np.ones((300, 4), np.float32), "add")
    held = table._lender._file
    table.push(np.arange(300), np.full((300, 4), 10, np.float32), "add").wait()  # would overwrite what is lent again
    first.wait()
    assert owner.sent == [True, True, False]
    assert (owner.rows().values[:300] == 11).all()
    assert held is None or table._lender._file is not held  # its memory is never lent again


def test_a_lost_push_that_was_not_applied_has_its_own_values(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(SPEC, owner)
    with monkeypatch.context() as patch:
        patch.setattr(owner, "begin", lambda *_: Answered(Lost()))
        first = table.push(np.arange(300), np.ones((300, 4), np.float32), "add")
    table.push(np.arange(300), np.full((300, 4), 10, np.float32), "add").wait()
    first.wait()
    assert owner.sent == [True, False]
    assert (owner.rows().values[:300] == 11).all()


def test_a_push_that_cannot_be_sent_leaves_nothing_lent(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table, closed = opened(SPEC, owner), Mock(side_effect=ValueError("Cannot invoke RPC on closed channel!"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, "begin", closed)
        with pytest.raises(ValueError, match="closed channel"):
            table.push(ROWS, VALUES)
    assert is_nothing_lent(table)
    table.push(ROWS, VALUES).wait()
    assert owner.stat("table_rows_pushed_lent") == len(ROWS)


def test_a_push_that_is_refused_before_it_is_sent(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "WINDOW", 3)
    table = opened(MutableSpec("t", 500, row_shape=(4,), versioned=True), owner)
    wrong: list[dict[str, Any]] = [{"version": version} for version in (-1, 1 << 63, 1.5, True)]
    for options in (*wrong, {"codec": "zip"}):
        with pytest.raises(ConfigError, match=r"version .* must be a whole number|codec 'zip' is none of fp16"):
            table.push(ROWS, VALUES, **options)
    assert not owner.sent
    for version in range(5):  # none waits for the numbers of those that were refused
        table.push(ROWS, VALUES, version=np.int64(version)).wait()
    assert owner.stat("table_rows_pushed_lent") == 5 * len(ROWS)


def test_no_push_waits_for_one_that_was_broken_off(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "WINDOW", 3)
    monkeypatch.setattr(remote, "PIECE_BYTES", 400 * 16 // 2)
    table, begin, lost = opened(SPEC, owner), owner.begin, iter([Answered(Lost())])
    monkeypatch.setattr(owner, "begin", lambda *_: next(lost))  # the first piece never arrives
    with pytest.raises(StopIteration):  # nor is the second one sent
        table.push(ROWS, VALUES)
    monkeypatch.setattr(owner, "begin", lambda *_: Answered(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        table.push(ROWS, VALUES).wait()
    monkeypatch.setattr(owner, "begin", begin)
    for _ in range(3):
        table.push(ROWS, VALUES).wait()
    assert owner.stat("table_rows_pushed_lent") == 3 * len(ROWS)


def test_an_owner_that_cannot_open_the_memory_is_lent_none_again(owner: Owner) -> None:
    table = opened(SPEC, owner)
    table.push(ROWS, VALUES).wait()
    table._lender._file.secret = b"guessed"
    for _ in range(2):
        table.push(ROWS, VALUES, "add").wait()
    assert owner.sent == [True, True, False, False]
    assert not owner.reads_lent
    expected = np.zeros((500, 4), np.float32)
    expected[ROWS] = VALUES
    for _ in range(2):
        np.add.at(expected, ROWS, VALUES)
    assert np.allclose(owner.rows().values, expected)


def test_an_owner_that_never_reads_is_an_error(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(SPEC, owner)
    monkeypatch.setattr(owner, "begin", lambda *_: Answered(table_pb2.PushRowsReply(unread=True)))
    with pytest.raises(RemoteError, match="wants values in a message that were in the message"):
        table.push(ROWS, VALUES).wait()


def test_a_push_that_the_table_refuses_changes_nothing(owner: Owner) -> None:
    table = opened(MutableSpec("t", 500, "|b1", (4,)), owner)
    with pytest.raises(ConfigError, match="truth values cannot be added"):
        table.push(ROWS, VALUES > 0, "add").wait()
    assert not owner.rows().values.any()
    (ticket,) = table.push(ROWS, VALUES > 0)._sent  # the number of the refused push is free
    assert ticket.lent


def test_a_push_longer_than_any_message_is_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(SPEC, owner)
    monkeypatch.setattr(tables_service, "ARRAYS_BYTES", 400 * 16 - 1)
    with pytest.raises(QuotaExceededError, match="6400 bytes: at most 6399"):
        table.push(ROWS, VALUES).wait()
    monkeypatch.setattr(tables_service, "ARRAYS_BYTES", 400 * 16)
    table.push(ROWS, VALUES).wait()
    assert owner.stat("table_rows_pushed_lent") == len(ROWS)


def test_a_truth_value_that_is_none_is_refused_in_lent_memory(owner: Owner) -> None:
    loan: Any = Lender().lend(2 * memfiles.PAGE)
    opened(MutableSpec("t", 500, "|b1", (16,)), owner)
    owner.service._tables.get("t").register(7)
    loan.memory[:] = 2
    message = table_pb2.PushRowsRequest(name="t", op="write", client=7, rows=np.arange(500).tobytes())
    message.memory.CopyFrom(loan.message)

    def push(nbytes: int) -> Any:
        message.memory.nbytes = nbytes
        return owner.run(owner.service.push(PUSH.decode_request(message.SerializeToString()), CONTEXT))

    with pytest.raises(ConfigError, match="a truth value is neither 0 nor 1"):
        push(500 * 16)
    reply = push(500 * 16 - 1)
    assert (reply.applied, reply.unread, reply.unusable) == (False, True, True)
