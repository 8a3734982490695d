"""What is filled in from other daemons: each piece once, within the rate, checked, again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta.daemon import filling
from atta.daemon.filling import FIRST_RETRY_S, LAST_RETRY_S, EdgeFilling, Filler, FillPiece, FillSource, row_pieces
from atta.daemon.peers.owners import Owners
from atta.errors import RemoteError, UnavailableError, WrongDatasetError
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import HaloHeat, HotVertices, candidates
from atta.kvstore.cache.edges import PIECE_BYTES, TIER_BYTES, in_pieces
from atta.kvstore.store import Store
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.shard import Answer
from tests.unit.placement.harness import Neighbour, Placed, Typed

Outcome = tuple[bool, int, float]
"""Whether a fetch works, the bytes that come, the seconds that it takes."""


def filled(
    counts: dict[int, int],
    outcome: Callable[[int], Outcome],
    *,
    home: int = 0,
    rate: float = 1e12,
    there: Callable[[int, int], bool] = lambda owner, asked: True,
) -> list[tuple[float, int, int, Outcome]]:
    """What a filler asks for of so many pieces by owner, in virtual time: when, of whom, which piece, what comes of it."""
    now, asked = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds > 0
        now += seconds * (1 + 1e-9) + 1e-9

    async def fetch(owner: int, number: int) -> int:
        nonlocal now
        works, nbytes, took = found = outcome(owner)
        asked.append((now, owner, number, found))
        now += took
        if not works:
            raise UnavailableError("a", "gone")
        return nbytes

    async def reached(owner: int) -> bool:
        return there(owner, len(asked))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "time", SimpleNamespace(monotonic=lambda: now))
        patch.setattr(filling, "asyncio", SimpleNamespace(sleep=sleep))
        pieces = [FillPiece(owner, partial(fetch, owner, i)) for owner, count in counts.items() for i in range(count)]
        filler = Filler(reached, home=home, bytes_per_s=rate)
        asyncio.run(filler.fill(pieces))
    failures = sum(not works for *_, (works, _, _) in asked)
    came = sum(nbytes for *_, (works, nbytes, _) in asked if works)
    assert filler.stats() == {"filled_bytes": came, "fill_failures": failures, "fill_pieces_left": 0.0}
    return asked


def test_what_keeps_an_owner_from_answering_is_said_once_until_it_answers() -> None:
    works = iter([False, False, False, True, False, False, True])
    with capture_logs() as lines:
        asked = filled({1: 2}, lambda _: (next(works), 1, 0.0))
    assert len(asked) == 7
    assert [line["event"] for line in lines] == ["not filled yet", "not filled yet", "filled"]


def test_owners_take_turns_and_the_one_after_the_own_partition_begins() -> None:
    found = filled({0: 1, 1: 2, 2: 3}, lambda _: (True, 1, 0.0), home=2)
    assert [(owner, number) for _, owner, number, _ in found] == [(2, 0), (0, 0), (1, 0), (2, 1), (1, 1), (2, 2)]


def test_an_owner_that_is_away_is_left_alone_for_a_time_that_doubles_and_the_others_go_on() -> None:
    failures = iter([False] * 13)
    found = filled({0: 1, 1: 1}, lambda owner: (owner == 1 or next(failures, True), 1, 0.0))
    assert [owner for _, owner, *_ in found] == [0, 1, *[0] * 13]
    times = [now for now, owner, *_ in found if owner == 0]
    waits = [after - before for before, after in pairwise(times)]
    assert waits == pytest.approx([min(FIRST_RETRY_S * 2**i, LAST_RETRY_S) for i in range(13)], rel=1e-6)


@given(
    counts=st.dictionaries(st.integers(0, 5), st.integers(0, 4), max_size=5),
    outcomes=st.lists(st.tuples(st.booleans(), st.integers(0, 2000), st.floats(0, 0.5)), max_size=40),
)
def test_every_piece_comes_once_in_order_and_within_the_rate(counts: dict[int, int], outcomes: list[Outcome]) -> None:
    rate, steps = 1000.0, iter(outcomes)
    found = filled(counts, lambda _: next(steps, (True, 100, 0.0)), rate=rate)
    came = [(owner, number) for _, owner, number, (works, *_) in found if works]
    assert sorted(came) == sorted((owner, i) for owner, count in counts.items() for i in range(count))
    for owner in counts:
        numbers = [number for of, number in came if of == owner]
        assert numbers == sorted(numbers)
    good = [(now, nbytes) for now, *_, (works, nbytes, _) in found if works]
    for (start, nbytes), (after, _) in pairwise(good):
        assert after >= start + nbytes / rate - 1e-6


def test_an_owner_that_is_not_there_is_not_asked_and_not_waited_for() -> None:
    """It starts while the others are being filled in."""
    found = filled({2: 1, 1: 2}, lambda _: (True, 10, 0.0), there=lambda owner, asked: owner == 1 or asked >= 2)
    assert [(owner, number) for _, owner, number, _ in found] == [(1, 0), (1, 1), (2, 0)]


EDGE_TYPES = ("a__likes__b", "b__in__a", "b__to__b")


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    rng = np.random.default_rng(3)
    ids = {t: rng.permutation(500)[:80].astype(np.int64) for t in "ab"}
    edges = {}
    for edge_type in EDGE_TYPES:
        source, _, target = edge_type.split("__")
        edges[edge_type] = (rng.choice(ids[source], 400), rng.choice(ids[target], 400), {})
    folder: Path = Typed(ids, edges).write(tmp_path_factory.mktemp("edges") / "graph")
    return Typed(ids, edges).place(folder, {t: rng.integers(0, 3, 80).astype(np.int32) for t in "ab"}, 3)


class Faulty(Neighbour):
    """A peer with a fault: it is away for some looks, fails some requests, or alters an edge of some answers."""

    def __init__(self, neighbour: Neighbour, *, away: int = 0, failures: int = 0, error: Any = None, alter: int = 0):
        super().__init__(neighbour._shard, neighbour._store)
        self.away, self.failures, self.alter = away, failures, alter
        self.error = error or UnavailableError("nowhere", "gone")

    async def sample(self, item: SampleItem, *, age_ms: int = 0) -> tuple[Answer, int]:
        assert age_ms == 0
        assert item.fan_out == -1
        self._fail()
        answer, nbytes = await super().sample(item)
        if self.alter and len(answer.edge_ids):
            self.alter -= 1
            answer = Answer(answer.counts, answer.neighbors, answer.edge_ids ^ 1)
        return answer, nbytes

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: Any = None, *, version: int = 0
    ) -> np.ndarray:
        self._fail()
        return await super().probe(edge_type, question, rows, operands)

    def _fail(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error


def fill(placed: Placed, peers: Mapping[int, Neighbour], *, limit: int = 1 << 20, most_s: float = 20) -> EdgeCache:
    """A cache after it was filled, or after ``most_s``."""
    cache = EdgeCache(placed.dataset, 0, limit_bytes=limit)

    async def reached(owner: int) -> bool:
        peer = peers[owner]
        if isinstance(peer, Faulty):
            peer.away -= 1
            return peer.away < 0
        return True

    async def run() -> None:
        heat = HaloHeat(placed.dataset, 0, fan_outs=(3, 2))
        asked = candidates(heat, limit_bytes=limit, share=None)
        with ThreadPoolExecutor(1) as pool:
            source = FillSource(Owners(peers, placed.dataset, pool), peers, pool)
            filler = Filler(reached, home=0, bytes_per_s=1e12)
            filling = EdgeFilling(placed.dataset, cache, source, peers.keys(), filler.fill)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(filling.run(asked), most_s)

    asyncio.run(run())
    return cache


def kept(placed: Placed, cache: EdgeCache) -> dict[str, set[int]]:
    """Vertices whose in-edges are kept, by node type. All of these must equal the owners'."""
    found: dict[str, set[int]] = {}
    for node_type in placed.dataset.schema.node_types:
        everything = np.arange(placed.dataset.schema.node_counts[node_type])
        split = cache.split(node_type, everything, everything, np.array([0, len(everything)]))
        if split is None:
            found[node_type] = set()
            continue
        rows, ids = split[0], split[1]
        found[node_type] = set(ids.tolist())
        offsets = placed.dataset.book.offsets[node_type]
        owners = np.searchsorted(offsets, ids, side="right") - 1
        for edge_type in (e for e in EDGE_TYPES if e.endswith(node_type)):
            answer = cache.sample(edge_type, rows, fan_out=2, replace=False, stream_key=5)
            ends = np.cumsum(answer.counts)
            for vertex, owner, count, end in zip(ids, owners, answer.counts, ends, strict=True):
                row = np.array([vertex - offsets[owner]])
                expected = placed.shards[owner].sample(edge_type, row, fan_out=2, replace=False, stream_key=5)
                assert answer.neighbors[end - count : end].tolist() == expected.neighbors.tolist()
                assert answer.edge_ids[end - count : end].tolist() == expected.edge_ids.tolist()
    return found


