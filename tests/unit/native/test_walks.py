"""Walks, PageRank and draws by weight against enumeration, networkx, brute force and exact probabilities."""

from __future__ import annotations

import itertools
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.walks import pagerank, pinsage_neighbors, random_walks
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import InEdges


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


WEIGHTS = [
    np.array([1.0, 2.0, 3.0, 4.0]),
    np.array([0.0, 5.0, 0.0, 1.0, 1.0, 0.5]),
    np.array([1e-9, 1.0, 1e-9, 1e-9]),  # nearly all weight is in one edge: draws repeat until running sums take over
    np.ones(7),
]


def pick(
    indptr: np.ndarray,
    weights: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    *,
    build_threads: int = 1,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    sources = np.zeros(len(weights), dtype=np.int32)
    method = tables_for(Method.WEIGHTED, InEdges(indptr, sources, weight=weights, threads=build_threads))
    counts, _, positions = kernels.sample_neighbors(
        indptr, sources, None, keys, rows, method=method, positions=True, **options
    )
    return counts, positions


def draws(weights: np.ndarray, fan_out: int, count: int, *, replace: bool) -> np.ndarray:
    """Positions that ``count`` rows with these weights draw: [count, picks]."""
    degree = len(weights)
    indptr = np.arange(count + 1) * degree
    rows = np.arange(count)
    counts, positions = pick(
        indptr, np.tile(weights, count), rows, rows, fan_out=fan_out, replace=replace, stream_key=7
    )
    assert (counts == counts[0]).all()
    return (positions - np.repeat(rows * degree, counts)).reshape(count, int(counts[0]))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_draws_with_replacement_follow_the_weights(weights: np.ndarray) -> None:
    seen = np.bincount(draws(weights, 3, 20_000, replace=True).reshape(-1), minlength=len(weights))
    assert (seen[weights == 0] == 0).all()
    likely = weights / weights.sum() > 1e-6
    expected = weights[likely] / weights[likely].sum() * seen[likely].sum()
    assert stats.chisquare(seen[likely], expected).pvalue > 1e-6 if likely.sum() > 1 else seen[likely] == 60_000


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_sequences_without_replacement_are_successive_sampling(weights: np.ndarray, fan_out: int) -> None:
    positive = np.flatnonzero(weights)
    found = draws(weights, fan_out, 30_000, replace=False)
    if fan_out >= len(positive):
        assert (found == positive).all()
        return
    chance = {}
    for order in itertools.permutations(positive.tolist(), fan_out):
        left, p = weights.sum(), 1.0
        for edge in order:
            p *= weights[edge] / left
            left -= weights[edge]
        chance[order] = p
    seen = dict.fromkeys(chance, 0)
    for order in map(tuple, found.tolist()):
        seen[order] += 1
    likely = [o for o in chance if chance[o] * len(found) > 5]
    rest = len(found) - sum(seen[o] for o in likely)
    assert rest <= 10 + 10 * len(found) * (1 - sum(chance[o] for o in likely))
    if len(likely) > 1:
        expected = np.array([chance[o] for o in likely])
        counted = np.array([seen[o] for o in likely])
        assert stats.chisquare(counted, expected / expected.sum() * counted.sum()).pvalue > 1e-6


@given(st.integers(0, 10_000), st.integers(0, 12), st.booleans())
def test_every_answer_is_possible(seed: int, fan_out: int, replace: bool) -> None:
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 80, 20)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    weights = np.where(rng.random(indptr[-1]) < 0.3, 0.0, rng.exponential(size=indptr[-1]) ** 8)
    rows, keys = rng.integers(0, 20, 15), rng.permutation(20)
    answers = [
        pick(indptr, weights, keys, rows, fan_out=f, replace=replace, stream_key=seed, threads=t, build_threads=t)
        for f, t in ((fan_out, 1), (fan_out, 2), (-1, 1))
    ]
    assert np.array_equal(answers[0][0], answers[1][0])
    assert np.array_equal(answers[0][1], answers[1][1])
    at = 0
    for row, count in zip(rows, answers[0][0], strict=True):
        mine = answers[0][1][at : at + count]
        at += count
        candidates = indptr[row] + np.flatnonzero(weights[indptr[row] : indptr[row + 1]])
        assert set(mine) <= set(candidates)
        if replace:
            assert count == (fan_out if len(candidates) else 0)
        else:
            assert count == min(fan_out, len(candidates)) == len(set(mine))
    assert answers[2][1].tolist() == [e for r in rows for e in range(indptr[r], indptr[r + 1]) if weights[e] > 0]


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_weights_that_make_no_sense_are_named(wrong: float) -> None:
    sources = np.zeros(5, dtype=np.int32)
    with pytest.raises(ConfigError, match="edge 3 weighs"):
        tables_for(Method.WEIGHTED, InEdges(np.array([0, 2, 5]), sources, weight=np.array([1.0, 1, 1, wrong, 1])))
    with pytest.raises(ConfigError, match="does not fit"):
        tables_for(Method.WEIGHTED, InEdges(np.array([0, 2, 9]), sources, weight=np.ones(5)))
