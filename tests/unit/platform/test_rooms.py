"""Requests are admitted, counted and answered in one place, in rooms that bound what calls hold."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services import rooms
from atta.daemon.services.handling import Handling
from atta.daemon.services.rooms import (
    FREE_S,
    MOST_CONNECTIONS,
    MOST_PAUSE_S,
    SMALL_BYTES,
    AnswerRoom,
    Debts,
    RequestRoom,
    Room,
)
from atta.errors import ConfigError, QuotaExceededError, UnavailableError, WrongDatasetError
from atta.protos.v1 import control_pb2, table_pb2
from atta.wire.bulk import ARRAYS_BYTES, ROWS_VALUES
from atta.wire.identity import HEADER, Bound, Identity
from atta.wire.pieces import MESSAGE_BYTES, pieces_of
from atta.wire.rpc import Bulk
from tests.unit.invariants import validate

HERE = Identity(1, "data", "now")
PULL = table_pb2.PullRowsRequest(name="t")


class Aborted(Exception):
    """The status that the client gets instead of an answer."""


class Call:
    def __init__(self, named: str | None, raw: bytes = b"") -> None:
        self._named, self._raw = named, raw

    async def read(self) -> bytes:
        return self._raw

    def invocation_metadata(self) -> Any:
        return () if self._named is None else ((HEADER, self._named),)

    def peer(self) -> str:
        return "somewhere"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(f"{code.name}: {details}")


class Service:
    def __init__(self) -> None:
        self.requests, self.error = list[Any](), None

    async def stats(self, request: control_pb2.StatsRequest, context: Any) -> control_pb2.StatsReply:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return control_pb2.StatsReply(counters={"a": 1})

    async def pull(self, request: table_pb2.PullRowsRequest, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        yield b"12345"
        yield Bulk(table_pb2.RowsChunk(), {ROWS_VALUES: np.zeros(3, np.int64)})
        if self.error is not None:
            raise self.error


class Daemon:
    """The handlers of a daemon at ``here:1``, without gRPC."""

    def __init__(self) -> None:
        self.handling, self.service = Handling(HERE, "here:1", RequestRoom(1 << 30)), Service()
        self._stats = self.handling.handler("ControlService.Stats", self.service.stats)
        self._pull = self.handling.handler("TableService.Pull", self.service.pull)

    def stats(self, named: str | None = HERE.named(Bound.NAMED), raw: bytes = b"") -> Any:
        return asyncio.run(self._stats(None, Call(named, raw)))

    def pull(self, named: str | None = HERE.named(Bound.DATA), raw: bytes = PULL.SerializeToString()) -> list[Any]:
        async def read() -> list[Any]:
            return [reply async for reply in self._pull(None, Call(named, raw))]

        return asyncio.run(read())


def test_requests_errors_and_bulk_bytes_are_counted_by_method() -> None:
    daemon = Daemon()
    daemon.stats()
    assert daemon.handling.stats() == {"requests_ControlService.Stats": 1, "request_errors_ControlService.Stats": 0}
    daemon.pull()
    daemon.service.error = ValueError("broken")
    for ask in (daemon.stats, daemon.pull):
        with pytest.raises(Aborted):
            ask()
    assert daemon.handling.stats() == {
        "requests_ControlService.Stats": 2,
        "request_errors_ControlService.Stats": 1,
        "requests_TableService.Pull": 2,
        "request_errors_TableService.Pull": 1,
        "sent_bytes_TableService.Pull": 2 * (5 + 24),
    }


def test_a_daemon_does_not_name_itself() -> None:
    """Callers know it by the address that they have asked."""
    daemon = Daemon()
    for error, status in (
        (WrongDatasetError("here:1", "serves another"), "FAILED_PRECONDITION: serves another"),
        (UnavailableError("third:3", "gone"), "INTERNAL: another daemon does not answer: third:3: gone"),
    ):
        daemon.service.error = error
        for ask in (daemon.stats, daemon.pull):
            with pytest.raises(Aborted, match=f"^{status}$"):
                ask()


async def test_a_stream_that_its_reader_leaves_is_no_error() -> None:
    daemon = Daemon()
    replies = daemon._pull(PULL.SerializeToString(), Call(HERE.named(Bound.DATA)))
    await anext(replies)
    await replies.aclose()
    assert daemon.handling.stats()["request_errors_TableService.Pull"] == 0


class Held:
    """What a request brings, and a frame has."""


def test_an_error_that_is_kept_keeps_nothing_of_its_request() -> None:
    """gRPC keeps the status with which a handler ends its call, in a cycle with the call."""
    kept, freed = list[BaseException](), list[Any]()

    async def stats(request: Any, context: Any) -> Any:
        held = Held()
        freed.append(weakref.ref(held))
        try:
            raise KeyError(len(vars(held)))
        except KeyError as error:
            kept.append(error)
            raise ConfigError("wrong") from error

    async def pull(request: Any, context: Any) -> AsyncIterator[Any]:
        await stats(request, context)
        yield b""

    handling = Handling(HERE, "here:1", RequestRoom(1 << 30))
    unary, stream = handling.handler("ControlService.Stats", stats), handling.handler("TableService.Pull", pull)

    async def call() -> None:
        with pytest.raises(Aborted) as one:
            await unary(None, Call(HERE.named(Bound.NAMED)))
        with pytest.raises(Aborted) as other:
            await anext(stream(None, Call(HERE.named(Bound.DATA), PULL.SerializeToString())))
        kept.extend((one.value, other.value))

    gc.disable()
    try:
        asyncio.run(call())
        assert len(kept) == 4
        assert [ref() for ref in freed] == [None, None]
    finally:
        gc.enable()


COSTS = {"unasked": rooms.UNASKED_S, "not admitted": rooms.NOT_ADMITTED_S}
RATES = {"refused": rooms.REFUSED_BYTES_PER_S, "given up": rooms.GIVEN_UP_BYTES_PER_S}
RATES["given up by a peer"] = rooms.PEERS_BYTES_PER_S
EVENTS = st.tuples(
    st.sampled_from("abc"), st.sampled_from([*COSTS, *RATES]), st.integers(0, 1 << 26), st.floats(0.0, 3.0)
)


def owe(debts: Debts, connection: str, what: str, nbytes: int, now: float) -> None:
    if what in COSTS:
        debts.owes(connection, COSTS[what], now)
    else:
        debts.owes_bytes(connection, nbytes, RATES[what], now)


def test_what_is_small_or_happens_now_and_then_costs_nothing() -> None:
    """A session that nobody asked, an answer of 12 MiB, a mistaken request of 4 MiB and calls without the role, every
    second."""
    debts = Debts()
    for second in range(1000):
        owe(debts, "a", "unasked", 0, second)
        owe(debts, "a", "given up", 12 << 20, second)
        owe(debts, "a", "refused", 4 << 20, second)
        for _ in range(5):
            owe(debts, "a", "not admitted", 0, second)
        for _ in range(1000):
            owe(debts, "a", "refused", SMALL_BYTES, second)
        assert debts.wait_s("a", second) == 0.0


@given(st.lists(EVENTS, max_size=50))
def test_debts_add_up_and_are_paid_by_waiting(events: list[tuple[str, str, int, float]]) -> None:
    debts, owed, now = Debts(), dict.fromkeys("abc", 0.0), 0.0
    for connection, what, nbytes, passed in events:
        now += passed
        owed = {name: max(0.0, seconds - passed) for name, seconds in owed.items()}
        owe(debts, connection, what, nbytes, now)
        owed[connection] += COSTS.get(what, nbytes / RATES[what] if what in RATES and nbytes > SMALL_BYTES else 0.0)
        owed[connection] = min(owed[connection], FREE_S + MOST_PAUSE_S)
        for name, seconds in owed.items():
            assert math.isclose(debts.wait_s(name, now), max(0.0, seconds - FREE_S), abs_tol=1e-6), name


def test_the_oldest_debt_is_forgotten() -> None:
    debts = Debts()
    for number in range(MOST_CONNECTIONS + 1):
        owe(debts, str(number), "refused", 1 << 27, 0.0)
    assert debts.wait_s("0", 0.0) == 0.0
    assert debts.wait_s("1", 0.0) > 1.0


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "shrink", "cancel"]), st.integers(0, 2), st.integers(1, 60)),
    max_size=60,
)


@given(STEPS)
def test_any_calls(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        room, calls = Room("x", 100, 40), []
        for what, connection, size in steps:
            if what == "enter":
                calls.append(asyncio.ensure_future(room.enter(str(connection), size)))
            elif calls:
                call = calls[size % len(calls)]
                if what == "cancel" or not call.done():
                    calls.remove(call)
                    call.cancel()
                    if call.done() and not call.cancelled():
                        room.leave(call.result())
                elif what == "leave":
                    calls.remove(call)
                    room.leave(call.result())
                else:
                    room.leave(call.result(), keep=size // 2)
            for _ in range(4):
                await asyncio.sleep(0)
            validate(room)
            assert room.used_bytes == sum(call.result().nbytes for call in calls if call.done())
        for call in calls:
            call.cancel()
            if call.done() and not call.cancelled():
                room.leave(call.result())
        await asyncio.gather(*calls, return_exceptions=True)
        assert room.used_bytes == 0

    asyncio.run(run())


async def test_first_come_first_served_on_a_connection_and_others_pass() -> None:
    room, order = Room("x", 100, 50), []

    async def call(name: str, connection: str, size: int) -> Any:
        place = await room.enter(connection, size)
        order.append(name)
        return place

    first = await call("first", "a", 50)
    waiting = [asyncio.ensure_future(call(name, "a", size)) for name, size in (("large", 50), ("small", 1))]
    other = await call("other", "b", 50)
    await asyncio.sleep(0)
    assert order == ["first", "other"]
    room.leave(first)
    large = await waiting[0]
    room.leave(other)
    room.leave(large)
    room.leave(await waiting[1])
    assert order == ["first", "other", "large", "small"]
    assert room.used_bytes == 0


class Context:
    def __init__(self, raw: Any = None) -> None:
        self.raw: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if raw is not None:
            self.raw.set_result(raw)

    def peer(self) -> str:
        return "somewhere"

    async def read(self) -> Any:
        return await asyncio.shield(self.raw)


def any_size(nbytes: int) -> None:
    """Every size is possible."""


async def test_a_request_counts_as_the_longest_message_until_it_has_come_and_as_itself_until_it_is_answered() -> None:
    room = RequestRoom(4 * ARRAYS_BYTES)
    context = Context()

    async def answered() -> None:
        place, raw = await room.read(context, any_size)
        assert raw == b"12345"
        assert room.used_bytes >= 5
        room.leave(place)

    call = asyncio.ensure_future(answered())
    await asyncio.sleep(0.01)
    assert room.used_bytes == MESSAGE_BYTES
    silent = Context()
    most = 2 * ARRAYS_BYTES // MESSAGE_BYTES
    never = [asyncio.ensure_future(room.read(silent, any_size)) for _ in range(most - 1)]
    await asyncio.sleep(0.01)
    assert room.used_bytes == most * MESSAGE_BYTES
    second = Context(b"")
    blocked = asyncio.ensure_future(room.read(second, any_size))
    await asyncio.sleep(0.01)
    assert not blocked.done()  # the connection has its share
    context.raw.set_result(b"12345")
    await call
    assert (await blocked)[1] == b""
    for one in never:
        one.cancel()
    await asyncio.sleep(0.01)
    assert room.used_bytes == 0


class InPieces(Context):
    """A call whose messages have all arrived; the last one may be followed by silence (None)."""

    def __init__(self, *messages: Any) -> None:
        super().__init__()
        self.messages = list(messages)

    async def read(self) -> Any:
        message = self.messages.pop(0)
        return await asyncio.sleep(3600) if message is None else message


LONG = bytes(range(256)) * ((MESSAGE_BYTES + 1000) // 256)
END = grpc.aio.EOF


async def test_a_request_in_pieces_has_room_for_all_of_them() -> None:
    room = RequestRoom(4 * ARRAYS_BYTES)
    sizes: list[int] = []
    whole = InPieces(*pieces_of(LONG), b"what comes after it is not read")
    share, raw = await room.read(whole, sizes.append)
    assert len(whole.messages) == 1
    assert (raw, sizes, room.used_bytes) == (LONG, [len(LONG)], len(LONG))
    others: list[Any] = [InPieces(*pieces_of(LONG), END) for _ in range(25)]
    found = [asyncio.ensure_future(room.read(other, any_size)) for other in others]
    await asyncio.sleep(0.05)
    assert not all(call.done() for call in found), "the connection has its share"
    room.leave(share)
    for call in found:
        share, raw = await asyncio.wait_for(call, 5)
        assert raw == LONG
        room.leave(share)
    assert room.used_bytes == 0


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([*list(pieces_of(LONG))[:-1], END], "the call ended before its request"),
        ([*list(pieces_of(LONG))[:-1], None], "the request did not arrive within"),
        ([next(pieces_of(LONG)), LONG[:1000]], "a piece of 1000 bytes"),
        ([next(pieces_of(LONG)), LONG + b"x"], f"a piece of {len(LONG) + 1} bytes"),
        ([next(pieces_of(LONG)), next(pieces_of(LONG))], "a piece of 9 bytes"),
    ],
)
async def test_pieces_that_make_no_request(monkeypatch: pytest.MonkeyPatch, messages: list[Any], words: str) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0.05)
    room = RequestRoom(4 * ARRAYS_BYTES)
    call = InPieces(*messages)
    with pytest.raises((ConfigError, QuotaExceededError), match=words):
        await room.read(call, any_size)
    assert room.used_bytes == 0


async def test_a_size_that_makes_no_sense_is_refused_before_the_pieces_come() -> None:
    room, call = RequestRoom(4 * ARRAYS_BYTES), InPieces(*pieces_of(LONG))
    check = Mock(side_effect=QuotaExceededError("are too many"))
    with pytest.raises(QuotaExceededError, match="are too many"):
        await room.read(call, check)
    check.assert_called_once_with(len(LONG))
    assert len(call.messages) == len(list(pieces_of(LONG))) - 1
    assert room.used_bytes == 0


async def test_what_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0.3)
    room, silent = RequestRoom(4 * ARRAYS_BYTES), Context()
    reads = [asyncio.ensure_future(room.read(silent, any_size)) for _ in range(2 * ARRAYS_BYTES // MESSAGE_BYTES)]
    await asyncio.sleep(0.01)  # they have their room
    monkeypatch.setattr(rooms, "WAIT_S", 0.05)
    with pytest.raises(QuotaExceededError, match=r"no room for the request within 0\.05 s: others take it"):
        await room.read(silent, any_size)
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(result) for result in results} == {QuotaExceededError}
    assert {str(result) for result in results} == {"the request did not arrive within 0.05 s"}
    assert room.used_bytes == 0
    with pytest.raises(ConfigError, match="ended before its request"):
        await room.read(Context(grpc.aio.EOF), any_size)
    assert room.used_bytes == 0


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for nothing costs a second for each MiB, and nothing is free."""
    monkeypatch.setattr(rooms, "REFUSED_BYTES_PER_S", 1 << 20)
    monkeypatch.setattr(rooms, "GIVEN_UP_BYTES_PER_S", 1 << 20)
    monkeypatch.setattr(rooms, "FREE_S", 0.0)


