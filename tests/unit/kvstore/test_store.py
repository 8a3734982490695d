"""A store of tables opened again holds what was recorded: after any cut, over checkpoints, and never another's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.kvstore.durable import logfile
from atta.kvstore.durable.entries import ChangeKind, Entry, RowsPushed, TableChange
from atta.kvstore.durable.store import Recovered, TableStore
from atta.kvstore.mutable.requests import Push
from atta.kvstore.mutable.sequences import Claim
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables

ABOUT = {"dataset": "d", "parts": [0, 1]}
SPECS = [
    MutableSpec("added", 8, "<i8", max_rows=20),
    MutableSpec("learnt", 6, "<f4", (2,), optimiser=OptimiserSpec.adam(0.1)),
    MutableSpec("versioned", 5, "<f2", (3,), versioned=True),
]
CLIENT = 7
KEPT = 16_000
"""Files of 1,000 bytes: a round of pushes fills one to two."""


class Direct:
    def __init__(self, store: TableStore, tables: Tables) -> None:
        self.store, self.tables = store, tables

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        apply(self.store.append([entry.encode()]).lsn + 1)

    def note(self, entry: Entry) -> None:
        self.store.append([entry.encode()])

    def replace(self, tables: Any, apply: Callable[[int], None]) -> None:
        at = self.store.rotate()
        self.store.checkpoint(
            at, lambda folder, header, over: self.tables.write(folder, [*tables.values()], header=header, over=over)
        )
        apply(at.lsn)


class Kept:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.options = {"forced": False, "about": ABOUT, **options}
        self.store = TableStore(folder, **self.options)
        self.tables = Tables(1 << 20)
        self.found: Recovered = self.store.open(partial(self.tables.prepare, resume=True))
        self.tables.recovered(self.found.tables)
        self.tables.recorder = Direct(self.store, self.tables)
        self.rng = np.random.default_rng(self.store.epoch)

    @classmethod
    def made(cls, folder: Path, pushes: int = 1, **options: Any) -> Kept:
        kept = cls(folder, **options)
        for number, spec in enumerate(SPECS, 1):
            kept.register(kept.tables.create(spec, table_id=number), CLIENT)
        for number in range(pushes):
            kept.push(number)
        return kept

    def again(self, folder: Path | None = None, **options: Any) -> Kept:
        """Killed, and opened once more or as a copy ``folder``: it holds the same."""
        if folder is None:
            self.store.close()
        else:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.store.folder, folder)
        found = Kept(folder or self.store.folder, **{**self.options, **options})
        assert found.state() == self.state()
        return found

    def register(self, table: MutableTable, client: int) -> None:
        self.tables.register(table, client)
        self.store.append([registration(table, client)])

    def push(self, number: int) -> None:
        """Push random rows to each table; ``number`` counts the pushes to each."""
        for table in self.tables.lasting():
            spec, op = table.spec, {"added": "add", "learnt": "step", "versioned": "write"}[table.spec.name]
            rows = self.rng.integers(0, table.rows, 4)
            values = (100 * self.rng.random((4, *spec.row_shape))).astype(spec.dtype)
            push = table.checked(rows, values, op, version=number if spec.versioned else None)
            self.apply(table, push, CLIENT, number)

    def apply(self, table: MutableTable, push: Push, client: int, number: int) -> None:
        assert table.claim(client, number, number) is Claim.FRESH
        before = self.store.append([RowsPushed(table.key, client, number, number, push).encode()])
        table.finish(push, client, number, before.lsn + 1)

    def checkpoint(self, between: Callable[[], object] = lambda: None) -> None:
        at, tables = self.store.rotate(), self.tables.lasting()
        between()
        self.store.checkpoint(
            at, lambda folder, header, over: self.tables.write(folder, tables, header=header, over=over)
        )

    def state(self) -> dict[str, Any]:
        return {table.spec.name: state_of(table) for table in self.tables.list()}


def registration(table: MutableTable, client: int) -> Any:
    return TableChange(ChangeKind.REGISTERED, table.key, (client,)).encode()


def state_of(table: MutableTable) -> Any:
    arrays = {name: array.tobytes() for name, array in table._contents.arrays.items()}
    return (arrays, table.rows, table.step, table.whole, table.table_id, table.load_id, table.key,
            sorted(table._sequences.to_json()), table._sequences.over())  # fmt: skip


def test_an_empty_store_can_be_opened_again_and_again(tmp_path: Path) -> None:
    for epoch in range(1, 4):
        kept = Kept(tmp_path)
        assert (kept.found, kept.store.epoch) == (Recovered({}, 0, 0), epoch)
        kept.store.close()
        kept.store.close()
    assert len(list(tmp_path.glob("log-*"))) == 1


def test_tables_come_back_with_the_same_bits(tmp_path: Path) -> None:
    kept = Kept.made(tmp_path, 5)
    kept.tables.create(SPECS[0], table_id=1, whole=True)
    kept.tables.grow("added", 15)
    kept.register(kept.tables.get("added"), 8)
    kept.tables.forget(8)
    kept.register(kept.tables.get("added"), 9)
    kept.tables.delete("versioned")
    learnt, rows = kept.tables.get("learnt"), np.array([1, 3])
    kept.register(learnt, 8)
    kept.apply(learnt, learnt.checked(rows, np.full((2, 2), 0.5, np.float32), "write", array="exp_avg"), 8, 0)
    before = kept.state()
    kept.tables.create(MutableSpec("of-a-job", 3, lease_s=5))
    kept.store.close()
    again = Kept(tmp_path)
    assert again.state() == before
    assert (again.tables.get("learnt").pull(rows, "exp_avg").values == 0.5).all()
    assert [client for client, *_ in again.tables.get("added")._sequences.to_json()] == [7, 9]
    assert again.tables.get("added").claim(CLIENT, 4, 4) is Claim.APPLIED
    again.push(5)
    again.again()


def test_killed_anywhere_the_tables_are_as_after_some_record(tmp_path: Path) -> None:
    """The file is cut off at every place of its second half, as a kill in the middle of a write may leave it."""
    kept, states = Kept.made(tmp_path / "a"), []
    for number in range(1, 3):
        kept.push(number)
        states.append((kept.store._present.nbytes, kept.state()))
    path = kept.store._present.path
    kept.store.close()
    seen = set()
    for size in (*range(states[0][0], states[1][0], 31), states[1][0]):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        os.truncate(tmp_path / "b" / path.name, size)
        again = Kept(tmp_path / "b")
        for name, state in again.state().items():
            assert state in (states[0][1][name], states[1][1][name])
        seen.add(tuple(state == states[1][1][name] for name, state in again.state().items()))
        once_more = again.again()  # what was cut off stays away
        assert once_more.found.torn_bytes == 0
        once_more.store.close()
        shutil.rmtree(tmp_path / "b")
    assert len(seen) == 4


def test_a_checkpoint_and_the_log_behind_it(tmp_path: Path) -> None:
    """Tables go on changing while they are written. Replay begins before some of these changes."""
    kept = Kept.made(tmp_path)

    def between() -> None:
        kept.push(1)
        kept.tables.grow("added", 12)
        kept.register(kept.tables.get("learnt"), 8)
        kept.tables.delete("versioned")
        kept.tables.create(SPECS[2], table_id=4)
        kept.register(kept.tables.get("versioned"), CLIENT)

    kept.checkpoint(between)
    kept.push(2)
    again = kept.again()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    again.checkpoint()
    assert [path.name for path in tmp_path.glob("log-*")] == [again.store._present.path.name]
    assert again.again().found.records == 0


def test_a_loaded_snapshot_takes_the_place_of_the_tables(tmp_path: Path) -> None:
    kept = Kept.made(tmp_path / "store")
    kept.tables.snapshot(tmp_path / "snapshot")
    kept.push(1)
    kept.tables.adopt(kept.tables.prepare(tmp_path / "snapshot"), 99, {"learnt": 5})
    table = kept.tables.get("added")
    kept.register(table, 8)
    kept.apply(table, table.checked(np.array([1]), np.array([5]), "add"), 8, 0)
    again = kept.again().tables
    assert (again.get("learnt").step, again.get("learnt").load_id) == (5, 99)
    assert again.get("added")._sequences.over() == [CLIENT]


@pytest.mark.parametrize("keep_bytes", [0, KEPT])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_bytes: int) -> None:
    """Of an old file that is written over, too."""
    kept, written, calls = Kept.made(tmp_path / "a", keep_bytes=keep_bytes), os.pwritev, 0
    for number in range(1, 12):
        kept.push(number)
        if number % 4 == 3 and keep_bytes:
            kept.checkpoint()

    def full(fd: int, buffers: Any, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first record of the group, or a half of it, is there
            raise OSError(28, "No space left on device")
        return written(fd, buffers[: 2 if keep_bytes else 1], at)

    group = [registration(kept.tables.get("added"), client) for client in (20, 21)]
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="No space left"):
            kept.store.append(group)
    assert kept.store._present.broken is None
    kept.again(tmp_path / "b", keep_bytes=0)
    before = kept.state()
    kept.push(12)
    assert kept.state() != before
    kept.again(keep_bytes=0)


def failing_os(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_disk_that_may_have_lost_something_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor gets the log a successor: on the disk it may be longer than that would say."""
    kept = Kept.made(tmp_path, 0, forced=True)
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", failing_os)
        with pytest.raises(OSError, match="Input/output"):
            kept.store.append([registration(kept.tables.get("added"), 2)])
    with pytest.raises(OSError, match="Input/output"):
        kept.store.append([registration(kept.tables.get("added"), 2)])
    with pytest.raises(DataError, match=r"log-.*: cannot be written: Input/output error"):
        kept.checkpoint()
    assert len(list(tmp_path.glob("log-*"))) == 1
    again = kept.again(forced=False)  # what was refused does not come back
    again.store.append([registration(again.tables.get("added"), 2)])


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    kept = Kept.made(tmp_path)
    for number in range(1, 4):
        kept = kept.again()
        kept.push(number)
    kept.store.close()
    files = sorted(tmp_path.glob("log-*"))
    assert len(files) == 4
    content = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(DataError, match="a record before is missing"):
        Kept(tmp_path)
    files[1].write_bytes(content[:-8])
    with pytest.raises(DataError, match="ends within a record"):
        Kept(tmp_path)
    files[1].write_bytes(content)
    kept.again()


