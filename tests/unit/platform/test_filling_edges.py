"""In-edges come from their owners in the background: all of them, checked, although peers are away or wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.filling import EdgeFilling, Filler, FillSource
from atta.daemon.peers.owners import Owners
from atta.errors import RemoteError, UnavailableError, WrongDatasetError
from atta.kvstore.cache import EdgeCache
from atta.kvstore.cache.choice import HaloHeat, HotVertices, candidates
from atta.kvstore.cache.edges import PIECE_BYTES, TIER_BYTES, in_pieces
from atta.samplers.batch.items import SampleItem
from atta.samplers.shard import Answer
from tests.unit.placement.harness import Neighbour, Placed, Typed

EDGE_TYPES = ("a__likes__b", "b__in__a", "b__to__b")


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    """Two node types in three partitions."""
    rng = np.random.default_rng(3)
    ids = {t: rng.permutation(500)[:80].astype(np.int64) for t in "ab"}
    edges = {}
    for edge_type in EDGE_TYPES:
        source, _, target = edge_type.split("__")
        edges[edge_type] = (rng.choice(ids[source], 400), rng.choice(ids[target], 400), {})
    folder: Path = Typed(ids, edges).write(tmp_path_factory.mktemp("edges") / "graph")  # type: ignore[arg-type]
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


def test_everything_comes_where_there_is_room(placed: Placed) -> None:
    cache = fill(placed, {1: placed[1], 2: placed[2]})
    assert kept(placed, cache) == of_owners(placed, 1, 2)
    assert cache.stats()["edge_cache_refused"] == 0


@pytest.mark.parametrize("limit", [100, 3_000, 12_000])
def test_the_memory_is_bounded(placed: Placed, limit: int) -> None:
    cache = fill(placed, {1: placed[1], 2: placed[2]}, limit=limit)
    assert cache.nbytes <= limit
    count = sum(map(len, kept(placed, cache).values()))
    assert (count > 0) == (limit >= 3_000)


def test_without_memory_nobody_is_asked(placed: Placed) -> None:
    silent = Faulty(placed[1], failures=1)
    cache = fill(placed, {1: silent, 2: placed[2]}, limit=0, most_s=0.2)
    assert silent.failures == 1
    assert cache.nbytes == 0


@pytest.mark.parametrize("error", [UnavailableError("nowhere", "gone"), RemoteError("nowhere", "broken")])
def test_a_peer_that_comes_late_or_fails_is_asked_again(placed: Placed, error: RemoteError) -> None:
    late = Faulty(placed[1], away=2, failures=2, error=error)
    cache = fill(placed, {1: late, 2: placed[2]})
    assert kept(placed, cache) == of_owners(placed, 1, 2)
    assert late.failures < 0


def test_nothing_is_kept_of_another_dataset(placed: Placed) -> None:
    other = Faulty(placed[1], failures=10**6, error=WrongDatasetError("nowhere", "another"))
    cache = fill(placed, {1: other, 2: placed[2]}, most_s=0.5)
    assert not kept(placed, cache)["a"] & of_owners(placed, 1)["a"]
    assert other.failures < 10**6


def test_an_owner_without_an_address_is_left_out(placed: Placed) -> None:
    cache = fill(placed, {2: placed[2]})
    assert kept(placed, cache) == of_owners(placed, 2)


def test_an_altered_edge_is_noticed(placed: Placed) -> None:
    altering = Faulty(placed[1], alter=1)
    cache = fill(placed, {1: altering, 2: placed[2]})
    found, right = kept(placed, cache), of_owners(placed, 1, 2)
    assert cache.stats()["edge_cache_refused"] == 1
    lost = {t: right[t] - found[t] for t in right}
    assert sorted(map(len, lost.values()))[0] == 0, "one piece of one type"
    assert any(lost[t] == of_owners(placed, 1)[t] for t in lost)


def test_a_bug_does_not_stop_the_daemon(placed: Placed) -> None:
    class Broken(Neighbour):
        async def probe(
            self, edge_type: str, question: Any, rows: np.ndarray, operands: Any = None, *, version: int = 0
        ) -> np.ndarray:
            raise ZeroDivisionError

    cache = fill(placed, {1: Broken(placed.shards[1], placed.stores[1]), 2: placed[2]}, most_s=0.3)
    assert cache.nbytes == 0


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
