"""Leases are renewed; where a loader is, and when a lost session is opened again or a request is repeated."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client import control
from atta.client.control import Patience
from atta.client.sessions.cursor import (
    LONGEST_WAIT_S,
    OUTAGES,
    PER_OUTAGE,
    Cursor,
    Reattachment,
    StreamPlace,
    request_digest,
)
from atta.client.sessions.keeper import PER_FAILURE, PER_LEASE, Renewals, SessionKeeper, SessionState
from atta.client.sessions.resuming import ResumingStream
from atta.errors import (
    AttaError,
    ConfigError,
    NotAuthenticatedError,
    PeerLostError,
    RemoteError,
    RestartedError,
    UnavailableError,
    UnknownNameError,
)
from atta.protos.v1 import session_pb2
from atta.wire.retries import AT_ONCE, FIRST_PAUSE_S, LONGEST_PAUSE_S, SHARE, RetryBudget, pause_s
from tests.waiting import eventually

WHOLE = st.integers(0, (1 << 64) - 1)


@given(st.text(), WHOLE, WHOLE, WHOLE, WHOLE, st.none() | WHOLE)
def test_a_state_survives_json(request: str, rank: int, world: int, epoch: int, batch: int, tables: int | None) -> None:
    cursor = Cursor(request, rank, world, epoch, batch, tables)
    assert Cursor.from_state(json.loads(json.dumps(cursor.to_state()))) == cursor


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "unknown version 2"),
        ({"epoch": -1}, "epoch is -1"),
        ({"rank": "0"}, "rank is '0'"),
        ({"batch": True}, "batch is True"),
        ({"batch": 1.0}, "batch is 1.0"),
        ({"request": None}, "request is None"),
        ({"more": 1}, "exactly the keys"),
        ({"tables_version": -1}, "tables_version is -1"),
        ({"tables_version": "1"}, "tables_version is '1'"),
    ],
)
def test_other_states_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Cursor.from_state({**Cursor("r", 0, 1, 1, 2).to_state(), **change})
    with pytest.raises(ConfigError, match="exactly the keys"):
        Cursor.from_state([1])


def test_what_a_digest_depends_on() -> None:
    def digest(**changes: Any) -> str:
        return request_digest(session_pb2.OpenRequest(**{"dataset_id": "d", "seed": 1, "batch_size": 4, **changes}))

    same = {"epoch": 3, "start_batch": 7, "session": "s", "job": "j", "share": 2.0, "version": 3}
    other = {"dataset_id": "e", "seed": 2, "batch_size": 5, "rank": 1, "shuffle": True}
    assert {digest(**{name: value}) for name, value in same.items()} == {digest()}
    assert len({digest(), *(digest(**{name: value}) for name, value in other.items())}) == 1 + len(other)


JITTER = st.floats(0, 1, exclude_max=True)


@given(st.floats(0.01, 300), JITTER)
def test_one_outage(limit_s: float, jitter: float) -> None:
    """A daemon never answers, and an attempt takes no time."""
    outages, found = Reattachment(limit_s), list[float]()
    while (wait_s := outages.wait_s(sum(found), 0, jitter)) is not None:
        found.append(wait_s)
    first, *waits, last = found
    assert first == 0, "the first attempt comes at once"
    assert first + sum(waits) + last == pytest.approx(limit_s), "the last one comes when the time is up"
    assert max(waits, default=0) <= 1.5 * LONGEST_WAIT_S
    assert waits[:-1] == sorted(waits[:-1]), "waits grow"
    assert len(waits) <= 10 + limit_s / (0.5 * LONGEST_WAIT_S)


def test_the_budget_of_outages() -> None:
    assert Reattachment(0.0).wait_s(5.0, 0, 0.5) is None
    outages, batch = Reattachment(60.0), 0
    while outages.wait_s(float(batch), batch, 0.5) is not None:
        batch += 1
    assert batch == 11  # ten, and one more that eleven batches have earned
    outages = Reattachment(60.0)
    assert all(outages.wait_s(float(n), 10 * n, 0.5) == 0 for n in range(1000)), "ten batches between are enough"


STEPS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 200)),
    st.tuples(st.just("receive"), st.integers(1, 30)),
    st.tuples(st.just("fail"), JITTER),
)


@settings(max_examples=150)
@given(st.floats(0, 100), st.integers(0, 50), st.lists(STEPS, max_size=60))
def test_losses_attempts_and_batches_in_any_order(limit_s: float, first: int, steps: list[tuple[str, Any]]) -> None:
    outages, now, batch, seen = Reattachment(limit_s, first), 0.0, first, first
    since, begun, given_up = None, 0, False
    for what, value in steps:
        if what == "wait":
            now += value
        elif what == "receive":
            batch += 0 if given_up else value
        else:
            fresh = since is None or batch > seen
            if fresh:
                since, seen = now, batch
            wait_s = outages.wait_s(now, batch, value)
            assert not given_up or wait_s is None, "who has given up does not begin again"
            given_up = wait_s is None
            if not given_up:
                begun += fresh
                assert 0 <= wait_s <= 1.5 * LONGEST_WAIT_S
                assert not fresh or wait_s == 0
                assert now + wait_s <= since + limit_s + 1e-6, "no attempt after the limit"
                assert begun <= OUTAGES + (batch - first) // PER_OUTAGE, "the budget holds"
        outages.validate()
        assert 0 <= outages.left_s(now) <= limit_s


LIMIT_S = 0.02


def lost(error: RemoteError) -> Any:
    """A session without batches: each request raises ``error``."""
    about = {"batches": 5, "version": 0, "address": "x:1", "moving": False, "left": 5, "silent": False, "unlaunched": 0}
    return MagicMock(**about, __next__=Mock(side_effect=error))


@pytest.mark.parametrize("kind", [UnavailableError, RestartedError, PeerLostError])
def test_it_gives_up_with_the_latest_error(kind: type[RemoteError]) -> None:
    """The daemon goes away. When the limit is over it has been back, and has lost the session once more."""

    def opened(place: StreamPlace, within_s: float, search: Any) -> Any:
        time.sleep(LIMIT_S)
        return lost(kind("x:1", "has lost it again"))

    first = lost(UnavailableError("x:1", "is away"))
    stream = ResumingStream(opened, StreamPlace(0, 3), LIMIT_S, first)
    with pytest.raises(kind, match=r"x:1: has lost it again \(gave up after reconnect=0.02 s\)"):
        next(stream)
    assert stream.place.batch == 3
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("error", [NotAuthenticatedError("x:1", "its token is unknown"), UnknownNameError("session 7")])
def test_a_session_that_has_ended_is_opened_anew_once_at_a_batch(error: AttaError) -> None:
    found = [lost(error), lost(error), lost(error)]
    found[0].__next__.side_effect = ["the third", "the fourth", error]
    places: list[int] = []

    def opened(place: StreamPlace, within_s: float, search: Any) -> Any:
        places.append(place.batch)
        return found[len(places) - 1]

    stream = ResumingStream(opened, StreamPlace(0, 3), LIMIT_S, lost(error))
    assert [next(stream), next(stream)] == ["the third", "the fourth"]
    with pytest.raises(type(error)):
        next(stream)
    assert places == [3, 5]


@given(st.lists(st.booleans(), max_size=400), st.integers(1, 20))
def test_repetitions_are_a_tenth_of_all_requests_and_some_at_once(fails: list[bool], at_once: int) -> None:
    budget = RetryBudget(at_once)
    requests = repeated = 0
    for failed in fails:
        budget.asked()
        requests += 1
        if failed and budget.take():
            repeated += 1
            requests += 1
            budget.asked()
        assert repeated <= at_once + SHARE * requests + 1e-9
        assert 0 <= budget.left <= at_once


def test_a_budget_comes_back_with_requests_that_succeed() -> None:
    budget = RetryBudget()
    while budget.take():
        budget.asked()
    for _ in range(11):
        budget.asked()
    assert budget.take()
    assert not budget.take()


@given(st.integers(1, 40), st.floats(0, 1))
def test_pauses(failures: int, drawn: float) -> None:
    soon = pause_s(failures, RetryBudget(), drawn)
    assert min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S) / 2 <= soon <= LONGEST_PAUSE_S
    empty = RetryBudget(1)
    assert not empty.take()
    assert LONGEST_PAUSE_S / 2 <= pause_s(1, empty, drawn) <= LONGEST_PAUSE_S


def test_a_client_repeats_for_its_time_at_the_slowest_pace_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(control.time, "monotonic", lambda: 100.0 + sum(pauses))
    monkeypatch.setattr(control.time, "sleep", pauses.append)
    budget = RetryBudget()
    waiting = Patience(30.0, budget)
    while waiting.lasts():
        budget.asked()
    assert 30.0 <= sum(pauses) <= 30.0 + LONGEST_PAUSE_S
    assert len(pauses) <= AT_ONCE + SHARE * len(pauses) + 30.0 / (LONGEST_PAUSE_S / 2)
    assert not Patience(0, budget).lasts()


LEASE = 60.0
PERIOD = LEASE / PER_LEASE


@given(steps=st.lists(st.integers(1, 50), min_size=1, max_size=200), daemons=st.integers(1, 3))
def test_no_lease_waits_longer_than_a_period_and_a_step(steps: list[int], daemons: int) -> None:
    renewals: Renewals[int] = Renewals()
    now, latest = 0.0, {}
    for daemon in range(daemons):
        renewals.keep(daemon, LEASE, now)
        latest[daemon] = now
    for step in steps:
        assert renewals.wait_s(now) <= PERIOD
        now += step / 8
        due = renewals.due(now)
        assert renewals.due(now) == []
        for daemon, at in latest.items():
            assert (daemon in due) == (now - at >= PERIOD)
        latest |= dict.fromkeys(due, now)


def test_a_failed_renewal_is_tried_again_soon_and_others_keep_their_times() -> None:
    renewals: Renewals[str] = Renewals()
    renewals.keep("a", LEASE, 0.0)
    renewals.keep("b", LEASE, 1.0)
    assert renewals.due(PERIOD) == ["a"]
    renewals.failed("a", PERIOD + 0.5)
    assert renewals.wait_s(PERIOD + 1) == 0.0
    assert renewals.due(PERIOD + 1) == ["b"]
    assert renewals.due(PERIOD + 0.5 + PERIOD / PER_FAILURE) == ["a"]
    renewals.drop("b")
    renewals.failed("b", 0.0)
    assert renewals.due(1000.0) == ["a"]
    renewals.drop("a")
    assert renewals.wait_s(0.0) == float("inf")


def test_the_shortest_lease_counts() -> None:
    renewals: Renewals[str] = Renewals()
    renewals.keep("a", LEASE, 0.0)
    renewals.keep("a", 3.0, 0.0)
    renewals.keep("a", LEASE, 0.0)
    assert renewals.wait_s(0.0) == 1.0
    assert renewals.due(1.0) == ["a"]
    assert renewals.wait_s(1.0) == 1.0


def a_call(answered: bool) -> Any:
    """It is answered at once, or never."""
    made = Mock()
    made.code.return_value = grpc.StatusCode.OK
    made.result.side_effect = None if answered else grpc.FutureTimeoutError
    made.add_done_callback.side_effect = (lambda then: then(made)) if answered else None
    return made


class Daemon:
    def __init__(self, answers: bool = True) -> None:
        self.answers, self.renewed, self.closed = answers, list[tuple[str, ...]](), list[str]()

    def begin(self, name: str, request: Any, *, timeout: float) -> Any:
        if name == "SessionService.Renew":
            self.renewed.append(tuple(sorted(request.sessions)))
        else:
            self.closed.append(request.session)
        return a_call(self.answers)

    def call(self, name: str, request: Any, *, timeout: float) -> None:
        if not self.answers:
            time.sleep(timeout)
        self.begin(name, request, timeout=timeout)


def state(daemon: Any, name: str) -> SessionState:
    return SessionState(daemon, None, name)


@pytest.fixture
def keeper() -> Any:
    made = SessionKeeper()
    yield made
    made.close()


def test_sessions_that_come_and_go_do_not_keep_a_lease_from_being_renewed(keeper: SessionKeeper) -> None:
    """A training iterator pauses while loops over other loaders leave notes far more often than leases are renewed."""
    daemon, over = Daemon(), threading.Event()
    training = state(daemon, "training")
    keeper.keep(training, 0.3)

    def validate() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            keeper.discard(state(daemon, f"validation-{number}"))

    thread = threading.Thread(target=validate)
    thread.start()
    assert eventually(lambda: len(daemon.renewed) >= 4)
    over.set()
    thread.join()
    assert set(daemon.renewed) == {("training",)}
    assert len(daemon.closed) > 4


def test_a_daemon_that_does_not_answer_delays_nobody_else(keeper: SessionKeeper) -> None:
    silent, other = Daemon(answers=False), Daemon()
    kept = [state(silent, "a"), state(other, "b")]
    for one in kept:
        keeper.keep(one, 0.3)
    for number in range(20):
        keeper.discard(state(silent, f"c-{number}"))
    assert eventually(lambda: len(other.renewed) >= 3 and len(silent.renewed) >= 3 and len(silent.closed) == 20)


def test_closed_sessions_are_not_renewed(keeper: SessionKeeper) -> None:
    daemon = Daemon()
    first, second = state(daemon, "first"), state(daemon, "second")
    keeper.keep(first, 0.03)
    keeper.keep(second, 0.03)
    assert eventually(lambda: ("first", "second") in daemon.renewed)
    first.close()
    first.close()
    assert eventually(lambda: daemon.renewed[-1] == ("second",))
    keeper.discard(second)
    assert eventually(lambda: daemon.closed == ["first", "second"])
    keeper.close()
    assert daemon.closed == ["first", "second"]


def test_the_thread_ends_when_all_is_closed(keeper: SessionKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is dropped without ``close`` must not be held by it, nor its connections."""
    monkeypatch.setattr("atta.client.sessions.keeper.IDLE_S", 0.01)
    for number in range(3):
        daemon = Daemon()
        held, one = weakref.ref(daemon), state(daemon, f"s-{number}")
        keeper.watch(one)
        keeper.keep(one, 0.3)
        thread = keeper._thread
        assert eventually(lambda daemon=daemon: len(daemon.renewed) >= 2)
        keeper.discard(one)
        thread.join(30)
        assert not thread.is_alive()
        assert daemon.closed == [f"s-{number}"]
        del daemon, one
        gc.collect()
        assert held() is None


