"""Subgraphs of GraphSAINT and ShaDow, layers of LADIES and FastGCN: against brute force, networkx and exact probabilities."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atta.samplers.operators import (
    FastGcn,
    Induced,
    Ladies,
    SaintEdges,
    SaintNodes,
    SaintWalks,
    Sampled,
    Shadow,
    subgraphs,
)
from atta.samplers.operators.draws import draw_edges
from atta.samplers.requests import LocalAccess, run
from tests.unit.operators.oracles import Graph, graphs, random_graph


@given(graph=graphs(), seed=st.integers(0, 10_000))
def test_induced_has_all_edges_among_the_seeds(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seeds = rng.permutation(graph.nodes)[: rng.integers(0, graph.nodes + 1)]
    sampled = graph.sample(Induced(), seeds)
    assert sampled.vertices.tolist() == seeds.tolist()
    assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(seeds)
    assert (np.diff(sampled.col) >= 0).all()


@given(graph=graphs(), depth=st.integers(0, 4), seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_full_shadow_is_networkx_ego_graph(graph: Graph, depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seeds = rng.permutation(graph.nodes)[: rng.integers(0, graph.nodes + 1)]
    against = nx.MultiDiGraph()
    against.add_nodes_from(range(graph.nodes))
    against.add_edges_from(zip(graph.dst.tolist(), graph.src.tolist(), strict=True))
    sampled = graph.sample(Shadow(depth, -1), seeds)
    assert sampled.trees is not None
    for tree, vertex in enumerate(seeds.tolist()):
        mine = sampled.vertices[sampled.trees == tree]
        assert set(mine.tolist()) == set(nx.ego_graph(against, vertex, radius=depth))
        edges = sampled.edge_ids[sampled.trees[sampled.col] == tree]
        assert sorted(edges.tolist()) == graph.edges_among(mine)


def test_shadow_follows_the_neighbours_that_each_tree_draws(seed: int) -> None:
    graph = random_graph(seed, 200, 6000)
    sampled = graph.sample(Shadow(2, 3), np.arange(0, 200, 4))
    assert sampled.trees is not None
    sizes = np.bincount(sampled.trees)
    assert (sizes <= 1 + 3 + 9).all()
    assert sizes.mean() > 9
    for tree in range(50):
        mine = sampled.vertices[sampled.trees == tree]
        assert sorted(sampled.edge_ids[sampled.trees[sampled.col] == tree].tolist()) == graph.edges_among(mine)


def test_shadow_draws_uniformly_and_for_each_tree_anew() -> None:
    # Vertex 0 has ten in-neighbours and is the only in-neighbour of 11 ... 210, so all their trees pass through it.
    others = np.arange(11, 211)
    src = np.concatenate([np.arange(1, 11), np.zeros(200, np.int64)])
    dst = np.concatenate([np.zeros(10, np.int64), others])
    graph = Graph(src, dst, np.random.default_rng(0).permutation(211))
    seen: Counter[int] = Counter()
    for number in range(20):
        sampled = graph.sample(Shadow(2, 1), others, number)
        assert len(sampled.vertices) == 600
        seen.update(sampled.vertices[400:].tolist())
    assert sorted(seen) == list(range(1, 11))
    assert stats.chisquare(list(seen.values())).pvalue > 1e-6


def test_trees_in_pieces_equal_trees_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, seeds = random_graph(3, 100, 3000), np.arange(40)
    whole = graph.sample(Shadow(2, 4), seeds)
    monkeypatch.setattr(subgraphs, "_TOGETHER", 50)
    pieces = graph.sample(Shadow(2, 4), seeds)
    for name in ("vertices", "row", "col", "edge_ids", "trees"):
        assert np.array_equal(getattr(whole, name), getattr(pieces, name))


@pytest.mark.parametrize("power", [1, 2])
def test_edges_are_drawn_with_their_probabilities(power: int) -> None:
    graph = random_graph(4)
    batch, count = graph.batch([]), 40_000
    sources, targets = run(draw_edges(batch, count, 99, power=power), LocalAccess(graph.local))
    assert len(sources) == len(targets) == count
    chance: defaultdict[tuple[int, int], float] = defaultdict(float)
    for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        chance[s, d] += 1.0 / int(graph.degree[d]) ** power
    seen = Counter(zip(sources.tolist(), targets.tolist(), strict=True))
    assert seen.keys() <= chance.keys()
    total = sum(chance.values())
    expected = np.array(list(chance.values())) / total * count
    assert stats.chisquare([seen[edge] for edge in chance], expected).pvalue > 1e-6
    few, _ = run(draw_edges(batch, 100, 99, power=power), LocalAccess(graph.local))
    assert np.array_equal(few, sources[:100])  # draws do not depend on the requested number


def test_saint_nodes_join_by_column_norms() -> None:
    graph, rounds, budget = random_graph(5), 2500, 3
    chance = graph.norms / graph.norms.sum()
    seen = np.zeros(30)
    for number in range(rounds):
        sampled = graph.sample(SaintNodes(budget), [], number)
        seen[sampled.vertices] += 1
        assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(sampled.vertices)
    joins = 1 - (1 - chance) ** budget
    spread = np.sqrt(rounds * joins * (1 - joins)) + 1e-9
    assert (seen[chance == 0] == 0).all()
    assert (np.abs(seen - rounds * joins) <= 5.5 * spread + 1).all()


def test_saint_edges_of_undirected_graphs_are_those_of_the_paper() -> None:
    graph, rounds = random_graph(6, 12, 30, both=True), 3000
    degree = graph.degree
    chance: defaultdict[frozenset[int], float] = defaultdict(float)
    for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        chance[frozenset((s, d))] += 1.0 / int(degree[s]) + 1.0 / int(degree[d])
    seen: Counter[frozenset[int]] = Counter()
    for number in range(rounds):
        sampled = graph.sample(SaintEdges(1), [], number)
        seen[frozenset(sampled.vertices.tolist())] += 1
        assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(sampled.vertices)
    assert seen.keys() <= chance.keys()
    expected = np.array(list(chance.values())) / sum(chance.values()) * rounds
    assert stats.chisquare([seen[ends] for ends in chance], expected).pvalue > 1e-6


def test_saint_walks_touch_what_their_walks_touch(seed: int) -> None:
    graph = random_graph(seed)
    roots = np.array([3, 29, 11])
    sampled = graph.sample(SaintWalks(4), roots)
    assert 3 <= len(sampled.vertices) <= 3 + 2 * 4  # 29 has no in-edges
    assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(sampled.vertices)
    reached = nx.DiGraph(list(zip(graph.dst.tolist(), graph.src.tolist(), strict=True)))
    reached.add_nodes_from(range(30))
    near = set().union(*(nx.ego_graph(reached, int(r), radius=4) for r in roots))
    assert set(sampled.vertices.tolist()) <= near


def test_saint_without_seeds_and_where_draws_hardly_ever_succeed() -> None:
    graph = random_graph(7)
    for operator in (SaintNodes(4), SaintEdges(4)):
        alone, given_some = graph.sample(operator, []), graph.sample(operator, [5, 2])
        assert given_some.vertices[:2].tolist() == [5, 2]
        assert set(given_some.vertices.tolist()) == {5, 2, *alone.vertices.tolist()}
    hub = Graph(np.arange(1, 5001), np.zeros(5000, np.int64), np.arange(5001))  # 1 / 5001 x 1 / 5000 per candidate
    assert len(hub.sample(SaintNodes(10), []).vertices) < 10
    assert 2 <= len(hub.sample(SaintEdges(10), []).vertices) <= 11


def importances(graph: Graph, targets: Any) -> dict[int, float]:
    """LADIES' weights of the in-neighbours of ``targets``, edge by edge."""
    found: dict[int, float] = {}
    for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        if d in targets:
            found[s] = found.get(s, 0.0) + 1.0 / int(graph.degree[d]) ** 2
    return found


