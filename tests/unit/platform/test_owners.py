"""Questions to several owners at once: answers are put together in order, and failures leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.peers import owners as module
from atta.daemon.peers.owners import Owners
from atta.errors import RemoteError
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer

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

    async def _turn(self, number: int) -> None:
        for _ in range(self.part):
            await asyncio.sleep(0)
        if self.before is not None:
            await self.before(number)

    async def sample(self, item: SampleItem, *, age_ms: int = 0) -> tuple[Answer, int]:
        assert item.starts is None
        self.requests.append(len(item.rows))
        self.running += 1
        try:
            await self._turn(len(self.requests))
            some = slice(0, self.piece)
            trees = None if item.trees is None else item.trees[some]
            return self.spoil(answer_of(item.rows[some] + OFFSETS[self.part], trees, wide=self.part == 3)), 10
        finally:
            self.running -= 1

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> memoryview:
        self.requests.append(len(item.rows))
        self.running += 1
        try:
            await self._turn(len(self.requests))
            return memoryview(TABLE[item.rows + OFFSETS[self.part]].tobytes())
        finally:
            self.running -= 1


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
@settings(deadline=None, max_examples=60)
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
@settings(deadline=None, max_examples=60)
def test_rows_are_put_in_their_places(
    asked: list[np.ndarray], most: int, at_once: int, pool: ThreadPoolExecutor
) -> None:
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


def test_if_one_owner_fails_the_others_have_ended(pool: ThreadPoolExecutor) -> None:
    """The other owner's rows are being copied when the failure comes: the error waits for the copy."""
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

    async def run() -> None:
        peers: Any = {2: FakePeer(2, before=fail), 3: FakePeer(3)}
        item = FeatureItem("node", ("x",), ids, np.arange(len(ids)), starts_of(ids))
        with pytest.raises(RemoteError, match="peer-2"):
            await Owners(peers, DATASET, pool, at_once=0).pull([item], [[out]])
        assert go_on.is_set()
        before = out.copy()
        await asyncio.sleep(0.05)
        assert np.array_equal(out, before)
        assert not any(peer.running for peer in peers.values())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_scatter", slow_copy)
        asyncio.run(run())


def test_whoever_is_cancelled_waits_for_its_copies(pool: ThreadPoolExecutor) -> None:
    copying, go_on, copied = threading.Event(), threading.Event(), threading.Event()
    ids = np.arange(30, 100)

    def slow_copy(*_: Any) -> None:
        copying.set()
        assert go_on.wait(20)
        copied.set()

    async def run() -> None:
        peers: Any = {2: FakePeer(2, 100), 3: FakePeer(3, 100)}
        item = FeatureItem("node", ("x",), ids, np.arange(len(ids)), starts_of(ids))
        out = np.zeros((len(ids), 3), dtype=np.float32)
        pull = asyncio.ensure_future(Owners(peers, DATASET, pool, at_once=0).pull([item], [[out]]))
        while not copying.is_set():
            await asyncio.sleep(0)
        for _ in range(3):  # repeatedly
            pull.cancel()
            await asyncio.sleep(0.01)
            assert not pull.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await pull
        assert copied.is_set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_scatter", slow_copy)
        asyncio.run(run())


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
