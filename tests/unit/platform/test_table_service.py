"""Tables on a daemon: pushes share writes and wait for copies, and every other request is answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.client.tables import cluster
from atta.daemon.durable import journal as journal_module
from atta.daemon.durable.journal import Journal
from atta.daemon.services.tables import TableService
from atta.errors import (
    ConfigError,
    DrainingError,
    QuotaExceededError,
    StaleRowError,
    UnknownClientError,
    UnknownNameError,
)
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.owners import span_of
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES, ROWS_VALUES
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import maker

SPEC = MutableSpec("rows", 1000, row_shape=(100,))
DATASET: Any = SimpleNamespace(dataset_id="d", partitions=SimpleNamespace(num_parts=1), groups=[range(1)])
CLIENT = 1
CONTEXT: Any = SimpleNamespace(peer=lambda: "somewhere")


async def started(tables: Tables, folder: Path) -> TableService:
    service = TableService(DATASET, 0, tables, maker(), snapshots=folder)
    await service.create(table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(SPEC.to_dict())), CONTEXT)
    tables.get("rows").register(CLIENT)
    return service


async def pulled(service: TableService, count: int) -> float:
    """The sum of the first values of ``count`` rows."""
    request = table_pb2.PullRowsRequest(name="rows", rows=np.arange(count).tobytes())
    chunks = [len(chunk) async for chunk in service.pull(request, CONTEXT)]
    assert sum(chunks) >= count * SPEC.row_bytes
    return float(service._tables.get("rows").pull(np.arange(count)).values[:, 0].sum())


async def answer(service: TableService, rows: np.ndarray, **more: Any) -> list[Any]:
    request = table_pb2.PullRowsRequest(name="versioned", rows=rows.tobytes(), **more)
    return [chunk async for chunk in service.pull(request, CONTEXT)]


async def test_a_reader_that_names_the_version_gets_the_values_alone(tmp_path: Path) -> None:
    spec = MutableSpec("versioned", 1000, row_shape=(2,), versioned=True)
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    service = await started(Tables(1 << 20), tmp_path)
    await service.create(table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(spec.to_dict())), CONTEXT)
    service._tables.get("versioned").register(CLIENT)
    push = table_pb2.PushRowsRequest(name="versioned", op="write", client=CLIENT, sequence=1, versioned=True, version=7)
    await service.push(Bulk(push, {PUSH_ROWS: np.arange(10).tobytes(), PUSH_VALUES: values.tobytes()}), CONTEXT)
    asked = np.array([3, 0, 3])
    for dtype, narrow in ((np.int32, True), (np.int64, False)):
        (chunk,) = await answer(service, asked.astype(dtype), narrow_rows=narrow, version=7)
        assert list(chunk.payloads) == [ROWS_VALUES]
        assert np.array_equal(np.frombuffer(chunk.payloads[ROWS_VALUES], np.float32).reshape(3, 2), values[asked])
    (chunk,) = await answer(service, asked, version=7, codec="fp16")
    assert np.array_equal(np.frombuffer(chunk.payloads[ROWS_VALUES], np.float16).reshape(3, 2), values[asked])
    with pytest.raises(StaleRowError, match="table versioned: row 2 has version 7; the reader may use 6"):
        await answer(service, np.array([2]), version=6)
    with pytest.raises(StaleRowError, match="row 10 was never written with a version; the reader may use 0"):
        await answer(service, np.array([10]), version=0)
    unversioned = table_pb2.PullRowsRequest(name="rows", rows=np.arange(2).tobytes(), version=0)
    with pytest.raises(ConfigError, match="table rows: its rows have no versions"):
        [chunk async for chunk in service.pull(unversioned, CONTEXT)]


def added(service: TableService, sequence: int, count: int) -> Any:
    request = table_pb2.PushRowsRequest(name="rows", op="add", client=CLIENT, sequence=sequence)
    payloads = {PUSH_ROWS: np.arange(count).tobytes(), PUSH_VALUES: np.ones((count, 100), np.float32).tobytes()}
    return service.push(Bulk(request, payloads), CONTEXT)


async def test_pushes_wait_for_a_copy_and_nobody_else_does(tmp_path: Path) -> None:
    """The event loop handles small pushes, threads handle large ones. A waiting push must block neither."""
    service = await started(Tables(1 << 20), tmp_path)
    with service._tables.get("rows")._gate.exclusive():  # as while a snapshot is copied
        pushes = [asyncio.ensure_future(added(service, number, count)) for number, count in enumerate((2, 900))]
        for count in (1, 1000):
            assert await asyncio.wait_for(pulled(service, count), 30) == 0
        assert not any(push.done() for push in pushes)
    assert [(await asyncio.wait_for(push, 30)).applied for push in pushes] == [True, True]
    assert await pulled(service, 1000) == 902


async def test_a_daemon_that_ends_takes_no_more_pushes_and_keeps_its_tables(tmp_path: Path) -> None:
    """The snapshot has every acknowledged push, and later pushes are refused. Here pushes never pause."""
    service, number = await started(Tables(1 << 20), tmp_path), 0
    finishing: list[asyncio.Future[None]] = []

    async def push_on() -> None:
        nonlocal number
        while (await added(service, number, 900)).applied:
            number += 1
            if number == 5:
                finishing.append(asyncio.ensure_future(service.finish()))

    with pytest.raises(DrainingError, match="stopping"):
        await push_on()
    await asyncio.gather(*finishing)
    assert await pulled(service, 10) == 10 * number  # the service answers until it ends
    assert (restored(tmp_path / "shutdown").get("rows").pull(np.arange(900)).values == number).all()


def restored(folder: Path) -> Tables:
    found = Tables(1 << 20)
    found.adopt(found.prepare(folder / "part-0000"), 0, {})
    return found


async def test_a_daemon_without_tables_keeps_the_older_snapshot(tmp_path: Path) -> None:
    for names in (["first"], []):
        tables = Tables(1 << 20)
        for name in names:
            tables.create(MutableSpec(name, 3))
        await TableService(DATASET, 0, tables, maker(), snapshots=tmp_path).finish()
    assert [table.spec.name for table in restored(tmp_path / "shutdown").list()] == ["first"]


async def test_a_daemon_knows_whether_its_tables_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a disk that hangs does not keep it from ending."""
    (tmp_path / "file").touch()
    assert await (await started(Tables(1 << 20), tmp_path / "folder")).finish() is None
    lost = await (await started(Tables(1 << 20), tmp_path / "file")).finish()
    assert f"part 0 are not saved: {tmp_path}/file/shutdown" in str(lost)
    hanging = threading.Event()
    monkeypatch.setattr(Tables, "snapshot", lambda *_, **__: hanging.wait(60))
    lost = await (await started(Tables(1 << 20), tmp_path)).finish(within_s=0.01)
    assert "part 0 are not saved: not done within 0.01 s" in str(lost)
    hanging.set()