def of_owners(placed: Placed, *owners: int) -> dict[str, set[int]]:
    return {
        t: {v for o in owners for v in range(*placed.dataset.book.range(t, o))}
        for t in placed.dataset.schema.node_types
    }


@pytest.mark.parametrize("limit", [100, 3_000, 12_000, 1 << 20])
def test_everything_comes_where_there_is_room_and_the_memory_is_bounded(placed: Placed, limit: int) -> None:
    cache = fill(placed, {1: placed[1], 2: placed[2]}, limit=limit)
    found, right = kept(placed, cache), of_owners(placed, 1, 2)
    assert cache.nbytes <= limit
    assert any(found.values()) == (limit >= 3_000)
    assert (found == right) == (limit == 1 << 20)
    assert cache.stats()["edge_cache_refused"] == 0


@pytest.mark.parametrize("error", [UnavailableError("nowhere", "gone"), RemoteError("nowhere", "broken")])
def test_a_peer_that_comes_late_or_fails_is_asked_again(placed: Placed, error: RemoteError) -> None:
    late = Faulty(placed[1], away=2, failures=2, error=error)
    cache = fill(placed, {1: late, 2: placed[2]})
    assert kept(placed, cache) == of_owners(placed, 1, 2)
    assert late.failures < 0


def test_nothing_is_kept_of_another_dataset_or_without_an_address(placed: Placed) -> None:
    other = Faulty(placed[1], failures=10**6, error=WrongDatasetError("nowhere", "another"))
    cache = fill(placed, {1: other, 2: placed[2]}, most_s=0.5)
    assert not kept(placed, cache)["a"] & of_owners(placed, 1)["a"]
    assert other.failures < 10**6
    assert kept(placed, fill(placed, {2: placed[2]})) == of_owners(placed, 2)