@pytest.mark.usefixtures("dear")
async def test_a_connection_pauses_after_a_large_request_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection does not. The pause is over before the request that waits is read."""
    room, loop = RequestRoom(4 * ARRAYS_BYTES), asyncio.get_running_loop()
    bad = Context(bytes(100 << 10))
    share, _ = await room.read(bad, any_size)
    room.refused(share)
    room.leave(share)
    began = loop.time()
    other = Context(b"good")
    monkeypatch.setattr(other, "peer", lambda: "elsewhere")
    await asyncio.wait_for(room.read(other, any_size), 0.05)
    mine = Context(b"good")
    later = asyncio.ensure_future(room.read(mine, any_size))
    await asyncio.sleep(0.05)
    assert not later.done()
    assert room.used_bytes == len(b"good"), "who pauses takes no room"
    assert (await later)[1] == b"good"
    assert loop.time() - began > 0.09


@pytest.mark.usefixtures("dear")
async def test_a_connection_pauses_after_an_answer_that_it_gave_up() -> None:
    """Its other answers wait as well as its requests. An answer that was read to its end costs nothing."""
    owed = rooms.Debts()
    answers, requests = AnswerRoom(1 << 20, 1 << 20, owed), RequestRoom(4 * ARRAYS_BYTES, owed)

    async def answered(connection: str, *, read: bool) -> None:
        async with answers.answer(connection, 100 << 10):
            if not read:
                await asyncio.sleep(3600)

    await answered("somewhere", read=True)
    assert owed.wait_s("somewhere", asyncio.get_running_loop().time()) == 0.0
    unread = asyncio.ensure_future(answered("somewhere", read=False))
    await asyncio.sleep(0)
    unread.cancel()
    await asyncio.wait([unread])
    assert answers.used_bytes == 0
    context = Context(b"next")
    waiting = [
        asyncio.ensure_future(answered("somewhere", read=True)),
        asyncio.ensure_future(requests.read(context, any_size)),
    ]
    await asyncio.wait_for(answered("elsewhere", read=True), 0.05)
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in waiting)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
