"""Peers say who they are, late requests are sent twice, silence is noticed, and the oldest batch has its turn first."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.engine.runner import Workers
from atta.daemon.peers import watching as hedges
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.peers import Peer, RequestTurns
from atta.daemon.peers.watching import Hedges, PeerWatch
from atta.daemon.services.data import TurnPool, began
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, WrongDatasetError
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.batch.items import FeatureItem
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.costs import brief_us, is_brief
from atta.wire import rpc
from atta.wire.bulk import PULL_DATA
from atta.wire.identity import HEADER
from atta.wire.retries import ALONE_S, ASK_AFTER_S, REPLICAS_S, WATCH_S, DaemonSilence, patience_of
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import DATASET, description, serving

ITEM = FeatureItem("node", ("x",), np.arange(5), np.arange(5))


class Owner:
    """A daemon that answers every request, pulls by ``plan``, a function of the pull's number. Records each request and
    the daemon that it was meant for."""

    def __init__(
        self, part: int = 1, dataset_id: str = "d", parts: int = 1, plan: Callable[[int], str] = lambda _: "answers"
    ) -> None:
        self.part, self.dataset_id, self.parts, self.plan = part, dataset_id, parts, plan
        self.asked, self.connections, self.cancelled, self.asked_twice = [], [], 0, asyncio.Event()

    def _note(self, name: str, context: Any) -> None:
        self.asked.append((name, dict(context.invocation_metadata()).get(HEADER)))

    async def describe(self, _request: Any, context: Any) -> Any:
        self._note("Describe", context)
        await asyncio.sleep(0.01)
        return description(dataset_id=self.dataset_id, part=self.part, parts=self.parts)

    async def pull(self, _request: Any, context: Any) -> Any:
        self._note("Pull", context)
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


async def test_many_requests_need_one_answer_to_who_is_there() -> None:
    owner = Owner()
    answers = await ask(owner, *[pull] * 8, pair, probe)
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
    owner = Owner()
    assert await ask(owner, pair) == [list(range(5))]
    assert [name for name, _ in owner.asked] == ["Describe", "Pair", "Describe", "Pair"]
    owner.pair = AsyncMock(return_value=b"\xff")  # gRPC gives None for it
    (error,) = await ask(owner, pair)
    assert isinstance(error, RemoteError)
    assert "without an answer that can be read" in str(error)


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


async def hedged(owner: Owner, requests: int) -> list[Any]:
    """Requests sent twice, and answers to these that were first; and so many answers, of a peer that is used to quick ones."""

    async def pulls(peer: Peer) -> Any:
        for _ in range(hedges.ENOUGH):
            peer.hedges.answered("KvService.Pull", 0.001)
        got = [await pull(peer) for _ in range(requests)]
        return (peer.hedges.sent, peer.hedges.won), got

    return (await ask(owner, pulls))[0]


async def test_a_request_that_hangs_is_answered_over_another_connection_and_given_up() -> None:
    owner = Owner(plan=lambda number: "hangs" if number == 2 else "answers")
    assert await hedged(owner, 4) == ((1, 1), [b"12345"] * 4)
    assert len(owner.connections) == 5
    assert owner.connections[3] != owner.connections[2], "the same connection would hold up both"
    assert owner.connections[4] == owner.connections[0]
    assert owner.cancelled == 1


@pytest.mark.parametrize("second", ["hangs", "fails"])
async def test_the_first_request_may_still_be_answered(second: str) -> None:
    owner = Owner(plan=lambda number: second if number else "answers late")
    assert await hedged(owner, 1) == ((1, 0), [b"12345"])
    assert len(owner.connections) == 2
    assert owner.cancelled == (second == "hangs")


async def test_a_refusal_is_no_reason_to_ask_again() -> None:
    owner = Owner(plan=lambda _: "fails")
    refused = await hedged(owner, 1)
    assert isinstance(refused, ConfigError)
    assert "no such table" in str(refused)
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


def test_threads_take_the_oldest_first_and_equals_in_order_of_arrival() -> None:
    pool, gate, done = TurnPool(1, "test"), threading.Event(), []
    pool.submit(0.0, gate.wait)
    ages = [5.0, 1.0, 3.0, 1.0, 5.0, 2.0]
    futures = [pool.submit(age, done.append, (age, number)) for number, age in enumerate(ages)]
    gate.set()
    for future in futures:
        future.result(timeout=10)
    pool.shutdown()
    assert done == sorted((age, number) for number, age in enumerate(ages))
    assert time.monotonic() - began(1500) == pytest.approx(1.5, abs=0.1)  # an age counts back from now


def test_what_a_thread_raises_reaches_the_caller_and_cancelled_work_is_not_done() -> None:
    pool, gate, done = TurnPool(1, "test"), threading.Event(), []
    pool.submit(0.0, gate.wait)
    failing, unwanted = pool.submit(1.0, lambda: 1 / 0), pool.submit(1.5, done.append, "unwanted")
    good = pool.submit(2.0, lambda: 7)
    assert unwanted.cancel()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout=10)
    assert good.result(timeout=10) == 7
    pool.shutdown()
    assert done == []


@given(requests=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=24), width=st.integers(1, 3))
def test_the_oldest_request_is_next_and_never_more_are_under_way(requests: list[tuple[int, bool]], width: int) -> None:
    """For each request: since when its batch is made, and whether whoever asks goes away before its turn."""

    async def play() -> None:
        turns, order, release = RequestTurns(width), [], asyncio.Event()
        under_way = 0

        async def ask(since: float, number: int) -> None:
            nonlocal under_way
            async with turns.turn(since):
                under_way += 1
                assert under_way <= width
                order.append((since, number))
                if since < 0:
                    await release.wait()
                await asyncio.sleep(0)
                under_way -= 1

        full = [asyncio.create_task(ask(-1.0, n)) for n in range(width)]  # so that all requests have to wait
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(ask(since, n)) for n, (since, _) in enumerate(requests)]
        await asyncio.sleep(0)
        for task, (_, leaves) in zip(tasks, requests, strict=True):
            if leaves:
                task.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*full, *tasks, return_exceptions=True)
        due = sorted((since, n) for n, (since, leaves) in enumerate(requests) if not leaves)
        if width == 1:
            assert order[width:] == due
        assert sorted(order[width:]) == due
        assert turns._free == width
        assert not turns._waiting

    asyncio.run(play())


async def test_a_turn_that_was_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    turns, seen = RequestTurns(1), []

    async def ask(name: str) -> None:
        async with turns.turn(0.0):
            seen.append(name)

    async with turns.turn(0.0):
        leaving, staying = asyncio.create_task(ask("leaving")), asyncio.create_task(ask("staying"))
        await asyncio.sleep(0)
    leaving.cancel()  # its turn has come, but it has not run yet
    await asyncio.gather(leaving, staying, return_exceptions=True)
    assert (turns._free, seen) == (1, ["staying"])


def test_one_worker_works_in_order_and_finishes_before_it_ends() -> None:
    workers, done = Workers(1, "w"), list[int]()
    for number in range(200):
        workers.do(lambda number=number: done.append(number))
    workers.shutdown()
    assert done == [*range(200)]
    workers.shutdown()
    with pytest.raises(RuntimeError, match="ended"):
        workers.do(lambda: None)


def test_as_many_threads_as_asked_for_work_at_once() -> None:
    workers, all_here, names = Workers(3, "w"), threading.Barrier(4), set[str]()

    def meet() -> None:
        names.add(threading.current_thread().name)
        all_here.wait(20)

    for _ in range(3):
        workers.do(meet)
    all_here.wait(20)
    workers.shutdown()
    assert names == {"w_0", "w_1", "w_2"}


def test_futures_bring_results_and_errors_and_can_be_cancelled() -> None:
    workers, go_on = Workers(1, "w"), threading.Event()
    first = workers.submit(go_on.wait, 20)
    failing, cancelled, last = workers.submit(int, "x"), workers.submit(int, "1"), workers.submit(divmod, 7, 3)
    assert cancelled.cancel()
    go_on.set()
    assert first.result(20) is True
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(20)
    with pytest.raises(CancelledError):
        cancelled.result(20)
    assert last.result(20) == (2, 1)
    workers.shutdown()


def task(kind: Kind, cost: float = 0.0) -> Task:
    return Task(kind, "op", 0, 0, 1, Lane.CPU, cost)


@pytest.mark.parametrize("kind", [Kind.NEIGHBORHOOD, Kind.JOIN, Kind.FEATURE])
def test_cheaper_tasks_are_brief_if_dearer_ones_are(kind: Kind) -> None:
    found = [is_brief(task(kind, 10.0**power), 30.0, seeds=1, vertices=1) for power in range(9)]
    assert found[0]
    assert not found[-1]
    assert all(cheap >= dear for cheap, dear in pairwise(found))


def test_what_else_is_brief() -> None:
    assert brief_us(1) > brief_us(2) == brief_us(8), "a single worker leaves more to the event loop"
    assert not is_brief(task(Kind.BATCH), 200.0, seeds=1, vertices=1), "walks of an operator never are"
    seed, end = task(Kind.SEED), task(Kind.END)  # these go by the size of the batch
    assert is_brief(seed, 200.0, seeds=1024, vertices=0)
    assert not is_brief(seed, 30.0, seeds=1024, vertices=0)
    assert is_brief(end, 30.0, seeds=1024, vertices=16_384)
    assert not is_brief(end, 30.0, seeds=1024, vertices=16_385)