def test_an_altered_edge_is_noticed(placed: Placed) -> None:
    altering = Faulty(placed[1], alter=1)
    cache = fill(placed, {1: altering, 2: placed[2]})
    found, right = kept(placed, cache), of_owners(placed, 1, 2)
    assert cache.stats()["edge_cache_refused"] == 1
    lost = {t: right[t] - found[t] for t in right}
    assert sorted(map(len, lost.values()))[0] == 0, "one piece of one type"
    assert any(lost[t] == of_owners(placed, 1)[t] for t in lost)


def test_a_bug_does_not_stop_the_daemon(placed: Placed) -> None:
    broken = Faulty(placed[1], failures=10**6, error=ZeroDivisionError())
    assert fill(placed, {1: broken, 2: placed[2]}, most_s=0.3).nbytes == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400_000)), min_size=1, max_size=60, unique_by=id))
def test_pieces_cover_all_vertices_once(vertices: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(len(vertices))
    offsets = np.array([0, 1000, 2000, 3000])
    at = rng.permutation(1000)[: len(vertices)]
    ids = np.array([1000 * owner + i for (owner, _), i in zip(vertices, at, strict=True)])
    degrees = np.array([[degree] for _, degree in vertices])
    hot, pieces = in_pieces(HotVertices("node", ids, degrees), offsets)
    assert sorted(hot.ids.tolist()) == sorted(ids.tolist())
    of = dict(zip(ids.tolist(), degrees[:, 0].tolist(), strict=True))
    assert [of[v] for v in hot.ids.tolist()] == hot.degrees[:, 0].tolist()
    assert [i for p in pieces for i in range(p.first, p.stop)] == list(range(len(ids)))
    original = {v: int(before) for v, before in zip(ids.tolist(), np.cumsum(4 + 8 * degrees[:, 0]), strict=True)}
    for piece in pieces:
        mine = hot.ids[piece.first : piece.stop]
        assert (mine // 1000 == piece.owner).all()
        assert (np.diff(mine) > 0).all()
        assert piece.nbytes == sum(4 + 8 * of[v] for v in mine.tolist())
        assert piece.nbytes <= PIECE_BYTES or len(mine) == 1
        assert {(original[v] - 4 - 8 * of[v]) // TIER_BYTES for v in mine.tolist()} == {piece.tier}


NODES, PARTS = 600, 3
ROW_BYTES = 5 * 4 + 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Partition 0 has in-edges from some vertices of both others."""
    folder, rng = tmp_path_factory.mktemp("filling"), np.random.default_rng(4)
    with GraphWriter(folder / "graph") as writer:
        x = rng.standard_normal((NODES, 5)).astype(np.float32)
        writer.add_nodes("node", NODES, tables={"x": x, "y": np.arange(NODES) * 3}, splits={})
        writer.add_edges("node__to__node", rng.integers(0, NODES // 2, 500), rng.integers(0, NODES, 500))
    partition_graph(folder / "graph", folder / "parts", parts=PARTS, method="random", seed=0)
    return Dataset.open(folder / "parts")


class Owner:
    address = "owner"

    def __init__(self, dataset: Dataset, part: int) -> None:
        self._store, self.asked, self.lose = Store(dataset, part), [], 0

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> memoryview:
        self.asked.append(item.rows)
        tables = [self._store.table(item.node_type, name) for name in item.tables]
        data = b"".join(table.data[item.rows].tobytes() for table in tables)
        return memoryview(data[: max(0, len(data) - self.lose)])


def owners(dataset: Dataset) -> Any:
    return {part: Owner(dataset, part) for part in range(PARTS)}


def source_of(dataset: Dataset, peers: Any) -> FillSource:
    pool = ThreadPoolExecutor(1)
    return FillSource(Owners(peers, dataset, pool), peers, pool)


def to_fill(dataset: Dataset) -> tuple[RowCache, Any, list[Any]]:
    """An empty cache, the owners of its rows, and the pieces that fill it."""
    cache, peers = RowCache.of(dataset, 0, limit_bytes=1 << 20), owners(dataset)
    return cache, peers, list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, peers)))


def fetch(pieces: Sequence[Any]) -> int:
    async def all_of_them() -> int:
        return sum([await piece.fetch() for piece in pieces])

    return asyncio.run(all_of_them())


def of_one_owner(part: int, rows: int) -> np.ndarray:
    """The bounds of rows by owner, if all of them are of ``part``."""
    return np.where(np.arange(PARTS + 1) <= part, 0, rows)


def cached(dataset: Dataset, cache: RowCache, part: int) -> set[int]:
    """Internal ids of the partition's vertices whose rows of both tables are cached. The rows must be right."""
    low, high = dataset.book.range("node", part)
    rows = np.arange(high - low)
    found = cache.look_up("node", ["y", "x"], low + rows, rows, of_one_owner(part, len(rows)))
    outs = [np.zeros(high - low, dtype=np.int64), np.zeros((high - low, 5), dtype=np.float32)]
    cache.fill("node", ["y", "x"], found.slots, found.positions, outs)
    for name, out in zip(["y", "x"], outs, strict=True):
        assert (out[found.positions] == dataset.part(part).table("node", name)[found.positions]).all()
    return set((low + found.positions).tolist())


def remote(dataset: Dataset) -> set[int]:
    low, high = dataset.book.range("node", 0)
    return {v for v in range(NODES) if not low <= v < high}


def edges_into_the_partition(dataset: Dataset) -> np.ndarray:
    """int64 [nodes]: the edges of each vertex into partition 0."""
    return np.bincount(dataset.part(0).csc("node__to__node").indices, minlength=NODES)


def test_the_most_asked_rows_of_an_owner_come_first(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "FILL_BYTES", 10 * ROW_BYTES + 1)
    (cache, peers, pieces), left = to_fill(dataset), ROW_BYTES * len(remote(dataset))
    for piece in pieces:
        before, nbytes = len(peers[piece.owner].asked), fetch([piece])
        assert nbytes <= 10 * ROW_BYTES
        assert len(peers[piece.owner].asked) == before + 1
        left -= nbytes
    assert left == 0
    edges = edges_into_the_partition(dataset)
    for part in (1, 2):
        low, high = dataset.book.range("node", part)
        asked = [edges[low + rows] for rows in peers[part].asked]
        assert sorted(np.concatenate(peers[part].asked).tolist()) == list(range(high - low))
        assert all(before.min() >= after.max() for before, after in itertools.pairwise(asked))
        assert edges[low:high].max() > 0, "the test needs HALO vertices"
        assert all((np.diff(rows) > 0).all() for rows in peers[part].asked), "in the order of their memory"
    assert not peers[0].asked
    assert cached(dataset, cache, 1) | cached(dataset, cache, 2) == remote(dataset)


@pytest.mark.parametrize(("share", "limit", "rows"), [(None, 0, 0), (None, 1, 1), (1.0, 40, 40), (0.0, 400, 0)])
def test_no_more_is_filled_in_than_may_be(dataset: Dataset, share: float | None, limit: int, rows: int) -> None:
    cache = RowCache.of(dataset, 0, share=share, limit_bytes=limit * ROW_BYTES + 3)
    pieces = list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, owners(dataset))))
    assert fetch(pieces) == rows * ROW_BYTES == cache.nbytes
    one = np.array([dataset.book.range("node", 1)[0]]), np.array([0]), of_one_owner(1, 1)
    assert (cache.look_up("node", ["x"], *one) is None) == (rows == 0)


