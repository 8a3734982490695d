"""Snapshots of several owners: if a save breaks off anywhere, the old or the new one is whole. Loads change all or nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from atta.daemon.services.table_snapshots import PushHold, TableSnapshots, lineage
from atta.errors import AttaError, ConfigError, DataError, DrainingError, QuotaExceededError, UnknownNameError
from atta.kvstore.durable.frames import VERSION
from atta.kvstore.durable.saved import TablesWriter
from atta.kvstore.spec import Constant, MutableSpec
from atta.kvstore.tables import Tables

PARTS = 2
OLD, NEW, OTHER = "0" * 16, "1" * 16, "2" * 16


class Died(BaseException):
    """The process was killed."""


class Owner:
    def __init__(self, folder: Path, part: int) -> None:
        self.tables, self.now, self.part = Tables(10_000), 0.0, part
        self.snapshots = TableSnapshots(self.tables, part, folder, clock=lambda: self.now)

    def hold(self, value: int) -> None:
        self.tables.delete("t")
        self.tables.create(MutableSpec("t", 3, init=Constant(value)), table_id=9)

    @property
    def value(self) -> float:
        return float(self.tables.get("t").pull(np.array([0])).values[0])


def owners(folder: Path, value: int | None = None) -> list[Owner]:
    made = [Owner(folder, part) for part in range(PARTS)]
    if value is not None:
        hold(made, value)
    return made


def hold(of: list[Owner], value: int) -> None:
    for owner in of:
        owner.hold(value)


def saving(of: list[Owner], snapshot_id: str) -> list[Callable[[], object]]:
    prepare = [partial(o.snapshots.prepare_save, "s", snapshot_id, 60.0) for o in of]
    return [*prepare, *(partial(o.snapshots.commit_save, "s", snapshot_id) for o in of)]


def save(of: list[Owner], snapshot_id: str) -> None:
    for step in saving(of, snapshot_id):
        step()


def common(of: list[Owner], name: str = "s") -> str:
    """The id that is loaded: the newest one that all owners have."""
    ids = [owner.snapshots.ids(name) for owner in of]
    return next(one for one in ids[0] if all(one in others for others in ids))


def load(of: list[Owner], load_id: int = 1, name: str = "s") -> list[float]:
    snapshot_id = common(of, name)
    for owner in of:
        owner.snapshots.prepare_load(name, snapshot_id, load_id, 60.0)
    for owner in of:
        owner.snapshots.commit_load(load_id, {})
    return [owner.value for owner in of]


def ids(folder: Path) -> list[list[str]]:
    return [owner.snapshots.ids("s") for owner in owners(folder)]


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "s").iterdir())


def test_a_save_that_dies_at_any_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename
    outcomes = []
    for deadly in range(20):
        folder = tmp_path / str(deadly)
        save(owners(folder, 1), OLD)
        left = iter(range(deadly))

        def dies(self: Path, target: Path, left: Iterator[int] = left) -> Path:
            if next(left, None) is None:
                raise Died
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", dies)
        try:
            save(owners(folder, 2), NEW)
            died = False
        except Died:
            died = True
        monkeypatch.setattr(Path, "rename", rename)
        again = owners(folder)  # all owners were killed
        outcomes.append(load(again))
        hold(again, 3)
        save(again, OTHER)
        assert load(owners(folder)) == [3.0] * PARTS
        assert folders(folder) == ["part-0000", "part-0001"]  # the broken save leaves nothing behind
        if not died:
            break
    assert not died
    assert outcomes == sorted(outcomes)
    assert all(outcome in ([1.0] * PARTS, [2.0] * PARTS) for outcome in outcomes)
    assert outcomes[0] == [1.0] * PARTS
    assert outcomes[-1] == [2.0] * PARTS


def test_an_aborted_save_leaves_nothing(tmp_path: Path) -> None:
    save(owners(tmp_path, 1), OLD)
    of = owners(tmp_path, 2)
    of[0].snapshots.prepare_save("s", NEW, 60.0)
    for owner in of:
        owner.snapshots.abort_save("s", NEW)
    assert folders(tmp_path) == ["part-0000", "part-0001"]
    with pytest.raises(AttaError, match="part 0: what was prepared was held for too long"):
        of[0].snapshots.commit_save("s", NEW)
    assert load(owners(tmp_path)) == [1.0] * PARTS


def test_steps_of_a_save_may_come_twice(tmp_path: Path) -> None:
    """Clients do this when an answer is lost."""
    of = owners(tmp_path, 1)
    for step in saving(of, OLD):
        step(), step()
    for owner in of:
        owner.snapshots.abort_save("s", OLD)  # too late
    assert load(of) == [1.0] * PARTS
    assert folders(tmp_path) == ["part-0000", "part-0001"]


def test_one_saves_at_a_time_until_it_is_silent_for_too_long(tmp_path: Path) -> None:
    of = owners(tmp_path, 1)
    first = of[0].snapshots
    first.prepare_save("s", OLD, 60.0)
    with pytest.raises(QuotaExceededError, match="another save"):
        first.prepare_save("s", NEW, 60.0)
    of[0].now = 61.0
    save(of, NEW)
    with pytest.raises(AttaError, match="save again"):
        first.commit_save("s", OLD)
    assert load(of) == [1.0] * PARTS
    assert common(of) == NEW


def test_what_is_no_snapshot_is_not_replaced(tmp_path: Path) -> None:
    foreign = tmp_path / "s" / "part-0000"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("years of work")
    (tmp_path / "s" / "part-0000.backup").mkdir()
    owner = owners(tmp_path, 1)[0]
    with pytest.raises(ConfigError, match=r"holds no tables\.log"):
        owner.snapshots.prepare_save("s", OLD, 60.0)
    (foreign / "thesis.tex").unlink()
    save([owner], OLD)
    assert folders(tmp_path) == ["part-0000", "part-0000.backup"]
    for bad in ("", "x", "../../etc", "0" * 15):
        with pytest.raises(ConfigError, match="snapshot id"):
            owner.snapshots.prepare_save("s", bad, 60.0)


def test_a_damaged_snapshot_can_be_saved_anew(tmp_path: Path) -> None:
    of = owners(tmp_path, 1)
    save(of, OLD)
    path = tmp_path / "s" / "part-0001" / "tables.log"
    path.write_bytes(path.read_bytes().replace(b"tables", b"chairs"))
    with pytest.raises(DataError, match=r"part-0001/tables\.log"):
        of[1].snapshots.ids("s")
    hold(of, 2)
    save(of, NEW)
    assert load(owners(tmp_path)) == [2.0] * PARTS


def test_what_was_read_waits_for_the_others_and_is_dropped(tmp_path: Path) -> None:
    save(owners(tmp_path, 1), OLD)
    owner = owners(tmp_path, 2)[0]
    for load_id in (1, 1):  # twice is the same as once
        owner.snapshots.prepare_load("s", OLD, load_id, 60.0)
    with pytest.raises(QuotaExceededError, match="another load"):
        owner.snapshots.prepare_load("s", OLD, 2, 60.0)
    assert owner.value == 2.0
    owner.now = 61.0
    owner.snapshots.expire()
    with pytest.raises(AttaError, match="load again"):
        owner.snapshots.commit_load(1, {})
    owner.snapshots.prepare_load("s", OLD, 2, 60.0)
    owner.snapshots.abort_load(1)  # another owner's
    owner.snapshots.commit_load(2, {"t": 7})
    owner.snapshots.commit_load(2, {"t": 7})
    assert (owner.value, owner.tables.get("t").step, owner.tables.get("t").load_id) == (1.0, 7, 2)
    owner.snapshots.prepare_load("s", OLD, 3, 60.0)
    owner.snapshots.abort_load(3)
    with pytest.raises(AttaError, match="load again"):
        owner.snapshots.commit_load(3, {})


def test_daemons_that_end_leave_parts_that_belong_together(tmp_path: Path) -> None:
    """They match by the ids that tables were created and loaded with. Nobody gives the daemons a common name."""
    first, second = owners(tmp_path, 1), owners(tmp_path, 2)
    for owner in first:
        owner.snapshots.finish()
    ids = [owner.snapshots.ids("shutdown") for owner in first]
    assert ids[0] == ids[1] == [lineage(first[0].tables.list())]
    for owner in second:
        owner.snapshots.prepare_load("shutdown", ids[0][0], 5, 60.0)
        owner.snapshots.commit_load(5, {})
        assert owner.value == 1.0
    second[0].snapshots.finish()  # the other one is killed
    later = [owner.snapshots.ids("shutdown") for owner in second]
    assert later[0] == [lineage(second[0].tables.list()), *ids[0]]
    assert later[1] == ids[1]  # so that the older one is there as a whole
    with pytest.raises(DrainingError, match="stopping"):
        second[0].tables.create(MutableSpec("late", 1))


def test_the_latest_end_is_loaded_though_the_clock_went_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are not loaded between have one id for all their snapshots: only the folders tell which is newer."""
    for value, hour in ((1, 9), (2, 7), (3, 8)):
        monkeypatch.setattr(time, "time_ns", lambda hour=hour: hour * 3600 * 10**9)
        ended = owners(tmp_path, value)
        for owner in ended:
            owner.snapshots.finish()
        assert load(owners(tmp_path), name="shutdown") == [value] * PARTS


