"""Mutable tables as clients reach them: this daemon's rows of each, created, located, pulled, pushed and saved by name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from atta.daemon.durable.journal import Journal
from atta.daemon.engine.lent import (
    LENT_STEP_BYTES,
    LentFiles,
    UnusableError,
    lent_values,
    message_of,
    plain_values,
    put,
)
from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.services.data import AnswerMaker
from atta.daemon.services.handling import Context, check_named
from atta.daemon.services.table_snapshots import TableSnapshots
from atta.errors import AttaError, ConfigError, DataError, DrainingError, QuotaExceededError, UnknownNameError, blaming
from atta.kvstore.codecs import check_codec
from atta.kvstore.mutable.owners import EdgeIndex, span_of
from atta.kvstore.mutable.requests import LentLayout, Pulled, Push
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.observe.machine.threads import aside
from atta.partition.dataset import Dataset
from atta.protos.v1 import table_pb2
from atta.wire.bulk import ARRAYS_BYTES, PUSH_ROWS, PUSH_VALUES, as_array
from atta.wire.parts import parts_text
from atta.wire.rpc import Bulk

log = structlog.get_logger("atta.daemon")
CLIENT_IDLE_S = 1800.0
"""How long a client may be silent before it is forgotten. If it still lives, it registers again."""
FINISH_S = 60.0
"""How long a daemon that ends tries to save its tables."""
LEASE_LOOK_S = 5.0
"""How often the daemon looks for tables whose lease is over."""
_PREPARE, _COMMIT = table_pb2.SnapshotRequest.PREPARE, table_pb2.SnapshotRequest.COMMIT
_HOLD = table_pb2.SnapshotRequest.HOLD


class TableService:
    """``TableService`` of a daemon."""

    def __init__(
        self,
        dataset: Dataset,
        part: int,
        tables: Tables,
        make: AnswerMaker,
        *,
        snapshots: Path | None,
        snapshot_bytes: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        """``snapshots``: the folder that holds them; None: none are kept. ``snapshot_bytes``: the most that they
        take. ``journal``: None: changes are not logged."""
        self._make = replace(make, address=f"part {parts_text(dataset.groups[part])}")
        self._dataset, self._part, self._tables = dataset, part, tables
        # Daemons that serve other groups of partitions own other rows, so a snapshot is of the same groups.
        self._snapshots = TableSnapshots(tables, dataset.groups[part].start, snapshots, limit_bytes=snapshot_bytes)
        self._edges: dict[str, EdgeIndex] = {}
        self._indexing = threading.Lock()
        self._lent = LentFiles()
        self._pulled = self._put_rows = self._pushed = self._lent_pushes = 0.0
        self._pushing = 0  # pushes under way that do not wait
        self.journal = journal

    def stats(self) -> dict[str, float]:
        return {
            "tables": float(len(self._tables.list())),
            "table_bytes": float(self._tables.used_bytes),
            "table_rows_pulled": self._pulled,
            "table_rows_lent": self._put_rows,
            "table_lent_bytes": float(self._lent.lent_bytes),
            "table_rows_pushed": self._pushed,
            "table_rows_pushed_lent": self._lent_pushes,
            "table_clients": float(self._tables.clients),
            **({} if self.journal is None else self.journal.stats()),
        }

    async def _copied(self) -> None:
        """Wait until an answer may count on what the log of tables has. Raises StalePrimaryError."""
        if self.journal is not None:
            await self.journal.copied()

    def _table(self, name: str, table_id: int = 0) -> MutableTable:
        with blaming(UnknownNameError, f"part {self._part}", of=UnknownNameError):
            return self._tables.get(name, table_id)

    # -- tables --------------------------------------------------------------------------------------------------------

    async def create(self, request: table_pb2.CreateTableRequest, context: Context) -> table_pb2.TableInfo:
        self._make.check_dataset(request.dataset_id)
        spec = MutableSpec.from_json(request.spec)
        span = span_of(spec, self._dataset, self._part)
        await self._copied()
        create = partial(self._tables.create, table_id=request.table_id, whole=request.whole)
        table = await aside(create, spec, span.start, len(span))  # it may wait for a backup, and the pool must not
        return _info(table)

    async def delete(self, request: table_pb2.DeleteTableRequest, context: Context) -> table_pb2.DeleteTableReply:
        await self._copied()
        return table_pb2.DeleteTableReply(existed=await aside(self._tables.delete, request.name))

    async def list(self, request: table_pb2.ListMutableRequest, context: Context) -> table_pb2.ListMutableReply:
        return table_pb2.ListMutableReply(
            tables=[_info(table) for table in self._tables.list()],
            used_bytes=self._tables.used_bytes,
            quota_bytes=self._tables.quota_bytes,
        )

    async def describe(self, request: table_pb2.DescribeTableRequest, context: Context) -> table_pb2.TableInfo:
        try:
            return _info(self._table(request.name))
        except UnknownNameError:
            if request.if_there:
                return table_pb2.TableInfo()
            raise

    async def grow(self, request: table_pb2.GrowTableRequest, context: Context) -> table_pb2.TableInfo:
        await self._copied()
        table = self._table(request.name, request.table_id)
        return _info(await aside(self._tables.grow, request.name, request.rows - table.first_row, request.table_id))

    # -- rows ----------------------------------------------------------------------------------------------------------

    async def locate(self, request: table_pb2.LocateRequest, context: Context) -> table_pb2.LocateReply:
        self._make.check_dataset(request.dataset_id)
        rows = await self._make.run(CHUNK_BYTES, self._rows_of, request.policy, as_array(request.ids, wide=True))
        return table_pb2.LocateReply(rows=rows.tobytes())

    def _rows_of(self, policy: str, ids: np.ndarray) -> np.ndarray:
        kind, _, name = policy.partition(":")
        if kind == "nodes":
            return np.asarray(self._dataset.to_internal(name, ids))
        if kind != "edges":
            raise ConfigError(f"policy {policy!r}: only vertices and edges have ids to look up")
        self._dataset.schema.check_edge_type(name)
        with self._indexing:
            if name not in self._edges:
                self._edges[name] = EdgeIndex(self._dataset, self._part, name)
        return self._edges[name].rows(ids)

    async def pull(self, request: table_pb2.PullRowsRequest, context: Context) -> AsyncIterator[Bulk | bytes]:
        table = self._table(request.name, request.table_id)
        rows = as_array(request.rows, wide=not request.narrow_rows)
        check_codec(table.spec, request.codec)
        if request.HasField("memory"):
            try:
                versioned = not request.HasField("version") and not request.array
                layout = LentLayout.of(table.spec, len(rows), request.codec, versioned=versioned)
                now = asyncio.get_running_loop().time()
                with self._lent.taken(request.memory, layout.nbytes, context.peer(), now) as memory:
                    if memory is not None:
                        async for answer in self._put(table, rows, request, memory, layout):
                            yield answer
                        self._pulled += len(rows)
                        return
            except UnusableError:
                yield Bulk(table_pb2.RowsChunk(unusable=True))
        step = max(1, CHUNK_BYTES // max(1, table.spec.row_bytes))
        row_bytes = table.spec.row_bytes
        parts = ((first, rows[first : first + step]) for first in range(0, len(rows), step))
        jobs = ((len(part) * row_bytes, message_of, table, first, part, request) for first, part in parts)
        async for answer in self._make.in_turn(jobs, context.peer(), len(rows) * row_bytes):
            yield answer
        self._pulled += len(rows)

    async def _put(
        self,
        table: MutableTable,
        rows: np.ndarray,
        request: table_pb2.PullRowsRequest,
        memory: np.ndarray,
        layout: LentLayout,
    ) -> AsyncIterator[Bulk | bytes]:
        """Write rows into the caller's memory. When it ends with an error, no thread writes any more: the caller may
        use the memory again."""
        step = max(1, LENT_STEP_BYTES // max(1, table.spec.row_bytes))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            lent = Pulled(layout.values(memory, first, len(part)), layout.versions(memory, first, len(part)))
            yield await self._make.run(len(part) * table.spec.row_bytes, put, table, first, part, request, lent)
            self._put_rows += len(part)

    async def register(self, request: table_pb2.RegisterRequest, context: Context) -> table_pb2.RegisterReply:
        """``TableService.Register``: the client gets a random number, so that no other client ever has the same."""
        table, client = self._table(request.name, request.table_id), secrets.randbits(64)
        self._tables.register(table, client)
        if self.journal is not None and table.key:
            await self.journal.register(table, client)
        return table_pb2.RegisterReply(client=client, table=_info(table))

    async def push(self, request: Bulk, context: Context) -> table_pb2.PushRowsReply:
        message, payloads = request.message, request.payloads
        # A push that must wait does so here, where it occupies neither the event loop nor a thread.
        hold = self._snapshots.hold
        while not self._takes_pushes(table := self._table(message.name, message.table_id)):
            await table.changes.until(lambda table=table: table.takes_pushes)  # type: ignore[misc]
            if not self._takes_pushes(table):
                await hold.changes.until(lambda: not hold.closed, look_again_s=hold.left_s)
        self._pushing += 1
        try:
            rows, values = payloads.get(PUSH_ROWS, b""), payloads.get(PUSH_VALUES, b"")
            if message.HasField("memory"):
                reply = await self._push_lent(table, message, rows, context.peer())
            else:
                reply = table_pb2.PushRowsReply(applied=await self._push(table, message, rows, values))
        finally:
            self._pushing -= 1
            self._snapshots.hold.changes.notify()
        self._pushed += len(rows) // 8 if reply.applied else 0
        return reply

    async def _push_lent(
        self, table: MutableTable, message: table_pb2.PushRowsRequest, rows: Any, client: str
    ) -> table_pb2.PushRowsReply:
        """A push whose values lie in memory of the client."""
        check_codec(table.spec, message.codec)
        nbytes = LentLayout.of(table.spec, len(rows) // 8, message.codec, versioned=False).nbytes
        if nbytes > ARRAYS_BYTES:  # as of any push: logs and backups take no longer ones
            raise QuotaExceededError(f"the values of a push have {nbytes} bytes: at most {ARRAYS_BYTES} are possible")
        try:
            with self._lent.taken(message.memory, nbytes, client, asyncio.get_running_loop().time()) as memory:
                if memory is None:
                    return table_pb2.PushRowsReply(unread=True)
                applied = await self._push(table, message, rows, memory)
        except UnusableError:
            return table_pb2.PushRowsReply(unread=True, unusable=True)
        self._lent_pushes += len(rows) // 8 if applied else 0
        return table_pb2.PushRowsReply(applied=applied)

    def _takes_pushes(self, table: MutableTable) -> bool:
        return table.takes_pushes and (not self._snapshots.hold.closed or table.spec.lease_s is not None)

    async def _push(self, table: MutableTable, message: table_pb2.PushRowsRequest, rows: Any, values: Any) -> bool:
        if self.journal is None or not table.key:
            return bool(await self._make.run(len(values), _apply, table, message, rows, values))
        push = await self._make.run(len(values), _checked, table, message, rows, values)
        return await self.journal.push(table, push, message.client, message.sequence, message.settled)

    async def forget(self, request: table_pb2.ForgetClientRequest, context: Context) -> table_pb2.ForgetClientReply:
        """``TableService.Forget``: the clients will send nothing more."""
        check_named("clients", len(request.clients))
        for client in request.clients:
            self._tables.forget(client)
        return table_pb2.ForgetClientReply()

    async def forget_idle(self, *, idle_s: float = CLIENT_IDLE_S, every_s: float = 60.0) -> None:
        """Until cancelled: forget clients that have died, the memory that they lent, and unfinished saves and loads."""
        while True:
            await asyncio.sleep(every_s)
            now = asyncio.get_running_loop().time()
            self._tables.expire(now, idle_s)
            self._lent.expire(now)
            self._snapshots.expire()

    async def end_leases(self, *, every_s: float = LEASE_LOOK_S) -> None:
        """Until cancelled: drop the tables of jobs that have died."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(every_s)
            if self._tables.is_lease_over(now()):
                with contextlib.suppress(QuotaExceededError, DrainingError):  # another change is under way: next time
                    for name in await aside(self._tables.end_leases, now()):
                        log.warning("lease ran out", table=name, part=self._part)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def snapshots(self, request: table_pb2.SnapshotsRequest, context: Context) -> table_pb2.SnapshotsReply:
        return table_pb2.SnapshotsReply(ids=await aside(self._snapshots.ids, request.name))

    async def save(self, request: table_pb2.SnapshotRequest, context: Context) -> table_pb2.SnapshotReply:
        keeper, name, snapshot_id = self._snapshots, request.name, request.snapshot
        _check_phase(request.phase)
        if request.phase == _HOLD:
            hold = keeper.hold
            hold.begin(snapshot_id, request.hold_s)
            await hold.changes.until(lambda: not (self._pushing and hold.closed), look_again_s=hold.left_s)
            if self._pushing:
                under_way = f"pushes under way did not end in {request.hold_s:g} s; save again"
                raise QuotaExceededError(f"part {self._part}: {under_way}")
            return table_pb2.SnapshotReply()
        if request.phase == _PREPARE:
            prepare = partial(keeper.prepare_save, held=request.held)
            return _saved(await aside(prepare, name, snapshot_id, request.hold_s))
        await aside(keeper.commit_save if request.phase == _COMMIT else keeper.abort_save, name, snapshot_id)
        return table_pb2.SnapshotReply()

    async def load(self, request: table_pb2.SnapshotRequest, context: Context) -> table_pb2.SnapshotReply:
        keeper, load_id = self._snapshots, request.load_id
        _check_phase(request.phase)
        if request.phase == _HOLD:
            raise ConfigError("a load holds no pushes")
        if request.phase == _PREPARE:
            found = await aside(keeper.prepare_load, request.name, request.snapshot, load_id, request.hold_s)
            self._check_spans(request.name, found)
            return _saved(found)
        if request.phase == _COMMIT:
            await aside(keeper.commit_load, load_id, dict(request.steps))
        else:
            await aside(keeper.abort_load, load_id)
        return table_pb2.SnapshotReply()

    def _check_spans(self, snapshot: str, tables: Iterable[MutableTable]) -> None:
        """Refuse tables of a daemon that served other partitions: the rows of the others would be missing."""
        for table in tables:
            span = span_of(table.spec, self._dataset, self._part)
            if (table.first_row, table.created_rows) != (span.start, len(span)):
                served = parts_text(self._dataset.groups[self._part])
                raise DataError(
                    f"snapshot {snapshot}",
                    f"its rows of table {table.spec.name} are those of a daemon that served other partitions than {served}; "
                    "load it where each daemon serves what it served before",
                )

    async def finish(self, *, within_s: float = FINISH_S) -> AttaError | None:
        """Refuse further pushes and save the tables as snapshot ``shutdown``, if snapshots are kept. Returns why they
        are not saved, which the log says, too; None: they are."""
        try:
            await asyncio.wait_for(self._finish(), within_s)
        except TimeoutError:
            cause = f"not done within {within_s:g} s"
        except Exception as error:
            cause = str(error)
        else:
            return None
        log.error("tables not saved", part=self._part, error=cause)
        return AttaError(f"the tables of part {self._part} are not saved: {cause}")

    async def _finish(self) -> None:
        await aside(self._tables.close)
        if self.journal is not None:
            await self.journal.finish()
        await aside(self._snapshots.finish)


