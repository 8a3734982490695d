"""Sessions on the daemon: they are opened once and end by its clock, and every request gets its own batch or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta.daemon.admission import CallGuard
from atta.daemon.config import DaemonConfig
from atta.daemon.engine.session import MAX_HELD_SLOTS, Delivery, Session, SessionRequest
from atta.daemon.engine.slots import SlotPool
from atta.daemon.peers.owners import Pull, SharedRows
from atta.daemon.services import nearby as served
from atta.daemon.services import sessions
from atta.daemon.services.front import OTHER, check_descriptors, within_descriptors
from atta.daemon.services.handling import MAX_NAMED
from atta.daemon.services.nearby import MOST_GREETINGS, NearbyConsumers
from atta.daemon.services.opening import (
    ENDED,
    MAX_CAPACITY,
    Openings,
    check_request,
    check_room,
    choose_seeds,
    shown_name,
)
from atta.daemon.services.rooms import Debts
from atta.daemon.services.sessions import SessionService
from atta.errors import AttaError, ConfigError, QuotaExceededError, UnknownNameError
from atta.protos.v1.session_pb2 import BatchHeader, CloseRequest, NextRequest, OpenRequest, RenewRequest, Seeds
from atta.samplers.batch.layout import Layout
from atta.wire import memfiles

LEASE = 60.0
A, B, C = map(shown_name, "abc")


def context(token: str = "") -> Any:
    metadata = [("authorization", f"Bearer {token}")]
    return SimpleNamespace(
        time_remaining=lambda: 10.0, peer=lambda: "somewhere", auth_context=dict, invocation_metadata=lambda: metadata
    )


class Engine:
    dataset = None

    def __init__(self) -> None:
        self.opened, self.closed = list[str](), list[str]()
        self.slots = SimpleNamespace(trim=lambda now: None, lingering=0)
        self.open, self.waits_for_room = lambda session: self.opened.append(session.id), lambda session: False

    def close(self, session: Any) -> None:
        self.closed.append(session.id)
        session.close()


class Checks:
    """Stands for the check of a request. It lasts until the test ends it."""

    def __init__(self) -> None:
        self.count, self.go = 0, threading.Event()

    def __call__(self, request: Any, *_: Any) -> Any:
        self.count += 1
        assert self.go.wait(10)
        if request.job == "wrong":
            raise ConfigError("no such thing")
        seeds = SimpleNamespace(batches=7, seeds=[1, 2, 3])
        plan = SimpleNamespace(summed=None)
        return SimpleNamespace(plan=plan, seeds=seeds, first_batch=0, job=request.job, epoch=request.epoch)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    made = Checks()
    monkeypatch.setattr("atta.daemon.services.sessions.check_request", made)
    return made


def service_of(max_sessions: int = 4, guard: CallGuard | None = None) -> tuple[SessionService, Any]:
    config, engine = DaemonConfig(data="", parts=range(1), lease_s=LEASE, max_sessions=max_sessions), Engine()
    return SessionService(config, engine, guard=guard), engine


def asked(service: SessionService, name: str, about: Any = None, **more: Any) -> asyncio.Task[Any]:
    async def ask() -> Any:
        return await service.open(OpenRequest(session=name, **more), about or context())

    return asyncio.get_running_loop().create_task(ask())


async def under_way(checks: Checks, count: int) -> None:
    while checks.count < count:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


async def test_a_lost_answer_opens_nothing_twice(checks: Checks) -> None:
    service, engine = service_of()
    checks.go.set()
    first = await asked(service, "a", epoch=3)
    again = await asked(service, "a", epoch=3)
    assert first == again
    assert (first.session, first.batches, first.seeds, first.lease_s) == ("a", 7, 3, LEASE)
    assert engine.opened == [A]
    assert checks.count == 1
    with pytest.raises(ConfigError, match=f"session {A} has been opened with another request"):
        await asked(service, "a", epoch=4)
    assert len(service) == 1


async def test_the_same_request_while_the_first_one_is_being_checked(checks: Checks) -> None:
    service, engine = service_of()
    first = asked(service, "a")
    await under_way(checks, 1)
    again = [asked(service, "a") for _ in range(3)]
    with pytest.raises(ConfigError, match="another request"):
        await asked(service, "a", epoch=1)
    first.cancel()  # its connection broke
    await asyncio.sleep(0)
    checks.go.set()
    assert {(await one).session for one in again} == {"a"}
    assert engine.opened == [A]
    assert checks.count == 1


async def test_a_client_that_gave_up_closes_what_it_has_asked_for(checks: Checks) -> None:
    service, engine = service_of()
    waiting = asked(service, "a")
    await under_way(checks, 1)
    await service.close(CloseRequest(session="a"), context())
    checks.go.set()
    with pytest.raises(UnknownNameError, match=f"session {A} does not exist"):
        await waiting
    await service.close(CloseRequest(session="b"), context())  # arrives before its Open
    with pytest.raises(UnknownNameError, match=f"session {B} does not exist"):
        await asked(service, "b")
    assert engine.opened == []
    await asked(service, "c")
    for _ in range(2):
        await service.close(CloseRequest(session="c"), context())
    assert engine.closed == [C]
    with pytest.raises(UnknownNameError):
        await asked(service, "c")


async def test_what_is_shown_of_a_session_gives_nobody_its_batches_or_its_end(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see all sessions, and each may ask for the batches of its own."""
    every = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(sessions, "log", structlog.wrap_logger(None, wrapper_class=every))
    service, engine = service_of()
    checks.go.set()
    with capture_logs() as lines:
        reply = await asked(service, "a")
        (shown,) = engine.opened
        await service.close(CloseRequest(session=shown), context())
        assert list((await service.renew(RenewRequest(sessions=[shown]), context())).unknown) == [shown]
        with pytest.raises(UnknownNameError, match="does not exist"):
            await anext(service.next(NextRequest(session=shown), context()))
        assert engine.closed == []
        await service.close(CloseRequest(session=reply.session), context())
    assert engine.closed == [shown]
    assert [line["session"] for line in lines] == [shown, shown]


