"""Peers say who they are, late requests are sent twice, rarely, and silence is noticed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.peers import watching as hedges
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.peers import Peer
from atta.daemon.peers.watching import Hedges, PeerWatch
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, WrongDatasetError
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.batch.items import FeatureItem
from atta.wire import rpc
from atta.wire.bulk import PULL_DATA
from atta.wire.identity import HEADER
from atta.wire.retries import ALONE_S, ASK_AFTER_S, REPLICAS_S, WATCH_S, DaemonSilence, patience_of
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import DATASET, description, serving

ITEM = FeatureItem("node", ("x",), np.arange(5), np.arange(5))


class Owner:
    def __init__(self, part: int, dataset_id: str, parts: int = 1) -> None:
        self.part, self.dataset_id, self.parts, self.asked = part, dataset_id, parts, []

    def _note(self, name: str, context: Any) -> None:
        self.asked.append((name, dict(context.invocation_metadata()).get(HEADER)))

    async def describe(self, _request: Any, context: Any) -> Any:
        self._note("Describe", context)
        await asyncio.sleep(0.01)
        return description(dataset_id=self.dataset_id, part=self.part, parts=self.parts)

    async def pull(self, _request: Any, context: Any) -> Any:
        self._note("Pull", context)
        return Bulk(kv_pb2.PullReply(), {PULL_DATA: b"12345"})

    async def pair(self, request: Any, context: Any) -> Any:
        self._note("Pair", context)
        if len(self.asked) == 2:
            await context.abort(grpc.StatusCode.CANCELLED, "")
        return graph_pb2.PairReply(ids=request.rows)

    async def probe(self, request: Any, context: Any) -> Any:
        self._note("Probe", context)
        return graph_pb2.ProbeReply(values=request.rows)


async def ask(owner: Owner, *requests: Any) -> list[Any]:
    """The answers that a peer of partition 1 of dataset "d" gets when it sends all requests at once."""
    services = {
        "ControlService": {"Describe": owner.describe},
        "KvService": {"Pull": owner.pull},
        "GraphService": {"Pair": owner.pair, "Probe": owner.probe},
    }
    async with serving(services) as address:
        peer = Peer(1, address, DATASET, PeerSettings(20.0))
        answers = await asyncio.gather(*(request(peer) for request in requests), return_exceptions=True)
        await peer.connection.close()
        return answers


async def pull(peer: Peer) -> bytes:
    return bytes(await peer.pull(ITEM))


async def pair(peer: Peer) -> list[int]:
    return (await peer.pair("e", np.arange(5), count=1, negative=False, stream_key=1)).tolist()


async def probe(peer: Peer) -> list[int]:
    return (await peer.probe("e", graph_pb2.ProbeRequest.DEGREE, np.arange(5))).tolist()


def test_many_requests_need_one_answer_to_who_is_there() -> None:
    owner = Owner(1, "d")
    answers = asyncio.run(ask(owner, *[pull] * 8, pair, probe))
    assert answers == [b"12345"] * 8 + [list(range(5))] * 2
    assert owner.asked[0] == ("Describe", None)
    assert len(owner.asked) == 11
    assert {header for _, header in owner.asked[1:]} == {"1/d/"}


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ((2, "d"), "serves partition 2 of dataset .*not partition 1 of dataset d"),
        ((1, "e"), "serves partition 1 of dataset .*not partition 1 of dataset d"),
        ((1, ""), "serves partition 1 of dataset .*not partition 1 of dataset d"),
        ((1, "d", 2), "serves partition 1-2, but the cluster file says 1"),
    ],
)
async def test_one_that_is_another_is_asked_for_nothing_else(who: Any, words: str) -> None:
    owner = Owner(*who)
    for answer in await ask(owner, pull, pair, probe):
        assert type(answer) is WrongDatasetError
        assert re.search(words, str(answer))
    assert {name for name, _ in owner.asked} == {"Describe"}


async def test_a_single_answer_that_breaks_off_is_asked_for_again_and_one_that_cannot_be_read_is_an_error() -> None:
    owner = Owner(1, "d")
    assert await ask(owner, pair) == [list(range(5))]
    assert [name for name, _ in owner.asked] == ["Describe", "Pair", "Describe", "Pair"]
    owner.pair = AsyncMock(return_value=b"\xff")  # gRPC gives None for it
    (error,) = await ask(owner, pair)
    assert isinstance(error, RemoteError)
    assert "without an answer that can be read" in str(error)


ROWS = np.arange(5, dtype=np.int64)


def test_nothing_is_repeated_before_enough_is_known_and_then_only_what_is_late() -> None:
    policy = Hedges()
    for _ in range(hedges.ENOUGH - 1):
        policy.answered("Pull", 0.2)
        assert policy.patience("Pull") is None
    policy.answered("Pull", 0.2)
    assert policy.patience("Pull") == pytest.approx(hedges.FACTOR * 0.2)
    assert policy.patience("Sample") is None


@given(st.lists(st.floats(0, 10), min_size=hedges.ENOUGH, max_size=200))
def test_patience_is_a_multiple_of_what_most_of_the_latest_answers_took(times: list[float]) -> None:
    policy = Hedges()
    for seconds in times:
        policy.answered("Pull", seconds)
    latest = np.array(times[-hedges.WINDOW :])
    usual = np.quantile(latest, hedges.QUANTILE, method="lower")
    assert policy.patience("Pull") == pytest.approx(max(hedges.LEAST_S, hedges.FACTOR * usual))


@given(st.lists(st.booleans(), max_size=600))
def test_second_requests_are_few_whatever_happens(events: list[bool]) -> None:
    """True: a request asks for a second one; False: an answer has come."""
    policy, answers = Hedges(), 0
    for wants in events:
        if wants:
            policy.take()
        else:
            answers += 1
            policy.answered("Pull", 0.0)
    assert policy.sent <= 1 + hedges.SHARE * answers + 1e-9
    if policy._allowed < 1:
        assert policy.patience("Pull") is None


class SlowOwner:
    """A daemon that answers pulls by ``plan``, a function of the request's number."""

    def __init__(self, plan: Callable[[int], str]) -> None:
        self.plan, self.connections, self.cancelled = plan, [], 0
        self.asked_twice = asyncio.Event()

    async def pull(self, request: Any, context: Any) -> Any:
        number = len(self.connections)
        self.connections.append(context.peer())
        if number:
            self.asked_twice.set()
        match self.plan(number):
            case "answers late":
                await self.asked_twice.wait()
                await asyncio.sleep(0.05)
            case "hangs":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled += 1
            case "fails":
                await context.abort(*rpc.status_of(ConfigError("no such table")))
        return Bulk(kv_pb2.PullReply(), {PULL_DATA: ROWS.tobytes()})


