"""Edges as seeds, through real daemons: PyG's attributes, negatives of every kind, and no look-up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atta
from tests.system.conftest import SmallGraph


@pytest.fixture
def cluster(placements: dict[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements["4 parts by metis, 2 threads"]


def some_links(graph: SmallGraph, count: int = 200) -> np.ndarray:
    chosen = np.random.default_rng(3).permutation(len(graph.src))[:count]
    return np.stack([graph.src_ids[chosen], graph.dst_ids[chosen]])


def pairs_of(batch: atta.MiniBatch, ends: np.ndarray) -> list[tuple[int, int]]:
    found = batch.n_id()[ends]
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def test_positives_come_with_their_ends_and_labels(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    links = some_links(small_graph)
    labels = np.arange(200)
    loader = atta.LinkNeighborLoader(cluster, [3, 2], links, edge_label=labels, batch_size=32, shuffle=True, seed=1)
    seen = []
    for batch in loader:
        found = batch.links()
        assert pairs_of(batch, found["edge_label_index"]) == [tuple(p) for p in links[:, batch.input_id].T.tolist()]
        assert np.array_equal(found["edge_label"], labels[batch.input_id])
        seen += batch.input_id.tolist()
        assert np.array_equal(batch.table("x"), small_graph.x[small_graph.rows(batch.n_id())])
    assert sorted(seen) == list(range(200))


@pytest.mark.parametrize("strategy", ["uniform", "degree", "in_batch", "exact"])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives(cluster: atta.LocalCluster, small_graph: SmallGraph, mode: str, strategy: str) -> None:
    links = some_links(small_graph, 300)
    edges = set(zip(small_graph.src_ids.tolist(), small_graph.dst_ids.tolist(), strict=True))
    loader = atta.LinkNeighborLoader(
        cluster, [2], links, batch_size=50, neg_sampling={"mode": mode, "amount": 2, "strategy": strategy}
    )
    drawn: list[tuple[int, int]] = []
    for batch in loader:
        found = batch.links()
        if mode == "binary":
            assert found["edge_label"].tolist() == [1.0] * 50 + [0.0] * 100
            ends = found["edge_label_index"][:, 50:]
            assert pairs_of(batch, found["edge_label_index"][:, :50]) == [tuple(p) for p in links[:, batch.input_id].T]
        else:
            assert found["dst_neg_index"].shape == (50, 2)
            assert pairs_of(batch, np.stack([found["src_index"], found["dst_pos_index"]])) == [
                tuple(p) for p in links[:, batch.input_id].T
            ]
            ends = np.stack([found["src_index"].repeat(2), found["dst_neg_index"].reshape(-1)])
        pairs = pairs_of(batch, ends)
        if strategy == "exact":
            assert all(pair not in edges and pair[0] != pair[1] for pair in pairs)
        if strategy == "in_batch":
            assert {t for _, t in pairs} <= set(links[1, batch.input_id].tolist())
        drawn += pairs
        # The batch also has everything that a model needs of a negative's ends.
        assert batch.num_sampled_nodes()[0] == len({v for p in pairs_of(batch, ends) for v in p} | set(
            links[:, batch.input_id].reshape(-1).tolist()
        ))  # fmt: skip
    assert len(drawn) == 600


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weight_attr": "weight"}])
def test_seed_edges_are_left_out_after_drawing(
    cluster: atta.LocalCluster, small_graph: SmallGraph, options: dict[str, Any]
) -> None:
    """The documents' rule for the fan-out: a vertex gets its draws less the edges left out."""
    hub = int(np.bincount(small_graph.dst).argmax())
    into = np.flatnonzero(small_graph.dst == hub)[:20]
    links = np.stack([small_graph.src_ids[into], small_graph.dst_ids[into]])
    excluding, plain = (
        atta.LinkNeighborLoader(cluster, [6], links, batch_size=20, seed=3, exclude_edges=exclude, **options)
        for exclude in ("self", None)
    )
    hidden, fewer = {tuple(pair) for pair in links.T.tolist()}, 0
    for _ in range(20):
        left, drawn = (pairs_of(batch, batch.edge_index()) for (batch,) in (excluding, plain))
        assert left == [pair for pair in drawn if pair not in hidden]
        fewer += len(drawn) - len(left)
    assert fewer > 0


@pytest.mark.parametrize("amount", [1, 3])
def test_trees_of_triplets_are_those_of_pyg(cluster: atta.LocalCluster, small_graph: SmallGraph, amount: int) -> None:
    """One for each end of a positive and for each negative target, and no others; all have the time of the positive."""
    links, times = some_links(small_graph, 50), np.random.default_rng(2).integers(0, 50, 50)
    negatives = {"mode": "triplet", "amount": amount}
    for batch in atta.LinkNeighborLoader(
        cluster, [-1, 2], links, batch_size=20, neg_sampling=negatives, edge_label_time=times, time_attr="time",
        exclude_edges=None,
    ):  # fmt: skip
        size, data, e_id = batch.batch_size, batch.to_pyg(), batch.e_id()
        negative = data.dst_neg_index.reshape(size, amount).T.ravel()
        roots = np.concatenate([data.src_index, data.dst_pos_index, negative])
        assert roots.tolist() == list(range((2 + amount) * size))
        assert data.n_id[roots[: 2 * size]].tolist() == links[:, batch.input_id].ravel().tolist()
        assert data.batch[roots].tolist() == list(range(size)) * (2 + amount)
        assert batch.num_sampled_nodes()[0] == len(roots)
        of_tree = times[batch.input_id][data.batch[data.edge_index[1]]]
        assert (small_graph.edge_time[e_id] <= of_tree).all()
        known = small_graph.edge_time[None] <= times[batch.input_id][:, None]
        of_roots = zip(data.batch[roots].tolist(), data.n_id[roots].tolist(), strict=True)
        expected = [(known[seed] & (small_graph.dst_ids == root)).sum() for seed, root in of_roots]
        assert np.bincount(data.edge_index[1], minlength=len(roots))[: len(roots)].tolist() == expected
