"""Walks, PinSAGE and PageRank as operators, against the native code and networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.local.walks import pagerank, pinsage_neighbors, random_walks
from atta.samplers.operators import PageRank, PinSage, Walks, draws
from atta.samplers.operators.draws import draw, streams, unit, walk
from atta.samplers.requests import Degrees, Expand, LocalAccess, run
from tests.unit.operators.oracles import Graph, PlainAccess, graphs, random_graph

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
    against = nx.MultiDiGraph()
    against.add_nodes_from(range(30))
    against.add_edges_from(zip(graph.dst.tolist(), graph.src.tolist(), strict=True))
    exact = np.zeros((30, 30))
    for s in range(30):
        # Where a walker is stuck, networkx lets it return by the same personalisation.
        found = nx.pagerank(against, alpha=0.8, personalization={s: 1.0}, tol=1e-13, max_iter=1000)
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
