"""The daemon's end of the socket for consumers on its machine, with real sockets and a service of numbers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.session import Session
from atta.daemon.services import nearby as served
from atta.daemon.services.nearby import MOST_GREETINGS, NearbyConsumers
from atta.errors import ConfigError
from atta.protos.v1.session_pb2 import BatchHeader, NextRequest
from atta.wire import memfiles
from tests.unit.platform.test_session import Pool, delivery


def batch(number: int) -> BatchHeader:
    return BatchHeader(batch=number, version=1)  # a message of zeros alone has no bytes


class Numbers:
    """Batch n is number n. Those from ``finished`` on are not there yet; ``wrong`` is refused."""

    def __init__(self) -> None:
        self.finished, self.wrong, self.broken, self.long = 3, 99, 98, 97
        self.asked: list[int] = []

    def at_once(self, session: Session, request: NextRequest) -> BatchHeader | None:
        self.asked.append(request.sequence)
        if request.sequence == self.wrong:
            raise ConfigError("no such batch")
        if request.sequence == self.broken:
            raise RuntimeError("a mistake")
        if request.sequence == self.long:
            return BatchHeader(stats={"x" * 70_000: 1.0})
        return batch(request.sequence) if request.sequence < self.finished else None


def new_session(name: str = "s") -> Session:
    request: Any = SimpleNamespace(shared_memory=True)
    return Session(name, request, Pool(), 0.0)  # type: ignore[arg-type]


class Consumer:
    """A consumer of the test, or somebody else who has found the socket."""

    def __init__(self, home: NearbyConsumers) -> None:
        self.sock = memfiles.packets()
        self.sock.connect(f"\0{home.name}")

    async def send(self, packet: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, packet)

    async def ask(self, sequence: int) -> None:
        await self.send(NextRequest(session="s", sequence=sequence, train_ms=1.5).SerializeToString())

    async def answer(self) -> BatchHeader | None:
        """The next answer; None: the daemon has hung up."""
        try:
            packet = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 17), 10)
        except ConnectionResetError:
            return None
        return BatchHeader.FromString(packet) if packet else None


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[NearbyConsumers, Numbers, Session]]:
    numbers, session = Numbers(), new_session()
    home = NearbyConsumers(numbers.at_once)
    home.begin(session)  # nobody can connect yet, which does no harm
    home.listen()
    try:
        yield home, numbers, session
    finally:
        home.close()
        home.close()
    assert len(home) == session.busy == 0
    assert not home.name


async def met(home: NearbyConsumers, session: Session) -> Consumer:
    consumer = Consumer(home)
    await consumer.send(session.token)
    return consumer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_batches_come_when_they_are_asked_for() -> None:
    async with serving() as (home, numbers, session):
        consumer = await met(home, session)
        for number in (0, 1, 1, 2):
            await consumer.ask(number)
            assert await consumer.answer() == batch(number)
        assert (home.requests, len(home), session.busy, session.asked) == (4, 1, 0, True)
        await consumer.ask(3)
        await until(lambda: session.busy == 1)
        numbers.finished = 4
        session.deliver(delivery(3))
        assert await consumer.answer() == batch(3)
        consumer.sock.close()
        await until(lambda: len(home) == 0)
        again = await met(home, session)  # the session is still there
        await again.ask(3)
        assert await again.answer() == batch(3)


async def test_a_batch_that_does_not_come_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PENDING_S", 0.05)

    async with serving() as (home, numbers, session):
        consumer = await met(home, session)
        for _ in range(2):
            await consumer.ask(3)
            assert await consumer.answer() == BatchHeader(pending=True)
        assert session.busy == 0
        numbers.finished = 4
        session.deliver(delivery(3))
        await asyncio.sleep(0.01)
        await consumer.ask(3)
        assert await consumer.answer() == batch(3)
        assert len(numbers.asked) == 3  # nobody waited when it was finished


async def test_whatever_else_the_answer_is_the_daemon_hangs_up() -> None:
    async with serving() as (home, numbers, session):
        for request in (numbers.wrong, numbers.broken, numbers.long):
            consumer = await met(home, session)
            await consumer.ask(request)
            assert await consumer.answer() is None, request
            assert session.busy == 0
        consumer = await met(home, session)
        await consumer.ask(3)
        await until(lambda: session.busy == 1)
        await consumer.ask(0)  # does not wait for its answer
        assert await consumer.answer() is None
        assert session.busy == 0
        for packet in (b"\xff", b"\0" * (memfiles.REQUEST_BYTES + 1)):
            consumer = await met(home, session)
            await consumer.send(packet)
            assert await consumer.answer() is None
        other = await met(home, session)
        await other.ask(2)
        assert await other.answer() == batch(2)


async def test_only_who_has_the_token_of_an_open_session_is_answered() -> None:
    async with serving() as (home, numbers, session):
        for token in (b"x", session.token[:-1], session.token + b"x", bytes(16), new_session("other").token):
            stranger = Consumer(home)
            await stranger.send(token)
            await stranger.ask(0)
            assert await stranger.answer() is None
        first = await met(home, session)
        await first.ask(0)
        assert await first.answer() == batch(0)
        second = await met(home, session)  # the consumer comes again: its first connection is lost
        await second.ask(1)
        assert await second.answer() == batch(1)
        assert await first.answer() is None
        assert len(home) == 1
        await second.ask(3)
        await until(lambda: session.busy == 1)
        session.close()
        home.end(session)
        assert await second.answer() is None
        assert numbers.asked == [0, 1, 3]
        late = await met(home, session)
        assert await late.answer() is None


async def test_those_who_say_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "GREETING_S", 0.3)

    async with serving() as (home, _numbers, session):
        silent = [Consumer(home) for _ in range(MOST_GREETINGS)]
        await until(lambda: len(home) == MOST_GREETINGS)
        assert await Consumer(home).answer() is None
        assert await silent[0].answer() is None  # after a while
        await until(lambda: len(home) == 0)
        consumer = await met(home, session)
        await asyncio.sleep(0.4)  # who is known may be silent
        await consumer.ask(0)
        assert await consumer.answer() == batch(0)


async def test_other_users_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (home, _numbers, session):
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        other = await met(home, session)
        assert await other.answer() is None


async def test_without_descriptors_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be had must end: the consumer would wait for an answer."""

    class Full(socket.socket):
        failures = 1

        def accept(self) -> Any:
            if Full.failures:
                Full.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async with serving() as (home, _numbers, session):
        asyncio.get_running_loop().remove_reader(home._socket)
        full = Full(fileno=home._socket.detach())  # type: ignore[union-attr]
        home._socket = full
        asyncio.get_running_loop().add_reader(full, home._accept)
        before = len(os.listdir("/proc/self/fd"))
        consumers = [await met(home, session) for _ in range(3)]
        for consumer in consumers:
            assert await consumer.answer() is None
            consumer.sock.close()
        again = await met(home, session)
        await again.ask(0)
        assert await again.answer() == batch(0)
        again.sock.close()
        await until(lambda: len(home) == 0)
        assert len(os.listdir("/proc/self/fd")) == before  # one is kept again


REQUESTS = st.builds(
    lambda sequence, released: NextRequest(sequence=sequence, released=released).SerializeToString(),
    st.integers(0, 100),
    st.lists(st.integers(0, 5), max_size=3),
)
PACKETS = st.one_of(REQUESTS, st.binary(min_size=1, max_size=40), st.just(b"\0" * 20_000), st.just(b"token"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(PACKETS, max_size=6), min_size=1, max_size=6))
def test_any_packets_leave_the_daemon_serving(callers: list[list[bytes]]) -> None:
    async def run() -> None:
        async with serving() as (home, _, session):
            for packets in callers:
                caller = Consumer(home)
                with contextlib.suppress(OSError):  # it has hung up
                    for packet in packets:
                        await caller.send(session.token if packet == b"token" else packet)
                        await asyncio.sleep(0)
                caller.sock.close()
            await until(lambda: len(home) == 0)
            assert session.busy == 0
            consumer = await met(home, session)
            await consumer.ask(1)
            assert await consumer.answer() == batch(1)

    asyncio.run(run())