def test_rows_that_batches_have_brought_are_not_asked_for_again(dataset: Dataset) -> None:
    cache, peers, pieces = to_fill(dataset)
    low, _ = dataset.book.range("node", 1)
    brought = np.array(sorted(v - low for v in remote(dataset) if v in range(*dataset.book.range("node", 1))))[::2]
    found = cache.look_up("node", ["x", "y"], low + brought, brought, of_one_owner(1, len(brought)))
    tables = [np.ascontiguousarray(dataset.part(1).table("node", name)[brought]) for name in ("x", "y")]
    blocks = [table.reshape(len(brought), -1).view(np.uint8) for table in tables]
    cache.keep("node", ["x", "y"], found.missing_slots, np.arange(len(brought)), blocks)
    assert fetch(pieces) == ROW_BYTES * (len(remote(dataset)) - len(brought))
    assert not {*np.concatenate(peers[1].asked).tolist()} & {*brought.tolist()}
    assert cached(dataset, cache, 1) | cached(dataset, cache, 2) == remote(dataset)
    assert fetch(pieces) == 0, "all of it is here"


@pytest.mark.parametrize(("lose", "come"), [(1, r"\d+"), (1 << 20, "0")])
def test_an_answer_of_the_wrong_length_is_an_error_and_enters_nothing(dataset: Dataset, lose: int, come: str) -> None:
    cache, peers, pieces = to_fill(dataset)
    for peer in peers.values():
        peer.lose = lose
    for piece in pieces:
        with pytest.raises(RemoteError, match=rf"sends {come} bytes for \d+ rows of 28 bytes"):
            fetch([piece])
    assert not cached(dataset, cache, 1) | cached(dataset, cache, 2)


