"""Calls share a room: what they hold is bounded in all and per connection, and nobody waits while there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services import rooms
from atta.daemon.services.rooms import AnswerRoom, RequestRoom, Room
from atta.errors import ConfigError, QuotaExceededError
from atta.wire.bulk import ARRAYS_BYTES
from atta.wire.pieces import MESSAGE_BYTES, pieces_of
from tests.unit.invariants import validate

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


def test_first_come_first_served_on_a_connection_and_others_pass() -> None:
    async def run() -> None:
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

    asyncio.run(run())


class Context:
    """A call whose request arrives when the test says so."""

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
    context: Any = Context()

    async def answered() -> None:
        place, raw = await room.read(context, any_size)
        assert raw == b"12345"
        assert room.used_bytes >= 5
        room.leave(place)

    call = asyncio.ensure_future(answered())
    await asyncio.sleep(0.01)
    assert room.used_bytes == MESSAGE_BYTES
    silent: Any = Context()
    most = 2 * ARRAYS_BYTES // MESSAGE_BYTES
    never = [asyncio.ensure_future(room.read(silent, any_size)) for _ in range(most - 1)]
    await asyncio.sleep(0.01)
    assert room.used_bytes == most * MESSAGE_BYTES
    second: Any = Context(b"")
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
END = grpc.aio.EOF  # type: ignore[attr-defined]


async def test_a_request_in_pieces_has_room_for_all_of_them() -> None:
    room = RequestRoom(4 * ARRAYS_BYTES)
    sizes: list[int] = []
    whole: Any = InPieces(*pieces_of(LONG), b"what comes after it is not read")
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
async def test_pieces_that_make_no_request_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, messages: list[Any], words: str
) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0.05)
    room = RequestRoom(4 * ARRAYS_BYTES)
    call: Any = InPieces(*messages)
    with pytest.raises((ConfigError, QuotaExceededError), match=words):
        await room.read(call, any_size)
    assert room.used_bytes == 0


async def test_a_size_that_makes_no_sense_is_refused_before_the_pieces_come() -> None:
    room, call = RequestRoom(4 * ARRAYS_BYTES), InPieces(*pieces_of(LONG))

    def check(nbytes: int) -> None:
        raise QuotaExceededError(f"{nbytes} are too many")

    context: Any = call
    with pytest.raises(QuotaExceededError, match=f"{len(LONG)} are too many"):
        await room.read(context, check)
    assert len(call.messages) == len(list(pieces_of(LONG))) - 1
    assert room.used_bytes == 0


async def test_what_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0.05)
    room = RequestRoom(4 * ARRAYS_BYTES)
    silent: Any = Context()
    most = 2 * ARRAYS_BYTES // MESSAGE_BYTES
    results = await asyncio.gather(*(room.read(silent, any_size) for _ in range(most + 1)), return_exceptions=True)
    assert [type(result) for result in results] == [QuotaExceededError] * (most + 1)
    assert {str(result) for result in results} == {
        "the request did not arrive within 0.05 s",
        "no room for the request within 0.05 s: others take it",
    }
    assert room.used_bytes == 0
    nothing: Any = Context(grpc.aio.EOF)
    with pytest.raises(ConfigError, match="ended before its request"):
        await room.read(nothing, any_size)
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
    bad: Any = Context(bytes(100 << 10))
    share, _ = await room.read(bad, any_size)
    room.refused(share)
    room.leave(share)
    began = loop.time()
    other: Any = Context(b"good")
    monkeypatch.setattr(other, "peer", lambda: "elsewhere")
    await asyncio.wait_for(room.read(other, any_size), 0.05)
    mine: Any = Context(b"good")
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
    context: Any = Context(b"next")
    waiting = [
        asyncio.ensure_future(answered("somewhere", read=True)),
        asyncio.ensure_future(requests.read(context, any_size)),
    ]
    await asyncio.wait_for(answered("elsewhere", read=True), 0.05)
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in waiting)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