def test_a_store_is_of_one_daemon_and_one_dataset(tmp_path: Path) -> None:
    kept = Kept.made(tmp_path, 0)
    with pytest.raises(ConfigError, match="another daemon has its tables there"):
        Kept(tmp_path)
    kept.store.close()
    with pytest.raises(ConfigError, match="holds tables of dataset d, not e"):
        Kept(tmp_path, about={**ABOUT, "dataset": "e"})
    small, store = Tables(100), TableStore(tmp_path, ABOUT, forced=False)
    with pytest.raises(QuotaExceededError, match="the quota is 100; start with more --tables"):
        small.recovered(store.open(small.prepare).tables)
    store.close()
    (tmp_path / "store.json").unlink()
    with pytest.raises(DataError, match="is missing, but there are logs"):
        Kept(tmp_path)


def test_what_is_read_at_the_start_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is killed between writing a group and forcing it. Its successor counts the group as written, and says so
    to a client that repeats the push."""
    with monkeypatch.context() as never:
        never.setattr(os, "fdatasync", lambda _: None)
        kept = Kept.made(tmp_path, 0, forced=True)
    written = os.stat(next(tmp_path.glob("log-*"))).st_ino
    forced, real = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (forced.add(os.fstat(fd).st_ino), real(fd))[1])
    kept.again()
    assert written in forced
    monkeypatch.setattr(os, "fsync", failing_os)
    with pytest.raises(DataError, match=r"store.json: cannot be written: Input/output error"):
        Kept(tmp_path / "other", forced=True)


def test_a_successor_whose_name_cannot_be_forced_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the file that goes on would not be the last one, and what a kill leaves at its end would count as damage."""
    kept = Kept.made(tmp_path, 0, forced=True)
    with monkeypatch.context() as failing:
        failing.setattr(logfile, "force", failing_os)
        with pytest.raises(DataError, match=r"log-.*: cannot be written: Input/output error"):
            kept.checkpoint()
    (present,) = tmp_path.glob("log-*")
    kept.register(kept.tables.get("added"), 8)
    kept.store.close()
    present.write_bytes(present.read_bytes() + b"the beginning of a record")
    kept.again()


