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


class Direct:
    """Records changes at once, one by one."""

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
    """Tables with their store."""

    def __init__(
        self, folder: Path, *, forced: bool = False, about: dict[str, Any] = ABOUT, keep_bytes: int = 0
    ) -> None:
        self.store = TableStore(folder, about, forced=forced, keep_bytes=keep_bytes)
        self.tables = Tables(1 << 20)
        self.found: Recovered = self.store.open(partial(self.tables.prepare, resume=True))
        self.tables.recovered(self.found.tables)
        self.tables.recorder = Direct(self.store, self.tables)

    def create(self) -> None:
        for number, spec in enumerate(SPECS, 1):
            table = self.tables.create(spec, table_id=number)
            self.register(table, CLIENT)

    def register(self, table: MutableTable, client: int) -> None:
        self.tables.register(table, client)
        self.store.append([TableChange(ChangeKind.REGISTERED, table.key, (client,)).encode()])

    def push(self, rng: np.random.Generator, number: int) -> None:
        """Push random rows to a table whose name the number says; ``number`` counts the pushes to each table."""
        for table in self.tables.lasting():
            spec, op = table.spec, {"added": "add", "learnt": "step", "versioned": "write"}[table.spec.name]
            rows = rng.integers(0, table.rows, 4)
            values = (100 * rng.random((4, *spec.row_shape))).astype(spec.dtype)
            push = table.checked(rows, values, op, version=number if spec.versioned else None)
            assert table.claim(CLIENT, number, number) is Claim.FRESH
            before = self.store.append([RowsPushed(table.key, CLIENT, number, number, push).encode()])
            table.finish(push, CLIENT, number, before.lsn + 1)

    def checkpoint(self, between: Callable[[], object] = lambda: None) -> None:
        at, tables = self.store.rotate(), self.tables.lasting()
        between()
        self.store.checkpoint(
            at, lambda folder, header, over: self.tables.write(folder, tables, header=header, over=over)
        )

    def state(self) -> dict[str, Any]:
        """Everything that counts, comparable."""
        return {table.spec.name: state_of(table) for table in self.tables.list()}


def state_of(table: MutableTable) -> Any:
    arrays = {name: array.tobytes() for name, array in table._contents.arrays.items()}
    return (arrays, table.rows, table.step, table.whole, table.table_id, table.load_id, table.key,
            sorted(table._sequences.to_json()), table._sequences.over())  # fmt: skip


def test_an_empty_store_can_be_opened_again_and_again(tmp_path: Path) -> None:
    for epoch in range(1, 4):
        kept = Kept(tmp_path)
        assert kept.found == Recovered({}, 0, 0)
        assert kept.store.epoch == epoch
        kept.store.close()
        kept.store.close()
    assert len(list(tmp_path.glob("log-*"))) == 1


def test_tables_come_back_with_the_same_bits(tmp_path: Path) -> None:
    rng, kept = np.random.default_rng(1), Kept(tmp_path)
    kept.create()
    for number in range(5):
        kept.push(rng, number)
    kept.tables.create(SPECS[0], table_id=1, whole=True)
    kept.tables.grow("added", 15)
    kept.register(kept.tables.get("added"), 8)
    kept.tables.forget(8)
    kept.register(kept.tables.get("added"), 9)
    kept.tables.delete("versioned")
    kept.tables.create(MutableSpec("of a job".replace(" ", "-"), 3, lease_s=5))
    before = kept.state()
    del before["of-a-job"]
    kept.store.close()
    again = Kept(tmp_path)
    assert again.state() == before
    assert [client for client, *_ in again.tables.get("added")._sequences.to_json()] == [7, 9]
    assert again.tables.get("added").claim(CLIENT, 4, 4) is Claim.APPLIED
    again.push(rng, 5)
    before = again.state()
    again.store.close()
    assert Kept(tmp_path).state() == before