def layers_of(sampled: Sampled) -> list[slice]:
    ends = np.cumsum(sampled.extra["layer_edges"]).tolist()
    assert ends[-1] == len(sampled.row)
    return [slice(a, b) for a, b in itertools.pairwise([0, *ends])]


@given(graph=graphs(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_ladies_by_brute_force(graph: Graph, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.permutation(graph.nodes)[: rng.integers(0, graph.nodes + 1)].tolist()
    sampled = graph.sample(Ladies(tuple(sizes)), targets, seed)
    for size, layer in zip(sizes, layers_of(sampled), strict=True):
        weight = importances(graph, targets)
        row, col = sampled.row[layer], sampled.col[layer]
        chosen = set(sampled.vertices[row].tolist())
        assert len(chosen) == min(size, len(weight))
        assert (col < len(targets)).all()
        pairs = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        expected = [i for i, (s, d) in enumerate(pairs) if s in chosen and d in targets]
        assert sorted(sampled.edge_ids[layer].tolist()) == expected
        pull = np.array([1.0 / weight[int(u)] for u in sampled.vertices[row]])
        for target in set(col.tolist()):
            mine = col == target
            assert sampled.extra["weight"][layer][mine] == pytest.approx(pull[mine] / pull[mine].sum(), rel=1e-6)
        targets += sorted(chosen - set(targets), key=lambda v: int(graph.keys[v]))
    assert sampled.vertices.tolist() == targets


def successive(weight: dict[int, float], count: int) -> dict[frozenset[int], float]:
    """Probabilities of the sets that come from drawing one after another, ∝ weight among the rest."""
    found: defaultdict[frozenset[int], float] = defaultdict(float)
    for order in itertools.permutations(weight, count):
        left, chance = sum(weight.values()), 1.0
        for vertex in order:
            chance *= weight[vertex] / left
            left -= weight[vertex]
        found[frozenset(order)] += chance
    return dict(found)


def test_ladies_draws_by_importance_without_replacement() -> None:
    graph = random_graph(2, 8, 26)
    targets, rounds = [0, 3, 4], 4000
    for count in (1, 2):
        chance = successive(importances(graph, targets), count)
        seen: Counter[frozenset[int]] = Counter()
        for number in range(rounds):
            sampled = graph.sample(Ladies((count,)), targets, number)
            seen[frozenset(sampled.vertices[sampled.row].tolist())] += 1
        assert seen.keys() <= chance.keys()
        assert sum(chance.values()) == pytest.approx(1.0)
        expected = np.array(list(chance.values())) * rounds
        assert stats.chisquare([seen[some] for some in chance], expected).pvalue > 1e-6


def test_fastgcn_layers_by_brute_force(seed: int) -> None:
    graph, targets, sizes = random_graph(seed, 60, 500), [3, 59, 10], (20, 30)
    sampled, batch = graph.sample(FastGcn(sizes), targets), graph.batch(targets)
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    for i, layer in enumerate(layers_of(sampled)):
        draws, _ = run(draw_edges(batch, sizes[i], batch.key("fastgcn", i), power=2), LocalAccess(graph.local))
        drawn, col = set(draws.tolist()), sampled.col[layer]
        between = [e for e, (s, d) in enumerate(pairs) if s in drawn and d in targets]
        assert sorted(sampled.edge_ids[layer].tolist()) == between
        for target in set(col.tolist()):
            mine = col == target
            assert sampled.extra["weight"][layer][mine] == pytest.approx(1.0 / mine.sum())
        targets += sorted(drawn - set(targets), key=lambda v: int(graph.keys[v]))
    assert sampled.vertices.tolist() == targets