def test_there_may_be_nothing_to_fill_in(dataset: Dataset, tmp_path: Path) -> None:
    """The policy keeps what was asked for lately, or there are no tables."""
    with GraphWriter(tmp_path / "graph") as writer:
        writer.add_nodes("node", 20, tables={}, splits={})
        writer.add_edges("node__to__node", np.arange(10), np.arange(10, 20))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=PARTS, method="random", seed=0)
    for of, rank in ((dataset, {"rank": "recent"}), (Dataset.open(tmp_path / "parts"), {})):
        cache = RowCache.of(of, 0, limit_bytes=1 << 20, **rank)
        assert not [*row_pieces(cache, HaloHeat(of, 0), source_of(of, owners(of)))]


def rows_of(dataset: Dataset, name: str) -> np.ndarray:
    return np.concatenate([dataset.part(part).table("node", name) for part in range(PARTS)])


def kept_ids(cache: RowCache) -> list[int]:
    index = cache._kept["node"].index
    return index.ids(0, index.size).tolist()


def test_the_hottest_halo_vertices_are_chosen(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.25, limit_bytes=1 << 30)
    halo, edges, chosen = np.asarray(dataset.part(0).halo("node")), edges_into_the_partition(dataset), kept_ids(cache)
    assert len(chosen) == len(halo) // 4
    assert edges[chosen].min() >= edges[np.setdiff1d(halo, chosen)].max()
    assert cache.nbytes == len(chosen) * ROW_BYTES