def test_killed_anywhere_the_tables_are_as_after_some_record(tmp_path: Path) -> None:
    """The file is cut off at every place of its second half, as a kill in the middle of a write may leave it."""
    rng, kept, states = np.random.default_rng(2), Kept(tmp_path / "a"), []
    kept.create()
    kept.push(rng, 0)
    for number in range(1, 3):
        kept.push(rng, number)
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
        again.store.close()
        once_more = Kept(tmp_path / "b")  # what was cut off stays away
        assert (once_more.found.torn_bytes, once_more.state()) == (0, again.state())
        once_more.store.close()
        shutil.rmtree(tmp_path / "b")
    assert len(seen) == 4


def test_a_checkpoint_and_the_log_behind_it(tmp_path: Path) -> None:
    """Tables go on changing while they are written. Replay begins before some of these changes."""
    rng, kept = np.random.default_rng(3), Kept(tmp_path)
    kept.create()
    kept.push(rng, 0)

    def between() -> None:
        kept.push(rng, 1)
        kept.tables.grow("added", 12)
        kept.register(kept.tables.get("learnt"), 8)
        kept.tables.delete("versioned")
        kept.tables.create(SPECS[2], table_id=4)
        kept.register(kept.tables.get("versioned"), CLIENT)

    kept.checkpoint(between)
    kept.push(rng, 2)
    before = kept.state()
    kept.store.close()
    again = Kept(tmp_path)
    assert again.state() == before
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    again.checkpoint()
    assert [path.name for path in tmp_path.glob("log-*")] == [again.store._present.path.name]
    again.store.close()
    last = Kept(tmp_path)
    assert last.state() == before
    assert last.found.records == 0


