"""LADIES and FastGCN against brute force: the drawn vertices, how often they are drawn, and their edges and weights."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atta.samplers.operators import FastGcn, Ladies, Sampled
from atta.samplers.operators.draws import draw_edges
from atta.samplers.requests import LocalAccess, run
from tests.unit.operators.oracles import Graph, graphs, random_graph


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


def test_ladies_estimates_without_bias() -> None:
    """One vertex is drawn with probability p, its edges have weight A / p. The average is A, whose rows sum to 1."""
    graph, targets, rounds = random_graph(2, 8, 26), [0, 3, 4], 6000
    weight = importances(graph, targets)
    total, found = sum(weight.values()), np.zeros((rounds, 3))
    for number in range(rounds):
        sampled = graph.sample(Ladies((1,)), targets, number)
        for u, v in zip(sampled.vertices[sampled.row].tolist(), sampled.col.tolist(), strict=True):
            found[number, v] += total / weight[u] / int(graph.degree[targets[v]])
    error = (found.mean(axis=0) - 1.0) / (found.std(axis=0) / np.sqrt(rounds))
    assert np.abs(error).max() < 5.5


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


def test_fastgcn_draws_by_column_norms() -> None:
    graph, rounds = random_graph(3, 15, 60), 3000
    chance = graph.norms / graph.norms.sum()
    seen = np.zeros(15)
    for number in range(rounds):
        drawn = graph.sample(FastGcn((2,)), [], number).vertices
        seen[drawn] += 1
    joins = 1 - (1 - chance) ** 2
    assert (seen[chance == 0] == 0).all()
    assert (np.abs(seen - rounds * joins) <= 5.5 * np.sqrt(rounds * joins * (1 - joins)) + 1).all()
