"""Edges as seeds, through real daemons: PyG's attributes, negatives of every kind, and no look-up by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

import atta
from tests.system.conftest import SmallGraph


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(3, "metis"), threads=2) as made:
        yield made


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
        order = np.argsort(small_graph.ids)
        rows = order[np.searchsorted(small_graph.ids[order], batch.n_id())]
        assert np.array_equal(batch.table("x"), small_graph.x[rows])
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
    if mode == "triplet" or strategy in ("degree", "in_batch"):
        return
    seen = np.bincount(np.searchsorted(np.sort(small_graph.ids), [t for _, t in drawn]), minlength=300)
    if strategy == "uniform":
        assert stats.chisquare(seen).pvalue > 1e-5


def test_degree_negatives_follow_the_degrees(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    links = some_links(small_graph, 500)
    loader = atta.LinkNeighborLoader(
        cluster, [], links, batch_size=500, neg_sampling=atta.NegativeSampling("triplet", 40, "degree")
    )
    (batch,) = loader
    targets = batch.n_id()[batch.links()["dst_neg_index"].reshape(-1)]
    ranks = np.sort(small_graph.ids)
    degree = np.bincount(np.searchsorted(ranks, small_graph.dst_ids), minlength=300)
    chance = degree**0.75 / (degree**0.75).sum()
    seen = np.bincount(np.searchsorted(ranks, targets), minlength=300)
    assert (seen[degree == 0] == 0).all()
    likely = chance > 5 / seen.sum()
    expected = chance[likely] / chance[likely].sum() * seen[likely].sum()
    assert stats.chisquare(seen[likely], expected).pvalue > 1e-5


@pytest.mark.parametrize("exclude", [None, "self", "reverse"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_seed_edges_cannot_be_looked_up(
    cluster: atta.LocalCluster, small_graph: SmallGraph, exclude: str | None, disjoint: bool
) -> None:
    links = some_links(small_graph, 120)
    loader = atta.LinkNeighborLoader(
        cluster, [-1, -1], links, batch_size=40, exclude_edges=exclude, disjoint=disjoint, neg_sampling="binary"
    )
    by_pair: dict[tuple[int, int], int] = {}
    for pair in zip(small_graph.src_ids.tolist(), small_graph.dst_ids.tolist(), strict=True):
        by_pair[pair] = by_pair.get(pair, 0) + 1
    leaks = 0
    for batch in loader:
        n_id = batch.n_id()
        row, col = batch.edge_index()
        sampled = list(zip(n_id[row].tolist(), n_id[col].tolist(), strict=True))
        positives = {tuple(p) for p in links[:, batch.input_id].T.tolist()}
        hidden = positives | ({(t, s) for s, t in positives} if exclude == "reverse" else set())
        leaks += len(hidden & set(sampled))
        # All other edges are there as before: full neighbourhoods miss nothing else.
        reached = {int(n_id[c]) for c in col}
        expected = {p for p in by_pair if p[1] in reached and (exclude is None or p not in hidden)}
        assert set(sampled) == expected
    assert leaks == 0 if exclude else leaks > 50


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weight_attr": "weight"}])
def test_seed_edges_are_left_out_after_drawing(
    cluster: atta.LocalCluster, small_graph: SmallGraph, options: dict[str, Any]
) -> None:
    """The documents' rule for the fan-out: a vertex gets its draws less the edges left out, on average c / d fewer."""
    fan_out, epochs = 6, 150
    degree = np.bincount(small_graph.dst, minlength=300)
    hub, leaf = int(degree.argmax()), int(np.flatnonzero(degree == 3)[0])
    into = [np.flatnonzero(small_graph.dst == v) for v in (hub, leaf)]
    links = np.concatenate([[small_graph.src_ids[e], small_graph.dst_ids[e]] for e in (into[0][:20], into[1][:1])], 1)
    settings: dict[str, Any] = {"batch_size": 21, "seed": 3, **options}
    excluding, plain = (
        atta.LinkNeighborLoader(cluster, [fan_out], links, exclude_edges=exclude, **settings)
        for exclude in ("self", None)
    )
    hidden = {tuple(pair) for pair in links.T.tolist()}
    gone = {v: sum((s, t) in hidden for s, t in zip(small_graph.src_ids[into[i]], small_graph.dst_ids[into[i]],
                                                     strict=True)) for i, v in enumerate((hub, leaf))}  # fmt: skip
    left: list[int] = []
    for _ in range(epochs):
        (fewer,), (drawn,) = excluding, plain
        found = [pairs_of(batch, batch.edge_index()) for batch in (fewer, drawn)]
        assert found[0] == [pair for pair in found[1] if pair not in hidden]
        left.append(sum(target == small_graph.ids[hub] for _, target in found[0]))
        if not options:  # all three in-edges are drawn
            assert sum(target == small_graph.ids[leaf] for _, target in found[0]) == 3 - gone[leaf]
    if options.get("weight_attr"):
        return
    share = gone[hub] / degree[hub]
    assert min(left) >= fan_out - gone[hub]
    deviation = np.sqrt(fan_out * share * (1 - share) / epochs)
    assert abs(np.mean(left) - fan_out * (1 - share)) < 5 * deviation