async def test_who_gave_up_gets_no_session_and_may_ask_again_as_who_was_refused(checks: Checks) -> None:
    service, engine = service_of()
    gone = asked(service, "a")
    await under_way(checks, 1)
    gone.cancel()
    await asyncio.sleep(0)
    checks.go.set()
    await asyncio.sleep(0.05)
    assert engine.opened == []
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such thing"):
            await asked(service, "a", job="wrong")
    assert (await asked(service, "a")).session == "a"
    assert checks.count == 4


async def test_requests_that_are_being_checked_have_their_places(checks: Checks) -> None:
    service, _ = service_of()
    waiting = [asked(service, name) for name in "abcd"]
    await under_way(checks, 4)
    with pytest.raises(QuotaExceededError, match="0 sessions are open and 4 being opened"):
        await asked(service, "e")
    checks.go.set()
    await asyncio.gather(*waiting)
    assert (await asked(service, "a")).session == "a"  # a repeated request needs no place
    with pytest.raises(QuotaExceededError, match=r"4 sessions are open and 0 being opened.*--max-sessions 4"):
        await asked(service, "e")


async def test_names_are_short_and_plain(checks: Checks) -> None:
    service, _ = service_of()
    for name in ("a" * 65, "a/b", "a b", "ä"):
        for ask in (asked(service, name), service.close(CloseRequest(session=name), context())):
            with pytest.raises(ConfigError, match=r"session .*a name has"):
                await ask


async def test_without_a_name_the_daemon_makes_one(checks: Checks) -> None:
    service, engine = service_of()
    checks.go.set()
    replies = [await asked(service, "") for _ in range(2)]
    assert [shown_name(r.session) for r in replies] == engine.opened
    assert len(set(engine.opened)) == 2


def test_ended_names_are_bounded() -> None:
    openings = Openings()
    for number in range(ENDED + 10):
        openings.end(f"s{number}")
    openings.refuse_ended("s9")
    with pytest.raises(UnknownNameError):
        openings.refuse_ended("s10")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train_ms": float("nan")}, ".* must be a time"),
        ({"train_ms": float("inf")}, ".* must be a time"),
        ({"train_ms": -1.0}, ".* must be a time"),
        ({"released": range(MAX_NAMED + 1)}, "4097 released batches"),
    ],
)
async def test_requests_for_batches_that_make_no_sense(checks: Checks, more: dict[str, Any], words: str) -> None:
    service, _ = service_of()
    checks.go.set()
    await asked(service, "a")
    with pytest.raises(ConfigError, match=words):
        await anext(service.next(NextRequest(session="a", **more), context()))
    with pytest.raises(ConfigError, match="4097 sessions"):
        await service.renew(RenewRequest(sessions=["a"] * (MAX_NAMED + 1)), context())