async def talk(owner: SlowOwner, requests: int, warm: int = hedges.ENOUGH) -> tuple[Peer, list[bytes]]:
    async def describe(_request: Any, _context: Any) -> Any:
        return description()

    async with serving({"ControlService": {"Describe": describe}, "KvService": {"Pull": owner.pull}}) as address:
        peer = Peer(1, address, DATASET, PeerSettings(20.0))
        for _ in range(warm):
            peer.hedges.answered("KvService.Pull", 0.001)
        item = FeatureItem("node", ("x",), ROWS, np.arange(len(ROWS)))
        try:
            return peer, [bytes(await peer.pull(item)) for _ in range(requests)]
        finally:
            await peer.connection.close()


def test_a_request_that_hangs_is_answered_over_another_connection_and_given_up() -> None:
    owner = SlowOwner(lambda number: "hangs" if number == 2 else "answers")
    peer, got = asyncio.run(talk(owner, 4))
    assert got == [ROWS.tobytes()] * 4
    assert len(owner.connections) == 5
    assert owner.connections[3] != owner.connections[2], "the same connection would hold up both"
    assert owner.connections[4] == owner.connections[0]
    assert owner.cancelled == 1
    assert (peer.hedges.sent, peer.hedges.won) == (1, 1)


@pytest.mark.parametrize("second", ["hangs", "fails"])
def test_the_first_request_may_still_be_answered(second: str) -> None:
    owner = SlowOwner(lambda number: second if number else "answers late")
    peer, got = asyncio.run(talk(owner, 1))
    assert got == [ROWS.tobytes()]
    assert len(owner.connections) == 2
    assert owner.cancelled == (second == "hangs")
    assert (peer.hedges.sent, peer.hedges.won) == (1, 0)


def test_a_refusal_is_no_reason_to_ask_again() -> None:
    owner = SlowOwner(lambda _: "fails")
    with pytest.raises(ConfigError, match="no such table"):
        asyncio.run(talk(owner, 1))
    assert len(owner.connections) == 1


def test_half_open_links_are_noticed_within_two_seconds_if_there_is_a_replica() -> None:
    assert ASK_AFTER_S + WATCH_S + REPLICAS_S <= 2.0
    assert (patience_of(1), patience_of(2), patience_of(5)) == (ALONE_S, REPLICAS_S, REPLICAS_S)


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "hear", "answered", "failed"]), st.floats(0.0, 2.0)), min_size=1, max_size=60
    )
)
def test_a_daemon_is_silent_if_nothing_came_since_the_question(events: list[tuple[str, float]]) -> None:
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
async def test_who_waits_for_a_silent_peer_is_cancelled(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """A peer that answers the question is waited for on."""
    monkeypatch.setattr("atta.wire.retries.ASK_AFTER_S", 0.05)
    monkeypatch.setattr("atta.daemon.peers.watching.WATCH_S", 0.02)
    lost, questions = list[AttaError](), []

    async def ask() -> None:
        questions.append(1)
        await asyncio.sleep(0.01)
        if not there:
            raise DeadlineError("peer:1", "no answer")

    watch = PeerWatch(ask, lost.append)
    answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for answer in answers:
        watch.awaits(answer)
    await asyncio.wait(answers, timeout=0.4)
    assert [answer.cancelled() for answer in answers] == [not there] * 2
    assert watch.silences == len(lost)
    assert (len(lost) > 0) == (not there)
    assert await watch.answers() == there
    assert len(questions) >= 2
    watch.close()
    questions.clear()
    calm = PeerWatch(ask, lost.append)
    assert await asyncio.gather(*(calm.answers() for _ in range(5))) == [there] * 5
    assert len(questions) == 1, "all that ask at the same time get one answer"