@pytest.mark.parametrize("died", [False, True])
def test_a_save_that_breaks_off_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: bool) -> None:
    """And what an older save has left is gone, also if the daemon died in the midst of the commit."""
    save(owners(tmp_path, 1), OLD)
    for prepare in saving(owners(tmp_path, 2), OTHER)[: PARTS * died]:
        prepare()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    steps = saving(owners(tmp_path, 3), NEW)
    for prepare in steps[:PARTS]:
        prepare()
    with monkeypatch.context() as patched:
        patched.setattr("atta.kvstore.durable.saved.force", Mock(side_effect=Died))
        for commit in steps[PARTS:] if died else ():
            with pytest.raises(Died):
                commit()
    assert ids(tmp_path) == [[NEW, OLD]] * PARTS


def test_a_snapshot_of_another_version_is_refused(tmp_path: Path) -> None:
    save(owners(tmp_path, 1), OLD)
    for path in tmp_path.rglob("tables.log"):
        path.write_bytes(path.read_bytes().replace(VERSION.to_bytes(4, "little"), (9).to_bytes(4, "little"), 1))
    with pytest.raises(DataError, match="format version 9; this release reads version"):
        owners(tmp_path)[0].snapshots.ids("s")


def test_pushes_wait_from_a_hold_to_the_copy() -> None:
    now = 0.0
    hold = PushHold(0, lambda: now)
    assert not hold.closed
    hold.begin(OLD, 10)
    hold.begin(OLD, 10)
    now = 9.0
    assert hold.closed
    with pytest.raises(QuotaExceededError, match="another save of tables is under way"):
        hold.begin(NEW, 10)
    with pytest.raises(UnknownNameError, match="pushes went on"):
        hold.keep(NEW)
    hold.release(NEW)
    hold.keep(OLD)
    now = 1e6
    assert hold.closed, "the copy may take its time"
    hold.release(OLD)
    assert not hold.closed
    hold.begin(NEW, 1e9)
    now += 31
    assert not hold.closed
    with pytest.raises(UnknownNameError, match="pushes went on before all daemons had copied their tables; save again"):
        hold.keep(NEW)
    with pytest.raises(ConfigError, match="cannot be held"):
        hold.begin(OLD, -1)


