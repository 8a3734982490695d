"""Daemons with rows of a table, as services of this process. What they are asked and answer crosses as bytes, and the
memory that is lent as between processes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from atta.client.tables.lending import Lender
from atta.client.tables.pushes import Registration, TableShard
from atta.client.tables.remote import RemoteTable
from atta.daemon.durable.journal import Journal
from atta.daemon.services.tables import TableService
from atta.errors import AttaError
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.wire import rpc
from atta.wire.bulk import PUSH_VALUES
from tests.unit.platform.answers import maker

CONTEXT: Any = SimpleNamespace(peer=lambda: "somewhere")
PULL, PUSH = rpc.METHODS["TableService.Pull"], rpc.METHODS["TableService.Push"]
MAKE = maker(2)
TURN = threading.RLock()
"""Who holds it runs an event loop."""


class Refused(grpc.RpcError):
    """How an error arrives."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._status = rpc.status_of(error)

    def code(self) -> grpc.StatusCode:
        return self._status[0]

    def details(self) -> str:
        return self._status[1]


class Lost(Refused):
    def __init__(self) -> None:
        super().__init__(RuntimeError())
        self._status = grpc.StatusCode.UNAVAILABLE, "Connection reset"


class Answered:
    """A call that has ended when it begins."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def result(self) -> Any:
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def add_done_callback(self, told: Callable[[Any], None]) -> None:
        told(self)


class Owner:
    """A daemon with its range of a table's rows, and the connection to it.

    Attributes:
        asked, sent: the pulls that came, and for each push whether its values were lent.
        between: called before the client gets a message of this number.
        lasts: whether a request is sent again when nobody answers.
        lose: the answers to so many pushes are lost.
    """

    address = "owner"

    def __init__(
        self, loop: asyncio.AbstractEventLoop, number: int = 0, owners: int = 1, folder: Path | None = None
    ) -> None:
        self.loop, self.takes_lent, self.reads_lent, self.lasts, self.lose = loop, True, True, True, 0
        self.asked: list[table_pb2.PullRowsRequest] = []
        self.sent: list[bool] = []
        self.between: Callable[[int], None] = lambda _: None
        groups = [range(n, n + 1) for n in range(owners)]
        dataset: Any = SimpleNamespace(dataset_id="d", partitions=SimpleNamespace(num_parts=owners), groups=groups)
        tables, self.journal, self.store = Tables(1 << 28), None, None
        if folder is not None:
            self.store = TableStore(folder, {}, forced=False, keep_bytes=1 << 20)
            tables.recovered(self.store.open(partial(tables.prepare, resume=True)).tables)
            loop.run_until_complete(self._keep(tables))
        self.service = TableService(dataset, number, tables, MAKE, snapshots=None, journal=self.journal)

    async def _keep(self, tables: Tables) -> None:
        self.journal = tables.recorder = Journal(self.store, tables, log_bytes=1 << 20)
        self._running = asyncio.create_task(self.journal.run())

    def create(self, spec: MutableSpec) -> TableShard:
        request = table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(spec.to_dict()))
        info, me = self.run(self.service.create(request, CONTEXT)), self._me
        return TableShard(me, info.first_row, info.rows, Registration(me, spec.name, info.table_id))

    @property
    def _me(self) -> Any:
        return self

    @property
    def table(self) -> Any:
        return self.service._tables.list()[0]

    def rows(self) -> Pulled:
        return self.table.pull(np.array(self.table.span))

    def stat(self, name: str) -> float:
        return self.service.stats()[name]

    def start(self, name: str, request: table_pb2.PullRowsRequest) -> Any:
        assert name == "TableService.Pull"
        raw = PULL.encode_request(request)
        self.asked.append(PULL.decode_request(raw))
        return Call(self, self.service.pull(PULL.decode_request(raw), CONTEXT))

    def call(self, name: str, request: Any) -> Any:
        assert name == "TableService.Register"
        return self.run(self.service.register(request, CONTEXT))

    def begin(self, name: str, request: Any) -> Answered:
        assert name == "TableService.Push"
        asked = PUSH.decode_request(PUSH.encode_request(request))
        self.sent.append(asked.message.HasField("memory"))
        assert self.sent[-1] == (not asked.payloads.get(PUSH_VALUES))
        try:
            reply = PUSH.decode_reply(PUSH.encode_reply(self.run(self.service.push(asked, CONTEXT))))
        except AttaError as error:
            return Answered(Refused(error))
        self.lose -= 1
        return Answered(Lost() if self.lose >= 0 else reply)

    def patience(self) -> Any:
        return SimpleNamespace(lasts=lambda: self.lasts)

    def error_from(self, failure: grpc.RpcError) -> AttaError:
        return rpc.error_from(self.address, failure, 1.0)

    def run(self, work: Any) -> Any:
        with TURN:  # what was given up is read on by a thread of its own
            return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        if self.journal is not None:
            self.run(self.journal.finish())
            self._running.cancel()
            self.loop.run_until_complete(asyncio.wait([self._running]))
            self.journal.close()


class Call:
    """A pull: its answers are made when they are read."""

    def __init__(self, owner: Owner, answers: Any) -> None:
        self._owner, self._answers, self._count = owner, answers, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            answer = self._owner.run(self._next())
        except AttaError as error:
            raise Refused(error) from error
        if answer is None:
            raise StopIteration
        self._owner.between(self._count)
        self._count += 1
        return PULL.decode_reply(PULL.encode_reply(answer))

    async def _next(self) -> Any:
        return await anext(self._answers, None)


def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for a module's tests, closed when nobody reads answers any more."""
    made = asyncio.new_event_loop()
    yield made
    for thread in threading.enumerate():
        if thread.name == "atta-drain":
            thread.join(30)
    made.close()


def opened(spec: MutableSpec, *owners: Owner) -> RemoteTable:
    shards = [owner.create(spec) for owner in owners]
    info = table_pb2.TableInfo(step=0)
    return RemoteTable(spec, shards, "d", table_id=0, infos=[info], lender=Lender())


def same_bits(one: Pulled, other: Pulled) -> bool:
    versions = [np.empty(0) if found.versions is None else found.versions for found in (one, other)]
    return one.values.tobytes() == other.values.tobytes() and np.array_equal(*versions)
