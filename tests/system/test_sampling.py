"""Real daemons: a batch does not depend on how the graph is cut, and equals the result of independent code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import atta
from tests.system.conftest import SmallGraph


def edges_of(batch: atta.MiniBatch) -> list[tuple[int, int, int]]:
    """(source, target, edge id) of every sampled edge, in user ids and in order."""
    n_id = batch.n_id()
    row, col = batch.edge_index()
    e_id = batch.e_id()
    assert e_id is not None
    return list(zip(n_id[row].tolist(), n_id[col].tolist(), e_id.tolist(), strict=True))


def sample(cluster: atta.Cluster, **options: object) -> list[tuple[list[int], list[tuple[int, int, int]]]]:
    settings: dict[str, object] = {
        "batch_size": 16,
        "shuffle": True,
        "seed_policy": "global",
        "seed": 7,
        "num_neighbors": [4, 3],
    }
    loader = atta.NeighborLoader(cluster, **{**settings, **options})  # type: ignore[arg-type]
    return [(batch.n_id().tolist(), edges_of(batch)) for batch in loader]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_attr": "weight"},
        {"weight_attr": "weight", "replace": True},
        {"replace": True},
        {"frontier": "all"},
        {"num_neighbors": [-1, 2]},
        {"num_neighbors": [2, 2, 2]},
        {"method": "labor"},
        {"dependency": 3},
        {"dependency": 4, "method": "labor"},
        {"disjoint": True},
        {"time_attr": "time"},
        {"time_attr": "time", "temporal_strategy": "last"},
    ],
)
def test_batches_do_not_depend_on_partitions_method_or_threads(
    small_graph: SmallGraph, placements: dict[str, atta.LocalCluster], options: dict[str, object]
) -> None:
    if "time_attr" in options:
        ids = small_graph.train_ids
        options = {**options, "input_nodes": ids, "input_time": np.arange(len(ids)) % 50}
    reference = None
    for name, cluster in placements.items():
        batches = sample(cluster, **options)
        assert sum(len(edges) for _, edges in batches) > 100
        if reference is None:
            reference = batches
        assert batches == reference, name


def test_trainers_draw_alike_in_a_step_of_dependent_batches(small_graph: SmallGraph) -> None:
    """So a vertex that both of them expand in a hop has the same in-edges, and they need the same rows."""

    def second_hop(batch: atta.MiniBatch) -> dict[int, list[int]]:
        n_id, (row, col) = batch.n_id(), batch.edge_index()
        start = batch.to_pyg().num_sampled_edges[0]
        found: dict[int, list[int]] = {}
        for source, target in zip(n_id[row[start:]].tolist(), n_id[col[start:]].tolist(), strict=True):
            found.setdefault(target, []).append(source)
        return found

    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        alike, expanded = {}, {}
        for dependency in (1, 8):
            loaders = [
                atta.NeighborLoader(
                    cluster, [4, 3], None, batch_size=16, rank=rank, world_size=2, seed=1, dependency=dependency
                )
                for rank in (0, 1)
            ]
            steps = [[second_hop(batch) for batch in loader] for loader in loaders]
            both = [(one[v], other[v]) for one, other in zip(*steps, strict=True) for v in one.keys() & other.keys()]
            expanded[dependency], alike[dependency] = len(both), sum(one == other for one, other in both)
        one = {k: atta.NeighborLoader(cluster, [4], None, batch_size=10_000, dependency=k) for k in (1, 8)}
        epochs = {k: [{e for batch in loader for e in edges_of(batch)} for _ in range(2)] for k, loader in one.items()}
    shared = {k: len(first & second) / len(first) for k, (first, second) in epochs.items()}
    assert shared[8] > 0.8 > shared[1], "they resemble each other over the end of an epoch"
    assert min(expanded.values()) > 50
    assert alike[8] == expanded[8]
    assert alike[1] < expanded[1]


def test_bytes_over_grpc_equal_shared_memory(small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        shared = sample(cluster)
        x_shared = [b.table("x").copy() for b in atta.NeighborLoader(cluster, [4, 3], batch_size=16)]
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another machine")
        inline = sample(cluster)
        x_inline = [b.table("x") for b in atta.NeighborLoader(cluster, [4, 3], batch_size=16)]
    assert shared == inline
    assert all(np.array_equal(a, b) for a, b in zip(x_shared, x_inline, strict=True))


def test_edges_are_viewed_where_the_daemon_wrote_them(small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """In shared memory, ids are as wide as PyTorch wants.

    Over a network they are narrow, and the client widens them.
    """
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        for shared in (True, False):
            batch = next(iter(atta.NeighborLoader(cluster, [4, 3], batch_size=16)))
            edges, e_id = batch.edge_index(), batch.e_id()
            assert edges.dtype == e_id.dtype == np.int64
            assert edges.shape == (2, len(e_id)) == (2, batch.num_edges)
            assert np.shares_memory(edges[1], batch._raw.arrays["col/" + batch.edge_types[0]]) == shared
            assert np.shares_memory(e_id, batch._raw.arrays["e_id/" + batch.edge_types[0]]) == shared
            monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another machine")


def test_epochs_and_seeds_change_the_samples(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [2, 2], batch_size=32, seed=1)
        first, second = ([edges_of(b) for b in loader] for _ in range(2))
        assert first != second
        loader.set_epoch(0)
        assert [edges_of(b) for b in loader] == first
        other = atta.NeighborLoader(cluster, [2, 2], batch_size=32, seed=2)
        assert [edges_of(b) for b in other] != first


def test_full_fan_out_equals_the_neighbourhood_by_networkx(small_graph: SmallGraph) -> None:
    hops = 2
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(small_graph.ids.tolist())
    graph.add_edges_from(
        (int(s), int(d), int(e)) for e, (s, d) in enumerate(zip(small_graph.src_ids, small_graph.dst_ids, strict=True))
    )
    backward = graph.reverse()
    with atta.local(small_graph.dataset(3, "metis"), threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [-1] * hops, input_nodes="train", batch_size=5, shuffle=True, seed=3)
        for batch in loader:
            seeds = batch.n_id()[: batch.batch_size].tolist()
            distance = nx.multi_source_dijkstra_path_length(backward, set(seeds), cutoff=hops, weight=None)
            assert sorted(batch.n_id().tolist()) == sorted(distance)
            expanded = [v for v, d in distance.items() if d < hops]
            expected = Counter((u, v, k) for u, v, k in graph.in_edges(expanded, keys=True))
            assert Counter(edges_of(batch)) == expected
            per_hop = Counter(distance.values())
            assert batch.num_sampled_nodes() == [per_hop[d] for d in range(hops + 1)]


def test_link_dag_draws_neighbours_and_strangers(small_graph: SmallGraph) -> None:
    from atta.samplers.dag.spec import Hops, pair_spec

    into: dict[int, set[int]] = {}
    for s, d in zip(small_graph.src_ids.tolist(), small_graph.dst_ids.tolist(), strict=True):
        into.setdefault(d, set()).add(s)
    results = []
    for parts in (1, 3):
        with atta.local(small_graph.dataset(parts, "random"), threads=1) as cluster:
            edge_type = cluster.schema.edge_types[0]
            dag = pair_spec(cluster.schema, Hops([3]), edge_type=edge_type, negatives=2)
            loader = atta.DagLoader(cluster, dag, batch_size=16, shuffle=True, seed_policy="global", seed=5)
            batches = []
            for batch in loader:
                n_id = batch.n_id()
                positive, negative = (batch.pairs[k] for k in ("positive", "negative"))
                for i, seed in enumerate(n_id[: batch.batch_size].tolist()):
                    neighbours = into.get(seed, set())
                    assert int(n_id[positive[i, 0]]) in (neighbours or {seed})
                    assert not neighbours & {int(v) for v in n_id[negative[i]]}
                    assert seed not in n_id[negative[i]]
                batches.append((n_id.tolist(), positive.tolist(), negative.tolist(), edges_of(batch)))
        results.append(batches)
    assert results[0] == results[1]


def test_heterogeneous_neighbourhoods_equal_brute_force(tmp_path: Path) -> None:
    """Two node types, three edge types: full fan-out, then sampled batches, the same for 1 and 3 partitions."""
    from atta.partition import partition_graph
    from atta.partition.graph import GraphWriter

    rng = np.random.default_rng(8)
    counts = {"author": 40, "paper": 70}
    edges = {
        "author__writes__paper": (rng.integers(0, 40, 200), rng.integers(0, 70, 200)),
        "paper__cites__paper": (rng.integers(0, 70, 300), rng.integers(0, 70, 300)),
        "paper__written_by__author": (rng.integers(0, 70, 200), rng.integers(0, 40, 200)),
    }
    with GraphWriter(tmp_path / "graph") as writer:
        for node_type, count in counts.items():
            x = np.full((count, 2), len(node_type), dtype=np.float32) * np.arange(count)[:, None].astype(np.float32)
            splits = {"train": np.arange(0, count, 3)} if node_type == "paper" else {}
            writer.add_nodes(node_type, count, tables={"x": x}, splits=splits)
        for edge_type, (src, dst) in edges.items():
            writer.add_edges(edge_type, src, dst)
    results = []
    for parts in (1, 3):
        partition_graph(tmp_path / "graph", tmp_path / f"parts-{parts}", parts=parts, method="random")
        with atta.local(tmp_path / f"parts-{parts}", threads=1) as cluster:
            full = atta.NeighborLoader(cluster, [-1, -1], ("paper", "train"), batch_size=4)
            for batch in full:
                _check_typed(batch, edges)
            sampled = atta.NeighborLoader(
                cluster, [3, 2], ("paper", "train"), batch_size=4, shuffle=True, seed_policy="global"
            )
            results.append([{e: _typed_edges(b, e) for e in edges} for b in sampled])
            assert set(batch.to_pyg().node_types) == set(counts)
    assert results[0] == results[1]


def _typed_edges(batch: atta.MiniBatch, edge_type: str) -> list[tuple[int, int, int]]:
    source, _, target = edge_type.split("__")
    row, col = batch.edge_index(edge_type)
    e_id = batch.e_id(edge_type)
    assert e_id is not None
    return list(zip(batch.n_id(source)[row].tolist(), batch.n_id(target)[col].tolist(), e_id.tolist(), strict=True))


def _check_typed(batch: atta.MiniBatch, edges: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    known = {"paper": set(batch.n_id("paper")[: batch.batch_size].tolist()), "author": set[int]()}
    frontier = {t: set(v) for t, v in known.items()}
    expected: Counter[tuple[str, int]] = Counter()
    for _ in range(2):
        reached: dict[str, set[int]] = {"paper": set(), "author": set()}
        for edge_type, (src, dst) in edges.items():
            source, _, target = edge_type.split("__")
            for e in np.flatnonzero(np.isin(dst, list(frontier[target]))).tolist():
                expected[edge_type, e] += 1
                reached[source].add(int(src[e]))
        frontier = {t: reached[t] - known[t] for t in known}
        known = {t: known[t] | reached[t] for t in known}
    for node_type, vertices in known.items():
        if node_type in batch.node_types:
            assert set(batch.n_id(node_type).tolist()) == vertices
            scale = np.float32(len(node_type))
            assert np.array_equal(batch.table("x", node_type)[:, 0], scale * batch.n_id(node_type).astype(np.float32))
    assert Counter((t, e) for t in edges for _, _, e in _typed_edges(batch, t)) == expected
