"""Walks and PageRank against enumeration, networkx and brute force."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from atta.errors import ConfigError
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.walks import pagerank, pinsage_neighbors, random_walks


def some_graph(seed: int, nodes: int = 30, edges: int = 150) -> tuple[LocalGraph, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, edges), rng.integers(0, nodes - 3, edges)
    keys = rng.permutation(1000)[:nodes]
    return LocalGraph.from_edges(src, dst, nodes, keys=keys), src, dst


def test_walks_follow_edges_and_end_where_there_are_none(seed: int) -> None:
    graph, src, dst = some_graph(seed)
    edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    starts = np.arange(30).repeat(5)
    for options in ({}, {"p": 0.25, "q": 4.0}):
        paths = random_walks(graph, starts, 6, stream_key=seed, **options)
        assert np.array_equal(paths[:, 0], starts)
        for path in paths.tolist():
            for at, then in itertools.pairwise(path):
                if at == -1:
                    assert then == -1
                elif then == -1:
                    assert graph.indptr[at] == graph.indptr[at + 1]
                else:
                    assert (then, at) in edges
        assert np.array_equal(paths, random_walks(graph, starts, 6, stream_key=seed, threads=2, **options))


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (8.0, 0.125)])
def test_second_step_has_node2vec_probabilities(p: float, q: float) -> None:
    rng = np.random.default_rng(5)
    graph = nx.gnp_random_graph(9, 0.5, seed=2)
    pairs = np.array([(a, b) for a, b in graph.edges] + [(b, a) for a, b in graph.edges])
    local = LocalGraph.from_edges(pairs[:, 0], pairs[:, 1], 9, keys=rng.permutation(9))
    count = 60_000
    paths = random_walks(local, np.zeros(count, np.int64), 2, p=p, q=q, stream_key=9)
    for middle in graph[0]:
        mine = paths[paths[:, 1] == middle]
        ends = sorted(graph[middle])
        weight = np.array([1 / p if e == 0 else 1.0 if graph.has_edge(e, 0) else 1 / q for e in ends])
        seen = np.array([(mine[:, 2] == e).sum() for e in ends])
        assert seen.sum() == len(mine)
        assert stats.chisquare(seen, weight / weight.sum() * len(mine)).pvalue > 1e-6
    firsts = np.array([(paths[:, 1] == m).sum() for m in graph[0]])
    assert stats.chisquare(firsts).pvalue > 1e-6


def test_restarts_and_extreme_bias() -> None:
    ring = LocalGraph.from_edges(np.arange(50), np.roll(np.arange(50), -1), 50)
    paths = random_walks(ring, np.full(20_000, 7), 1, restart=0.3, stream_key=3)
    assert stats.binomtest(int((paths[:, 1] == 7).sum()), 20_000, 0.3).pvalue > 1e-6
    # From 0 over 1: first all steps but the way back have almost no weight, then all but the way out.
    star = LocalGraph.from_edges([0, 1, 1, 2, 1, 3], [1, 0, 2, 1, 3, 1], 4)
    back = random_walks(star, np.zeros(200, np.int64), 2, p=1e-9, stream_key=1)
    assert (back[:, 2] == 0).all()
    away = random_walks(star, np.zeros(200, np.int64), 2, p=1e9, stream_key=1)
    assert (away[:, 2] != 0).all()


def test_pinsage_counts_visits(seed: int) -> None:
    graph, _, _ = some_graph(seed)
    seeds = np.array([3, 29, 3, 11])  # 29 has no in-edges
    counts, vertices, visits = pinsage_neighbors(graph, seeds, 4, walks=20, length=3, stream_key=seed)
    paths = random_walks(graph, seeds.repeat(20), 3, restart=0.5, stream_key=seed).reshape(4, 20, 4)
    at = 0
    for i, vertex in enumerate(seeds):
        places = paths[i, :, 1:].reshape(-1)
        found = {int(v): int((places == v).sum()) for v in np.unique(places) if v not in (-1, vertex)}
        best = sorted(found, key=lambda v: (-found[v], graph.keys[v]))[:4]
        assert vertices[at : at + counts[i]].tolist() == best
        assert visits[at : at + counts[i]].tolist() == [found[v] for v in best]
        at += int(counts[i])
    assert counts[1] == 0


def test_pagerank_equals_networkx(seed: int) -> None:
    graph, src, dst = some_graph(seed)
    walker = nx.MultiDiGraph()
    walker.add_nodes_from(range(30))
    walker.add_edges_from(zip(dst.tolist(), src.tolist(), strict=True))  # a walker goes against the edges
    counts, vertices, scores = pagerank(graph, np.arange(30), 30, alpha=0.2, epsilon=1e-10)
    at = 0
    for s in range(30):
        want = nx.pagerank(walker, alpha=0.8, personalization={s: 1.0}, tol=1e-12, max_iter=1000)
        mine = dict(zip(vertices[at : at + counts[s]].tolist(), scores[at : at + counts[s]].tolist(), strict=True))
        assert max(abs(want[v] - mine.get(v, 0.0)) for v in range(30)) < 1e-6
        assert (np.diff(scores[at : at + counts[s]]) <= 0).all()
        at += int(counts[s])
    few = pagerank(graph, np.arange(30), 2, alpha=0.2, epsilon=1e-10, threads=2)
    assert (few[0] <= 2).all()
    assert few[1][: few[0][0]].tolist() == vertices[: few[0][0]].tolist()


def test_bad_input_is_refused() -> None:
    graph, _, _ = some_graph(1)
    for call, words in [
        (lambda: random_walks(graph, np.array([30]), 2), "vertex 30"),
        (lambda: random_walks(graph, np.array([0]), -1), "length -1"),
        (lambda: random_walks(graph, np.array([0]), 2, p=0.0), "positive"),
        (lambda: random_walks(graph, np.array([0]), 2, q=float("nan")), "positive"),
        (lambda: random_walks(graph, np.array([0]), 2, restart=1.0), "restart"),
        (lambda: pagerank(graph, np.array([0]), 3, alpha=1.0), "alpha"),
        (lambda: pagerank(graph, np.array([-1]), 3), "vertex -1"),
        (lambda: pagerank(graph, np.array([0]), 3, epsilon=0.0), "epsilon"),
        (
            lambda: random_walks(
                LocalGraph(np.array([0, 5]), graph.indices[:2], graph.keys[:1], graph.edge_ids), np.array([0]), 2
            ),
            "spans",
        ),
        (lambda: pinsage_neighbors(graph, np.array([0]), 1, walks=0), "at least"),
    ]:
        with pytest.raises(ConfigError, match=words):
            call()