def test_edges_are_counted_in_their_files_and_daemons_of_several_partitions_own_their_rows() -> None:
    """The report of the partitioning is not used: it may be wrong or missing."""
    sizes = [3, 0, 5]
    files = {f"part-{part:04d}/edges/e/indices.npy": SimpleNamespace(shape=(size,)) for part, size in enumerate(sizes)}
    about = {"files": files, "schema": SimpleNamespace(check_edge_type=lambda name: name)}
    dataset: Any = SimpleNamespace(partitions=SimpleNamespace(num_parts=3), **about)

    def spans(rows: int = 8, policy: str = "edges:e") -> list[range]:
        return [span_of(MutableSpec("t", rows, policy=policy), dataset, owner) for owner in range(len(dataset.groups))]

    for dataset.quality in ({"parts": [{"edges": {"e": 99}}] * 3}, {}):
        dataset.groups = [range(1), range(1, 2), range(2, 3)]
        assert spans() == [range(3), range(3, 3), range(3, 8)]
        with pytest.raises(ConfigError, match=r"9 rows; there are 8 edges of type 'e' in version 0 of the dataset"):
            spans(9)
        dataset.groups = [range(1), range(1, 3)]
        assert spans() == [range(3), range(3, 8)]
    default = span_of(MutableSpec("t", 10), dataset, 0), span_of(MutableSpec("t", 10), dataset, 1)
    assert default == (range(3), range(3, 10)), "what the partitions would own, each with a daemon of its own"


COUNTS = MutableSpec("rows", 1000, "<i8", row_shape=(100,))
FULL = OSError(28, "No space left on device")


