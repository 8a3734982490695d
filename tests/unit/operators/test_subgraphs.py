"""Subgraphs, layers, walks, PinSAGE and PageRank against brute force, networkx, exact probabilities and native code."""

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

from atta.samplers.local.walks import pagerank, pinsage_neighbors, random_walks
from atta.samplers.operators import (
    FastGcn,
    Induced,
    Ladies,
    PageRank,
    PinSage,
    SaintEdges,
    SaintNodes,
    SaintWalks,
    Sampled,
    Shadow,
    Walks,
    draws,
    subgraphs,
)
from atta.samplers.operators.draws import draw, draw_edges, streams, unit, walk
from atta.samplers.requests import Degrees, Expand, LocalAccess, run
from tests.unit.operators.oracles import Graph, PlainAccess, graphs, random_graph


@given(graph=graphs(), seed=st.integers(0, 10_000))
def test_induced_has_all_edges_among_the_seeds(graph: Graph, seed: int) -> None:
    seeds = graph.some(seed)
    sampled = graph.sample(Induced(), seeds)
    assert sampled.vertices.tolist() == seeds
    assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(seeds)
    assert (np.diff(sampled.col) >= 0).all()


@given(graph=graphs(), depth=st.integers(0, 4), seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_full_shadow_is_networkx_ego_graph(graph: Graph, depth: int, seed: int) -> None:
    seeds = graph.some(seed)
    sampled = graph.sample(Shadow(depth, -1), seeds)
    for tree, vertex in enumerate(seeds):
        mine = sampled.vertices[sampled.trees == tree]
        assert set(mine.tolist()) == set(nx.ego_graph(graph.against, vertex, radius=depth))
        edges = sampled.edge_ids[sampled.trees[sampled.col] == tree]
        assert sorted(edges.tolist()) == graph.edges_among(mine)


def test_shadow_follows_the_neighbours_that_each_tree_draws(seed: int) -> None:
    graph = random_graph(seed, 200, 6000)
    sampled = graph.sample(Shadow(2, 3), np.arange(0, 200, 4))
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
    for s, d in graph.pairs:
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
    for s, d in graph.pairs:
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
    near = set().union(*(nx.ego_graph(graph.against, int(r), radius=4) for r in roots))
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
    for s, d in graph.pairs:
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
    targets = graph.some(seed)
    sampled = graph.sample(Ladies(tuple(sizes)), targets, seed)
    for size, layer in zip(sizes, layers_of(sampled), strict=True):
        weight = importances(graph, targets)
        row, col = sampled.row[layer], sampled.col[layer]
        chosen = set(sampled.vertices[row].tolist())
        assert len(chosen) == min(size, len(weight))
        assert (col < len(targets)).all()
        expected = [i for i, (s, d) in enumerate(graph.pairs) if s in chosen and d in targets]
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
    for i, layer in enumerate(layers_of(sampled)):
        draws, _ = run(draw_edges(batch, sizes[i], batch.key("fastgcn", i), power=2), LocalAccess(graph.local))
        drawn, col = set(draws.tolist()), sampled.col[layer]
        between = [e for e, (s, d) in enumerate(graph.pairs) if s in drawn and d in targets]
        assert sorted(sampled.edge_ids[layer].tolist()) == between
        for target in set(col.tolist()):
            mine = col == target
            assert sampled.extra["weight"][layer][mine] == pytest.approx(1.0 / mine.sum())
        targets += sorted(drawn - set(targets), key=lambda v: int(graph.keys[v]))
    assert sampled.vertices.tolist() == targets


BIASES: list[dict[str, Any]] = [
    {},
    {"restart": 0.4},
    {"p": 0.25, "q": 4.0},
    {"p": 4.0, "q": 0.25, "restart": 0.2},
    {"p": 3.0, "q": 1.0},
    {"p": 1e-9, "q": 1e8},  # almost every proposal is rejected, so neighbours are weighed
    {"p": 1e8, "q": 1e8},
]


def walked(graph: Graph, starts: np.ndarray, length: int, key: int, **options: float) -> np.ndarray:
    return run(walk(starts, graph.keys[starts], length, stream_key=key, **options), LocalAccess(graph.local))


@given(graph=graphs(), key=st.integers(0, 2**64 - 1), options=st.sampled_from(BIASES), length=st.integers(0, 6))
@settings(max_examples=100)
def test_walks_equal_the_native_ones(graph: Graph, key: int, options: dict[str, float], length: int) -> None:
    starts = np.arange(graph.nodes)
    native = random_walks(graph.local, starts, length, stream_key=key, **options)
    assert np.array_equal(walked(graph, starts, length, key, **options), native)


def test_neighbours_are_weighed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, starts = random_graph(1, 60, 900), np.arange(60).repeat(4)
    native = random_walks(graph.local, starts, 4, stream_key=5, p=1e-9, q=1e8)
    monkeypatch.setattr(draws, "_TOGETHER", 100)
    access = PlainAccess(graph)
    mine = run(walk(starts, graph.keys[starts], 4, stream_key=5, p=1e-9, q=1e8), access)
    assert np.array_equal(mine, native)
    assert access.asked[Degrees] > 0  # few edges lead back, and almost all other proposals are rejected
    assert access.asked[Expand] > 4 * access.asked[Degrees]


def test_draws_are_those_of_the_native_code() -> None:
    from atta import _native

    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15
    keys = np.array([0, 5, -(2**62), 2**62])
    for key in (0, 1, 2**64 - 1):
        bases = [_native.mix64(key ^ _native.mix64(k & mask)) for k in keys.tolist()]
        for index in (0, 1, 2, 1000):
            expected = [_native.mix64((base + index * golden) & mask) for base in bases]
            assert draw(streams(key, keys), index).tolist() == expected
            assert unit(draw(streams(key, keys), index)).tolist() == [(b >> 11) * 2.0**-53 for b in expected]


def test_walks_are_positions_of_vertices(seed: int) -> None:
    graph, seeds = random_graph(seed), np.array([29, 4, 17])
    sampled = graph.sample(Walks(5, q=2.0, restart=0.1), seeds)
    walks = sampled.extra["walks"]
    key = graph.batch(seeds).key("walks")
    native = random_walks(graph.local, seeds, 5, q=2.0, restart=0.1, stream_key=key)
    assert np.array_equal(np.where(walks >= 0, sampled.vertices[walks], -1), native)
    assert set(sampled.vertices.tolist()) == set(native[native >= 0].tolist())
    assert walks[:, 0].tolist() == [0, 1, 2]
    assert (walks[0, 1:] <= 0).all()  # 29 has no in-edges: its walkers can only restart


@pytest.mark.parametrize("options", [{"count": 3}, {"count": 50, "walks": 30, "length": 4, "restart": 0.1}])
def test_pinsage_equals_the_native_one(options: dict[str, Any], seed: int) -> None:
    graph, seeds = random_graph(seed, 80, 700), np.random.default_rng(seed).permutation(80)[:30]
    sampled = graph.sample(PinSage(**options), seeds)
    arguments = {**options, "stream_key": graph.batch(seeds).key("pinsage")}
    counts, vertices, visits = pinsage_neighbors(graph.local, seeds, **arguments)
    assert np.array_equal(np.bincount(sampled.col, minlength=30), counts)
    assert np.array_equal(sampled.vertices[sampled.row], vertices)
    assert np.array_equal(sampled.extra["weight"], visits)
    assert (sampled.edge_ids == -1).all()
    assert (np.diff(sampled.col) >= 0).all()


def test_pagerank_is_within_its_bound_of_networkx(seed: int) -> None:
    graph = random_graph(seed)
    exact = np.zeros((30, 30))
    for s in range(30):
        # Where a walker is stuck, networkx lets it return by the same personalisation.
        found = nx.pagerank(graph.against, alpha=0.8, personalization={s: 1.0}, tol=1e-13, max_iter=1000)
        exact[s, list(found)] = list(found.values())
    for epsilon in (1e-2, 1e-4, 1e-11):
        sampled = graph.sample(PageRank(30, 0.2, epsilon), np.arange(30))
        mine = np.zeros((30, 30))
        mine[sampled.col, sampled.vertices[sampled.row]] = sampled.extra["weight"]
        kept_back = epsilon * np.maximum(1, graph.degree).sum()
        assert (mine <= exact + 1e-10).all()
        assert (mine >= exact - kept_back - 1e-10).all()
        native = pagerank(graph.local, np.arange(30), 30, alpha=0.2, epsilon=epsilon)
        theirs = np.zeros((30, 30))
        theirs[np.repeat(np.arange(30), native[0]), native[1]] = native[2]
        assert np.abs(mine - theirs).max() <= kept_back + 1e-10


def test_pagerank_keeps_the_best(seed: int) -> None:
    graph, seeds = random_graph(seed, 50, 300), np.array([7, 49, 3])
    everything, few = graph.sample(PageRank(50), seeds), graph.sample(PageRank(4), seeds)
    for position in range(3):
        mine, best = everything.col == position, few.col == position
        scores, vertices = everything.extra["weight"][mine], everything.vertices[everything.row[mine]]
        order = np.lexsort((graph.keys[vertices], -scores))
        assert np.array_equal(order, np.arange(len(scores)))
        assert np.array_equal(few.vertices[few.row[best]], vertices[:4])
        assert np.array_equal(few.extra["weight"][best], scores[:4])
    assert few.row[few.col == 1].tolist() == [1]  # 49 has no in-edges: its walkers never leave it
    assert few.extra["weight"][few.col == 1] == pytest.approx(1.0, abs=1e-3)