def test_with_room_to_spare_other_remote_vertices_follow(dataset: Dataset) -> None:
    halo, others = {*dataset.part(0).halo("node").tolist()}, remote(dataset)
    assert {*kept_ids(RowCache.of(dataset, 0, limit_bytes=1 << 30))} == others
    some = (len(halo) + len(others)) // 2
    chosen = {*kept_ids(RowCache.of(dataset, 0, limit_bytes=some * ROW_BYTES))}
    assert len(halo) < len(chosen) == some < len(others)
    assert halo < chosen <= others


def test_rows_are_kept_once_seen_and_stay_right(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.5, limit_bytes=1 << 30)
    (low, high), rng = dataset.book.range("node", 1), np.random.default_rng(7)
    true, chosen, seen = {name: rows_of(dataset, name) for name in "xy"}, {*kept_ids(cache)}, set()
    for round_ in range(30):
        tables = [["x", "y"], ["y"], ["x"]][round_ % 3]
        ids = low + rng.permutation(high - low)[:40]
        positions = rng.permutation(60)[:40]
        found = cache.look_up("node", tables, ids, positions, of_one_owner(1, 40))
        missing, asked = set(found.missing_ids.tolist()), set(ids.tolist())
        assert asked - missing == {v for v in asked & chosen if all((v, t) in seen for t in tables)}
        assert found.missing_starts.tolist() == of_one_owner(1, len(missing)).tolist()
        outs = {"x": np.zeros((60, 5), np.float32), "y": np.zeros(60, np.int64)}
        cache.fill("node", tables, found.slots, found.positions, [outs[t] for t in tables])
        for table in tables:
            outs[table][found.missing_positions] = true[table][found.missing_ids]
            assert np.array_equal(outs[table][positions], true[table][ids])
        cache.keep("node", tables, found.missing_slots, found.missing_positions, [outs[t] for t in tables])
        seen |= {(v, t) for v in missing & chosen for t in tables}


def test_unknown_tables_are_not_cached(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.5, limit_bytes=1 << 30)
    one = np.array([dataset.book.range("node", 1)[0]]), np.array([0]), of_one_owner(1, 1)
    assert cache.look_up("node", ["x", "other"], *one) is None
    assert cache.look_up("nobody", ["x"], *one) is None


def test_threads_never_see_half_a_row(dataset: Dataset) -> None:
    cache, (low, high), x = (
        RowCache.of(dataset, 0, limit_bytes=1 << 30),
        dataset.book.range("node", 1),
        rows_of(dataset, "x"),
    )

    def are_right(number: int) -> bool:
        rng, right = np.random.default_rng(number), True
        for _ in range(200):
            ids = low + rng.permutation(high - low)[:50]
            found = cache.look_up("node", ["x"], ids, np.arange(50), of_one_owner(1, 50))
            out = np.zeros((50, 5), np.float32)
            cache.fill("node", ["x"], found.slots, found.positions, [out])
            right &= np.array_equal(out[found.positions], x[ids[found.positions]])
            out[found.missing_positions] = x[found.missing_ids]
            cache.keep("node", ["x"], found.missing_slots, found.missing_positions, [out])
        return right

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(are_right, range(4))] == [True] * 4
