"""When a daemon that owes an answer is asked, and when it counts as silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.peers.watching import PeerWatch
from atta.errors import AttaError, DeadlineError
from atta.wire.retries import ALONE_S, ASK_AFTER_S, REPLICAS_S, WATCH_S, DaemonSilence, patience_of


def test_half_open_links_are_noticed_within_two_seconds_if_there_is_a_replica() -> None:
    assert ASK_AFTER_S + WATCH_S + REPLICAS_S <= 2.0
    assert (patience_of(1), patience_of(2), patience_of(5)) == (ALONE_S, REPLICAS_S, REPLICAS_S)


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "hear", "answered", "failed"]), st.floats(0.0, 2.0)), min_size=1, max_size=60
    )
)
def test_a_daemon_is_silent_if_nothing_came_since_the_question(events: list[tuple[str, float]]) -> None:
    """Beside a model that keeps all that happened."""
    silence, now, since = DaemonSilence(), 10.0, 10.0
    heard, asked = [float("-inf")], None
    for event, passed in events:
        now += passed
        if event == "wait":
            due = asked is None and now - max(since, *heard) >= ASK_AFTER_S
            assert silence.due(since, now) == due
            if due:
                silence.asked(now)
                asked = now
        elif event == "hear":
            silence.heard(now)
            heard.append(now)
        elif asked is not None:
            answered = event == "answered"
            assert silence.ended(answered=answered, now=now) == (not answered and max(heard) < asked)
            asked = None
            if answered:
                heard.append(now)


@pytest.mark.parametrize("there", [True, False])
def test_who_waits_for_a_silent_peer_is_cancelled(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """A peer that answers the question is waited for on."""
    monkeypatch.setattr("atta.wire.retries.ASK_AFTER_S", 0.05)
    monkeypatch.setattr("atta.daemon.peers.watching.WATCH_S", 0.02)
    lost: list[AttaError] = []
    questions = 0

    async def ask() -> None:
        nonlocal questions
        questions += 1
        await asyncio.sleep(0.01)
        if not there:
            raise DeadlineError("peer:1", "no answer")

    async def run() -> bool:
        watch = PeerWatch(ask, lost.append)
        answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for answer in answers:
            watch.awaits(answer)
        await asyncio.wait(answers, timeout=0.4)
        cancelled = [answer.cancelled() for answer in answers]
        assert cancelled[0] == cancelled[1]
        assert watch.silences == len(lost)
        assert await watch.answers() == there
        watch.close()
        return cancelled[0]

    assert asyncio.run(run()) == (not there)
    assert questions >= 2
    assert (len(lost) > 0) == (not there)


def test_shared_questions() -> None:
    """All that ask at the same time get one answer."""
    questions = 0

    async def ask() -> None:
        nonlocal questions
        questions += 1
        await asyncio.sleep(0.01)

    async def run() -> list[bool]:
        watch = PeerWatch(ask, lambda _: None)
        return await asyncio.gather(*(watch.answers() for _ in range(5)))

    assert asyncio.run(run()) == [True] * 5
    assert questions == 1