class Kept:
    def __init__(self, folder: Path, *, log_bytes: int = 1 << 30, forced: bool = False) -> None:
        self.store, self.tables = TableStore(folder, {}, forced=forced, keep_bytes=log_bytes), Tables(1 << 24)
        self.tables.recovered(self.store.open(partial(self.tables.prepare, resume=True)).tables)
        self.journal = Journal(self.store, self.tables, log_bytes=log_bytes)
        self.tables.recorder = self.journal
        self.service = TableService(DATASET, 0, self.tables, maker(), snapshots=folder / "saved", journal=self.journal)
        self.running = asyncio.create_task(self.journal.run())

    async def create(self) -> None:
        spec = json.dumps(COUNTS.to_dict())
        await self.service.create(table_pb2.CreateTableRequest(dataset_id="d", spec=spec), CONTEXT)
        self.client = await self.register()

    async def register(self) -> int:
        reply = await self.service.register(table_pb2.RegisterRequest(name="rows"), CONTEXT)
        return int(reply.client)

    def push(self, sequence: int, rows: int = 3) -> Coroutine[Any, Any, table_pb2.PushRowsReply]:
        push = table_pb2.PushRowsRequest(name="rows", op="add", client=self.client, sequence=sequence)
        payloads = {PUSH_ROWS: np.arange(rows).tobytes(), PUSH_VALUES: np.ones((rows, 100), np.int64).tobytes()}
        return self.service.push(Bulk(push, payloads), CONTEXT)

    def first(self) -> int:
        return int(self.tables.get("rows").pull(np.arange(1)).values[0, 0])

    async def end(self) -> None:
        await self.journal.finish()
        while self.journal._saving is not None:
            await asyncio.sleep(0.01)
        self.running.cancel()
        await asyncio.wait([self.running])
        self.journal.close()


@contextlib.asynccontextmanager
async def keeping(folder: Path, **options: Any) -> AsyncIterator[Kept]:
    """With a table and a client. Afterwards, a store that is opened again must have the same rows."""
    kept = Kept(folder, **options)
    await kept.create()
    async with asyncio.timeout(60):
        yield kept
    await kept.end()
    rows = {table.spec.name: table.pull(np.arange(table.rows)).values for table in kept.tables.list()}
    again = Kept(folder)
    assert [*rows] == [table.spec.name for table in again.tables.list()]
    for name, values in rows.items():
        assert np.array_equal(again.tables.get(name).pull(np.arange(len(values))).values, values)
    await again.end()


async def test_pushes_that_come_together_share_writes(tmp_path: Path) -> None:
    async with keeping(tmp_path, forced=True) as kept:
        before = kept.journal.stats()
        # Small and large ones; each comes twice.
        pushes = [kept.push(number, 900 if number % 10 == 0 else 3) for number in (*range(50), *range(50))]
        applied = [reply.applied for reply in await asyncio.gather(*pushes)]
        assert applied[:50] == [True] * 50
        assert applied[50:] == [False] * 50
        assert kept.first() == 50
        stats = kept.journal.stats()
        assert stats["table_log_records"] - before["table_log_records"] == 50
        assert stats["table_log_groups"] - before["table_log_groups"] < 25


async def test_a_small_push_is_made_at_once(tmp_path: Path) -> None:
    """Where nothing is under way, and the log is not forced: before any other task has its turn."""
    async with keeping(tmp_path) as kept:
        pushed = kept.push(0)
        with pytest.raises(StopIteration) as ended:
            pushed.send(None)
        assert ended.value.value.applied
        assert kept.first() == 1
        async with kept.journal._turn:  # others are under way
            waiting = asyncio.ensure_future(kept.push(1))
            for _ in range(5):
                await asyncio.sleep(0)
            assert kept.first() == 1
        assert (await waiting).applied
        assert kept.first() == 2


async def test_a_slow_disk_stops_the_event_loop_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers, append = [], TableStore.append

    def write(store: TableStore, bodies: Any) -> Any:
        writers.append(threading.current_thread() is threading.main_thread())
        return append(store, bodies)

    async with keeping(tmp_path) as kept:
        monkeypatch.setattr(journal_module, "SLOW_S", 1e9)
        kept.journal._slow_until = 0.0
        monkeypatch.setattr(TableStore, "append", write)
        await kept.push(0)
        await kept.push(1, 900)
        monkeypatch.setattr(journal_module, "SLOW_S", -1.0)
        monkeypatch.setattr(journal_module, "_waits", lambda: 0)  # the processor was busy with something else
        await kept.push(2)
        monkeypatch.setattr(journal_module, "_waits", itertools.count().__next__)
        for number in range(3, 6):
            await kept.push(number)
        kept.journal._slow_until = 0.0  # a second has passed
        monkeypatch.setattr(journal_module, "SLOW_S", 1e9)
        await kept.push(6)
        assert writers == [True, False, True, True, False, False, True]