async def test_leases_end_by_the_daemons_clock(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which the daemon was stopped ends none."""
    now = 1000.0
    monkeypatch.setattr("atta.daemon.services.sessions.time", SimpleNamespace(monotonic=lambda: now))
    service, engine = service_of()
    checks.go.set()
    service.look(now, late_s=2.0)
    for name in "ab":
        await asked(service, name)
    for _ in range(3):
        now += 10 * LEASE
        service.look(now, late_s=2.0)
    assert engine.closed == []
    for _ in range(int(LEASE)):
        now += 1.0
        service.look(now, late_s=2.0)
        await service.renew(RenewRequest(sessions=["a"]), context())
        assert engine.closed in ([], [B])
    now += 1.0
    service.look(now, late_s=2.0)
    assert engine.closed == [B]
    reply = await service.renew(RenewRequest(sessions=["a", "b"]), context())
    assert list(reply.unknown) == ["b"]


def test_more_seeds_than_there_is_memory_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a few bytes may ask for all vertices of a type."""
    sizes: dict[str, Any] = dict.fromkeys(("in_use", "split_size"), lambda *_: 10_000_000)
    schema = SimpleNamespace(node_types=["node"], **sizes)
    dataset: Any = SimpleNamespace(schema=schema, split=lambda *_: range(10_000_000))
    monkeypatch.setattr("atta.daemon.services.opening.available_bytes", lambda: 500 << 20)
    for seeds in (Seeds(node_type="node", all=True), Seeds(node_type="node", split="train")):
        with pytest.raises(QuotaExceededError, match=r"10000000 seeds: .* 610 MiB for a moment, 500 MiB are"):
            choose_seeds(dataset, seeds)


def test_names_of_jobs_are_printable() -> None:
    request, dataset = OpenRequest(job="\x1b[2Jevil", batch_size=1, world_size=1), SimpleNamespace(schema=None)
    with pytest.raises(ConfigError, match=r"job '\\x1b\[2Jevil': its name must have printable characters alone"):
        check_request(request, dataset, DaemonConfig(data="", parts=range(1)))


def test_addresses_of_a_batch_are_bounded() -> None:
    config = DaemonConfig(data="", parts=range(1), buffer_bytes=64 << 20)
    check_room(Layout({}, MAX_CAPACITY), 64 << 20, config)
    with pytest.raises(ConfigError, match="a batch could take 16 TiB, at most 8 are possible"):
        check_room(Layout({}, 2 * MAX_CAPACITY), 0, config)
    with pytest.raises(QuotaExceededError, match="the seeds of one batch take 65 MiB, all buffers together 64 MiB"):
        check_room(Layout({}, 1 << 30), 65 << 20, config)


def test_descriptors() -> None:
    check_descriptors(-1, 1000, 10**6)
    check_descriptors(1024, 40, 256)
    check_descriptors(40 + OTHER + 2 * 256, 40, 256)
    with pytest.raises(ConfigError, match=r"128 files .* 616 are needed for 256 sessions.*from 256 to 12, or raise"):
        check_descriptors(128, 40, 256)
    with pytest.raises(ConfigError, match=r"\(--max-sessions\): raise the limit \(ulimit -Hn\)"):
        check_descriptors(64, 40, 256)
    # Connections leave descriptors for other things.
    assert within_descriptors(-1, 40, 1024) == 1024
    assert within_descriptors(4096, 40, 1024) == 1024
    assert within_descriptors(1024, 40, 1024) == 1024 - 40 - OTHER
    assert within_descriptors(64, 40, 1024) == 1


async def test_only_a_session_that_nobody_asked_costs_its_connection_something(checks: Checks) -> None:
    debts = Debts()

    def waits() -> float:
        return debts.wait_s("somewhere", asyncio.get_running_loop().time())

    service, _ = service_of()
    service._debts = debts
    checks.go.set()
    for number in range(20):
        await asked(service, str(number))
        service._sessions[shown_name(str(number))].asked = True
        await service.close(CloseRequest(session=str(number)), context())
        await service.close(CloseRequest(session=f"unknown-{number}"), context())
    assert waits() == 0.0
    for number in range(100, 120):
        await asked(service, str(number))
        await service.close(CloseRequest(session=str(number)), context())
    assert waits() > 1.0


BATCHES = 6


class Pool:
    """Records the slots that came back. A slot is the number of the batch in it."""

    def __init__(self) -> None:
        self.released, self.abandoned = list[int](), list[int]()
        self.lend, self.release = lambda slot, used_bytes: None, self.released.append

    def abandon(self, slot: int, session: str) -> None:
        self.abandoned.append(slot)


def delivery(number: int) -> Delivery:
    return Delivery(number, SimpleNamespace(nbytes=1), number, {})


def opened(*, shared: bool = False, name: str = "s") -> tuple[Session, Pool]:
    pool = Pool()
    return Session(name, SimpleNamespace(shared_memory=shared), pool, 0.0), pool


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_waiter_that_was_overtaken_is_refused() -> None:
    """Two requests wait for batch 0. Before the second one runs again, the consumer has gone on to batch 1."""
    session, _ = opened()
    stale = asyncio.ensure_future(session.batch(0, 5.0))
    await settle()
    session.deliver(delivery(0))  # wakes it, but other tasks run first
    session.deliver(delivery(1))
    for number in (0, 1):
        assert (await session.batch(number, 0.0)).batch == number
    with pytest.raises(ConfigError, match="batch number 0 asked for after 1"):
        await stale


@settings(max_examples=200)
@given(
    steps=st.lists(st.one_of(st.just("deliver"), st.just("run"), st.integers(0, BATCHES)), max_size=40),
    shared=st.booleans(),
)
def test_requests_in_any_order_get_their_own_batch(steps: list[Any], shared: bool) -> None:
    async def run() -> None:
        session, pool = opened(shared=shared)
        made, asked = 0, []
        for step in steps:
            if step == "deliver":
                session.deliver(delivery(made))
                made += 1
            elif step == "run":
                await settle()
            else:
                asked.append((step, asyncio.ensure_future(session.batch(step, 0.0 if step % 2 else 5.0))))
        session.fail(AttaError("over"))
        taken: set[int] = set()
        answers = await asyncio.gather(*(request for _, request in asked), return_exceptions=True)
        for (number, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                refused = isinstance(answer, ConfigError) and f"batch number {number} asked for after" in str(answer)
                assert refused or str(answer) == "over"
            else:
                assert answer is None or answer.batch == number
                taken |= {number} if answer is not None else set()
        assert sorted(taken) == list(range(len(taken)))
        session.close()
        kept = min(len(taken), MAX_HELD_SLOTS) if shared else 0
        assert sorted(pool.abandoned) == list(range(kept))
        assert sorted(pool.released + pool.abandoned) == list(range(made))

    asyncio.run(run())


async def test_bytes_that_are_being_sent_stay_as_they_are() -> None:
    """A repeated request still reads batch 0 while the consumer, which has it already, asks for the next batches."""
    session, pool = opened()
    for number in range(3):
        session.deliver(delivery(number))
    first = await session.batch(0, 0.0)
    with session.sending(first):
        await session.batch(1, 0.0)
        await session.batch(2, 0.0)
        assert pool.released == [1]
        session.close()
        assert pool.released == [1, 2]
    assert pool.released == [1, 2, 0]


async def test_a_batch_that_was_let_go_is_not_handed_out_again() -> None:
    session, pool = opened(shared=True)
    session.deliver(delivery(0))
    assert await session.batch(0, 0.0) is await session.batch(0, 0.0) is not None
    session.let_go([0, 7, 0])
    assert pool.released == [0]
    with pytest.raises(ConfigError, match="after it has been let go"):
        await session.batch(0, 0.0)


def batch(number: int) -> BatchHeader:
    return BatchHeader(batch=number, version=1)  # a message of zeros alone has no bytes


class Numbers:
    """Batch n is number n. Those from ``finished`` on are not there yet; ``wrong`` is refused."""

    wrong, broken, long = 99, 98, 97

    def __init__(self) -> None:
        self.finished, self.asked = 3, []

    def at_once(self, session: Session, request: NextRequest) -> BatchHeader | None:
        self.asked.append(request.sequence)
        if request.sequence == self.wrong:
            raise ConfigError("no such batch")
        if request.sequence == self.broken:
            raise RuntimeError("a mistake")
        if request.sequence == self.long:
            return BatchHeader(stats={"x" * 70_000: 1.0})
        return batch(request.sequence) if request.sequence < self.finished else None


class Consumer:
    """A consumer of the test, or somebody else who has found the socket."""

    def __init__(self, home: NearbyConsumers) -> None:
        self.sock = memfiles.packets()
        self.sock.connect(f"\0{home.name}")

    async def send(self, packet: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, packet)

    async def ask(self, sequence: int) -> None:
        await self.send(NextRequest(session="s", sequence=sequence, train_ms=1.5).SerializeToString())

    async def gets(self, sequence: int) -> bool:
        await self.ask(sequence)
        return await self.answer() == batch(sequence)

    async def answer(self) -> BatchHeader | None:
        try:
            packet = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 17), 10)
        except ConnectionResetError:
            return None
        return BatchHeader.FromString(packet) if packet else None


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[NearbyConsumers, Numbers, Session]]:
    numbers, (session, _) = Numbers(), opened(shared=True)
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
            assert await consumer.gets(number)
        assert (home.requests, len(home), session.busy, session.asked) == (4, 1, 0, True)
        await consumer.ask(3)
        await until(lambda: session.busy == 1)
        numbers.finished = 4
        session.deliver(delivery(3))
        assert await consumer.answer() == batch(3)
        consumer.sock.close()
        await until(lambda: len(home) == 0)
        again = await met(home, session)  # the session is still there
        assert await again.gets(3)


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
        assert await consumer.gets(3)
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
            await (consumer := await met(home, session)).send(packet)
            assert await consumer.answer() is None
        other = await met(home, session)
        assert await other.gets(2)


