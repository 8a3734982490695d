"""Calls share a room: what they hold is bounded in all and per connection, and nobody waits while there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services import debts, rooms
from atta.daemon.services.rooms import RequestRoom, Room
from atta.errors import ConfigError, QuotaExceededError
from atta.wire.fields import ARRAYS_BYTES

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
            room.validate()
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


def test_a_request_counts_as_the_largest_until_it_has_come_and_as_itself_until_it_is_answered() -> None:
    async def run() -> None:
        room = RequestRoom(4 * ARRAYS_BYTES)
        context: Any = Context()

        async def answered() -> None:
            place, raw = await room.read(context)
            assert raw == b"12345"
            assert room.used_bytes >= 5
            room.leave(place)

        call = asyncio.ensure_future(answered())
        await asyncio.sleep(0.01)
        assert room.used_bytes == ARRAYS_BYTES
        silent: Any = Context()
        never = asyncio.ensure_future(room.read(silent))
        await asyncio.sleep(0.01)
        assert room.used_bytes == 2 * ARRAYS_BYTES
        second: Any = Context(b"")
        blocked = asyncio.ensure_future(room.read(second))
        await asyncio.sleep(0.01)
        assert not blocked.done()  # the connection has its share
        context.raw.set_result(b"12345")
        await call
        assert (await blocked)[1] == b""
        never.cancel()
        await asyncio.sleep(0.01)
        assert room.used_bytes == 0

    asyncio.run(run())


def test_what_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0.05)

    async def run() -> None:
        room = RequestRoom(4 * ARRAYS_BYTES)
        silent: Any = Context()
        results = await asyncio.gather(*(room.read(silent) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [QuotaExceededError] * 3
        assert {str(result) for result in results} == {
            "the request did not arrive within 0.05 s",
            "no room for the request within 0.05 s: others take it",
        }
        assert room.used_bytes == 0
        nothing: Any = Context(grpc.aio.EOF)
        with pytest.raises(ConfigError, match="without a request"):
            await room.read(nothing)
        assert room.used_bytes == 0

    asyncio.run(run())


def test_a_connection_pauses_after_a_large_request_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection does not. The pause is over before the request that waits is read."""
    monkeypatch.setattr(debts, "BYTES_PER_S", 1 << 20)

    async def run() -> None:
        room, loop = RequestRoom(4 * ARRAYS_BYTES), asyncio.get_running_loop()
        bad: Any = Context(bytes(100 << 10))
        share, _ = await room.read(bad)
        room.refused(share)
        room.leave(share)
        began = loop.time()
        other: Any = Context(b"good")
        monkeypatch.setattr(other, "peer", lambda: "elsewhere")
        await asyncio.wait_for(room.read(other), 0.05)
        mine: Any = Context(b"good")
        later = asyncio.ensure_future(room.read(mine))
        await asyncio.sleep(0.05)
        assert not later.done()
        assert room.used_bytes == len(b"good"), "who pauses takes no room"
        assert (await later)[1] == b"good"
        assert loop.time() - began > 0.09

    asyncio.run(run())