def test_a_checkpoint_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept.made(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Tables, "write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(DataError, match="no space left"):
            kept.checkpoint()
    kept.push(1)
    at = kept.store.rotate()
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", failing_os)
        with pytest.raises(DataError, match=r"checkpoint-.*: cannot be written: Input/output error"):
            kept.store.checkpoint(at, lambda folder, header, _: kept.tables.write(folder, [], header=header))
    assert not list(tmp_path.glob("checkpoint-*"))
    kept.again()


def log_files(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("log-*")}


@pytest.mark.parametrize("forced", [False, True])
def test_needless_files_are_written_over(tmp_path: Path, forced: bool) -> None:
    """Killed after any push, at any age of the files, the tables come back; and the files stay the same few."""
    kept = Kept.made(tmp_path / "a", 0, forced=forced, keep_bytes=KEPT)
    known: set[int] = set()
    for number in range(60):
        kept.push(2 * number)
        if number % 6 == 5:
            kept.checkpoint(partial(kept.push, 2 * number + 1))
        assert kept.store.disk_bytes == sum(path.stat().st_size for path in (tmp_path / "a").glob("log-*"))
        if number == 30:
            known = log_files(tmp_path / "a") | {kept.store._present.path.stat().st_ino}
        if number % 7 == 0:
            again = kept.again(tmp_path / "b")
            assert again.found.torn_bytes == 0
            again.push(1000)
            again.again(keep_bytes=0)
    assert log_files(tmp_path / "a") == known
    assert kept.store.disk_bytes < KEPT + 4000


def test_a_file_that_never_got_its_new_header_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """After a power cut with ``process``: the name is new, and what the file has is from before the checkpoint."""
    kept = Kept.made(tmp_path, 4, keep_bytes=KEPT)
    old = kept.store._present.path.read_bytes()
    kept.checkpoint()
    before = kept.state()
    kept.push(4)
    path = kept.store._present.path
    kept.store.close()
    path.write_bytes(old)
    assert Kept(tmp_path).state() == before


def test_a_checkpoint_is_written_over_the_last_but_one(tmp_path: Path) -> None:
    kept = Kept.made(tmp_path / "a", 0, keep_bytes=KEPT)
    files: list[set[int]] = []
    for number in range(6):
        kept.push(number)
        if number == 3:
            kept.tables.grow("added", 16)
        if number == 4:
            kept.tables.delete("learnt")
        kept.checkpoint()
        (newest,) = logfile.checkpoints_in(kept.store.folder)
        files.append({path.stat().st_ino for path in newest.iterdir()})
        kept.again(tmp_path / "b", keep_bytes=0)
        assert not list((tmp_path / "b").glob("*needless"))
    assert files[0] == files[2] == files[4]
    assert files[0].isdisjoint(files[1])
