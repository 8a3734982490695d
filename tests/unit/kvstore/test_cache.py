"""The caches of remote rows and of in-edges: right, within bounds, ranked by real requests; edges as owners have them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.cli.main import cli
from atta.errors import ConfigError
from atta.kvstore.cache import RANKS, EdgeCache, RowCache
from atta.kvstore.cache.choice import (
    Candidates,
    HaloHeat,
    HotVertices,
    candidates,
    choose,
    divide,
    edge_types_into,
    greedy,
    highest,
)
from atta.kvstore.cache.rows import RecentRows
from atta.kvstore.cache.sums import KeptSums, sum_keys
from atta.kvstore.disk import DiskEdges
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import edge_file
from atta.partition.schema import TableSpec
from atta.samplers import kernels
from atta.samplers.batch.items import SumItem
from atta.samplers.hashing import mix64
from atta.samplers.methods import Method
from atta.samplers.shard import Answer, Shard
from tests.unit.kvstore.test_rows import together

NODES, EDGES = 300, "node__to__node"
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPECS = {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}
OFFSETS = np.array([0, 100, 200, 300])


positions = st.lists(st.integers(0, 99), max_size=40)  # they repeat if trees are disjoint
rows_by_owner = st.dictionaries(st.integers(0, 2), positions, min_size=1, max_size=3)


def true_rows(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.stack([ids, ids * 2, ids * 3], axis=1).astype(np.float32), "y": ids.astype(np.int64) * 7}


def ask(shelf: RecentRows, rows: dict[int, np.ndarray], tables: list[str], turn: int = -1) -> int:
    """Do what a batch does: take cached rows, fetch and offer the rest. Returns the hits. Every row must be right.

    ``rows``: by owner, positions in its range. ``turn``: of the batch, if it is known ahead.
    """
    ids = np.concatenate([OFFSETS[owner] + rows[owner] for owner in sorted(rows)]).astype(np.int64)
    starts = np.cumsum([0, *(len(rows.get(owner, ())) for owner in range(3))])
    positions = np.arange(len(ids))[::-1].copy()
    found = shelf.look_up(tables, ids, positions, starts, turn)
    outs = [np.zeros((len(ids), *SPECS[t].row_shape), SPECS[t].dtype) for t in tables]
    for name, out in zip(tables, outs, strict=True):
        out[found.positions] = shelf.tables[name][found.slots]
    found.pins.release()
    at = ids[::-1]  # by position
    assert sorted([*found.positions, *found.missing_positions]) == list(range(len(ids)))
    assert np.array_equal(at[found.missing_positions], found.missing_ids)
    for owner in range(3):
        mine = found.missing_ids[found.missing_starts[owner] : found.missing_starts[owner + 1]]
        assert ((mine >= OFFSETS[owner]) & (mine < OFFSETS[owner + 1])).all()
    assert found.missing_starts[-1] == len(found.missing_ids)
    for table, out in zip(tables, outs, strict=True):
        assert np.array_equal(out[found.positions], true_rows(at[found.positions])[table])
        out[found.missing_positions] = true_rows(found.missing_ids)[table]
    shelf.keep(tables, found.missing_slots, found.missing_positions, outs)
    return len(found.positions)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.lists(st.tuples(rows_by_owner, st.sampled_from(["x", "y", "xy"])), max_size=25))
def test_recent_rows_are_never_wrong(count: int, asked: list[tuple[dict[int, list[int]], str]]) -> None:
    shelf = RecentRows(count, SPECS, OFFSETS, half_life=100)
    for rows, tables in asked:
        ask(shelf, {owner: np.array(mine, dtype=np.int64) for owner, mine in rows.items()}, list(tables))
        here = [row for row, _ in shelf.index.content()]
        assert len({*here}) == len(here) <= count


@settings(max_examples=100, deadline=None)
@given(
    room=st.integers(1, 40),
    window=st.integers(1, 3),
    batches=st.lists(st.sets(st.integers(0, 99), max_size=40).map(sorted), min_size=2, max_size=12),
)
def test_the_rows_stay_that_the_next_batch_known_ahead_asks_for(
    room: int, window: int, batches: list[list[int]]
) -> None:
    """No choice of rows leaves the next batch more: all that it asks for and that were here, as far as there is room."""
    shelf, known = RecentRows(room, SPECS, OFFSETS, half_life=100), 0
    before: set[int] = set()
    for turn, ids in enumerate(batches):
        while known < len(batches) and known <= turn + window:
            shelf.index.expect(known, np.array(batches[known], dtype=np.int64))
            known += 1
        here = {row for row, present in shelf.index.content() if present}
        assert len(here & {*ids}) == min(room, len(before & {*ids}))
        assert ask(shelf, {0: np.array(ids, dtype=np.int64)}, ["x", "y"], turn) == len(here & {*ids})
        shelf.index.close(turn)
        before = here | {*ids}


def test_a_batch_that_is_given_up_keeps_no_rows() -> None:
    shelf, rows = RecentRows(10, SPECS, OFFSETS, half_life=1000), {0: np.arange(10)}
    shelf.index.expect(7, np.arange(10))
    ask(shelf, rows, ["x", "y"], 0)
    for turn in range(1, 4):  # asked for more often since, but later
        ask(shelf, {1: np.arange(10)}, ["x", "y"], turn)
    assert ask(shelf, rows, ["x", "y"], 4) == 10
    shelf.index.close(7)
    for turn in range(5, 9):
        ask(shelf, {1: np.arange(10)}, ["x", "y"], turn)
    assert ask(shelf, rows, ["x", "y"], 9) == 0
    with pytest.raises(ValueError, match="nobody owns"):
        shelf.index.expect(10, np.array([300]))


def test_a_small_set_of_rows_stays_and_a_scan_leaves_nothing_behind() -> None:
    shelf = RecentRows(20, SPECS, OFFSETS, half_life=120)
    favourites = np.arange(20)
    for _ in range(3):
        ask(shelf, {1: favourites}, ["x", "y"])
    assert ask(shelf, {1: favourites}, ["x", "y"]) == 20
    assert ask(shelf, {2: np.arange(100)}, ["x", "y"]) == 0  # once only
    assert ask(shelf, {1: favourites}, ["x", "y"]) == 20


def test_ids_of_another_owner_and_impossible_bounds_are_refused() -> None:
    shelf, ids, positions = RecentRows(20, SPECS, OFFSETS, half_life=120), np.array([99, 100, 250]), np.arange(3)
    shelf.look_up(["x"], ids, positions, np.array([0, 1, 2, 3]))
    for starts, words in (
        ([0, 0, 2, 3], "another partition"),
        ([0, 1, 3, 3], "another partition"),
        ([0, 1, 3], "starts"),
        ([0, 1, 2, 4], "starts"),
        ([0, 2, 1, 3], "starts"),
    ):
        with pytest.raises(ValueError, match=words):
            shelf.look_up(["x"], ids, positions, np.array(starts))


def test_readers_and_writers_at_once() -> None:
    shelf = RecentRows(15, SPECS, OFFSETS, half_life=80)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            owners = [[1], [2], [1, 2]][int(rng.integers(0, 3))]
            ask(shelf, {owner: rng.permutation(60)[:30] for owner in owners}, ["x", "y"])

    together(*(partial(work, seed) for seed in range(4)))


@pytest.mark.parametrize("fan_outs", [(3,), (4, 2), (2, -1)])
def test_expected_visits_are_what_sampling_comes_to(dataset: Dataset, fan_outs: tuple[int, ...]) -> None:
    expected = np.sum(HaloHeat(dataset, 0, "access", fan_outs).visits("node"), axis=0)
    rng, csc = np.random.default_rng(1), dataset.part(0).csc("node__to__node")
    lo, hi = dataset.book.range("node", 0)
    split = np.asarray(dataset.split("node", "train"))
    seeds, trials = split[(split >= lo) & (split < hi)], 400
    counted = np.zeros((trials, NODES))
    for trial in range(trials):
        frontier = list(seeds)
        np.add.at(counted[trial], frontier, 1)
        for fan_out in fan_outs:
            following: list[int] = []
            for vertex in frontier:
                if lo <= vertex < hi:
                    row = csc.indices[csc.indptr[vertex - lo] : csc.indptr[vertex - lo + 1]]
                    take = len(row) if fan_out < 0 else min(fan_out, len(row))
                    following += list(rng.choice(row, take, replace=False)) if take else []
            np.add.at(counted[trial], following, 1)
            frontier = following
    counted = counted[:, np.asarray(dataset.part(0).halo("node"))]
    error = counted.std(axis=0) / np.sqrt(trials)
    assert (np.abs(counted.mean(axis=0) - expected) <= 5 * error + 1e-9).all()


def test_bytes_are_bounded_and_unknown_rankings_refused(dataset: Dataset) -> None:
    for rank in RANKS:
        for limit in (0, 1000, 1 << 20):
            cache = RowCache.of(dataset, 0, share=1.0, limit_bytes=limit, rank=rank, fan_outs=(5, 5))
            assert cache.nbytes <= limit
    with pytest.raises(ConfigError, match="degre"):
        RowCache.of(dataset, 0, share=1.0, limit_bytes=1 << 20, rank="degre", fan_outs=(5,))
    with pytest.raises(ConfigError, match="fan-outs"):
        RowCache.of(dataset, 0, share=1.0, limit_bytes=1 << 20, rank="access", fan_outs=(-2,))
    for share in (float("nan"), -0.1, 1.5):
        with pytest.raises(ConfigError, match="must be 0 to 1"):
            RowCache.of(dataset, 0, share=share, limit_bytes=1 << 20)


def test_bench(dataset: Dataset, tmp_path: Path) -> None:
    options = ["--data", str(dataset.path), "--num-neighbors", "4,3", "--batch-size", "16", "--shares", "5,20,100"]
    result = CliRunner().invoke(cli, ["bench", "cache", *options, "--json", str(tmp_path / "c.json"), "--quiet"])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "c.json").read_text())
    entries = report["results"]
    assert [entry["share"] for entry in entries] == [5, 20, 100]
    for rank in RANKS:
        rates = [entry["hit_rate"][rank] for entry in entries]
        assert all(0 <= rate <= min(1.0, entry["bound"]) + 1e-9 for rate, entry in zip(rates, entries, strict=True))
        assert rank == "recent" or rates == sorted(rates)
    assert all(entry["hit_rate"]["degree"] <= entry["optimum"] + 1e-9 for entry in entries)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_members_are_counted_and_weighed(data: st.DataObject) -> None:
    rng, limit = np.random.default_rng(data.draw(st.integers(0, 2**32))), data.draw(st.integers(1, 300))
    members = np.flatnonzero(rng.random(limit) < data.draw(st.sampled_from([0.0, 0.1, 0.9, 1.0])))
    ids = rng.integers(0, limit, data.draw(st.integers(0, 500))).astype(
        data.draw(st.sampled_from([np.int32, np.int64]))
    )
    assert _native.count_members(ids, members, limit).tolist() == np.bincount(ids, minlength=limit)[members].tolist()
    indptr = np.sort(np.concatenate([[0, len(ids)], rng.integers(0, len(ids) + 1, 5)]))
    weights, out, expected = rng.random(6), np.zeros(len(members)), np.zeros(limit)
    _native.spread_weights(indptr, ids, weights, members, limit, out)
    np.add.at(expected, ids, np.repeat(weights, np.diff(indptr)))
    assert np.allclose(out, expected[members])


def test_members_and_rows_that_make_no_sense_are_refused(shards: list[Shard]) -> None:
    for ids, members, words in (([3], [0], "row 3"), ([0], [1, 1], "ascend"), ([0], [3], "limit")):
        with pytest.raises(ValueError, match=words):
            _native.count_members(np.array(ids), np.array(members), 3)
    indptr, keys = np.array([0, 2]), np.array([5, 6])
    for bad in ({"indices": np.array([0, 2])}, {"rows": np.array([1])}, {"indptr": np.array([0, 3])}, {"rows": [-1]}):
        given = {"indptr": indptr, "indices": np.array([0, 1]), "edge_ids": np.array([3, 4]), "rows": [0], **bad}
        rows = np.array(given.pop("rows"))
        with pytest.raises(ValueError, match="row"):
            kernels.edge_digests(*given.values(), vertex_keys=keys[:1], num_sources=2, rows=rows)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(-1, 31))
def test_the_highest_are_those_that_sorting_finds(rows: list[tuple[int, int]], count: int) -> None:
    scores = [np.array(column, np.uint32) for column in (zip(*rows, strict=True) if rows else ([], []))]
    by_hand = sorted(range(len(rows)), key=lambda i: (-rows[i][0], -rows[i][1], i))
    assert highest(scores, count).tolist() == sorted(by_hand[: max(0, count)])


def test_rows_are_chosen_while_batches_look_them_up(dataset: Dataset) -> None:
    """Also in caches of later versions that were made before the choice."""
    cache, ids = RowCache(), np.asarray(dataset.part(0).halo("node"))
    middle = int(np.searchsorted(ids, dataset.book.range("node", 2)[0]))
    asked = ["x"], ids, np.arange(len(ids)), np.array([0, 0, middle, len(ids)])
    same, other = cache.beside({"node": cache}), cache.beside({})
    assert [c.look_up("node", *asked) for c in (cache, same, other)] == [None] * 3
    cache.forget()
    cache.choose(HaloHeat(dataset, 0), limit_bytes=1 << 20)
    assert all(c.look_up("node", *asked) is not None for c in (cache, same, other))
    assert same._kept["node"] is cache._kept["node"] is not other._kept["node"]
    cache.forget()
    assert cache.look_up("node", *asked) is None
    assert same.look_up("node", *asked) is not None


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder, rng = tmp_path_factory.mktemp("edges"), np.random.default_rng(5)
    ids = rng.permutation(5 * NODES)[:NODES].astype(np.int64)
    with GraphWriter(folder / "graph") as out:
        x = rng.random((NODES, 3), dtype=np.float32)
        tables = {"x": x, "y": np.arange(NODES)}
        out.add_nodes("node", NODES, ids=ids, tables=tables, splits={"train": rng.permutation(NODES)[:60]})
        weight = 1.0 / (1 + np.arange(NODES))
        sources, targets = (rng.choice(NODES, 3000, p=weight / weight.sum()) for _ in range(2))
        out.add_edges(EDGES, sources, targets)
    partition_graph(folder / "graph", folder / "parts", parts=3, method="random")
    return Dataset.open(folder / "parts")


@pytest.fixture(scope="module")
def shards(dataset: Dataset) -> list[Shard]:
    return [Shard(dataset, part) for part in range(dataset.num_parts)]


def all_edges(shard: Shard, rows: np.ndarray) -> Answer:
    return shard.sample(EDGES, rows, fan_out=-1, replace=False, stream_key=0)


def degrees_of(dataset: Dataset, shards: list[Shard], ids: np.ndarray) -> np.ndarray:
    owners = np.searchsorted(dataset.book.offsets["node"], ids, side="right") - 1
    starts = dataset.book.offsets["node"]
    found = [shards[o].degrees(EDGES, np.array([v - starts[o]]))[0] for v, o in zip(ids, owners, strict=True)]
    return np.array(found, dtype=np.int64).reshape(-1, 1)


def fill(cache: EdgeCache, shards: list[Shard], hot: HotVertices, rows: Iterable[int]) -> None:
    starts = cache.dataset.book.offsets["node"]
    for row in rows:
        owner = int(np.searchsorted(starts, hot.ids[row], side="right")) - 1
        at = np.array([hot.ids[row] - starts[owner]])
        assert cache.keep("node", row, [all_edges(shards[owner], at)], [shards[owner].digests(EDGES, at)])


def test_digests_are_those_of_the_definition(dataset: Dataset, shards: list[Shard]) -> None:
    ids, shard = dataset.ids("node"), shards[1]
    low, high = dataset.book.range("node", 1)
    found = shard.digests(EDGES, np.arange(high - low))
    csc = dataset.part(1).csc(EDGES)
    for row in range(high - low):
        edges = slice(csc.indptr[row], csc.indptr[row + 1])
        sources, edge_ids = csc.indices[edges].astype(np.uint64), csc.edge_ids[edges].astype(np.uint64)
        with np.errstate(over="ignore"):
            weights = np.uint64(1) + np.arange(len(sources), dtype=np.uint64) * (GOLDEN & ~np.uint64(1))
            turned = (edge_ids << np.uint64(32)) | (edge_ids >> np.uint64(32))
            head = mix64(mix64(ids[low + row : low + row + 1].view(np.uint64)) + np.uint64(len(sources)))
            total = head[0] + ((sources + turned) * weights).sum(dtype=np.uint64)
        assert total == found[row : row + 1].view(np.uint64)[0]


def test_edges_on_the_disk_answer_as_those_in_memory(dataset: Dataset, shards: list[Shard]) -> None:
    paths = [dataset.path / edge_file(1, EDGES, name) for name in ("indices", "edge_ids")]
    shard, rng = Shard(dataset, 1, disk={EDGES: DiskEdges(paths[0], paths[1], (2, 2))}), np.random.default_rng(4)
    edges = shard._edges[EDGES]
    unread = replace(edges.csc, indices=np.zeros_like(edges.csc.indices), edge_ids=np.zeros_like(edges.csc.edge_ids))
    vars(edges)["csc"] = unread
    low, high = dataset.book.range("node", 1)
    rows, bits = rng.integers(0, high - low, 400), rng.integers(0, 1 << 63, 400, dtype=np.uint64) * np.uint64(2)
    sources = np.where(
        rng.random(400) < 0.5, np.maximum(shards[1].step(EDGES, rows, bits), 0), rng.integers(0, NODES, 400)
    )

    def answers(of: Shard) -> list[list[int]]:
        pairs = [of.pair(EDGES, rows, count=3, negative=negative, stream_key=5) for negative in (False, True)]
        found = [of.step(EDGES, rows, bits), of.contains(EDGES, rows, sources), of.digests(EDGES, rows), *pairs]
        return [array.tolist() for array in found]

    assert answers(shard) == answers(shards[1])
    assert {False, True} == set(shard.contains(EDGES, rows, sources).tolist())
    for wrong in (-1, high - low):
        with pytest.raises(ConfigError, match=f"row outside 0..{high - low - 1}"):
            shard.digests(EDGES, np.array([wrong]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_digest_tells_any_changed_edge(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    degree = data.draw(st.integers(1, 8))
    indptr = np.array([0, degree])
    sources, edges = rng.integers(0, 50, degree), rng.permutation(1000)[:degree]

    def digest(indices: np.ndarray, edge_ids: np.ndarray, key: int = 7) -> int:
        vertex = np.array([key])
        of = np.arange(1)
        return int(kernels.edge_digests(indptr, indices, edge_ids, vertex_keys=vertex, num_sources=50, rows=of)[0])

    original = digest(sources, edges)
    at = data.draw(st.integers(0, degree - 1))
    other_source, other_edge = sources.copy(), edges.copy()
    other_source[at] = (sources[at] + 1 + rng.integers(0, 49)) % 50
    other_edge[at] = 1000 + at
    assert len({original, digest(other_source, edges), digest(sources, other_edge), digest(sources, edges, 8)}) == 4
    turned = np.roll(np.arange(degree), 1)
    if degree > 1:
        assert digest(sources[turned], edges[turned]) != original
    narrow = digest(sources.astype(np.int32), edges.astype(np.int32))
    assert narrow == original, "a digest does not depend on the width of ids"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=9), st.integers(0, 120))
def test_the_greedy_choice_is_near_the_best(items: list[tuple[int, int]], budget: int) -> None:
    saved, sizes = (np.array(column, dtype=float) for column in zip(*items, strict=True))
    taken = greedy(saved, sizes, budget)
    assert sizes[taken].sum() <= budget
    choices = (np.array(c) for c in itertools.product([False, True], repeat=len(items)))
    best = max(saved[c].sum() for c in choices if sizes[c].sum() <= budget)
    left = saved[~taken & (sizes <= budget)]
    assert saved[taken].sum() + left.max(initial=0.0) >= best
    assert (taken == greedy(saved, sizes, budget)).all()


def test_hubs_save_less_per_byte_than_vertices_with_few_edges(dataset: Dataset) -> None:
    of_type = Candidates("node", np.array([1, 2, 3]), np.full((1, 3), 0.5), (10,))
    assert edge_types_into(dataset.schema, "node") == (EDGES,)
    saved = of_type.savings(np.array([[10], [1000], [0]]))
    assert saved.tolist() == [0.5 * (8 + 8 * 10), 0.5 * (8 + 8 * 10), 0.5 * 8]


@pytest.mark.parametrize("rank", ["degree", "access", "recent"])
@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("limit", [0, 500, 4_000, 20_000, 1 << 20])
def test_the_budget_holds(dataset: Dataset, shards: list[Shard], rank: str, share: float | None, limit: int) -> None:
    division = divide(HaloHeat(dataset, 0, rank, (3, 2)), limit_bytes=limit, share=share)
    assert division.rows >= 0
    assert division.edges >= 0
    assert division.rows + division.edges <= limit
    asked = candidates(HaloHeat(dataset, 0, rank, (3, 2)), limit_bytes=division.edges, share=share)
    degrees = [degrees_of(dataset, shards, of_type.ids) for of_type in asked]
    chosen = choose(dataset, 0, asked, degrees, division.edges)
    cache = EdgeCache(dataset, 0, limit_bytes=division.edges)
    cache.reserve(chosen)
    assert cache.nbytes <= division.edges
    low, high = dataset.book.range("node", 0)
    for hot in chosen:
        assert len(np.unique(hot.ids)) == len(hot.ids)
        assert ((hot.ids < low) | (hot.ids >= high)).all()
        if share is not None:
            assert len(hot.ids) <= share * len(dataset.part(0).halo("node"))
    if limit == 1 << 20 and share is None:
        assert sum(len(hot.ids) for hot in chosen) == NODES - (high - low), "there is room for all"


def test_no_room_means_no_edges_and_more_than_the_limit_is_refused(dataset: Dataset, shards: list[Shard]) -> None:
    for limit, share in ((0, None), (1 << 20, 0.0)):
        assert divide(HaloHeat(dataset, 0, "degree", (3,)), limit_bytes=limit, share=share).edges == 0
    assert choose(dataset, 0, [], [], 0) == []
    ids = np.array([dataset.book.range("node", 1)[0]])
    cache = EdgeCache(dataset, 0, limit_bytes=50)
    with pytest.raises(ValueError, match="50"):
        cache.reserve([HotVertices("node", ids, degrees_of(dataset, shards, ids))])
    assert cache.nbytes == 0
    assert cache.split("node", ids, ids, np.array([0, 0, 1, 1])) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_answers_are_the_owners(dataset: Dataset, shards: list[Shard], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    low, high = dataset.book.range("node", 0)
    others = np.setdiff1d(np.arange(NODES), np.arange(low, high))
    ids = rng.permutation(others)[: data.draw(st.integers(1, 60))]
    hot = HotVertices("node", ids, degrees_of(dataset, shards, ids))
    cache = EdgeCache(dataset, 0, limit_bytes=1 << 20)
    cache.reserve([hot])
    here = np.flatnonzero(rng.random(len(ids)) < data.draw(st.sampled_from([0.0, 0.5, 1.0])))
    fill(cache, shards, hot, here.tolist())
    cache.completed()

    asked = rng.permutation(others)[: data.draw(st.integers(0, len(others)))]
    asked = asked[np.argsort(asked >= dataset.book.range("node", 2)[0], kind="stable")]
    bounds = np.array([0, 0, (asked < dataset.book.range("node", 2)[0]).sum(), len(asked)])
    found = cache.split("node", asked, np.arange(len(asked)) * 10, bounds)
    rows, at, missing, elsewhere, starts = found
    offsets = dataset.book.offsets["node"]
    assert [missing[a:b].tolist() for a, b in itertools.pairwise(starts)] == [
        [v for v in missing.tolist() if offsets[p] <= v < offsets[p + 1]] for p in range(3)
    ]
    present = set(ids[here].tolist())
    assert missing.tolist() == [v for v in asked.tolist() if v not in present]
    assert elsewhere.tolist() == [10 * i for i, v in enumerate(asked.tolist()) if v not in present]
    assert ids[rows].tolist() == [v for v in asked.tolist() if v in present]
    assert at.tolist() == [10 * i for i, v in enumerate(asked.tolist()) if v in present]

    method = data.draw(st.sampled_from([Method.UNIFORM, Method.LABOR]))
    assert cache.serves(method, ())
    replace = method.may_replace and data.draw(st.booleans())
    how = {"fan_out": data.draw(st.sampled_from([-1, 0, 1, 3, 7])), "replace": replace, "stream_key": 99}
    trees = rng.integers(0, 5, len(rows)).astype(np.int32) if data.draw(st.booleans()) else None
    answer = cache.sample(EDGES, rows, method=method, trees=trees, **how)
    starts, ends = np.cumsum(answer.counts) - answer.counts, np.cumsum(answer.counts)
    for i, vertex in enumerate(ids[rows].tolist()):
        owner = int(np.searchsorted(dataset.book.offsets["node"], vertex, side="right")) - 1
        row = np.array([vertex - dataset.book.offsets["node"][owner]])
        expected = shards[owner].sample(
            EDGES, row, method=method, trees=None if trees is None else trees[i : i + 1], **how
        )
        assert answer.neighbors[starts[i] : ends[i]].tolist() == expected.neighbors.tolist()
        assert answer.edge_ids[starts[i] : ends[i]].tolist() == expected.edge_ids.tolist()


def test_what_differs_from_the_owner_is_not_kept(dataset: Dataset, shards: list[Shard]) -> None:
    low, _ = dataset.book.range("node", 1)
    ids, rows = low + np.arange(5), np.arange(5)
    hot = HotVertices("node", ids, degrees_of(dataset, shards, ids))
    cache = EdgeCache(dataset, 0, limit_bytes=1 << 20)
    cache.reserve([hot])
    right, digests = all_edges(shards[1], rows), shards[1].digests(EDGES, rows)
    assert len(right.neighbors) > 5
    other, absent, swapped = right.neighbors.copy(), right.neighbors.copy(), right.edge_ids.copy()
    other[3] = (other[3] + 1) % NODES
    absent[3] = NODES
    swapped[[0, -1]] = swapped[[-1, 0]]
    shorter = np.append(right.counts[:-1], right.counts[-1] - 1)
    far = right.edge_ids.astype(np.int64)
    far[0] = 1 << 40
    wrong = [
        Answer(right.counts, other, right.edge_ids),
        Answer(right.counts, absent, right.edge_ids),
        Answer(right.counts, right.neighbors, swapped),
        Answer(right.counts, right.neighbors, far),
        Answer(shorter, right.neighbors[:-1], right.edge_ids[:-1]),
        Answer(right.counts, right.neighbors[:-1], right.edge_ids[:-1]),
    ]
    for answer in wrong:
        assert not cache.keep("node", 0, [answer], [digests])
    assert not cache.keep("node", 0, [right], [digests + 1])
    assert cache.stats()["edge_cache_refused"] == len(wrong) + 1
    assert cache.stats()["edge_cache_rows"] == 0
    assert cache.keep("node", 0, [right], [digests])
    assert cache.stats()["edge_cache_rows"] == 5


def test_methods_that_read_more_than_edges_are_not_served(dataset: Dataset, shards: list[Shard]) -> None:
    cache, ids = EdgeCache(dataset, 0, limit_bytes=1 << 20), np.array([dataset.book.range("node", 1)[0]])
    assert not cache.serves(Method.UNIFORM, ()), "nothing is here"
    cache.reserve([HotVertices("node", ids, degrees_of(dataset, shards, ids))])
    assert cache.serves(Method.UNIFORM, ())
    assert not cache.serves(Method.UNIFORM, ("weight",))
    assert not any(cache.serves(m, ()) for m in Method if m is not Method.UNIFORM), "LABOR reads all edges at once"
    cache.completed()
    assert [m for m in Method if cache.serves(m, ())] == [Method.UNIFORM, Method.LABOR]


def test_a_graph_without_edges_between_its_parts_has_nothing_to_keep(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 4, tables={"x": np.zeros((4, 1), np.float32)})
        out.add_edges(EDGES, np.arange(4), np.arange(4))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random")
    dataset = Dataset.open(tmp_path / "parts")
    division = divide(HaloHeat(dataset, 0, "degree", (3, 2)), limit_bytes=100, share=None)
    assert division.rows + division.edges <= 100
    asked = candidates(HaloHeat(dataset, 0, "degree", (3,)), limit_bytes=division.edges, share=0.5)
    assert all(len(of_type.ids) == 0 for of_type in asked)


def sums_of(rows: list[list[int]], weights: list[list[float]] | None = None, **what: Any) -> SumItem:
    addends, starts = np.concatenate(rows).astype(np.int64), np.array([0, len(rows)])
    weighed = None if weights is None else np.concatenate(weights).astype(np.float32)
    about: dict[str, Any] = {"edge_type": "e", "node_type": "v", "table": "x", "width": 5, "version": 0, **what}
    counts, targets = np.array([len(group) for group in rows], np.int32), np.arange(len(rows))
    shifts = about.pop("shifts", np.zeros(4, np.int16))
    return SumItem(rows=addends, counts=counts, targets=targets, weights=weighed, starts=starts, shifts=shifts, **about)


def test_sums_are_known_by_version_units_rows_and_weights_in_any_order() -> None:
    keys = {
        tuple(key)
        for item in (
            sums_of([[1, 2, 3], [1, 2], [2, 2], [3], [1, 2, 3, 3]]),
            sums_of([[1, 2, 3]], version=1),
            sums_of([[1, 2, 3]], width=8),
            sums_of([[1, 2, 3]], table="y"),
            sums_of([[1, 2, 3]], shifts=np.ones(4, np.int16)),
            sums_of([[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [2, 1, 3]]),
        )
        for key in sum_keys(item).tolist()
    }
    assert len(keys) == 11
    swapped = sum_keys(sums_of([[3, 1, 2]], [[3, 1, 2]])), sum_keys(sums_of([[1, 2, 3]], [[1, 2, 3]]))
    np.testing.assert_array_equal(*swapped)
    np.testing.assert_array_equal(sum_keys(sums_of([[3, 1, 2]])), sum_keys(sums_of([[2, 3, 1]])))


@pytest.mark.parametrize("limit", [1 << 20, 1 << 13, 1000])
def test_kept_sums_are_those_that_came(limit: int) -> None:
    random, kept, found = np.random.default_rng(1), KeptSums(limit), 0
    values = random.integers(0, 256, (400, 20), np.uint8)
    for _ in range(60):
        groups = random.choice(400, 50, replace=False).tolist()
        item, out = sums_of([[g, g + 1, 2 * g] for g in groups]), np.zeros((50, 20), np.uint8)
        (lacking,) = kept.fill([(item, out)])
        np.testing.assert_array_equal(lacking.item.rows.reshape(-1, 3)[:, 0], np.array(groups)[lacking.chosen])
        assert lacking.item.starts.tolist() == [0, len(lacking.chosen)]
        lacking.out[:] = values[[groups[at] for at in lacking.chosen]]
        kept.keep([lacking], [(item, out)])
        np.testing.assert_array_equal(out, values[groups])
        found += 50 - len(lacking.chosen)
    assert found == 0 if limit == 1000 else found > (1500 if limit == 1 << 20 else 200)
