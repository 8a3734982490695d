"""Policies of the cache of remote rows: kept rows are right, within bounds, and ranked by real requests."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.errors import ConfigError
from atta.kvstore.cache import RANKS, RowCache
from atta.kvstore.cache.choice import HaloHeat, distant, highest
from atta.kvstore.cache.rows import RecentRows
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.schema import TableSpec

NODES = 300
SPECS = {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}
OFFSETS = np.array([0, 100, 200, 300])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder, rng = tmp_path_factory.mktemp("policies"), np.random.default_rng(5)
    with GraphWriter(folder / "graph") as out:
        x = rng.random((NODES, 3), dtype=np.float32)
        out.add_nodes(
            "node", NODES, tables={"x": x, "y": np.arange(NODES)}, splits={"train": rng.permutation(NODES)[:60]}
        )
        weight = 1.0 / (1 + np.arange(NODES))
        out.add_edges("node__to__node", rng.choice(NODES, 3000, p=weight / weight.sum()), rng.integers(0, NODES, 3000))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random")
    return Dataset.open(folder / "parts")


def true_rows(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.stack([ids, ids * 2, ids * 3], axis=1).astype(np.float32), "y": ids.astype(np.int64) * 7}


def ask(shelf: RecentRows, rows: dict[int, np.ndarray], tables: list[str]) -> int:
    """Do what a batch does: take cached rows, fetch and offer the rest. Returns the hits. Every row must be right.

    ``rows``: by owner, positions in its range.
    """
    ids = np.concatenate([OFFSETS[owner] + rows[owner] for owner in sorted(rows)]).astype(np.int64)
    starts = np.cumsum([0, *(len(rows.get(owner, ())) for owner in range(3))])
    positions = np.arange(len(ids))[::-1].copy()
    found = shelf.look_up(tables, ids, positions, starts)
    outs = [np.zeros((len(ids), *SPECS[t].row_shape), SPECS[t].dtype) for t in tables]
    for name, out in zip(tables, outs, strict=True):
        out[found.positions] = shelf.tables[name][found.slots]
    assert found.pins is not None
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
@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(
            st.dictionaries(
                st.integers(0, 2), st.lists(st.integers(0, 99), unique=True, max_size=40), min_size=1, max_size=3
            ),
            st.sampled_from(["x", "y", "xy"]),
        ),
        max_size=25,
    ),
)
def test_recent_rows_are_never_wrong(count: int, asked: list[tuple[dict[int, list[int]], str]]) -> None:
    shelf = RecentRows(count, SPECS, OFFSETS, half_life=100)
    for rows, tables in asked:
        hits = ask(shelf, {owner: np.array(mine, dtype=np.int64) for owner, mine in rows.items()}, list(tables))
        assert hits <= count


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
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(300):
                owners = [[1], [2], [1, 2]][int(rng.integers(0, 3))]
                ask(shelf, {owner: rng.permutation(60)[:30] for owner in owners}, ["x", "y"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("fan_outs", [(3,), (4, 2), (2, -1)])
def test_expected_visits_are_what_sampling_comes_to(dataset: Dataset, fan_outs: tuple[int, ...]) -> None:
    """Trees sampled repeatedly by hand, without expanding vertices of the other partition."""
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


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("limit", [0, 1000, 1 << 20])
def test_bytes_are_bounded(dataset: Dataset, rank: str, limit: int) -> None:
    cache = RowCache.of(dataset, 0, share=1.0, limit_bytes=limit, rank=rank, fan_outs=(5, 5))
    assert cache.nbytes <= limit


def test_unknown_rankings_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="degre"):
        RowCache.of(dataset, 0, share=1.0, limit_bytes=1 << 20, rank="degre", fan_outs=(5,))
    with pytest.raises(ConfigError, match="fan-outs"):
        RowCache.of(dataset, 0, share=1.0, limit_bytes=1 << 20, rank="access", fan_outs=(-2,))
    for share in (float("nan"), -0.1, 1.5):
        with pytest.raises(ConfigError, match="must be 0 to 1"):
            RowCache.of(dataset, 0, share=share, limit_bytes=1 << 20)


def test_bench(dataset: Dataset, tmp_path: Path) -> None:
    import json

    from click.testing import CliRunner

    from atta.cli.main import cli

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


@pytest.mark.parametrize(
    ("ids", "members", "words"), [([3], [0], "row 3"), ([0], [1, 1], "ascend"), ([0], [3], "limit")]
)
def test_members_that_make_no_sense_are_refused(ids: list[int], members: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _native.count_members(np.array(ids), np.array(members), 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(-1, 31))
def test_the_highest_are_those_that_sorting_finds(rows: list[tuple[int, int]], count: int) -> None:
    scores = [np.array(column, np.uint32) for column in (zip(*rows, strict=True) if rows else ([], []))]
    by_hand = sorted(range(len(rows)), key=lambda i: (-rows[i][0], -rows[i][1], i))
    assert highest(scores, count).tolist() == sorted(by_hand[: max(0, count)])


@pytest.mark.parametrize("count", [0, 1, 20, NODES])
@pytest.mark.parametrize("part", [0, 1])
def test_distant_vertices_are_neither_here_nor_near(dataset: Dataset, part: int, count: int) -> None:
    near = {*range(*dataset.book.range("node", part)), *dataset.part(part).halo("node").tolist()}
    assert distant(dataset, part, "node", count).tolist() == [v for v in range(NODES) if v not in near][:count]


def test_rows_are_chosen_while_batches_look_them_up(dataset: Dataset) -> None:
    """Also in caches of later versions that were made before the choice."""
    cache, ids = RowCache(), np.asarray(dataset.part(0).halo("node"))
    asked = ["x"], ids, np.arange(len(ids)), np.array([0, 0, len(ids)])
    same, other = cache.beside({"node": cache}), cache.beside({})
    assert [c.look_up("node", *asked) for c in (cache, same, other)] == [None] * 3
    cache.forget()
    cache.choose(HaloHeat(dataset, 0), limit_bytes=1 << 20)
    assert all(c.look_up("node", *asked) is not None for c in (cache, same, other))
    assert same._kept["node"] is cache._kept["node"] is not other._kept["node"]
    cache.forget()
    assert cache.look_up("node", *asked) is None
    assert same.look_up("node", *asked) is not None
