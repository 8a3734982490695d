"""The cache of hot remote rows: the right vertices, the right rows, and never a wrong one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from atta.kvstore.cache import RowCache
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter

NODES = 400


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("cache")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((NODES, 6)).astype(np.float32)
    with GraphWriter(folder / "graph") as writer:
        writer.add_nodes("node", NODES, tables={"x": x, "y": np.arange(NODES)}, splits={})
        weight = 1.0 / (1 + np.arange(NODES))
        src = rng.choice(NODES, 5000, p=weight / weight.sum())
        writer.add_edges("node__to__node", src, rng.integers(0, NODES, 5000))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return Dataset.open(folder / "parts")


def rows_of(dataset: Dataset, name: str) -> np.ndarray:
    return np.concatenate([dataset.part(p).table("node", name) for p in range(2)])


def remote(dataset: Dataset) -> tuple[int, int]:
    low, high = dataset.book.range("node", 1)
    return low, high


def one(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first remote vertex, as ``look_up`` takes it."""
    return np.array([remote(dataset)[0]]), np.array([0]), np.array([0, 0, 1])


def kept_ids(cache: RowCache) -> list[int]:
    index = cache._kept["node"].index
    return index.ids(0, index.size).tolist()


def test_the_hottest_halo_vertices_are_chosen(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.25, limit_bytes=1 << 30)
    indices = np.asarray(dataset.part(0).csc("node__to__node").indices)
    halo = np.asarray(dataset.part(0).halo("node"))
    edges = {int(v): int((indices == v).sum()) for v in halo}
    chosen = kept_ids(cache)
    assert len(chosen) == len(halo) // 4
    coldest_in = min(edges[v] for v in chosen)
    assert all(edges[int(v)] <= coldest_in for v in halo if int(v) not in chosen)
    assert cache.nbytes == len(chosen) * (6 * 4 + 8)


@pytest.mark.parametrize(("share", "limit"), [(0.0, 1 << 30), (1.0, 0), (1.0, 31)])
def test_no_room_means_no_cache(dataset: Dataset, share: float, limit: int) -> None:
    cache = RowCache.of(dataset, 0, share=share, limit_bytes=limit)
    assert cache.nbytes == 0
    assert cache.look_up("node", ["x"], *one(dataset)) is None


def test_bytes_bound_the_choice(dataset: Dataset) -> None:
    assert len(kept_ids(RowCache.of(dataset, 0, share=1.0, limit_bytes=10 * 32 + 5))) == 10


def test_rows_are_kept_once_seen_and_stay_right(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.5, limit_bytes=1 << 30)
    (low, high), rng = remote(dataset), np.random.default_rng(7)
    x, y, chosen, seen = rows_of(dataset, "x"), rows_of(dataset, "y"), set(kept_ids(cache)), set()
    for round_ in range(30):
        tables = [["x", "y"], ["y"], ["x"]][round_ % 3]
        ids = low + rng.permutation(high - low)[:40]
        positions = rng.permutation(60)[:40]
        found = cache.look_up("node", tables, ids, positions, np.array([0, 0, 40]))
        assert found is not None
        missing, asked = set(found.missing_ids.tolist()), set(ids.tolist())
        assert asked - missing == {v for v in asked & chosen if all((v, t) in seen for t in tables)}
        assert found.missing_starts.tolist() == [0, 0, len(missing)]
        outs = {"x": np.zeros((60, 6), np.float32), "y": np.zeros(60, np.int64)}
        cache.fill("node", tables, found.slots, found.positions, [outs[t] for t in tables])
        for table in tables:
            outs[table][found.missing_positions] = {"x": x, "y": y}[table][found.missing_ids]
            assert np.array_equal(outs[table][positions], {"x": x, "y": y}[table][ids])
        cache.keep("node", tables, found.missing_slots, found.missing_positions, [outs[t] for t in tables])
        seen |= {(v, t) for v in missing & chosen for t in tables}


def test_unknown_tables_are_not_cached(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=0.5, limit_bytes=1 << 30)
    assert cache.look_up("node", ["x", "other"], *one(dataset)) is None
    assert cache.look_up("nobody", ["x"], *one(dataset)) is None


def test_threads_never_see_half_a_row(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, share=1.0, limit_bytes=1 << 30)
    low, high = remote(dataset)
    x = rows_of(dataset, "x")
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(200):
            ids = low + rng.permutation(high - low)[:50]
            found = cache.look_up("node", ["x"], ids, np.arange(50), np.array([0, 0, 50]))
            assert found is not None
            out = np.zeros((50, 6), np.float32)
            cache.fill("node", ["x"], found.slots, found.positions, [out])
            if not np.array_equal(out[found.positions], x[ids[found.positions]]):
                wrong.append("a kept row differs")
            out[found.missing_positions] = x[found.missing_ids]
            cache.keep("node", ["x"], found.missing_slots, found.missing_positions, [out])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_with_room_to_spare_other_remote_vertices_follow(dataset: Dataset) -> None:
    (low, high), halo = remote(dataset), np.asarray(dataset.part(0).halo("node"))
    assert set(kept_ids(RowCache.of(dataset, 0, limit_bytes=1 << 30))) == set(range(low, high))
    some = len(halo) + (high - low - len(halo)) // 2
    chosen = set(kept_ids(RowCache.of(dataset, 0, limit_bytes=some * 32)))
    assert len(halo) < len(chosen) == some < high - low
    assert set(halo.tolist()) < chosen <= set(range(low, high))
