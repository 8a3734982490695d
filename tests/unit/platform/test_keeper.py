"""Leases are renewed on time, also while the keeper does other work and while a daemon does not answer."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.sessions.keeper import PER_FAILURE, PER_LEASE, Renewals, SessionKeeper, SessionState
from tests.waiting import eventually

LEASE = 60.0
PERIOD = LEASE / PER_LEASE


@settings(deadline=None)
@given(steps=st.lists(st.integers(1, 50), min_size=1, max_size=200), daemons=st.integers(1, 3))
def test_no_lease_waits_longer_than_a_period_and_a_step(steps: list[int], daemons: int) -> None:
    """Renewals follow the clock, no matter how often the keeper looks at it."""
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


class Call:
    """A call that is answered at once, or never."""

    def __init__(self, answered: bool) -> None:
        self.answered = answered

    def add_done_callback(self, then: Callable[[Any], None]) -> None:
        if self.answered:
            then(self)

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def result(self, timeout: float) -> Any:
        if not self.answered:
            raise grpc.FutureTimeoutError
        return None


class Daemon:
    """Counts the requests; ``answers``: whether it answers them."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers
        self.renewed: list[tuple[str, ...]] = []
        self.closed: list[str] = []

    def begin(self, name: str, request: Any, *, timeout: float) -> Call:
        if name == "SessionService.Renew":
            self.renewed.append(tuple(sorted(request.sessions)))
        else:
            self.closed.append(request.session)
        return Call(self.answers)

    def call(self, name: str, request: Any, *, timeout: float) -> None:
        if not self.answers:
            time.sleep(timeout)
        self.begin(name, request, timeout=timeout)


def state(daemon: Any, name: str) -> SessionState:
    return SessionState(daemon, None, name)  # type: ignore[arg-type]


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
    """A silent daemon delays neither the renewals of others nor the closing of their sessions."""
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


def test_the_thread_ends_when_all_is_closed_and_comes_again(
    keeper: SessionKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that is dropped without ``close`` must not be held by it, nor its connections."""
    monkeypatch.setattr("atta.client.sessions.keeper.IDLE_S", 0.01)
    for number in range(3):
        daemon = Daemon()
        held, one = weakref.ref(daemon), state(daemon, f"s-{number}")
        keeper.watch(one)
        keeper.keep(one, 0.3)
        thread = keeper._thread
        assert thread is not None
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
            weakref.finalize(one_stream := Stream(), keeper.discard, one)
            keeper.keep(one, 60.0)
            del one_stream, one

    threads = [threading.Thread(target=use, args=(consumer,)) for consumer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eventually(lambda: len(daemon.closed) == 3 * opened)
    assert eventually(lambda: keeper._thread is None)


class Stream:
    """What a finalizer can be attached to."""


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
