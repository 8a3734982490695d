"""Pushes whose values lie in memory that the pusher lends: the same bits as in messages, applied once, and never values
that came into that memory later.

The owner is a service of this process. What it is asked and answers crosses as bytes, and the memory as between
processes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.tables import lending, remote
from atta.client.tables.lending import Lender
from atta.client.tables.pushes import Registration, TableShard
from atta.client.tables.remote import RemoteTable
from atta.daemon.durable.journal import Journal
from atta.daemon.engine import lent as table_rows
from atta.daemon.engine.lent import lent_values
from atta.daemon.services import tables as tables_service
from atta.daemon.services.tables import TableService
from atta.errors import AttaError, ConfigError, QuotaExceededError, RemoteError
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable import sequences
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.wire import memfiles, rpc
from atta.wire.bulk import PUSH_VALUES
from tests.unit.platform.answers import maker
from tests.unit.platform.test_pulls import DTYPES, Lost, Refused, same_bits

DATASET: Any = SimpleNamespace(dataset_id="d", partitions=SimpleNamespace(num_parts=1), groups=[range(1)])
CONTEXT: Any = SimpleNamespace(peer=lambda: "somewhere")
METHOD = rpc.METHODS["TableService.Push"]
MAKE = maker(2)


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
    """A daemon with all rows of a table, and the connection to it. ``lose``: the answers to so many pushes are lost."""

    address = "owner"

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path | None = None) -> None:
        self.loop, self.reads_lent, self.takes_lent, self.lose = loop, True, False, 0
        self.sent: list[bool] = []  # whether the values of each push were lent
        tables, self.journal, self.store = Tables(1 << 28), None, None
        if folder is not None:
            self.store = TableStore(folder, {}, forced=False, keep_bytes=1 << 20)
            tables.recovered(self.store.open(partial(tables.prepare, resume=True)).tables)
            loop.run_until_complete(self._keep(tables))
        self.service = TableService(DATASET, 0, tables, MAKE, snapshots=None, journal=self.journal)

    async def _keep(self, tables: Tables) -> None:
        assert self.store is not None
        self.journal = Journal(self.store, tables, log_bytes=1 << 20)
        tables.recorder = self.journal
        self._running = asyncio.create_task(self.journal.run())

    def opened(self, spec: MutableSpec) -> RemoteTable:
        request = table_pb2.CreateTableRequest(dataset_id="d", spec=json.dumps(spec.to_dict()))
        info = self._run(self.service.create(request, CONTEXT))
        connection: Any = self
        shard = TableShard(connection, 0, info.rows, Registration(connection, spec.name, info.table_id))
        return RemoteTable(spec, [shard], "d", table_id=info.table_id, infos=[info], lender=Lender())

    def rows(self) -> Pulled:
        (table,) = self.service._tables.list()
        return table.pull(np.arange(table.rows))

    @property
    def lent_rows(self) -> float:
        return self.service.stats()["table_rows_pushed_lent"]

    def call(self, name: str, request: Any) -> Any:
        assert name == "TableService.Register"
        return self._run(self.service.register(request, CONTEXT))

    def begin(self, name: str, request: Any) -> Answered:
        assert name == "TableService.Push"
        asked = METHOD.decode_request(METHOD.encode_request(request))
        self.sent.append(asked.message.HasField("memory"))
        assert self.sent[-1] == (not asked.payloads.get(PUSH_VALUES))
        try:
            reply = METHOD.decode_reply(METHOD.encode_reply(self._run(self.service.push(asked, CONTEXT))))
        except AttaError as error:
            return Answered(Refused(error))
        self.lose -= 1
        return Answered(Lost() if self.lose >= 0 else reply)

    def patience(self) -> Any:
        return SimpleNamespace(lasts=lambda: True)

    def error_from(self, failure: grpc.RpcError) -> AttaError:
        return rpc.error_from(self.address, failure, 1.0)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        if self.journal is not None:
            self._run(self.journal.finish())
            self._running.cancel()
            self.loop.run_until_complete(asyncio.wait([self._running]))
            self.journal.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def owner(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr(remote, "LEAST_LENT_BYTES", 1)
    return Owner(loop)


SPEC = MutableSpec("t", 500, row_shape=(4,))
ROWS = np.random.default_rng(3).integers(0, 500, 400)
VALUES = np.random.default_rng(4).normal(size=(400, 4)).astype(np.float32)


def is_nothing_lent(table: RemoteTable) -> bool:
    file = table._lender._file
    if file is None:
        return True
    whole = file.gaps.take(lending.LENT_BYTES)
    if whole is not None:
        file.gaps.give(whole, lending.LENT_BYTES)
    return whole is not None


@settings(max_examples=40)
@given(st.data())
def test_memory_and_messages_give_the_same_bits(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES), "dtype")
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=2), "row shape"))
    versioned, count = draw(st.booleans(), "versioned"), draw(st.integers(2, 200), "rows")
    learns = dtype == "<f4" and draw(st.booleans(), "learns")
    spec = MutableSpec(
        "t", count, dtype, shape, versioned=versioned, optimiser=OptimiserSpec.adam() if learns else None
    )
    kept = draw(st.booleans(), "kept")
    pair = [Owner(loop, tmp_path_factory.mktemp("kept") if kept else None) for _ in range(2)]
    pair[1].reads_lent = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "LEAST_LENT_BYTES", 1)
        patch.setattr(remote, "PIECE_BYTES", 1024)
        tables = [owner.opened(spec) for owner in pair]
        for number in range(draw(st.integers(1, 4), "pushes")):
            ops = ["write", *([] if dtype == "|b1" else ["add"]), *(["step"] if learns else [])]
            op = draw(st.sampled_from(ops), "op")
            rows = np.array(draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=99), "of rows"))
            values = np.random.default_rng(number).integers(0, 2 if dtype == "|b1" else 100, (len(rows), *shape))
            options: dict[str, Any] = {"step": None} if op == "step" else {}
            if dtype == "<f4":
                options["codec"] = draw(st.sampled_from(["", "fp16", "bf16", "int8"]), "codec")
            if versioned and op == "write" and draw(st.booleans(), "with version"):
                options["version"] = number
            for table in tables:
                table.push(rows, values.astype(dtype), op, **options).wait()
                assert is_nothing_lent(table)
    assert pair[0].sent
    assert all(pair[0].sent)
    assert not any(pair[1].sent)
    assert same_bits(pair[0].rows(), pair[1].rows())
    for owner in pair:
        owner.close()


def test_values_are_those_of_the_call_whatever_the_caller_writes_later(owner: Owner) -> None:
    table, values = owner.opened(SPEC), VALUES.copy()
    ticket = table.push(ROWS, values)
    values[:] = 0
    ticket.wait()
    wanted = np.zeros((500, 4), np.float32)
    wanted[ROWS] = VALUES
    assert np.array_equal(owner.rows().values, wanted)
    assert owner.lent_rows == len(ROWS)


def test_what_is_kept_does_not_change_with_the_memory() -> None:
    memory = np.zeros(32, np.uint8)
    for dtype, keep, copied in (("<f4", True, True), ("<f4", False, False), ("|b1", False, True)):
        values = lent_values(MutableSpec("t", 9, dtype, (2,)), "", memory, keep=keep)
        assert values.shape == (32 // np.dtype(dtype).itemsize // 2, 2)
        assert np.shares_memory(values, memory) is not copied


def test_small_pushes_travel_in_messages(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LEAST_LENT_BYTES", 20 * 16)
    table = owner.opened(SPEC)
    for count in (19, 20):
        table.push(ROWS[:count], VALUES[:count]).wait()
    assert owner.sent == [False, True]


def test_a_push_whose_answer_is_lost_is_applied_once(owner: Owner) -> None:
    table = owner.opened(SPEC)
    owner.lose = 1
    first = table.push(np.arange(300), np.ones((300, 4), np.float32), "add")
    held = table._lender._file
    table.push(np.arange(300), np.full((300, 4), 10, np.float32), "add").wait()  # would overwrite what is lent again
    first.wait()
    assert owner.sent == [True, True, False]
    assert (owner.rows().values[:300] == 11).all()
    assert held is None or table._lender._file is not held  # its memory is never lent again


def test_a_lost_push_that_was_not_applied_has_its_own_values(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = owner.opened(SPEC)
    begin = owner.begin
    monkeypatch.setattr(owner, "begin", lambda *_: Answered(Lost()))
    first = table.push(np.arange(300), np.ones((300, 4), np.float32), "add")
    monkeypatch.setattr(owner, "begin", begin)
    table.push(np.arange(300), np.full((300, 4), 10, np.float32), "add").wait()
    first.wait()
    assert owner.sent == [True, False]
    assert (owner.rows().values[:300] == 11).all()


def test_a_push_that_cannot_be_sent_leaves_nothing_lent(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table, begin = owner.opened(SPEC), owner.begin

    def closed(*_: Any) -> Answered:
        raise ValueError("Cannot invoke RPC on closed channel!")

    monkeypatch.setattr(owner, "begin", closed)
    with pytest.raises(ValueError, match="closed channel"):
        table.push(ROWS, VALUES)
    assert is_nothing_lent(table)
    monkeypatch.setattr(owner, "begin", begin)
    table.push(ROWS, VALUES).wait()
    assert owner.lent_rows == len(ROWS)


def test_a_push_that_is_refused_before_it_is_sent_changes_nothing(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "WINDOW", 3)
    table = owner.opened(MutableSpec("t", 500, row_shape=(4,), versioned=True))
    wrong: list[dict[str, Any]] = [{"version": version} for version in (-1, 1 << 63, 1.5, True)]
    for options in (*wrong, {"codec": "zip"}):
        with pytest.raises(ConfigError, match=r"version .* must be a whole number|codec 'zip' is none of fp16"):
            table.push(ROWS, VALUES, **options)
    assert not owner.sent
    for version in range(5):  # none waits for the numbers of those that were refused
        table.push(ROWS, VALUES, version=np.int64(version)).wait()
    assert owner.lent_rows == 5 * len(ROWS)


def test_no_push_waits_for_the_numbers_of_one_that_was_broken_off(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "WINDOW", 3)
    monkeypatch.setattr(remote, "PIECE_BYTES", 400 * 16 // 2)
    table, begin, lost = owner.opened(SPEC), owner.begin, iter([Answered(Lost())])
    monkeypatch.setattr(owner, "begin", lambda *_: next(lost))  # the first piece never arrives
    with pytest.raises(StopIteration):  # nor is the second one sent
        table.push(ROWS, VALUES)
    monkeypatch.setattr(owner, "begin", lambda *_: Answered(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        table.push(ROWS, VALUES).wait()
    monkeypatch.setattr(owner, "begin", begin)
    for _ in range(3):
        table.push(ROWS, VALUES).wait()
    assert owner.lent_rows == 3 * len(ROWS)


def test_an_owner_that_cannot_open_the_memory_is_lent_none_again(owner: Owner) -> None:
    table = owner.opened(SPEC)
    table.push(ROWS, VALUES).wait()
    assert table._lender._file is not None
    table._lender._file.secret = b"guessed"
    for _ in range(2):
        table.push(ROWS, VALUES, "add").wait()
    assert owner.sent == [True, True, False, False]
    assert not owner.reads_lent
    expected = np.zeros((500, 4), np.float32)
    expected[ROWS] = VALUES
    for _ in range(2):
        np.add.at(expected, ROWS, VALUES)
    assert np.allclose(owner.rows().values, expected)


def test_an_owner_that_has_been_lent_too_much_is_lent_again(owner: Owner) -> None:
    table = owner.opened(SPEC)
    owner.service._lent._in_all = 0
    table.push(ROWS, VALUES).wait()
    owner.service._lent._in_all = 1 << 20
    table.push(ROWS, VALUES).wait()
    assert owner.sent == [True, False, True]
    assert owner.lent_rows == len(ROWS)


def test_an_owner_without_memory_for_the_pages_reads_messages(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = owner.opened(SPEC)
    monkeypatch.setattr(table_rows.memfiles, "populate", lambda *_: False)
    monkeypatch.setattr(lending._LoanFile, "touch", lambda *_: True)
    table.push(np.arange(500), np.ones((500, 4), np.float32)).wait()
    assert owner.sent == [True, False]
    assert (owner.rows().values == 1).all()


def test_an_owner_that_never_reads_is_an_error(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = owner.opened(SPEC)
    monkeypatch.setattr(owner, "begin", lambda *_: Answered(table_pb2.PushRowsReply(unread=True)))
    with pytest.raises(RemoteError, match="wants values in a message that were in the message"):
        table.push(ROWS, VALUES).wait()


def test_a_push_that_the_table_refuses_changes_nothing(owner: Owner) -> None:
    table = owner.opened(MutableSpec("t", 500, "|b1", (4,)))
    with pytest.raises(ConfigError, match="truth values cannot be added"):
        table.push(ROWS, VALUES > 0, "add").wait()
    assert not owner.rows().values.any()
    (ticket,) = table.push(ROWS, VALUES > 0)._sent  # the number of the refused push is free
    assert ticket.lent


def test_a_push_longer_than_any_message_is_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    table = owner.opened(SPEC)
    monkeypatch.setattr(tables_service, "ARRAYS_BYTES", 400 * 16 - 1)
    with pytest.raises(QuotaExceededError, match="6400 bytes: at most 6399"):
        table.push(ROWS, VALUES).wait()
    monkeypatch.setattr(tables_service, "ARRAYS_BYTES", 400 * 16)
    table.push(ROWS, VALUES).wait()
    assert owner.lent_rows == len(ROWS)


def test_a_truth_value_that_is_none_is_refused_in_lent_memory(owner: Owner) -> None:
    loan = Lender().lend(2 * memfiles.PAGE)
    assert loan is not None
    owner.opened(MutableSpec("t", 500, "|b1", (16,)))
    owner.service._tables.get("t").register(7)
    loan.memory[:] = 2
    message = table_pb2.PushRowsRequest(name="t", op="write", client=7, rows=np.arange(500).tobytes())
    message.memory.CopyFrom(loan.message)
    message.memory.nbytes = 500 * 16
    with pytest.raises(ConfigError, match="a truth value is neither 0 nor 1"):
        owner._run(owner.service.push(METHOD.decode_request(message.SerializeToString()), CONTEXT))
    message.memory.nbytes = 500 * 16 - 1
    reply = owner._run(owner.service.push(METHOD.decode_request(message.SerializeToString()), CONTEXT))
    assert (reply.applied, reply.unread, reply.unusable) == (False, True, True)
