"""Pushes of many clients share writes, are applied in the order of their records, and wait while the log is too long."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.daemon.durable import journal as journal_module
from atta.daemon.durable.journal import Journal
from atta.daemon.services.tables import TableService
from atta.errors import QuotaExceededError, UnknownClientError
from atta.kvstore.durable.store import TableStore
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import maker

SPEC = MutableSpec("rows", 1000, "<i8", row_shape=(100,))
DATASET: Any = SimpleNamespace(dataset_id="d", partitions=SimpleNamespace(num_parts=1), groups=[range(1)])
CONTEXT: Any = SimpleNamespace(peer=lambda: "somewhere")
FULL = OSError(28, "No space left on device")


class Kept:
    """A service on a single thread, with its journal. On the event loop."""

    def __init__(self, folder: Path, *, log_bytes: int = 1 << 30, forced: bool = False) -> None:
        self.store, self.tables = TableStore(folder, {}, forced=forced, keep_bytes=log_bytes), Tables(1 << 24)
        self.tables.recovered(self.store.open(partial(self.tables.prepare, resume=True)).tables)
        self.journal = Journal(self.store, self.tables, log_bytes=log_bytes)
        self.tables.recorder = self.journal
        self.service = TableService(DATASET, 0, self.tables, maker(), snapshots=folder / "saved", journal=self.journal)
        self.running = asyncio.create_task(self.journal.run())

    async def create(self) -> int:
        """Create the table; returns a client."""
        await self.service.create(
            table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(SPEC.to_dict())), CONTEXT
        )
        return await self.register()

    async def register(self) -> int:
        reply = await self.service.register(table_pb2.RegisterRequest(name="rows"), CONTEXT)
        return int(reply.client)

    def push(self, client: int, sequence: int, rows: int = 3) -> Coroutine[Any, Any, table_pb2.PushRowsReply]:
        push = table_pb2.PushRowsRequest(name="rows", op="add", client=client, sequence=sequence)
        payloads = {PUSH_ROWS: np.arange(rows).tobytes(), PUSH_VALUES: np.ones((rows, 100), np.int64).tobytes()}
        return self.service.push(Bulk(push, payloads), CONTEXT)

    def first(self) -> int:
        """The first number of the first row."""
        return int(self.tables.get("rows").pull(np.arange(1)).values[0, 0])

    async def end(self) -> None:
        await self.journal.finish()
        while self.journal._saving is not None:
            await asyncio.sleep(0.01)
        self.running.cancel()
        await asyncio.wait([self.running])
        self.journal.close()


def told(folder: Path, story: Any, **options: Any) -> None:
    """Run ``story(kept)``, then compare with a store that is opened again."""

    async def run() -> None:
        kept = Kept(folder, **options)
        await asyncio.wait_for(story(kept), 60)
        await kept.end()
        rows = {table.spec.name: table.pull(np.arange(table.rows)).values for table in kept.tables.list()}
        again = Kept(folder)
        assert [*rows] == [table.spec.name for table in again.tables.list()]
        for name, values in rows.items():
            assert np.array_equal(again.tables.get(name).pull(np.arange(len(values))).values, values)
        await again.end()

    asyncio.run(run())


def test_pushes_that_come_together_share_writes(tmp_path: Path) -> None:
    async def story(kept: Kept) -> None:
        client = await kept.create()
        before = kept.journal.stats()
        # Small and large ones; each comes twice.
        pushes = [kept.push(client, number, 900 if number % 10 == 0 else 3) for number in (*range(50), *range(50))]
        applied = [reply.applied for reply in await asyncio.gather(*pushes)]
        assert applied[:50] == [True] * 50
        assert applied[50:] == [False] * 50
        assert kept.first() == 50
        stats = kept.journal.stats()
        assert stats["table_log_records"] - before["table_log_records"] == 50
        assert stats["table_log_groups"] - before["table_log_groups"] < 25

    told(tmp_path, story, forced=True)


def test_a_small_push_is_made_at_once(tmp_path: Path) -> None:
    """Where nothing is under way, and the log is not forced: before any other task has its turn."""

    async def story(kept: Kept) -> None:
        client = await kept.create()
        pushed = kept.push(client, 0)
        with pytest.raises(StopIteration) as ended:
            pushed.send(None)
        assert ended.value.value.applied
        assert kept.first() == 1
        async with kept.journal._turn:  # others are under way
            waiting = asyncio.ensure_future(kept.push(client, 1))
            for _ in range(5):
                await asyncio.sleep(0)
            assert kept.first() == 1
        assert (await waiting).applied
        assert kept.first() == 2

    told(tmp_path, story)


def test_a_slow_disk_stops_the_event_loop_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers, append = [], TableStore.append

    def write(store: TableStore, bodies: Any) -> Any:
        writers.append(threading.current_thread() is threading.main_thread())
        return append(store, bodies)

    async def story(kept: Kept) -> None:
        client = await kept.create()
        monkeypatch.setattr(journal_module, "SLOW_S", 1e9)
        kept.journal._slow_until = 0.0
        monkeypatch.setattr(TableStore, "append", write)
        await kept.push(client, 0)
        await kept.push(client, 1, 900)
        monkeypatch.setattr(journal_module, "SLOW_S", -1.0)
        monkeypatch.setattr(journal_module, "_waits", lambda: 0)  # the processor was busy with something else
        await kept.push(client, 2)
        monkeypatch.setattr(journal_module, "_waits", itertools.count().__next__)
        for number in range(3, 6):
            await kept.push(client, number)
        kept.journal._slow_until = 0.0  # a second has passed
        monkeypatch.setattr(journal_module, "SLOW_S", 1e9)
        await kept.push(client, 6)
        assert writers == [True, False, True, True, False, False, True]

    told(tmp_path, story)


def test_a_caller_that_goes_away_changes_nothing_for_others(tmp_path: Path) -> None:
    async def story(kept: Kept) -> None:
        client = await kept.create()
        pushes = [asyncio.ensure_future(kept.push(client, number)) for number in range(4)]
        while not kept.journal._waiting:
            await asyncio.sleep(0)
        pushes[1].cancel()
        await asyncio.wait(pushes)
        assert not (await kept.push(client, 1)).applied  # it was on its way already
        assert kept.first() == 4

    told(tmp_path, story, forced=True)


def test_a_full_disk_refuses_and_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kept: Kept) -> None:
        client = await kept.create()
        await kept.push(client, 0)
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", lambda *_: (_ for _ in ()).throw(FULL))
            for work in (kept.push(client, 1), kept.push(client, 2, 900), kept.register(),
                         kept.service.delete(table_pb2.DeleteTableRequest(name="rows"), CONTEXT)):  # fmt: skip
                with pytest.raises(QuotaExceededError, match="No space left on device; nothing was changed"):
                    await work
        assert kept.first() == 1
        assert [(await kept.push(client, number)).applied for number in (1, 1, 2)] == [True, False, True]
        kept.tables.forget(client)
        with pytest.raises(UnknownClientError):
            await kept.push(client, 3)

    told(tmp_path, story)


def test_the_log_begins_anew_when_the_tables_are_written(tmp_path: Path) -> None:
    async def story(kept: Kept) -> None:
        client, most = await kept.create(), 0
        for number in range(300):
            await kept.push(client, number, 50)  # 40 KB
            most = max(most, kept.store.disk_bytes)
        while kept.journal._saving is not None or kept.store.log_bytes >= 1 << 20:
            await asyncio.sleep(0.01)
        assert most < 4 * (1 << 20) + (1 << 18)
        assert len(list(tmp_path.glob("checkpoint-*"))) == 1
        assert kept.first() == 300

    told(tmp_path, story, log_bytes=1 << 20)


def test_pushes_are_refused_while_the_log_is_full_and_cannot_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "AGAIN_S", 0.05)

    async def story(kept: Kept) -> None:
        client, number = await kept.create(), 0

        async def push_on() -> None:
            nonlocal number
            while number < 1000:
                await kept.push(client, number, 50)
                number += 1

        with monkeypatch.context() as full:
            full.setattr(Tables, "write", lambda *_, **__: (_ for _ in ()).throw(FULL))
            with pytest.raises(QuotaExceededError, match=r"the tables cannot be written beside it: .*no space left"):
                await push_on()
            assert kept.first() == number
            assert 4 << 20 <= kept.journal.stats()["table_log_bytes"] < 5 << 20
        while kept.journal.stats()["table_log_bytes"] >= 1 << 20:
            await asyncio.sleep(0.01)
        assert (await kept.push(client, number, 50)).applied

    told(tmp_path, story, log_bytes=1 << 20)


def test_a_daemon_that_ends_refuses_what_comes_later(tmp_path: Path) -> None:
    async def story(kept: Kept) -> None:
        client = await kept.create()
        await kept.push(client, 0)
        kept.running.cancel()
        await asyncio.wait([kept.running])
        with pytest.raises(QuotaExceededError, match="the daemon is stopping"):
            await kept.push(client, 1)
        assert kept.first() == 1

    told(tmp_path, story)
