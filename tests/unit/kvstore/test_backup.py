"""The copy of a store of tables: it has the records of its primary, and a store opened on it has the same tables."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.durable.backup import BackupService, Holder
from atta.errors import ConfigError, DataError, StalePrimaryError
from atta.kvstore.durable import backup, logfile
from atta.kvstore.durable.backup import PROMOTED, BackupFolder, Ballot, VoteBook
from atta.kvstore.durable.entries import ChangeKind, Entry, RowsPushed, TableChange
from atta.kvstore.durable.frames import LogPosition, frame
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.requests import Push
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables

ABOUT = {"dataset": "d", "parts": [0, 1], "daemons": 1}
SPEC = MutableSpec.from_json('{"name": "t", "rows": 4, "row_shape": [2], "dtype": "<f4", "policy": "range"}')


def pushed(number: int) -> list[bytes]:
    push = Push(np.array([number % 4]), np.full((1, 2), number, np.float32), "write", None, None, "")
    return body_of(RowsPushed(7, 1, number, 0, push))


def created() -> list[bytes]:
    return body_of(TableChange(ChangeKind.CREATED, 7, (0, 4, 5), SPEC))


def body_of(entry: Entry) -> list[bytes]:
    return [b"".join(bytes(memoryview(part).cast("B")) for part in entry.encode())]


class Primary(TableStore):
    """A store of tables, opened, whose records go to a copy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ABOUT, forced=False)
        self.tables = self.open(lambda path: Tables(1 << 20).prepare(path, resume=True)).tables

    @property
    def name(self) -> tuple[bytes, int]:
        return self.store_id, self.epoch

    def ship(self, copy: BackupFolder, *bodies: list[bytes], new_file: bool = False) -> LogPosition:
        before = self.append([*bodies])
        position = copy.append(
            self.name, before, self.position, [b for (b,) in bodies], file_epoch=self.epoch, new_file=new_file
        )
        assert position == self.position
        return before

    def rows(self) -> list[float]:
        """Of the table, each by its first column; then the store is closed."""
        self.close()
        return self.tables["t"].pull(np.arange(4)).values[:, 0].tolist()


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    with contextlib.closing(Primary(tmp_path / "part")) as store:
        yield store


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[BackupFolder]:
    with contextlib.closing(BackupFolder(tmp_path / "part.backup", "here:1")) as found:
        yield found


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_the_copy_has_the_records_of_the_primary(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    """0: a push; 1: the backup is started anew; 2: an answer is lost; 3: the primary begins a new file."""
    folder = tmp_path_factory.mktemp("copy")
    store, copy = Primary(folder / "part"), BackupFolder(folder / "part.backup", "here:1")
    number, new_file = 1, True
    copy.follow(store.name, ABOUT)
    store.ship(copy, created(), new_file=True)
    for cut in cuts:
        if cut in (0, 2):
            before = store.ship(copy, pushed(number), new_file=new_file)
            if cut == 2:
                again = (store.name, before, store.position, pushed(number))
                assert copy.append(*again, file_epoch=store.epoch, new_file=new_file) == store.position
            number, new_file = number + 1, False
        elif cut == 1:
            copy.close()
            copy = BackupFolder(folder / "part.backup", "here:1")
            assert copy.follow(store.name, ABOUT) == store.position
        else:
            store.rotate()
            new_file = True
    store.close()
    copy.promote(folder / "taken")
    first, second = Primary(folder / "part"), Primary(folder / "taken")
    assert first.position == second.position
    assert first.rows() == second.rows()
    shutil.rmtree(folder)


def test_a_stale_primary_is_refused(primary: Primary, copy: BackupFolder, tmp_path: Path) -> None:
    copy.follow(primary.name, ABOUT)
    primary.ship(copy, created(), new_file=True)
    primary.close()
    with contextlib.closing(Primary(tmp_path / "part")) as later:
        copy.follow(later.name, ABOUT)
        with pytest.raises(StalePrimaryError, match="epoch 1 is not the latest"):
            copy.append(primary.name, later.position, LogPosition(9, 9), pushed(1), file_epoch=1, new_file=False)
        with pytest.raises(StalePrimaryError):
            copy.follow(primary.name, ABOUT)


def test_altered_records_are_not_written(primary: Primary, copy: BackupFolder) -> None:
    copy.follow(primary.name, ABOUT)
    primary.ship(copy, created(), new_file=True)
    before, body = primary.append([pushed(1)]), bytearray(pushed(1)[0])
    body[-1] ^= 1

    def append(end: LogPosition, bodies: list[bytes]) -> LogPosition:
        return copy.append(primary.name, before, end, bodies, file_epoch=1, new_file=False)

    with pytest.raises(ConfigError, match="altered"):
        append(primary.position, [bytes(body)])
    assert copy.position == before
    assert append(primary.position, pushed(1)) == primary.position
    with pytest.raises(ConfigError, match="the copy ends at record 2, not 1"):
        append(LogPosition(5, 5), pushed(2))


def test_a_checkpoint_replaces_what_is_older(primary: Primary, copy: BackupFolder, tmp_path: Path) -> None:
    """Also for a backup that was away so long that the log does not reach back to it."""
    name, tables = primary.name, Tables(1 << 20)
    table = tables.create(SPEC)
    table.key = 7
    primary.append([created(), pushed(1)])
    table.register(1)
    table.push(np.array([1]), np.full((1, 2), 1.0, np.float32), "write", client=1, sequence=1)
    at = primary.rotate()
    primary.checkpoint(at, lambda folder, header, _: tables.write(folder, [table], header=header))
    primary.append([pushed(2)])
    here = copy.follow(name, ABOUT)
    for elsewhere in ("../log", "/etc/x", "a//b", "", "a/./b", "a/b/c/d/e"):
        with pytest.raises(ConfigError, match="no file of a checkpoint"):
            copy.piece(name, LogPosition(1, 1), elsewhere, 0, b"x")
    assert here == LogPosition(0, 0)
    assert primary.logs_behind(here) is None
    folder, place = primary.newest_checkpoint() or pytest.fail("no checkpoint")
    assert place == at
    (path,) = folder.iterdir()
    content = path.read_bytes()
    copy.piece(name, at, path.name, 100, content[100:])
    with pytest.raises(DataError):
        copy.complete(name, at)
    for _ in range(
        2
    ):  # a piece that was given up and repeated arrives at last, and so does the end: it is no checkpoint
        copy.piece(name, at, path.name, 0, content[:100])
        assert copy.complete(name, at) == at
    behind = primary.logs_behind(at)
    bodies = [bytes(record.body) for log in behind for record in log if record.lsn > at.lsn]
    copy.append(name, at, primary.position, bodies, file_epoch=primary.epoch, new_file=True)
    copy.promote(tmp_path / "taken")
    assert Primary(tmp_path / "taken").rows() == [0, 1, 2, 0]


def test_copies_take_over_or_go_back(primary: Primary, copy: BackupFolder, tmp_path: Path) -> None:
    """A promoted copy has the tables. A promotion that fails does not end the primary."""
    taken = tmp_path / "taken"
    with pytest.raises(ConfigError, match="keeps no copy"):
        copy.promote(taken)
    assert copy.follow(primary.name, ABOUT) == primary.position
    primary.ship(copy, created(), pushed(1), new_file=True)
    for number in (2, 6):
        assert copy.promote(taken) == primary.position
        Primary(taken).close()  # the tables were read, and found to be of no use
        copy.take_back(taken)
        assert copy.store() == primary.name
        assert copy.follow(primary.name, ABOUT) == primary.position
        primary.ship(copy, pushed(number))
    copy.promote(taken)
    store = Primary(taken)
    assert store.name == (primary.store_id, primary.epoch + PROMOTED + 1)
    assert store.rows() == [0, 1, 6, 0]


def test_a_copy_that_lacks_records_takes_nothing_over(primary: Primary, copy: BackupFolder, tmp_path: Path) -> None:
    """They may have been acknowledged, by a primary that had no backup or another one."""
    primary.append([created()])
    primary.append([pushed(1)])
    name = primary.name
    for _ in range(2):  # also after it was killed
        assert copy.follow(name, ABOUT, reach=2) == LogPosition(0, 0)
        assert copy.store() is None
        with pytest.raises(ConfigError, match=r"ends at record 0, and records up to 2 may .* remove .*behind.json"):
            copy.promote(tmp_path / "other")
        copy = BackupFolder(copy.folder, "here:1")
        assert copy.store() is None
    copy.follow(name, ABOUT, reach=2)
    _, middle = frame(created(), LogPosition(0, 0), 0)
    copy.append(name, LogPosition(0, 0), middle, created(), file_epoch=1, new_file=True)
    assert copy.store() is None
    copy.append(name, middle, primary.position, pushed(1), file_epoch=1, new_file=False)
    assert copy.store() == name
    assert copy.follow(name, ABOUT, reach=2) == primary.position
    assert copy.promote(tmp_path / "other") == primary.position
    assert Primary(tmp_path / "other").rows() == [0, 1, 0, 0]


def test_a_copy_remembers_whom_it_followed(primary: Primary, copy: BackupFolder, tmp_path: Path) -> None:
    """Also without a record of that epoch. Else the epoch of a promotion could be one that its primary has had."""
    copy.follow((primary.store_id, 5), ABOUT)
    again = BackupFolder(copy.folder, "here:1")
    assert again.store() == (primary.store_id, 5)
    with pytest.raises(StalePrimaryError, match="epoch 4 is not the latest"):
        again.follow((primary.store_id, 4), ABOUT)
    again.promote(tmp_path / "other")
    with contextlib.closing(Primary(tmp_path / "other")) as store:
        assert store.epoch == 5 + PROMOTED + 1


STORES = [bytes([n]) * 16 for n in range(3)]
ballots = st.builds(Ballot, st.sampled_from(STORES), st.integers(0, 4), st.sampled_from(["a:1", "b:1", "c:1"]))


@given(asked=st.lists(st.tuples(ballots, st.booleans()), max_size=30))
def test_one_candidate_has_a_vote_in_an_epoch(asked: list[tuple[Ballot, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep" / "part-0000.votes"
        book = VoteBook(path)
        given_to: dict[tuple[bytes, int], str] = {}
        for ballot, restarts in asked:
            if restarts:
                book = VoteBook(path)
            latest = max((epoch for store, epoch in given_to if store == ballot.store), default=-1)
            refused = book.give(ballot)
            holder = given_to.get((ballot.store, ballot.epoch))
            assert (refused == "") == (ballot.epoch > latest or (holder == ballot.candidate and ballot.epoch == latest))
            if not refused:
                given_to[ballot.store, ballot.epoch] = ballot.candidate


def test_a_vote_that_cannot_be_written_is_not_given_and_votes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, ballot = VoteBook(tmp_path / "votes"), Ballot(STORES[0], 1, "a:1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(logfile, "write_sealed", full)
        with pytest.raises(DataError, match="no space left"):
            book.give(ballot)
    assert book.give(Ballot(STORES[0], 1, "b:1")) == ""
    assert VoteBook(tmp_path / "votes").give(ballot) == "voted for b:1 already"
    content = (tmp_path / "votes").read_text()
    (tmp_path / "votes").write_text(content.replace("b:1", "a:1"))
    with pytest.raises(DataError, match="altered"):
        VoteBook(tmp_path / "votes").give(ballot)
    monkeypatch.setattr(backup, "MOST_STORES", 2)
    book = VoteBook(tmp_path / "bounded")
    assert [book.give(Ballot(store, 1, "a:1")) for store in STORES] == ["", "", "has votes for 2 stores of tables"]
    assert book.give(Ballot(STORES[0], 2, "b:1")) == ""


async def test_a_promotion_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    """An operator's call reaches its deadline while the daemon opens the tables. Half a promotion would be tables whose
    changes nobody logs."""
    opening, go_on = asyncio.Event(), asyncio.Event()

    async def open_tables() -> int:
        opening.set()
        await go_on.wait()
        return 3

    holder = Holder(tmp_path / "part-0000", ABOUT, lambda: b"", lambda: None, open_tables)
    nobody: Any = SimpleNamespace()
    service = BackupService(holder, "127.0.0.1:7", keeps=True, neighbours=nobody, votes=nobody)
    service._copy.follow((b"0" * 16, 1), ABOUT)
    asked = asyncio.create_task(service.take_over())
    await opening.wait()
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    assert asked.cancelled()
    go_on.set()
    assert (await service._taking)[1] == 3
    assert (tmp_path / "part-0000" / "store.json").exists(), "it was not given back"
    service.close()