async def test_only_who_has_the_token_of_an_open_session_is_answered() -> None:
    async with serving() as (home, numbers, session):
        for token in (
            b"x",
            session.token[:-1],
            session.token + b"x",
            bytes(16),
            opened(shared=True, name="other")[0].token,
        ):
            stranger = Consumer(home)
            await stranger.send(token)
            await stranger.ask(0)
            assert await stranger.answer() is None
        first = await met(home, session)
        assert await first.gets(0)
        second = await met(home, session)  # the consumer comes again: its first connection is lost
        assert await second.gets(1)
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
        assert await consumer.gets(0)


async def test_other_users_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (home, _numbers, session):
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert await (await met(home, session)).answer() is None


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
        full = Full(fileno=home._socket.detach())
        home._socket = full
        asyncio.get_running_loop().add_reader(full, home._accept)
        before = len(os.listdir("/proc/self/fd"))
        consumers = [await met(home, session) for _ in range(3)]
        for consumer in consumers:
            assert await consumer.answer() is None
            consumer.sock.close()
        again = await met(home, session)
        assert await again.gets(0)
        again.sock.close()
        await until(lambda: len(home) == 0)
        assert len(os.listdir("/proc/self/fd")) == before  # one is kept again


REQUESTS = st.builds(NextRequest, sequence=st.integers(0, 100), released=st.lists(st.integers(0, 5), max_size=3)).map(
    NextRequest.SerializeToString
)
PACKETS = st.one_of(REQUESTS, st.binary(min_size=1, max_size=40), st.just(b"\0" * 20_000), st.just(b"token"))


@settings(max_examples=40)
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
            assert await consumer.gets(1)

    asyncio.run(run())


def test_reprs_leave_out_arrays() -> None:
    pool, numbers = SlotPool(1 << 30), np.arange(100, dtype=np.int64)
    anything: Any = SimpleNamespace(numbers=numbers)
    request = SessionRequest(
        plan=anything, layout=anything, seeds=anything, first_batch=0, seed=1, epoch=2, shared_memory=True, job="job",
        sources=numbers, times=numbers,
    )  # fmt: skip
    held = Delivery(3, anything, pool.acquire(4096), {})
    session = Session("s", request, pool, 0.0, held={3: held}, current=held)

    async def waited() -> Pull:
        future = asyncio.get_running_loop().create_future()
        shared = SharedRows(numbers, numbers, numbers, [numbers], future)
        return Pull((1, "node", ("x",), ""), 1, [numbers], [shared], [shared])

    for logged in (request, held, session, asyncio.run(waited())):
        text = repr(logged)
        assert len(text) < 1000
        assert not re.search(r"array|\b\d+[,\s]+\d+[,\s]+\d+\b", text), text
