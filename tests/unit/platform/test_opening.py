"""``Open`` is idempotent and bounded. Leases end by the daemon's clock, but not while the daemon itself was stopped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from atta.daemon.admission import CallGuard
from atta.daemon.config import DaemonConfig
from atta.daemon.services.front import OTHER, check_descriptors, within_descriptors
from atta.daemon.services.handling import MAX_NAMED
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
from atta.protos.v1.session_pb2 import CloseRequest, NextRequest, OpenRequest, RenewRequest, Seeds
from atta.samplers.batch.layout import Layout
from atta.wire.tokens import Role, TokenFile, issue
from tests.unit.platform.test_nearby_consumers import Consumer

LEASE = 60.0
A, B, C = map(shown_name, "abc")


class Context:
    def __init__(self, token: str = "") -> None:
        self._token = token

    def time_remaining(self) -> float:
        return 10.0

    def peer(self) -> str:
        return "somewhere"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token}")]


class Engine:
    """Records the sessions that are opened and closed."""

    dataset = None

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.slots = SimpleNamespace(trim=lambda now: None, lingering=0)

    def open(self, session: Any) -> None:
        self.opened.append(session.id)

    def close(self, session: Any) -> None:
        self.closed.append(session.id)
        session.close()

    def waits_for_room(self, session: Any) -> bool:
        return False


class Checks:
    """Stands for the check of a request. It lasts until the test ends it."""

    def __init__(self) -> None:
        self.count = 0
        self.go = threading.Event()

    def __call__(self, request: Any, *_: Any) -> Any:
        self.count += 1
        assert self.go.wait(10)
        if request.job == "wrong":
            raise ConfigError("no such thing")
        seeds = SimpleNamespace(batches=7, seeds=[1, 2, 3])
        return SimpleNamespace(seeds=seeds, first_batch=0, job=request.job, epoch=request.epoch)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    made = Checks()
    monkeypatch.setattr("atta.daemon.services.sessions.check_request", made)
    return made


@contextlib.asynccontextmanager
async def serving(
    max_sessions: int = 4, guard: CallGuard | None = None
) -> AsyncIterator[tuple[SessionService, Engine]]:
    engine: Any = Engine()
    config = DaemonConfig(data="", parts=range(1), lease_s=LEASE, max_sessions=max_sessions)
    yield SessionService(config, engine, guard=guard), engine


def asked(service: SessionService, name: str, context: Context | None = None, **more: Any) -> asyncio.Task[Any]:
    async def ask() -> Any:
        return await service.open(OpenRequest(session=name, **more), context or Context())

    return asyncio.get_running_loop().create_task(ask())


async def under_way(checks: Checks, count: int) -> None:
    while checks.count < count:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


async def test_a_lost_answer_opens_nothing_twice(checks: Checks) -> None:
    async with serving() as (service, engine):
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
    async with serving() as (service, engine):
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
    async with serving() as (service, engine):
        waiting = asked(service, "a")
        await under_way(checks, 1)
        await service.close(CloseRequest(session="a"), Context())
        checks.go.set()
        with pytest.raises(UnknownNameError, match=f"session {A} does not exist"):
            await waiting
        await service.close(CloseRequest(session="b"), Context())  # arrives before its Open
        with pytest.raises(UnknownNameError, match=f"session {B} does not exist"):
            await asked(service, "b")
        assert engine.opened == []
        await asked(service, "c")
        for _ in range(2):
            await service.close(CloseRequest(session="c"), Context())
        assert engine.closed == [C]
        with pytest.raises(UnknownNameError):
            await asked(service, "c")


async def test_what_is_shown_of_a_session_gives_nobody_its_batches_or_its_end(checks: Checks) -> None:
    """Readers see all sessions, and each may ask for the batches of its own."""

    async with serving() as (service, engine):
        checks.go.set()
        with capture_logs() as lines:
            reply = await asked(service, "a")
            (shown,) = engine.opened
            await service.close(CloseRequest(session=shown), Context())
            assert list((await service.renew(RenewRequest(sessions=[shown]), Context())).unknown) == [shown]
            with pytest.raises(UnknownNameError, match="does not exist"):
                await anext(service.next(NextRequest(session=shown), Context()))
            assert engine.closed == []
            await service.close(CloseRequest(session=reply.session), Context())
        assert engine.closed == [shown]
        assert [line["session"] for line in lines] == [shown, shown]


async def test_nobody_waits_any_more(checks: Checks) -> None:
    """A consumer that died during the check of its request gets no session. One that asks again later does."""

    async with serving() as (service, engine):
        gone = asked(service, "a")
        await under_way(checks, 1)
        gone.cancel()
        await asyncio.sleep(0)
        checks.go.set()
        await asyncio.sleep(0.05)
        assert engine.opened == []
        assert (await asked(service, "a")).session == "a"
        assert checks.count == 2


async def test_a_refused_request_may_be_sent_again(checks: Checks) -> None:
    async with serving() as (service, _engine):
        checks.go.set()
        for _ in range(2):
            with pytest.raises(ConfigError, match="no such thing"):
                await asked(service, "a", job="wrong")
        assert (await asked(service, "a")).session == "a"


async def test_requests_that_are_being_checked_have_their_places(checks: Checks) -> None:
    async with serving() as (service, _engine):
        waiting = [asked(service, name) for name in "abcd"]
        await under_way(checks, 4)
        with pytest.raises(QuotaExceededError, match="0 sessions are open and 4 being opened"):
            await asked(service, "e")
        checks.go.set()
        await asyncio.gather(*waiting)
        assert (await asked(service, "a")).session == "a"  # a repeated request needs no place
        with pytest.raises(QuotaExceededError, match=r"4 sessions are open and 0 being opened.*--max-sessions 4"):
            await asked(service, "e")


@pytest.mark.parametrize("name", ["a" * 65, "a/b", "a b", "ä"])
async def test_names_are_short_and_plain(checks: Checks, name: str) -> None:
    async with serving() as (service, _engine):
        with pytest.raises(ConfigError, match=r"session .*a name has"):
            await asked(service, name)
        with pytest.raises(ConfigError, match=r"session .*a name has"):
            await service.close(CloseRequest(session=name), Context())


async def test_without_a_name_the_daemon_makes_one(checks: Checks) -> None:
    async with serving() as (service, engine):
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


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), -1.0])
async def test_a_time_that_is_none(checks: Checks, ms: float) -> None:
    async with serving() as (service, _engine):
        checks.go.set()
        await asked(service, "a")
        with pytest.raises(ConfigError, match=r".* must be a time"):
            async for _ in service.next(NextRequest(session="a", train_ms=ms), Context()):
                pass


async def test_requests_that_name_too_much(checks: Checks) -> None:
    async with serving() as (service, _engine):
        checks.go.set()
        await asked(service, "a")
        with pytest.raises(ConfigError, match="4097 released batches"):
            async for _ in service.next(NextRequest(session="a", released=range(MAX_NAMED + 1)), Context()):
                pass
        with pytest.raises(ConfigError, match="4097 sessions"):
            await service.renew(RenewRequest(sessions=["a"] * (MAX_NAMED + 1)), Context())


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_leases_by_a_clock_and_time_in_which_the_daemon_was_stopped_ends_none(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("atta.daemon.services.sessions.time", SimpleNamespace(monotonic=lambda: now))

    async with serving() as (service, engine):
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
            await service.renew(RenewRequest(sessions=["a"]), Context())
            assert engine.closed in ([], [B])
        now += 1.0
        service.look(now, late_s=2.0)
        assert engine.closed == [B]
        reply = await service.renew(RenewRequest(sessions=["a", "b"]), Context())
        assert list(reply.unknown) == ["b"]


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_a_session_ends_with_the_token_that_opened_it(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its consumer on the same machine brings no token with its requests, and they renew the lease."""
    now = datetime.now(UTC)
    monkeypatch.setattr("atta.daemon.admission.datetime", SimpleNamespace(now=lambda _: now))
    issued = [issue(name, [Role.READER], now + timedelta(hours=hours)) for name, hours in (("one", 1), ("other", 2))]
    (one, entry), (other, _) = issued
    good = TokenFile.of(entry for _, entry in issued)

    async with serving(guard=CallGuard(lambda: good)) as (service, engine):
        checks.go.set()
        service.nearby.listen()
        reply = await asked(service, "a", Context(one), shared_memory=True)
        await asked(service, "b", Context(other))
        consumer = Consumer(service.nearby)
        await consumer.send(reply.token)
        waiting = asyncio.get_running_loop().create_task(anext(service.next(NextRequest(session="a"), Context())))
        while not len(service.nearby):
            await asyncio.sleep(0.001)
        service.look(service._looked, late_s=2.0)
        assert engine.closed == []
        if end == "revoked":
            good = good.without(entry.id)
        else:
            now += timedelta(hours=1)
        with capture_logs() as lines:
            service.look(service._looked, late_s=2.0)
        assert engine.closed == [A]
        cause = "the token is unknown" if end == "revoked" else f"the token {entry.id} of one has expired"
        assert [(line["event"], line["reason"]) for line in lines if "reason" in line] == [("session ended", cause)]
        assert await consumer.answer() is None
        with pytest.raises(AttaError, match=f"the session has ended: {cause}"):
            await waiting
        service.nearby.close()