def test_links_do_not_depend_on_partitions(small_graph: SmallGraph, placements: dict[str, atta.LocalCluster]) -> None:
    links, times = some_links(small_graph), np.random.default_rng(1).integers(0, 50, 200)
    settings: list[dict[str, Any]] = [
        {"neg_sampling": {"mode": "triplet", "amount": 2, "strategy": "exact"}},
        {"neg_sampling": {"mode": "binary", "amount": 1.5, "strategy": "degree"}},
        {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": times},
        {"neg_sampling": "triplet", "time_attr": "time", "edge_label_time": times, "temporal_strategy": "last"},
    ]
    results = []
    for made in placements.values():
        found = []
        for options in settings:
            loader = atta.LinkNeighborLoader(
                made, [3, 2], links, batch_size=32, shuffle=True, seed_policy="global", seed=4, **options
            )
            for batch in loader:
                found.append([a.tolist() for _, a in sorted(batch.links().items())])
                found.append([batch.n_id().tolist(), batch.edge_index().tolist(), batch.e_id().tolist()])
                if "time_attr" in options:
                    tree, count = batch.tree(), batch.batch_size
                    of_tree = np.tile(times[batch.input_id], 4)[tree[batch.edge_index()[1]]]
                    assert len(tree) >= 3 * count
                    assert (small_graph.edge_time[batch.e_id()] <= of_tree).all()
        results.append(found)
    assert all(found == results[0] for found in results)


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


def test_to_pyg_has_pyg_names(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    links = some_links(small_graph, 30)
    binary = next(iter(atta.LinkNeighborLoader(cluster, [2], links, batch_size=30, neg_sampling="binary"))).to_pyg()
    assert binary.edge_label_index.shape == (2, 60)
    assert binary.edge_label.sum() == 30
    triplet = next(
        iter(
            atta.LinkNeighborLoader(
                cluster,
                [2],
                links,
                batch_size=30,
                neg_sampling="triplet",
                disjoint=True,
                edge_tables=["note", "weight"],
            )
        )
    ).to_pyg()
    assert triplet.src_index.shape == triplet.dst_pos_index.shape == triplet.dst_neg_index.shape == (30,)
    assert len(triplet.batch) == triplet.num_nodes
    assert np.array_equal(triplet.edge_note.numpy(), small_graph.note[triplet.e_id.numpy()])
    assert np.array_equal(triplet.edge_weight.numpy(), small_graph.edge_weight[triplet.e_id.numpy()])


@pytest.mark.parametrize(
    ("links", "options", "words"),
    [
        (np.zeros((3, 2), np.int64), {}, r"integers \[2, E\]"),
        (np.zeros((2, 3)), {}, r"must be integers, not float64"),
        (np.array([[-5], [-6]]), {}, "-[56] is not a vertex"),
        (None, {"edge_label": [1]}, "1 labels for 200"),
        (None, {"edge_label_time": [1]}, "200 integers"),
        (None, {"edge_label_time": np.zeros(200, np.int64)}, "no other has a use"),
        (None, {"time_attr": "time"}, "needs their times"),
        (None, {"neg_sampling": "ternary"}, "ternary"),
        (None, {"neg_sampling": {"mode": "triplet", "amount": 1.5}}, "whole number"),
        (None, {"neg_sampling": {"mode": "binary", "amount": 0}}, "above 0"),
        (None, {"neg_sampling": {"mode": "binary", "strategy": "best"}}, "best"),
        (None, {"neg_sampling": {"kind": "binary"}}, "unknown kind"),
        (None, {"exclude_edges": "all"}, "all"),
        (None, {"reverse_type": "node__from__node"}, "node__from__node"),
        (None, {"method": "labor", "weight_attr": "weight"}, "one way"),
    ],
)
def test_mistakes_are_named(
    cluster: atta.LocalCluster, small_graph: SmallGraph, links: Any, options: dict[str, Any], words: str
) -> None:
    links = some_links(small_graph) if links is None else links
    with pytest.raises((atta.ConfigError, atta.UnknownNameError), match=words):
        next(iter(atta.LinkNeighborLoader(cluster, [2], links, **options)))