def test_no_session_is_forgotten_while_the_thread_ends(keeper: SessionKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.client.sessions.keeper.IDLE_S", 0.0)
    daemon, opened = Daemon(), 300

    def use(consumer: int) -> None:
        for number in range(opened):
            one = state(daemon, f"{consumer}-{number}")
            keeper.watch(one)
            weakref.finalize(stream := threading.Event(), keeper.discard, one)
            keeper.keep(one, 60.0)
            del stream, one

    with ThreadPoolExecutor(3) as threads:
        [*threads.map(use, range(3))]
    assert eventually(lambda: len(daemon.closed) == 3 * opened)
    assert eventually(lambda: keeper._thread is None)


def test_what_was_released_is_told_until_a_request_that_says_so_is_answered() -> None:
    one = state(Daemon(), "s")
    one._released.extend([0, 1])
    assert one.released() == [0, 1]
    one._released.append(2)
    assert one.released() == [0, 1, 2]  # the earlier request was lost
    one.answered()
    assert one.released() == []


@pytest.mark.parametrize("read", [True, False])
def test_a_session_whose_answer_is_read_is_closed_before_the_call(read: bool) -> None:
    """A daemon that is still sending the end of an answer would complain of a cancel."""
    said: list[str] = []
    one = state(SimpleNamespace(call=lambda name, *_, **__: said.append(name)), "s")
    one.awaits(SimpleNamespace(cancel=lambda: said.append("cancel")))
    one.read = read
    one.close()
    one.close()
    assert said == (["SessionService.Close", "cancel"] if read else ["cancel", "SessionService.Close", "cancel"])
