"""While tables are copied and written to disk, the daemon answers everybody who does not push."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.daemon.table_service import TableService
from atta.daemon.turns import TurnPool
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.rpc import Bulk

SPEC = MutableSpec("rows", 1000, row_shape=(100,))
DATASET: Any = SimpleNamespace(dataset_id="d", num_parts=1)


async def started(tables: Tables, folder: Path) -> TableService:
    """A service whose answers are made on a single thread."""
    service = TableService(DATASET, 0, tables, TurnPool(1, "test"), snapshots=folder)
    await service.create(table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(SPEC.to_dict())), None)
    return service


async def pulled(service: TableService, count: int) -> float:
    """The sum of the first values of as many rows."""
    request = table_pb2.PullRowsRequest(name="rows", rows=np.arange(count).tobytes())
    chunks = [len(chunk) async for chunk in service.pull(request, None)]
    assert sum(chunks) >= count * SPEC.row_bytes
    return float(service._tables.get("rows").pull(np.arange(count)).values[:, 0].sum())


def added(service: TableService, sequence: int, count: int) -> Any:
    request = table_pb2.PushRowsRequest(name="rows", op="add", client=1, sequence=sequence)
    return service.push(
        Bulk(request, {2: np.arange(count).tobytes(), 10: np.ones((count, 100), np.float32).tobytes()}), None
    )


def test_pushes_wait_for_a_copy_and_nobody_else_does(tmp_path: Path) -> None:
    """Small pushes are worked on by the event loop, large ones by threads: neither may be kept."""

    async def story() -> None:
        service = await started(Tables(1 << 20), tmp_path)
        with service._tables.get("rows")._gate.exclusive():  # as while a snapshot is copied
            pushes = [asyncio.ensure_future(added(service, number, count)) for number, count in enumerate((2, 900))]
            for count in (1, 1000):
                assert await asyncio.wait_for(pulled(service, count), 30) == 0
            assert not any(push.done() for push in pushes)
        assert [(await asyncio.wait_for(push, 30)).applied for push in pushes] == [True, True]
        assert await pulled(service, 1000) == 902

    asyncio.run(story())


def test_saving_keeps_no_thread_from_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, save = threading.Event(), Tables.snapshot

    def slow_disk(*args: Any, **options: Any) -> None:
        assert written.wait(60)
        save(*args, **options)

    async def story() -> None:
        monkeypatch.setattr(Tables, "snapshot", slow_disk)
        service = await started(Tables(1 << 20), tmp_path)
        saving = asyncio.ensure_future(service.save(table_pb2.SnapshotRequest(name="one"), None))
        try:
            assert await asyncio.wait_for(pulled(service, 1000), 30) == 0
            assert not saving.done()
        finally:
            written.set()
        assert list((await saving).tables) == ["rows"]

    asyncio.run(story())
