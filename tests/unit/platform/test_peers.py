"""Peers say who they are, late requests are sent twice, silence is noticed, and batches get their rows of several owners."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.runner import Workers
from atta.daemon.engine.tasks import RemoteContext, TaskResult, WantedRows, pull_jointly
from atta.daemon.peers import owners as module
from atta.daemon.peers import watching as hedges
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.owners import Owners, PullsUnderWay
from atta.daemon.peers.peers import Peer, RequestTurns
from atta.daemon.peers.watching import Hedges, PeerWatch
from atta.daemon.services.data import TurnPool, began
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, WrongDatasetError
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.samplers.methods import Method
from atta.samplers.shard import Answer
from atta.scheduler.fine import brief_us, is_brief
from atta.wire import rpc
from atta.wire.bulk import PULL_DATA
from atta.wire.identity import HEADER
from atta.wire.retries import ALONE_S, ASK_AFTER_S, REPLICAS_S, WATCH_S, DaemonSilence, patience_of
from atta.wire.rpc import Bulk
from tests.unit.invariants import validate
from tests.unit.platform.answers import DATASET, description, serving

ITEM = FeatureItem("node", ("x",), np.arange(5), np.arange(5))


class Owner:
    """A daemon that answers every request, pulls by ``plan``, a function of the pull's number. Records each request and
    the daemon that it was meant for."""

    def __init__(
        self, part: int = 1, dataset_id: str = "d", parts: int = 1, plan: Callable[[int], str] = lambda _: "answers"
    ) -> None:
        self.part, self.dataset_id, self.parts, self.plan = part, dataset_id, parts, plan
        self.asked, self.connections, self.asked_twice = [], [], asyncio.Event()
        self.hung, self.cancelled = 0, asyncio.Event()

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
                self.hung += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
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


@given(st.lists(st.floats(0, 10), min_size=hedges.ENOUGH, max_size=200))
def test_patience_is_a_multiple_of_what_most_of_the_latest_answers_took(times: list[float]) -> None:
    policy = Hedges()
    for number, seconds in enumerate(times):
        assert (policy.patience("Pull") is None) == (number < hedges.ENOUGH), (
            "nothing is repeated before enough is known"
        )
        policy.answered("Pull", seconds)
    assert policy.patience("Sample") is None
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
        if owner.hung:  # the peer is still connected: it has given the request up by itself
            await asyncio.wait_for(owner.cancelled.wait(), 20)
        return (peer.hedges.sent, peer.hedges.won), got

    return (await ask(owner, pulls))[0]


async def test_a_request_that_hangs_is_answered_over_another_connection_and_given_up() -> None:
    owner = Owner(plan=lambda number: "hangs" if number == 2 else "answers")
    assert await hedged(owner, 4) == ((1, 1), [b"12345"] * 4)
    assert len(owner.connections) == 5
    assert owner.connections[3] != owner.connections[2], "the same connection would hold up both"
    assert owner.connections[4] == owner.connections[0]
    assert owner.hung == 1


@pytest.mark.parametrize("second", ["hangs", "fails"])
async def test_the_first_request_may_still_be_answered(second: str) -> None:
    owner = Owner(plan=lambda number: second if number else "answers late")
    assert await hedged(owner, 1) == ((1, 0), [b"12345"])
    assert len(owner.connections) == 2
    assert owner.hung == (second == "hangs")


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


OFFSETS = np.array([0, 30, 30, 55, 100])
"""Partition 1 owns nothing; home is partition 0."""
EDGE = "node__to__node"
TABLE = np.random.default_rng(1).random((100, 3)).astype(np.float32)
CUT: Any = SimpleNamespace(
    book=SimpleNamespace(offsets={"node": OFFSETS}),
    schema=SimpleNamespace(
        edge_types=(EDGE,),
        endpoints=lambda _: ("node", "node"),
        edge_tables={EDGE: {"note": SimpleNamespace(row_bytes=8)}},
    ),
)


def answer_of(ids: np.ndarray, trees: np.ndarray | None, *, wide: bool) -> Answer:
    """id % 4 neighbours of each vertex: the id, the id plus 1, ..."""
    counts = (ids % 4).astype(np.int32)
    firsts = np.repeat(ids if trees is None else ids + trees, counts)
    steps = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
    neighbors = (firsts + steps).astype(np.int64 if wide else np.int32)
    return Answer(counts, neighbors, neighbors + 1000, {"note": neighbors * 2.0})


@dataclass
class FakePeer:
    """Answers at most ``piece`` rows of a sample at a time, after some turns of the event loop. ``before`` is awaited first."""

    part: int
    piece: int = 4
    before: Callable[[int], Coroutine[Any, Any, None]] | None = None
    spoil: Callable[[Answer], Answer] = lambda answer: answer
    requests: list[int] = field(default_factory=list)
    running: int = 0

    @property
    def address(self) -> str:
        return f"peer-{self.part}"

    @contextlib.asynccontextmanager
    async def _turn(self, rows: int) -> AsyncIterator[None]:
        self.requests.append(rows)
        self.running += 1
        try:
            for _ in range(self.part):
                await asyncio.sleep(0)
            if self.before is not None:
                await self.before(len(self.requests))
            yield
        finally:
            self.running -= 1

    async def sample(self, item: SampleItem, *, age_ms: int = 0) -> tuple[Answer, int]:
        assert item.starts is None
        async with self._turn(len(item.rows)):
            some = slice(0, self.piece)
            trees = None if item.trees is None else item.trees[some]
            return self.spoil(answer_of(item.rows[some] + OFFSETS[self.part], trees, wide=self.part == 3)), 10

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> memoryview:
        async with self._turn(len(item.rows)):
            return memoryview(TABLE[item.rows + OFFSETS[self.part]].tobytes())


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def starts_of(ids: np.ndarray) -> np.ndarray:
    return np.array([np.count_nonzero(ids < first) for first in OFFSETS])


def sample_item(ids: np.ndarray, *, trees: bool = False) -> SampleItem:
    of_tree = np.arange(len(ids), dtype=np.int32) if trees else None
    what = EDGE, ids, np.arange(len(ids)), 5, False, Method.UNIFORM, 7
    return SampleItem(*what, of_tree, None, ("note",), starts_of(ids))


remote_ids = st.lists(st.integers(30, 99), min_size=1, max_size=40).map(
    lambda ids: np.array(sorted(ids), dtype=np.int64)
)


@given(
    asked=st.lists(st.tuples(remote_ids, st.booleans()), max_size=3),
    most=st.sampled_from([100, 700, 1 << 20]),
    pieces=st.integers(1, 9),
)
def test_answers_are_put_together_in_the_order_of_the_rows(
    asked: list[tuple[np.ndarray, bool]], most: int, pieces: int, pool: ThreadPoolExecutor
) -> None:
    items = [sample_item(ids, trees=trees) for ids, trees in asked]
    peers: Any = {part: FakePeer(part, pieces) for part in (2, 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", most)
        found = asyncio.run(Owners(peers, CUT, pool).sample(items))
    for (ids, _), item in zip(asked, items, strict=True):
        expected = answer_of(ids, item.trees, wide=True)
        mine = sorted((piece for piece in found if piece.item is item), key=lambda piece: piece.first_row)
        firsts = [0, *np.cumsum([len(piece.answer.counts) for piece in mine]).tolist()]
        assert [piece.first_row for piece in mine] == firsts[:-1]
        for name in ("counts", "neighbors", "edge_ids"):
            arrays = [getattr(piece.answer, name) for piece in mine]
            assert np.concatenate(arrays).tolist() == getattr(expected, name).tolist()
        notes = [piece.answer.tables["note"] for piece in mine]
        assert np.concatenate(notes).tolist() == expected.tables["note"].tolist()
    for part, peer in peers.items():
        due = sum(np.count_nonzero((ids >= OFFSETS[part]) & (ids < OFFSETS[part + 1])) for ids, _ in asked)
        assert sum(peer.requests) >= due, "what was left out is asked for again"
        assert all(0 < rows <= max(1, most // (5 * 16 + 4)) for rows in peer.requests)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_error_waits_for_copies(
    cancelled: bool, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, go_on = threading.Event(), threading.Event()
    ids = np.arange(30, 100)
    out = np.zeros((len(ids), 3), dtype=np.float32)

    def slow_copy(*args: Any) -> None:
        copying.set()
        assert go_on.wait(20)
        out[args[1]] = 1.0

    async def fail(number: int) -> None:
        while not copying.is_set():
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        raise RemoteError("peer-2", "is out of order")

    monkeypatch.setattr(module, "_scatter", slow_copy)
    peers: Any = {2: FakePeer(2, before=None if cancelled else fail), 3: FakePeer(3)}
    item = FeatureItem("node", ("x",), ids, np.arange(len(ids)), starts_of(ids))
    pull = asyncio.ensure_future(Owners(peers, CUT, pool, at_once=0).pull([item], [[out]]))
    if cancelled:
        while not copying.is_set():
            await asyncio.sleep(0)
        for _ in range(3):  # repeatedly
            pull.cancel()
            await asyncio.sleep(0.01)
            assert not pull.done()
        go_on.set()
    with pytest.raises((RemoteError, asyncio.CancelledError), match="^$" if cancelled else "peer-2"):
        await pull
    assert go_on.is_set()
    before = out.copy()
    await asyncio.sleep(0.05)
    assert before.any()
    assert np.array_equal(out, before)
    assert not any(peer.running for peer in peers.values())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: Answer(a.counts + 1, a.neighbors, a.edge_ids, a.tables),
        lambda a: Answer(a.counts, a.neighbors[:-1], a.edge_ids[:-1], a.tables),
        lambda a: Answer(a.counts, a.neighbors, a.edge_ids[:-1], a.tables),
        lambda a: Answer(a.counts[:0], a.neighbors[:0], a.edge_ids[:0], {}),
        lambda a: Answer(np.tile(a.counts, 99), np.tile(a.neighbors, 99), np.tile(a.edge_ids, 99), {}),
    ],
)
def test_answers_that_do_not_fit_name_the_peer(spoil: Callable[[Answer], Answer], pool: ThreadPoolExecutor) -> None:
    peers: Any = {2: FakePeer(2), 3: FakePeer(3, spoil=spoil)}
    with pytest.raises(RemoteError, match="peer-3"):
        asyncio.run(Owners(peers, CUT, pool).sample([sample_item(np.arange(31, 96))]))
    assert not any(peer.running for peer in peers.values())


TABLES = {name: np.random.default_rng(seed).random((60, 3)).astype(np.float32) for seed, name in enumerate("xy")}
KEY = ("node", ("x",), "")
STARTS = np.array([0, 0, 25, 60])
"""Owner 1 has the rows 0 to 24, owner 2 the others. Home is partition 0 and has none."""
FAILS = 4
"""A peer with this number of turns to wait (modulo 5) fails instead of answering."""


@pytest.fixture(autouse=True)
def small_pulls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_ROWS", 1)


class SlowOwner:
    """A peer that answers after some turns of the event loop, or fails.

    It records the vertices whose rows it sends.
    """

    address = "owner"

    def __init__(self, part: int, turns: int, sent: list[int]) -> None:
        self.part, self.turns, self.sent, self.requests = part, turns, sent, 0

    async def pull(self, item: FeatureItem, codec: str, *, age_ms: int) -> memoryview:
        self.requests += 1
        for _ in range(self.turns if self.requests == 1 else 1):
            await asyncio.sleep(0)
        if self.requests == 1 and self.turns % 5 == FAILS:
            raise ConnectionError
        rows = item.rows + STARTS[self.part]
        self.sent += rows.tolist()
        return memoryview(b"".join(TABLES[name][rows].tobytes() for name in item.tables))


SMALL: Any = SimpleNamespace(book=SimpleNamespace(offsets={"node": STARTS}), schema=SimpleNamespace(edge_types=()))


class Batches:
    def __init__(self, pool: ThreadPoolExecutor, *, at_once: int = 1 << 20) -> None:
        self.pulls, self.sent = PullsUnderWay(pool, {"node": int(STARTS[-1])}), list[int]()
        self._pool, self._at_once = pool, at_once

    async def make(self, rows: np.ndarray, start: int, turns: int, tables: str = "x") -> tuple[TaskResult, Any] | None:
        """A batch that begins after ``start`` turns; None: an owner failed. Afterwards its memory is overwritten."""
        for _ in range(start):
            await asyncio.sleep(0)
        positions = np.random.default_rng(start).permutation(len(rows) + 5)[: len(rows)]
        outs = [np.full((len(rows) + 5, 3), np.nan, dtype=np.float32) for _ in tables]
        cache: Any = None  # no row has a slot in it
        peers: Any = {part: SlowOwner(part, turns, self.sent) for part in (1, 2)}
        owners = Owners(peers, SMALL, self._pool, at_once=self._at_once)
        context = RemoteContext(peers, owners, cache, self._pool, self.pulls, at_once=self._at_once)
        order = np.argsort(np.searchsorted(STARTS, rows, side="right"), kind="stable")
        starts = np.array([np.count_nonzero(rows < first) for first in STARTS])
        wanted = WantedRows(FeatureItem("node", tuple(tables), rows[order], positions[order], starts), outs)
        try:
            pulled = await pull_jointly([wanted], context)
        except ConnectionError:
            return None
        finally:
            found = [out[positions].copy() for out in outs]
            for out in outs:
                out.fill(-1)
        asked = [peer.requests for peer in peers.values() if peer.requests]
        assert len(asked) <= pulled.requests <= sum(asked)
        return pulled, found


BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 59), unique=True, max_size=40),
        st.integers(0, 12),
        st.integers(0, 14),
        st.sampled_from(["x", "y", "xy"]),
    ),
    max_size=8,
)


@given(batches=BATCHES, at_once=st.sampled_from([0, 1 << 20]), looks=st.sampled_from([1, 2, module.LOOKS]))
@settings(max_examples=150)
def test_every_batch_has_its_rows(
    batches: list[tuple[list[int], int, int, str]], at_once: int, looks: int, pool: ThreadPoolExecutor
) -> None:
    """After short stretches, pulls look for rows of pulls that did not look."""

    async def run() -> None:
        daemon = Batches(pool, at_once=at_once)
        wanted = [(np.array(rows, dtype=np.int64), *how) for rows, *how in batches]
        with patch.multiple(module, LOOKS=looks, RESTS=1):
            found = await asyncio.wait_for(asyncio.gather(*(daemon.make(*one) for one in wanted)), 20)
        sent = 0
        for (rows, _, turns, tables), made in zip(wanted, found, strict=True):
            if made is None:
                assert turns % 5 == FAILS
                continue
            pulled, arrays = made
            for name, x in zip(tables, arrays, strict=True):
                np.testing.assert_array_equal(x, TABLES[name][rows])
            assert pulled.remote_rows + pulled.shared_rows == len(rows)
            assert pulled.remote_bytes == pulled.remote_rows * 12 * len(tables)
            sent += pulled.remote_rows
        assert sent <= len(daemon.sent)
        assert not daemon.pulls._last  # nothing remains after the last pull

    asyncio.run(run())


async def test_a_row_under_way_is_sent_once(pool: ThreadPoolExecutor) -> None:
    daemon = Batches(pool)
    first, second, third = np.arange(0, 20), np.arange(10, 30), np.arange(5, 35)
    made = await asyncio.gather(daemon.make(first, 0, 8), daemon.make(second, 1, 3), daemon.make(third, 2, 3))
    assert [m and (m[0].remote_rows, m[0].shared_rows) for m in made] == [(20, 0), (10, 10), (5, 25)]
    await daemon.make(first, 0, 1)  # no other batch waits for these now
    assert sorted(daemon.sent) == sorted([*range(35), *range(20)])


async def test_a_batch_that_is_given_up_leaves_nothing_behind(pool: ThreadPoolExecutor) -> None:
    daemon = Batches(pool)
    slow = asyncio.ensure_future(daemon.make(np.arange(20), 0, 10**6 + 1))
    quick = asyncio.ensure_future(daemon.make(np.arange(20), 2, 1))
    for _ in range(10):
        await asyncio.sleep(0)
    slow.cancel()
    made = await asyncio.wait_for(quick, 20)
    np.testing.assert_array_equal(made[1][0], TABLES["x"][:20])
    assert slow.cancelled() or (await asyncio.gather(slow, return_exceptions=True))
    assert not daemon.pulls._last


async def test_rows_that_differ_have_nothing_in_common(pool: ThreadPoolExecutor) -> None:
    pulls, rows = PullsUnderWay(pool), np.arange(20)
    out = np.zeros((20, 3), dtype=np.float32)
    opened = [pulls.begin(KEY, rows, rows, [out])]
    for key in (("other", ("x",), ""), ("node", ("x", "y"), ""), ("node", ("x",), "fp16")):
        opened.append(pulls.begin(key, rows, rows, [out]))
    assert [len(pull.expected) for pull in opened] == [0] * 4
    assert len(pulls.begin(KEY, rows, rows, [out]).expected) == 1


async def test_what_is_remembered_is_bounded(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    pulls = PullsUnderWay(pool)
    for first in range(0, 2000, 20):
        rows = np.arange(first, first + 30)
        opened = pulls.begin(KEY, rows, rows - first, [np.zeros((30, 3), dtype=np.float32)])
        assert sum(len(shared.chosen) for shared in opened.expected) in {0, 10}
    assert len(pulls._last[KEY]._pull) <= 400


class Pulls:
    """Pulls of 20 rows each, of which at most two are open."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.under_way, self._open, self._out = PullsUnderWay(pool), list[Any](), np.zeros((20, 3), dtype=np.float32)

    def one(self, first: int) -> int:
        """A pull of the rows from ``first`` on. Returns how many of them the pull before brings."""
        rows = np.arange(first, first + 20)
        pull = self.under_way.begin(KEY, rows, np.arange(20), [self._out])
        validate(self.under_way)
        self._open.append(pull)
        if len(self._open) > 2:
            ended = self._open.pop(0)
            owed = self.under_way.end(ended, came=False)
            if owed is not None:
                owed.close()
        return sum(len(shared.chosen) for shared in pull.expected)


async def test_pulls_do_not_look_for_long_where_nothing_is_shared(pool: ThreadPoolExecutor) -> None:
    pulls = Pulls(pool)
    assert [pulls.one(20 * i) for i in range(module.LOOKS)] == [0] * module.LOOKS
    # The same rows again and again: nobody looks.
    assert [pulls.one(0) for _ in range(module.RESTS)] == [0] * module.RESTS
    assert not pulls.under_way._last  # and nothing is remembered
    # Then they look again, and go on as they find something.
    again = 10 * module.LOOKS
    assert [pulls.one(0) for _ in range(again)] == [0, *[20] * (again - 1)]


@pytest.mark.parametrize(("step", "rest"), [(10, False), (19, False), (20, True)])
async def test_pulls_look_for_as_long_as_they_find_something(pool: ThreadPoolExecutor, step: int, rest: bool) -> None:
    """Each pull has 20 - ``step`` rows of the one before: half, a twentieth, none."""
    pulls, count = Pulls(pool), 4 * module.LOOKS
    found = [pulls.one(step * i) for i in range(count)]
    assert found == [0, *[20 - step] * (count - 1)]
    assert pulls.under_way._habits["node"].rests is rest
