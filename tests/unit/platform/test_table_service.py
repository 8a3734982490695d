"""While tables are copied and written to disk, the daemon answers every request but pushes."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.daemon.services.tables import TableService
from atta.errors import AttaError, ConfigError, QuotaExceededError, StaleRowError
from atta.kvstore.durable.saved import TablesWriter
from atta.kvstore.mutable.owners import span_of
from atta.kvstore.mutable.table import MutableTable
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
    """A service whose answers are made on a single thread."""
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


async def test_saving_keeps_no_thread_from_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, save = threading.Event(), Tables.snapshot

    def slow_disk(*args: Any, **options: Any) -> None:
        assert written.wait(60)
        save(*args, **options)

    monkeypatch.setattr(Tables, "snapshot", slow_disk)
    service = await started(Tables(1 << 20), tmp_path)
    request = table_pb2.SnapshotRequest(name="one", snapshot="0" * 16, hold_s=60)
    saving = asyncio.ensure_future(service.save(request, CONTEXT))
    try:
        assert await asyncio.wait_for(pulled(service, 1000), 30) == 0
        assert not saving.done()
    finally:
        written.set()
    assert [json.loads(table.spec)["name"] for table in (await saving).tables] == ["rows"]


def test_a_daemon_that_ends_takes_no_more_pushes_and_keeps_its_tables(tmp_path: Path) -> None:
    """The snapshot has every acknowledged push, and later pushes are refused. Here pushes never pause."""

    async def story() -> int:
        service, number = await started(Tables(1 << 20), tmp_path), 0
        finishing: list[asyncio.Future[None]] = []

        async def push_on() -> None:
            nonlocal number
            while (await added(service, number, 900)).applied:
                number += 1
                if number == 5:
                    finishing.append(asyncio.ensure_future(service.finish()))

        with pytest.raises(QuotaExceededError, match="stopping"):
            await push_on()
        await asyncio.gather(*finishing)
        assert await pulled(service, 10) == 10 * number  # the service answers until it ends
        return number

    number = asyncio.run(story())
    restored = Tables(1 << 20)
    restored.adopt(restored.prepare(tmp_path / "shutdown" / "part-0000"), 0, {})
    assert (restored.get("rows").pull(np.arange(900)).values == number).all()


def test_a_daemon_without_tables_keeps_the_older_snapshot(tmp_path: Path) -> None:
    async def end(*names: str) -> None:
        tables = Tables(1 << 20)
        for name in names:
            tables.create(MutableSpec(name, 3))
        await TableService(DATASET, 0, tables, maker(), snapshots=tmp_path).finish()

    asyncio.run(end("first"))
    asyncio.run(end())
    restored = Tables(1 << 20)
    restored.adopt(restored.prepare(tmp_path / "shutdown" / "part-0000"), 0, {})
    assert [table.spec.name for table in restored.list()] == ["first"]


def test_a_disk_that_hangs_does_not_keep_a_daemon_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(Tables, "snapshot", lambda *_, **__: hanging.wait(60))

    async def story() -> None:
        service = await started(Tables(1 << 20), tmp_path)
        lost = await service.finish(within_s=0.01)
        assert "part 0 are not saved: not done within 0.01 s" in str(lost)

    asyncio.run(story())
    hanging.set()


def test_a_daemon_knows_whether_its_tables_are_saved(tmp_path: Path) -> None:
    async def end(folder: Path) -> AttaError | None:
        return await (await started(Tables(1 << 20), folder)).finish()

    (tmp_path / "file").touch()
    assert asyncio.run(end(tmp_path / "folder")) is None
    assert f"part 0 are not saved: {tmp_path}/file/shutdown" in str(asyncio.run(end(tmp_path / "file")))


def test_edges_are_counted_in_their_files(tmp_path: Path) -> None:
    """The report of the partitioning is not used: it may be wrong or missing."""
    sizes = [3, 0, 5]
    files = {f"part-{part:04d}/edges/e/indices.npy": SimpleNamespace(shape=(size,)) for part, size in enumerate(sizes)}
    schema = SimpleNamespace(check_edge_type=lambda name: name)
    dataset: Any = SimpleNamespace(
        partitions=SimpleNamespace(num_parts=3),
        groups=[range(1), range(1, 2), range(2, 3)],
        schema=schema,
        files=files,
        quality={"parts": [{"edges": {"e": 99}}] * 3},
    )
    assert [span_of(MutableSpec("t", 8, policy="edges:e"), dataset, part) for part in range(3)] == [
        range(3), range(3, 3), range(3, 8),
    ]  # fmt: skip
    dataset.quality = {}
    assert span_of(MutableSpec("t", 8, policy="edges:e"), dataset, 2) == range(3, 8)
    with pytest.raises(ConfigError, match=r"9 rows, but there are 8 edges of type 'e' in version 0 of the dataset"):
        span_of(MutableSpec("t", 9, policy="edges:e"), dataset, 2)


def test_a_daemon_of_several_partitions_owns_their_rows() -> None:
    sizes = [3, 0, 5]
    files = {f"part-{part:04d}/edges/e/indices.npy": SimpleNamespace(shape=(size,)) for part, size in enumerate(sizes)}
    schema = SimpleNamespace(check_edge_type=lambda name: name)
    dataset: Any = SimpleNamespace(
        partitions=SimpleNamespace(num_parts=3), groups=[range(1), range(1, 3)], schema=schema, files=files
    )
    spans = [span_of(MutableSpec("t", 8, policy="edges:e"), dataset, owner) for owner in range(2)]
    assert spans == [range(3), range(3, 8)]
    spans = [span_of(MutableSpec("t", 10), dataset, owner) for owner in range(2)]
    assert spans == [range(3), range(3, 10)], "what the partitions would own, each with a daemon of its own"


def test_a_save_holds_pushes_until_the_tables_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, written = threading.Event(), threading.Event()
    copied, write = MutableTable.copied, TablesWriter.write

    def slow_copy(table: MutableTable) -> Any:
        assert copy.wait(60)
        return copied(table)

    def slow_disk(*args: Any) -> Any:
        assert written.wait(60)
        return write(*args)

    async def story() -> None:
        monkeypatch.setattr(MutableTable, "copied", slow_copy)
        monkeypatch.setattr(TablesWriter, "write", slow_disk)
        service = await started(Tables(1 << 20), tmp_path)
        phases = table_pb2.SnapshotRequest

        def ask(phase: Any, **more: Any) -> Any:
            return service.save(phases(name="one", snapshot="0" * 16, phase=phase, hold_s=60, **more), CONTEXT)

        await ask(phases.HOLD)
        push = asyncio.ensure_future(added(service, 0, 10))
        saving = asyncio.ensure_future(ask(phases.PREPARE, held=True))
        assert await asyncio.wait_for(pulled(service, 10), 30) == 0
        assert not push.done()
        copy.set()
        assert (await asyncio.wait_for(push, 30)).applied  # while the disk is slow
        assert not saving.done()
        written.set()
        await saving
        await ask(phases.COMMIT)
        await ask(phases.HOLD)
        await ask(phases.ABORT)
        assert (await asyncio.wait_for(added(service, 1, 10), 30)).applied
        with pytest.raises(ConfigError, match="a load holds no pushes"):
            await service.load(phases(name="one", phase=phases.HOLD), CONTEXT)

    asyncio.run(story())
    restored = Tables(1 << 20)
    restored.adopt(restored.prepare(tmp_path / "one" / "part-0000"), 0, {})
    assert not restored.get("rows").pull(np.arange(10)).values.any()