def test_a_checkpoint_that_fails_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, kept = np.random.default_rng(4), Kept(tmp_path)
    kept.create()
    kept.push(rng, 0)
    with monkeypatch.context() as broken:
        broken.setattr(Tables, "write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(DataError, match="no space left"):
            kept.checkpoint()
    kept.push(rng, 1)
    before = kept.state()
    kept.store.close()
    assert Kept(tmp_path).state() == before


def test_a_loaded_snapshot_takes_the_place_of_the_tables(tmp_path: Path) -> None:
    rng, kept = np.random.default_rng(5), Kept(tmp_path / "store")
    kept.create()
    kept.push(rng, 0)
    kept.tables.snapshot(tmp_path / "snapshot")
    kept.push(rng, 1)
    kept.tables.adopt(kept.tables.prepare(tmp_path / "snapshot"), 99, {"learnt": 5})
    table = kept.tables.get("added")
    kept.register(table, 8)
    push = table.checked(np.array([1]), np.array([5]), "add")
    assert table.claim(8, 0, 0) is Claim.FRESH
    table.finish(push, 8, 0, kept.store.append([RowsPushed(table.key, 8, 0, 0, push).encode()]).lsn + 1)
    before = kept.state()
    kept.store.close()
    again = Kept(tmp_path / "store")
    assert again.state() == before
    assert (again.tables.get("learnt").step, again.tables.get("learnt").load_id) == (5, 99)
    assert again.tables.get("added")._sequences.over() == [CLIENT]


def test_what_was_written_into_the_state_of_an_optimiser_comes_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.create()
    table = kept.tables.get("learnt")
    kept.register(table, 8)
    (name, *_), rows = table.spec.optimiser.state_names, np.array([1, 3])  # type: ignore[union-attr]
    push = table.checked(rows, np.full((2, *table.spec.row_shape), 0.5, table.spec.dtype), "write", array=name)
    assert table.claim(8, 0, 0) is Claim.FRESH
    table.finish(push, 8, 0, kept.store.append([RowsPushed(table.key, 8, 0, 0, push).encode()]).lsn + 1)
    before = kept.state()
    kept.store.close()
    again = Kept(tmp_path)
    assert again.state() == before
    assert (again.tables.get("learnt").pull(rows, name).values == 0.5).all()


def test_a_write_that_fails_leaves_nothing_of_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, kept, written = np.random.default_rng(6), Kept(tmp_path), os.pwritev
    kept.create()
    kept.push(rng, 0)
    before, calls = kept.state(), 0

    def half(fd: int, buffers: Any, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        return written(fd, [buffers[0]], at)

    group = [
        TableChange(ChangeKind.REGISTERED, kept.tables.get("added").key, (client,)).encode() for client in (20, 21)
    ]
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", half)
        with pytest.raises(OSError, match="No space left"):
            kept.store.append(group)
    kept.push(rng, 1)
    after = kept.state()
    assert after != before
    kept.store.close()
    assert Kept(tmp_path).state() == after


def test_a_disk_that_may_have_lost_something_is_not_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, forced=True)
    kept.create()
    before = kept.state()
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            kept.store.append([TableChange(ChangeKind.REGISTERED, kept.tables.get("added").key, (2,)).encode()])
    with pytest.raises(OSError, match="Input/output"):
        kept.store.append([TableChange(ChangeKind.REGISTERED, 1, (2,)).encode()])
    kept.store.close()
    again = Kept(tmp_path)
    assert again.state() == before, "what was refused does not come back"
    again.store.append([TableChange(ChangeKind.REGISTERED, 1, (2,)).encode()])


def test_damage_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    rng, kept = np.random.default_rng(7), Kept(tmp_path)
    kept.create()
    kept.push(rng, 0)
    path, size = kept.store._present.path, kept.store._present.nbytes
    kept.store.close()
    good = path.read_bytes()
    for at in rng.integers(0, size, 30):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(DataError, match=path.name):
            Kept(tmp_path)
    path.write_bytes(good)
    Kept(tmp_path).store.close()


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    kept = Kept(tmp_path)
    kept.create()
    for number in range(3):
        kept.push(rng, number)
        kept.store.close()
        kept = Kept(tmp_path)
    kept.push(rng, 3)
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
    Kept(tmp_path).store.close()


def test_a_store_is_of_one_daemon_and_one_dataset(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.create()
    with pytest.raises(ConfigError, match="another daemon keeps its tables there"):
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


def failing_os(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_what_is_read_at_the_start_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is killed between writing a group and forcing it. Its successor counts the group as written, and says so
    to a client that repeats the push."""
    kept = Kept(tmp_path, forced=True)
    with monkeypatch.context() as never:
        never.setattr(os, "fdatasync", lambda _: None)
        kept.create()
    written = os.stat(next(tmp_path.glob("log-*"))).st_ino
    kept.store.close()
    forced = set()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (forced.add(os.fstat(fd).st_ino), real(fd))[1])
    assert len(Kept(tmp_path, forced=True).state()) == 3
    assert written in forced
    monkeypatch.setattr(os, "fsync", failing_os)
    with pytest.raises(DataError, match=r"store.json: cannot be written: Input/output error"):
        Kept(tmp_path / "other", forced=True)


def test_a_log_that_could_not_be_forced_gets_no_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk it may be longer than the successor would say."""
    kept = Kept(tmp_path, forced=True)
    kept.create()
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", failing_os)
        with pytest.raises(OSError, match="Input/output error"):
            kept.register(kept.tables.get("added"), 8)
    with pytest.raises(DataError, match=r"log-.*: cannot be written: Input/output error"):
        kept.checkpoint()
    assert len(list(tmp_path.glob("log-*"))) == 1
    kept.store.close()


def test_a_successor_whose_name_cannot_be_forced_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the file that goes on would not be the last one, and what a kill leaves at its end would count as damage."""
    kept = Kept(tmp_path, forced=True)
    kept.create()
    with monkeypatch.context() as failing:
        failing.setattr(logfile, "force", failing_os)
        with pytest.raises(DataError, match=r"log-.*: cannot be written: Input/output error"):
            kept.checkpoint()
    (present,) = tmp_path.glob("log-*")
    kept.register(kept.tables.get("added"), 8)
    before = kept.state()
    kept.store.close()
    present.write_bytes(present.read_bytes() + b"the beginning of a record")
    again = Kept(tmp_path, forced=True)
    assert again.state() == before
    again.store.close()


def test_a_checkpoint_that_cannot_be_forced_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path)
    kept.create()
    before, at = kept.state(), kept.store.rotate()
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", failing_os)
        with pytest.raises(DataError, match=r"checkpoint-.*: cannot be written: Input/output error"):
            kept.store.checkpoint(at, lambda folder, header, _: kept.tables.write(folder, [], header=header))
    assert not list(tmp_path.glob("checkpoint-*"))
    kept.store.close()
    assert Kept(tmp_path).state() == before


KEPT = 16_000
"""Files of 1,000 bytes: a round of pushes fills one to two."""


def log_files(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("log-*")}


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


@pytest.mark.parametrize("forced", [False, True])
def test_needless_files_are_written_over(tmp_path: Path, forced: bool) -> None:
    """Killed after any push, at any age of the files, the tables come back; and the files stay the same few."""
    rng, kept = np.random.default_rng(9), Kept(tmp_path / "a", forced=forced, keep_bytes=KEPT)
    kept.create()
    known: set[int] = set()
    for number in range(60):
        kept.push(rng, 2 * number)
        if number % 6 == 5:
            kept.checkpoint(partial(kept.push, rng, 2 * number + 1))
        assert kept.store.disk_bytes == size_of(tmp_path / "a", "log-*")
        if number == 30:
            known = log_files(tmp_path / "a") | {kept.store._present.path.stat().st_ino}
        if number % 7 == 0:
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            again = Kept(tmp_path / "b", forced=forced, keep_bytes=KEPT)
            assert (again.state(), again.found.torn_bytes) == (kept.state(), 0)
            again.push(rng, 1000)
            state = again.state()
            again.store.close()
            assert Kept(tmp_path / "b", forced=forced).state() == state
            shutil.rmtree(tmp_path / "b")
    assert log_files(tmp_path / "a") == known
    assert kept.store.disk_bytes < KEPT + 4000
    kept.store.close()


def test_a_write_over_an_old_file_that_fails_leaves_nothing_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kept, written = np.random.default_rng(10), Kept(tmp_path / "a", keep_bytes=KEPT), os.pwritev
    kept.create()
    for number in range(12):
        kept.push(rng, number)
        if number % 4 == 3:
            kept.checkpoint()
    before, calls = kept.state(), 0

    def full(fd: int, buffers: Any, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first record of the group is there
            raise OSError(28, "No space left on device")
        return written(fd, buffers[:2] if calls == 1 else buffers, at)

    group = [
        TableChange(ChangeKind.REGISTERED, kept.tables.get("added").key, (client,)).encode() for client in (20, 21)
    ]
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="No space left"):
            kept.store.append(group)
    assert kept.store._present.broken is None
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert Kept(tmp_path / "b").state() == before
    kept.push(rng, 12)
    before = kept.state()
    kept.store.close()
    assert Kept(tmp_path / "a").state() == before


def test_a_file_that_never_got_its_new_header_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """After a power cut with ``process``: the name is new, and what the file has is from before the checkpoint."""
    rng, kept = np.random.default_rng(11), Kept(tmp_path, keep_bytes=KEPT)
    kept.create()
    for number in range(4):
        kept.push(rng, number)
    old = kept.store._present.path.read_bytes()
    kept.checkpoint()
    before = kept.state()
    kept.push(rng, 4)
    path = kept.store._present.path
    kept.store.close()
    path.write_bytes(old)
    again = Kept(tmp_path)
    assert again.state() == before
    again.store.close()


def test_a_checkpoint_is_written_over_the_last_but_one(tmp_path: Path) -> None:
    rng, kept = np.random.default_rng(12), Kept(tmp_path / "a", keep_bytes=KEPT)
    kept.create()
    files: list[set[int]] = []
    for number in range(6):
        kept.push(rng, number)
        if number == 3:
            kept.tables.grow("added", 16)
        if number == 4:
            kept.tables.delete("learnt")
        kept.checkpoint()
        (newest,) = logfile.checkpoints_in(kept.store.folder)
        files.append({path.stat().st_ino for path in newest.iterdir()})
        state = kept.state()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        again = Kept(tmp_path / "b")
        assert again.state() == state
        assert not list((tmp_path / "b").glob("*needless"))
        shutil.rmtree(tmp_path / "b")
    assert files[0] == files[2]
    assert files[0].isdisjoint(files[1])
    assert files[4] == files[2]
