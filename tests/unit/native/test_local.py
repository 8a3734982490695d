"""The core without daemons: graphs and their datasets, the loader's draws, exact neighbourhoods, any number of threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import GraphWriter, partition_graph
from atta.samplers import LocalBatch, LocalGraph, LocalSampler, kernels
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.local.walks import random_walks
from atta.samplers.operators import SaintWalks, Shadow, sample_locally

BIG = 2**63 + 5


def edges_of(batch: LocalBatch) -> list[tuple[int, int, int]]:
    return [
        (int(e), int(batch.n_id[r]), int(batch.n_id[c]))
        for e, r, c in zip(batch.e_id, batch.row, batch.col, strict=True)
    ]


def some_edges(seed: int, nodes: int = 60, count: int = 700) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, nodes, count), rng.integers(0, nodes - 5, count)


@pytest.mark.parametrize("frontier", ["new", "all"])
@pytest.mark.parametrize("nodes", [60, (1 << 24) + 1])  # a direct table, then hashing
def test_one_pass_equals_sampling_and_stitching(seed: int, frontier: str, nodes: int) -> None:
    src, dst = some_edges(seed)
    keys = np.random.default_rng(seed).permutation(nodes)[:nodes] if nodes < 1000 else None
    graph = LocalGraph.from_edges(src, dst, nodes, keys=keys)
    batch = LocalSampler(graph).sample(np.array([3, 7, 3, 0]), [4, -1, 2], seed=seed, batch=2, frontier=frontier)
    known = kernels.Compactor()
    known.insert(np.array([3, 7, 3, 0]))
    low, row, col, e_id = 0, [], [], []
    for hop, fan_out in enumerate([4, -1, 2]):
        high = known.size
        frontier_ids = known.ids(low, high)
        counts, sources, ids = kernels.sample_neighbors(
            graph.indptr, graph.indices, graph.edge_ids, graph.keys, frontier_ids, fan_out=fan_out, replace=False,
            stream_key=stream_key(seed, 0, 2, hop + 1, hash_string("node__to__node")),
        )  # fmt: skip
        out = [np.empty(len(sources), np.int32) for _ in range(2)]
        group = (np.arange(high - low), counts, sources, ids)
        numbers = np.arange(low, high, dtype=np.int32)
        kept = np.empty(len(sources), np.int64)
        known.stitch([group], numbers, *out, kept)
        row, col, e_id = [*row, *out[0]], [*col, *out[1]], [*e_id, *kept]
        low = high if frontier == "new" else 0
    assert batch.row.tolist() == row
    assert batch.col.tolist() == col
    assert batch.e_id.tolist() == e_id
    assert batch.n_id.tolist() == graph.keys[known.ids(0, known.size)].tolist()
    assert sum(batch.num_sampled_nodes) == len(batch.n_id)
    assert sum(batch.num_sampled_edges) == len(batch.row)


def test_same_batches_as_the_loader(tmp_path: Path, seed: int) -> None:
    rng, (src, dst) = np.random.default_rng(seed), some_edges(seed)
    ids = rng.permutation(1000)[:60]
    with GraphWriter(tmp_path / "graph") as writer:
        writer.add_nodes("node", 60, ids=ids, tables={}, splits={"train": np.arange(40)})
        writer.add_edges("node__to__node", src, dst)
    partition_graph(tmp_path / "graph", tmp_path / "two", parts=2, method="random", seed=0)
    graph = LocalGraph.from_edges(src, dst, 60, keys=ids)
    sampler, place = LocalSampler(graph), {int(v): i for i, v in enumerate(ids)}
    with atta.local(tmp_path / "two", threads=1) as cluster:
        loader = atta.NeighborLoader(
            cluster, [3, 2], "train", batch_size=10, shuffle=True, seed=5, rank=0, world_size=1
        )
        for theirs in loader:
            seeds = [place[int(v)] for v in theirs.n_id()[: theirs.batch_size]]
            ours = sampler.sample(seeds, [3, 2], seed=5, batch=theirs.batch_id)
            assert ours.n_id.tolist() == theirs.n_id().tolist()
            assert np.array_equal(np.stack([ours.row, ours.col]), theirs.edge_index())
            e_id = theirs.e_id()
            assert ours.e_id.tolist() == e_id.tolist()


def test_full_fan_out_is_the_whole_neighbourhood(seed: int) -> None:
    src, dst = some_edges(seed)
    batch = LocalSampler(LocalGraph.from_edges(src, dst, 60)).sample([11], [-1, -1])
    first = set(src[dst == 11].tolist()) | {11}
    want = [i for i, d in enumerate(dst.tolist()) if d in first]
    assert sorted(batch.e_id.tolist()) == want
    assert all((src[e], dst[e]) == (s, d) for e, s, d in edges_of(batch))


def test_batches_come_in_order_whatever_the_threads(seed: int) -> None:
    src, dst = some_edges(seed)
    graph = LocalGraph.from_edges(src, dst, 60)
    runs = []
    for threads in (1, 3):
        stream = LocalSampler(graph).batches(np.arange(60), [3, 3], 7, threads=threads, seed=seed)
        runs.append([(b.n_id.tolist(), b.row.tolist(), b.col.tolist(), b.e_id.tolist()) for b in stream])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 9
    stream = LocalSampler(graph).batches(np.arange(60), [3, 3], 7, threads=2)
    next(stream)
    stream.close()  # ends the threads


def test_many_batches_keep_their_numbers_apart() -> None:
    src, dst = some_edges(1)
    graph = LocalGraph.from_edges(src, dst, 60)
    used, kept = LocalSampler(graph), []
    for number in range(300):
        kept.append(used.sample(np.arange(number % 50, number % 50 + 5), [5, 5], batch=number))
    for number, batch in enumerate(kept):
        fresh = LocalSampler(graph).sample(np.arange(number % 50, number % 50 + 5), [5, 5], batch=number)
        assert batch.n_id.tolist() == fresh.n_id.tolist()
        assert batch.row.tolist() == fresh.row.tolist()


def test_torch_tensors_are_taken_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    graph = LocalGraph.from_csc(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32))
    batch = LocalSampler(graph).sample(torch.tensor([0]), [1, 1])
    assert batch.e_id.tolist() == [0, 1]
    indices = torch.tensor([1, 0], dtype=torch.int32)
    assert np.shares_memory(LocalGraph.from_csc(torch.tensor([0, 1, 2]), indices).indices, indices.numpy())


def test_bad_input_is_refused() -> None:
    src, dst = some_edges(1)
    graph = LocalGraph.from_edges(src, dst, 60)
    sampler = LocalSampler(graph)
    timed = LocalSampler(LocalGraph.from_edges(src, dst, 60, time=np.arange(len(src))), method="temporal")
    for call, words in [
        (lambda: sampler.sample([60], [2]), "60"),
        (lambda: sampler.sample([-1], [2]), "-1"),
        (lambda: sampler.sample([1], [-2]), r"fan-out -2 .*\(-1 = all"),
        (lambda: sampler.sample([1], [2], frontier="old"), "frontier"),
        (lambda: next(sampler.batches([1], [2], 0)), "batch_size"),
        (lambda: next(sampler.batches([1], [2], 1.5)), "batch_size 1.5"),
        (lambda: next(sampler.batches([1], [2], 1, batch=-1)), "batch -1"),
        (lambda: sampler.sample([1.5], [2]), "float64 such as 1.5"),
        (lambda: sampler.sample(np.array([BIG], np.uint64), [2]), str(BIG)),
        (lambda: sampler.sample([[1]], [2]), "seeds: must be a list"),
        (lambda: sampler.sample([1], [2.5]), "fan-out 2.5"),
        (lambda: sampler.sample([1], 2), "must list a fan-out for every hop"),
        (lambda: sampler.sample([1], [2], seed=-1), "seed -1"),
        (lambda: sampler.sample([1], [2], seed=1 << 64), "seed 18446744073709551616"),
        (lambda: sampler.sample([1], [2], epoch=1 << 64), "epoch 18446744073709551616"),
        (lambda: sampler.sample([1], [2], batch=0.5), "batch 0.5"),
        (lambda: sampler.sample([1], [2], replace="no"), "replace 'no'"),
        (lambda: sampler.sample([1], [2], disjoint=2), "disjoint 2"),
        (lambda: LocalGraph.from_edges([0.5], [1], 2), "src: must be integers, not float64 such as 0.5"),
        (lambda: LocalGraph.from_edges([0], [1], 2, keys=np.array([BIG, 1], np.uint64)), str(BIG)),
        (lambda: LocalGraph.from_edges([0], [1], 2.5), "num_nodes 2.5"),
        (lambda: timed.sample([1], [2], input_time=[0.5]), "input_time: must be integers, not float64 such as 0.5"),
        (lambda: timed.sample([1], [2], input_time=np.array([BIG], np.uint64)), str(BIG)),
        (lambda: random_walks(graph, np.array([0.5]), 2), "0.5"),
        (lambda: sample_locally(graph, SaintWalks(2), [60]), "0 to 59"),
        (lambda: sample_locally(graph, SaintWalks(2), [-1]), "0 to 59"),
        (lambda: sample_locally(graph, SaintWalks(2), [0.5]), "0.5"),
        (lambda: sample_locally(graph, SaintWalks(2), [0], number=-1), "number -1"),
        (lambda: LocalGraph.from_csc([0, 2, 1], [0, 1]), "decreases"),
        (lambda: LocalGraph.from_csc([0, 1, 2], [0, 2]), "vertex 2"),
        (
            lambda: LocalSampler(LocalGraph(np.array([0, 9]), np.zeros(2, np.int32), np.zeros(1, np.int64))).sample(
                [0], [1]
            ),
            "spans",
        ),
        (
            lambda: LocalSampler(LocalGraph(np.array([0, 1]), np.array([5]), np.zeros(1, np.int64))).sample([0], [1]),
            "vertex 5",
        ),
    ]:
        with pytest.raises(ConfigError, match=words):
            call()
    assert sampler.sample([1, 2], [2]).row.size > 0  # the next batch works


def test_seeds_given_twice_count_once_as_in_daemons() -> None:
    graph = LocalGraph.from_edges(*some_edges(2), 60)
    once, twice = (sample_locally(graph, SaintWalks(3), seeds) for seeds in ([5, 9], [5, 9, 5]))
    assert once.n_id.tolist() == twice.n_id.tolist()
    assert twice.n_id[:2].tolist() == [5, 9]
    assert sample_locally(graph, Shadow(depth=0), [5, 9, 5]).tree.tolist() == [0, 1, 2]  # a tree for each seed


SRC, DST = np.array([1, 2, 0, 2]), np.array([0, 0, 2, 1])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two edge types, whole (``1``) and in two parts (``2``)."""
    folder = tmp_path_factory.mktemp("graphs")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("user", 3, ids=[30, 10, 20])
        out.add_nodes("item", 2)
        out.add_edges("user__knows__user", SRC, DST)
        out.add_edges("item__of__user", np.array([1, 0]), np.array([2, 2]))
    for parts in (1, 2):
        partition_graph(folder / "graph", folder / str(parts), parts=parts, method="random", seed=0)
    return folder