def _check_phase(phase: int) -> None:
    """Raise ConfigError for a number that is none of a phase: the message may come from a later version."""
    if phase not in table_pb2.SnapshotRequest.Phase.values():
        raise ConfigError(f"phase {phase} of a snapshot: there is none of this number")


def _apply(table: MutableTable, message: table_pb2.PushRowsRequest, rows: Any, values: Any) -> bool:
    given, options = _plain(table, message, rows, values, keep=False)
    options |= {"client": message.client, "sequence": message.sequence, "settled": message.settled}
    return table.push(*given, **options)


def _checked(table: MutableTable, message: table_pb2.PushRowsRequest, rows: Any, values: Any) -> Push:
    given, options = _plain(table, message, rows, values, keep=True)
    return table.checked(*given, **options)


def _plain(
    table: MutableTable, message: table_pb2.PushRowsRequest, rows: Any, values: Any, *, keep: bool
) -> tuple[tuple[np.ndarray, Any, str], dict[str, Any]]:
    """What a push brings: rows, values and operation, and its options. ``keep``: as for ``lent_values``."""
    if isinstance(values, np.ndarray):
        values = lent_values(table.spec, message.codec, values, keep=keep)
    version = message.version if message.versioned else None
    options = {"version": version, "step": message.step or None, "array": message.array}
    return (as_array(rows, wide=True), plain_values(table.spec, message, rows, values), message.op), options


def _info(table: MutableTable) -> table_pb2.TableInfo:
    return table_pb2.TableInfo(
        spec=json.dumps(table.spec.to_dict()), first_row=table.first_row, rows=table.rows, bytes=table.nbytes,
        step=table.step, table_id=table.table_id, whole=table.whole, load_id=table.load_id,
    )  # fmt: skip


def _saved(tables: Iterable[MutableTable]) -> table_pb2.SnapshotReply:
    infos = [_info(table) for table in tables]
    return table_pb2.SnapshotReply(tables=infos, bytes=sum(info.bytes for info in infos))
