"""Real daemons: a batch does not depend on how the graph is cut, and equals the result of independent code."""

from __future__ import annotations

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


def test_edges_are_viewed_where_the_daemon_wrote_them(pair: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In shared memory, ids are as wide as PyTorch wants. Over a network they are narrow, and the client widens them."""
    for shared in (True, False):
        batch = next(iter(atta.NeighborLoader(pair, [4, 3], batch_size=16)))
        edges, e_id = batch.edge_index(), batch.e_id()
        assert edges.dtype == e_id.dtype == np.int64
        assert edges.shape == (2, len(e_id)) == (2, batch.num_edges)
        assert np.shares_memory(edges[1], batch._raw.arrays["col/" + batch.edge_types[0]]) == shared
        assert np.shares_memory(e_id, batch._raw.arrays["e_id/" + batch.edge_types[0]]) == shared
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another machine")


def test_epochs_and_seeds_change_the_samples(pair: atta.LocalCluster) -> None:
    loader = atta.NeighborLoader(pair, [2, 2], batch_size=32, seed=1)
    first, second = ([edges_of(b) for b in loader] for _ in range(2))
    assert first != second
    loader.set_epoch(0)
    assert [edges_of(b) for b in loader] == first
    assert [edges_of(b) for b in atta.NeighborLoader(pair, [2, 2], batch_size=32, seed=2)] != first
