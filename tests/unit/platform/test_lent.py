"""Memory that clients lend: a daemon writes into nothing else, whatever it is told, and holds nothing of it for long."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from atta.client.tables import lending
from atta.client.tables.lending import Lender, Loan
from atta.daemon.engine import lent
from atta.daemon.engine.lent import LentFiles, UnusableError
from atta.daemon.engine.slots import Arena
from atta.protos.v1.table_pb2 import LentMemory
from atta.wire import memfiles

SIZE = 3 * memfiles.PAGE
SECRET = b"\x07" * memfiles.SECRET_BYTES


@pytest.fixture
def loan() -> Iterator[Loan]:
    lender = Lender()
    found = lender.lend(1000)
    assert found is not None
    yield found
    lender.close()


def mapped() -> int:
    """Number of mappings of files that are lent."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(memfiles.LENT_NAME)


def files() -> int:
    """Number of descriptors of files that are lent."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found += memfiles.LENT_NAME in os.readlink(f"/proc/self/fd/{entry}")
    return found


def told(fd: int, **other: object) -> LentMemory:
    of = {"pid": os.getpid(), "descriptor": fd, "inode": os.fstat(fd).st_ino, "secret": SECRET}
    return LentMemory(**{**of, "offset": memfiles.PAGE, "nbytes": 100, **other})  # type: ignore[arg-type]


def written(message: LentMemory, nbytes: int | None = None) -> bool:
    """Whether a daemon that is told this would write; it then writes."""
    with LentFiles().taken(message, message.nbytes if nbytes is None else nbytes, "me", 0.0) as view:
        assert view is not None
        view[:] = 9
    return True


def with_secret(fd: int) -> int:
    os.pwrite(fd, SECRET, 0)
    return fd


def test_a_daemon_writes_where_a_client_reads(loan: Loan) -> None:
    assert written(loan.message)
    assert (loan.memory == 9).all()
    whole = np.frombuffer(os.pread(loan.message.descriptor, 3 * memfiles.PAGE, 0), np.uint8)
    assert not whole[memfiles.SECRET_BYTES : memfiles.PAGE].any()
    assert not whole[memfiles.PAGE + 1000 :].any()


def test_no_file_that_is_lent_can_shrink_or_grow(loan: Loan) -> None:
    for size in (0, memfiles.PAGE, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(loan.message.descriptor, size)
    os.fchmod(loan.message.descriptor, 0o700)  # nothing else about it is fixed
    memfiles.punch(loan.message.descriptor, 2 * memfiles.PAGE, memfiles.PAGE)
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
def test_a_client_that_tells_wrong_things_is_refused(loan: Loan, change: dict[str, object]) -> None:
    message = LentMemory()
    message.CopyFrom(loan.message)
    for name, value in change.items():
        setattr(message, name, value)
    if "offset" in change:
        message.nbytes = 2 * memfiles.PAGE
    with pytest.raises(UnusableError):
        written(message, 1000 if "nbytes" in change else None)
    assert not loan.memory.any()


def of_another_name() -> int:
    return memfiles.create("atta-slots", SIZE)


def unsealed() -> int:
    fd = os.memfd_create(memfiles.LENT_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    return fd


def that_may_shrink() -> int:
    fd = unsealed()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


def too_small() -> int:
    return memfiles.create(memfiles.LENT_NAME, memfiles.PAGE - 1)


def without_room() -> int:
    return memfiles.create(memfiles.LENT_NAME, memfiles.PAGE + 99)


def that_cannot_be_written() -> int:
    fd = unsealed()
    with_secret(fd)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, memfiles.SEALS | fcntl.F_SEAL_WRITE)
    return fd


def of_huge_pages() -> int:
    try:
        fd = os.memfd_create(memfiles.LENT_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages: {error}")
    os.ftruncate(fd, 2 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, memfiles.SEALS)
    return fd


def on_disk() -> int:
    with tempfile.TemporaryDirectory() as folder:
        fd = os.open(f"{folder}/{memfiles.LENT_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, SIZE)
    return fd


def a_folder() -> int:
    return os.open("/tmp", os.O_RDONLY)


def a_pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


MADE: list[Callable[[], int]] = [
    of_another_name, unsealed, that_may_shrink, too_small, without_room, that_cannot_be_written, of_huge_pages, on_disk,
    a_folder, a_pipe,
]  # fmt: skip


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_a_file_that_was_not_made_to_be_lent_is_refused(make: Callable[[], int]) -> None:
    fd = make()
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


def test_a_file_of_another_user_is_refused(loan: Loan, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(memfiles.os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnusableError):
        written(loan.message)


def test_a_client_that_is_gone_is_refused() -> None:
    fd = with_secret(memfiles.create(memfiles.LENT_NAME, SIZE))
    message = told(fd)
    os.close(fd)
    with pytest.raises(UnusableError):
        written(message)


def test_what_is_lent_at_a_time_is_bounded_for_each_client_and_in_all(loan: Loan) -> None:
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


def test_as_many_files_are_mapped_as_may_be(loan: Loan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "MAX_FILES", 2)
    before = mapped()
    lenders = [Lender() for _ in range(3)]
    others = [lender.lend(1000) for lender in lenders]
    held, messages = LentFiles(), [loan.message, *(other.message for other in others if other is not None)]
    own = mapped() - before
    assert len(messages) == 4
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


def test_a_daemon_without_descriptors_answers_in_messages(loan: Loan, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(memfiles, "open_lent", none_left)
    with LentFiles().taken(loan.message, 1000, "me", 0.0) as view:
        assert view is None


def test_loans_do_not_overlap_and_have_a_bound() -> None:
    lender, size = Lender(), lending.LENT_BYTES // 4
    loans = [lender.lend(size) for _ in range(4)]
    starts = sorted(loan.message.offset for loan in loans if loan is not None)
    assert starts == [memfiles.PAGE + size * number for number in range(4)]
    assert lender.lend(1) is None
    assert loans[2] is not None
    loans[2].end(over=True)
    again = lender.lend(size)
    assert again is not None
    assert again.message == loans[2].message
    lender.close()


def test_a_file_with_a_loan_that_ended_badly_is_not_lent_again() -> None:
    before, lender = (mapped(), files()), Lender()
    bad, good = lender.lend(5000), lender.lend(5000)
    assert bad is not None
    assert good is not None
    bad.end(over=False)
    other = lender.lend(5000)
    assert other is not None
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
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no memory files")

    lender = Lender()
    with monkeypatch.context() as without:
        without.setattr(memfiles, "create", refused)
        assert lender.lend(10) is None
    with monkeypatch.context() as without:
        without.setattr(memfiles, "populate", lambda *_: False)
        assert lender.lend(10) is None
    assert lender.lend(lending.LENT_BYTES) is not None  # what was refused takes no room
    lender.close()