def test_a_save_that_lost_its_hold_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner, _), closed, write = owners(tmp_path, 3), list[bool](), TablesWriter.write

    def written(*args: Any) -> Any:
        closed.append(owner.snapshots.hold.closed)
        return write(*args)

    monkeypatch.setattr(TablesWriter, "write", written)
    with pytest.raises(UnknownNameError, match="save again"):
        owner.snapshots.prepare_save("s", NEW, 60.0, held=True)
    owner.snapshots.hold.begin(NEW, 10)
    owner.snapshots.prepare_save("s", NEW, 60.0, held=True)
    assert closed
    assert {*closed, owner.snapshots.hold.closed} == {False}, "pushes go on while the disk is slow"
    owner.snapshots.prepare_save("s", NEW, 60.0, held=True)  # a repetition, after pushes went on
    owner.snapshots.commit_save("s", NEW)
    assert owner.snapshots.ids("s") == [NEW]
    owner.snapshots.hold.begin(OTHER, 10)
    owner.snapshots.abort_save("s", OTHER)
    assert not owner.snapshots.hold.closed


def test_snapshots_take_no_more_bytes_than_they_may(tmp_path: Path) -> None:
    (owner,) = owners(tmp_path, 1)[:1]

    def save(name: str, snapshot_id: str) -> None:
        owner.snapshots.prepare_save(name, snapshot_id, 60.0)
        owner.snapshots.commit_save(name, snapshot_id)

    save("a", OLD)
    one = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    owner.snapshots._limit_bytes = one + owner.tables.get("t").nbytes - 1
    with pytest.raises(QuotaExceededError, match=f"take {one} bytes .* raise --snapshots-size"):
        save("b", NEW)
    assert not (tmp_path / "b").exists()
    owner.snapshots._limit_bytes += 1
    save("b", NEW)
    with pytest.raises(QuotaExceededError, match="raise --snapshots-size"):
        save("a", OTHER)
    shutil.rmtree(tmp_path / "a")
    owner.snapshots.prepare_save("a", OTHER, 60.0)
    owner.snapshots.finish()
    assert (tmp_path / "shutdown").exists(), "never refused"