async def test_a_caller_that_goes_away_changes_nothing_for_others(tmp_path: Path) -> None:
    async with keeping(tmp_path, forced=True) as kept:
        pushes = [asyncio.ensure_future(kept.push(number)) for number in range(4)]
        while not kept.journal._waiting:
            await asyncio.sleep(0)
        pushes[1].cancel()
        await asyncio.wait(pushes)
        assert not (await kept.push(1)).applied  # it was on its way already
        assert kept.first() == 4


async def test_a_full_disk_refuses_and_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with keeping(tmp_path) as kept:
        await kept.push(0)
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", lambda *_: (_ for _ in ()).throw(FULL))
            for work in (kept.push(1), kept.push(2, 900), kept.register(),
                         kept.service.delete(table_pb2.DeleteTableRequest(name="rows"), CONTEXT)):  # fmt: skip
                with pytest.raises(QuotaExceededError, match="No space left on device; nothing was changed"):
                    await work
        assert kept.first() == 1
        assert [(await kept.push(number)).applied for number in (1, 1, 2)] == [True, False, True]
        kept.tables.forget(kept.client)
        with pytest.raises(UnknownClientError):
            await kept.push(3)


async def test_the_log_begins_anew_when_the_tables_are_written(tmp_path: Path) -> None:
    async with keeping(tmp_path, log_bytes=1 << 20) as kept:
        most = 0
        for number in range(300):
            await kept.push(number, 50)  # 40 KB
            most = max(most, kept.store.disk_bytes)
        while kept.journal._saving is not None or kept.store.log_bytes >= 1 << 20:
            await asyncio.sleep(0.01)
        assert most < 4 * (1 << 20) + (1 << 18)
        assert len(list(tmp_path.glob("checkpoint-*"))) == 1
        assert kept.first() == 300


async def test_pushes_are_refused_while_the_log_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "AGAIN_S", 0.05)
    async with keeping(tmp_path, log_bytes=1 << 20) as kept:
        number = 0

        async def push_on() -> None:
            nonlocal number
            while number < 1000:
                await kept.push(number, 50)
                number += 1

        with monkeypatch.context() as full:
            full.setattr(Tables, "write", lambda *_, **__: (_ for _ in ()).throw(FULL))
            with pytest.raises(QuotaExceededError, match=r"the tables cannot be written beside it: .*no space left"):
                await push_on()
            assert kept.first() == number
            assert 4 << 20 <= kept.journal.stats()["table_log_bytes"] < 5 << 20
        while kept.journal.stats()["table_log_bytes"] >= 1 << 20:
            await asyncio.sleep(0.01)
        assert (await kept.push(number, 50)).applied


async def test_a_daemon_that_ends_refuses_what_comes_later(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        await kept.push(0)
        kept.running.cancel()
        await asyncio.wait([kept.running])
        with pytest.raises(DrainingError, match="stopping"):
            await kept.push(1)
        assert kept.first() == 1


class FakeConnection:
    def __init__(self, address: str, spec: MutableSpec | None) -> None:
        self.address, self._spec = address, spec

    def call(self, method: str, request: Any) -> table_pb2.TableInfo:
        assert method == "TableService.Describe"
        assert request.if_there
        if self._spec is None:
            return table_pb2.TableInfo()
        return table_pb2.TableInfo(spec=json.dumps(self._spec.to_dict()), table_id=7, whole=True)


@pytest.mark.parametrize(
    ("lease_s", "told"),
    [
        (None, "which was started anew: 'atta tables load SNAPSHOT' brings back what was saved"),
        (8.0, "which was started anew, or where nobody asked for it during its lease of 8 s"),
    ],
)
def test_the_error_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, lease_s: float | None, told: str) -> None:
    monkeypatch.setattr(cluster, "_LOOKS_S", (0.0,))
    spec = MutableSpec("job", 8, lease_s=lease_s)
    connections: Any = [FakeConnection("a:1", spec), FakeConnection("b:1", None)]
    tables = cluster.ClusterTables(connections, [range(1), range(1, 2)], "d")
    for ask in (lambda: tables.create(spec), lambda: tables.open("job")):
        with pytest.raises(UnknownNameError) as raised:
            ask()
        words = "'atta tables delete job' drops the other rows, so that it can be created anew"
        assert str(raised.value) == f"table 'job' is lost on b:1 (part 1), {told}; {words}"