def test_more_seeds_than_there_is_memory_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a few bytes may ask for all vertices of a type."""
    sizes: dict[str, Any] = {"node_counts": {"node": 10_000_000}, "split_size": lambda *_: 10_000_000}
    schema = SimpleNamespace(node_types=["node"], **sizes)
    dataset: Any = SimpleNamespace(schema=schema, split=lambda *_: range(10_000_000))
    monkeypatch.setattr("atta.daemon.services.opening.available_bytes", lambda: 500 << 20)
    for seeds in (Seeds(node_type="node", all=True), Seeds(node_type="node", split="train")):
        with pytest.raises(
            QuotaExceededError, match="10000000 seeds: it takes up to 610 MiB for a moment, 500 MiB are"
        ):
            choose_seeds(dataset, seeds)


def test_names_of_jobs_are_printable() -> None:
    config, dataset = DaemonConfig(data="", parts=range(1)), SimpleNamespace(schema=None)
    request = OpenRequest(job="\x1b[2Jevil", batch_size=1, world_size=1)
    with pytest.raises(ConfigError, match=r"job '\\x1b\[2Jevil': its name must have printable characters alone"):
        check_request(request, dataset, config)


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
    with pytest.raises(
        ConfigError, match=r"128 files may be open, 616 are needed for 256 sessions.*from 256 to 12, or raise"
    ):
        check_descriptors(128, 40, 256)
    with pytest.raises(ConfigError, match=r"\(--max-sessions\): raise the limit \(ulimit -Hn\)"):
        check_descriptors(64, 40, 256)


def test_connections_leave_descriptors_for_other_things() -> None:
    assert within_descriptors(-1, 40, 1024) == 1024
    assert within_descriptors(4096, 40, 1024) == 1024
    assert within_descriptors(1024, 40, 1024) == 1024 - 40 - OTHER
    assert within_descriptors(64, 40, 1024) == 1


async def test_only_a_session_that_nobody_asked_costs_its_connection_something(checks: Checks) -> None:
    debts = Debts()

    def waits() -> float:
        return debts.wait_s("somewhere", asyncio.get_running_loop().time())

    async with serving() as (service, _engine):
        service._debts = debts
        checks.go.set()
        for number in range(20):
            await asked(service, str(number))
            service._sessions[shown_name(str(number))].asked = True
            await service.close(CloseRequest(session=str(number)), Context())
            await service.close(CloseRequest(session=f"unknown-{number}"), Context())
        assert waits() == 0.0
        for number in range(100, 120):
            await asked(service, str(number))
            await service.close(CloseRequest(session=str(number)), Context())
        assert waits() > 1.0
