"""Questions to several owners at once, and pulls that rely on each other: every batch gets its rows."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.tasks import RemoteContext, TaskResult, WantedRows, pull_jointly
from atta.daemon.peers import owners as module
from atta.daemon.peers.owners import Owners, PullsUnderWay
from atta.errors import RemoteError
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer
from tests.unit.invariants import validate

OFFSETS = np.array([0, 30, 30, 55, 100])
"""Partition 1 owns nothing; home is partition 0."""
EDGE = "node__to__node"
TABLE = np.random.default_rng(1).random((100, 3)).astype(np.float32)
DATASET: Any = SimpleNamespace(
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
        found = asyncio.run(Owners(peers, DATASET, pool).sample(items))
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


@given(
    asked=st.lists(remote_ids, max_size=3),
    most=st.sampled_from([1, 60, 1 << 20]),
    at_once=st.sampled_from([0, 1 << 20]),
)
def test_rows_come_to_their_places(asked: list[np.ndarray], most: int, at_once: int, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(len(asked))
    peers: Any = {part: FakePeer(part) for part in (2, 3)}
    places = [rng.permutation(len(ids) + 3)[: len(ids)] for ids in asked]
    outs = [[np.zeros((len(ids) + 3, 3), dtype=np.float32)] for ids in asked]
    items = [FeatureItem("node", ("x",), ids, at, starts_of(ids)) for ids, at in zip(asked, places, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PULL_BYTES", most)
        received = asyncio.run(Owners(peers, DATASET, pool, at_once=at_once).pull(items, outs))
    assert received == 12 * sum(map(len, asked))
    for ids, at, (out,) in zip(asked, places, outs, strict=True):
        expected = np.zeros_like(out)
        expected[at] = TABLE[ids]
        assert np.array_equal(out, expected)


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
    pull = asyncio.ensure_future(Owners(peers, DATASET, pool, at_once=0).pull([item], [[out]]))
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
        asyncio.run(Owners(peers, DATASET, pool).sample([sample_item(np.arange(31, 96))]))
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


class Owner:
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
        peers: Any = {part: Owner(part, turns, self.sent) for part in (1, 2)}
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


async def test_a_batch_fails_only_with_its_own_request(pool: ThreadPoolExecutor) -> None:
    """The first batch fails to bring some rows. The second batch then asks for them itself."""
    daemon = Batches(pool)
    first, second = await asyncio.gather(daemon.make(np.arange(0, 20), 0, FAILS), daemon.make(np.arange(10, 30), 1, 1))
    assert first is None
    np.testing.assert_array_equal(second[1][0], TABLES["x"][10:30])
    assert (second[0].remote_rows, second[0].shared_rows) == (20, 0)


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