def test_it_has_the_edges_of_the_dataset(datasets: Path) -> None:
    graph = LocalGraph.open(datasets / "1", "user__knows__user")
    sources = {
        int(graph.keys[v]): graph.keys[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].tolist() for v in range(3)
    }
    assert sources == {30: [10, 20], 10: [20], 20: [30]}
    assert set(LocalGraph.open_all(datasets / "1")) == {"user__knows__user", "item__of__user"}


@pytest.mark.parametrize(
    ("where", "edge_type", "error", "words"),
    [
        ("1", None, ConfigError, "name one of the edge types"),
        ("1", "user__likes__user", UnknownNameError, "edge type 'user__likes__user'"),
        ("2", None, ConfigError, "2 partitions"),
    ],
)
def test_it_must_be_one_edge_type_of_one_partition(
    datasets: Path, where: str, edge_type: str | None, error: type[AttaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        LocalGraph.open(datasets / where, edge_type)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dst": DST[:3]}, "must be"),
        ({"keys": [1, 2]}, "keys: 2 for 3 vertices"),
        ({"src": [1, 2, 0, 3]}, "src: ids lie in 0..3"),
        ({"weight": np.ones(3)}, "one per edge"),
    ],
)
def test_edges_that_contradict_each_other_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LocalGraph.from_edges(**{"src": SRC, "dst": DST, "num_nodes": 3, **changed})
