"""Servers' graphs against networkx, brute force, and the layers of a network over the whole graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError, UnknownNameError
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import ServerGraph, server_subgraph
from atta.samplers.operators import Closure, ExpansionAware, Induced, Sampled
from atta.samplers.requests import Expand, LocalAccess, run
from tests.unit.operators.oracles import Graph, graphs, in_user_ids, random_graph

RULES = st.builds(
    ExpansionAware,
    max_hop=st.integers(0, 4),
    fanout=st.integers(0, 4),
    select=st.sampled_from(["uniform", "degree"]),
    resample=st.integers(0, 3),
)


def hops_of(sampled: Sampled) -> dict[int, int]:
    return dict(zip(sampled.vertices.tolist(), sampled.extra["hop"].tolist(), strict=True))


def check_subgraph(graph: Graph, seeds: list[int], sampled: Sampled) -> None:
    vertices, hop = sampled.vertices.tolist(), sampled.extra["hop"].tolist()
    assert vertices[: len(seeds)] == seeds
    assert [h == 0 for h in hop] == [i < len(seeds) for i in range(len(vertices))]
    rest = list(zip(hop, graph.keys[vertices].tolist(), strict=True))[len(seeds) :]
    assert rest == sorted(rest)
    assert sampled.extra["degree"].tolist() == graph.degree[sampled.vertices].tolist()
    assert sorted(sampled.edge_ids.tolist()) == graph.edges_among(vertices)
    pairs = list(zip(sampled.col.tolist(), graph.keys[sampled.vertices[sampled.row]].tolist(), strict=True))
    assert pairs == sorted(pairs)


@given(graph=graphs(), hops=st.integers(0, 5), seed=st.integers(0, 10_000))
def test_closure_is_a_breadth_first_search(graph: Graph, hops: int, seed: int) -> None:
    seeds = graph.some(seed)
    distance: dict[int, int] = {}
    for start in seeds:
        for vertex, length in nx.single_source_shortest_path_length(graph.against, start, cutoff=hops).items():
            distance[vertex] = min(length, distance.get(vertex, length))
    sampled = graph.sample(Closure(hops), seeds)
    check_subgraph(graph, seeds, sampled)
    assert hops_of(sampled) == distance
    targets = np.bincount(sampled.col, minlength=len(sampled.vertices))
    complete = sampled.extra["hop"] < hops
    assert (targets[complete] == sampled.extra["degree"][complete]).all()


@given(graph=graphs(), hops=st.integers(0, 4), seed=st.integers(0, 10_000))
def test_without_its_rim_a_closure_lacks_the_edges_into_the_last_hop(graph: Graph, hops: int, seed: int) -> None:
    """Vertices, hops and degrees are the same, and so is the order of the edges that are left."""
    seeds = graph.some(seed)
    whole, found = graph.sample(Closure(hops), seeds), graph.sample(Closure(hops, rim=False), seeds)
    assert found.vertices.tolist() == whole.vertices.tolist()
    for name in ("hop", "degree"):
        assert found.extra[name].tolist() == whole.extra[name].tolist()
    left = whole.extra["hop"][whole.col] < hops
    for mine, its in ((found.row, whole.row), (found.col, whole.col), (found.edge_ids, whole.edge_ids)):
        assert mine.tolist() == its[left].tolist()


def test_the_rim_is_not_read(seed: int) -> None:
    graph, asked = random_graph(seed, 200, 900), []

    class Counting(LocalAccess):
        def answer(self, request: Any) -> Any:
            if isinstance(request, Expand):
                asked.append(len(request.vertices))
            return super().answer(request)

    found = run(Closure(1, rim=False).run(graph.batch(np.arange(20))), Counting(graph.local))
    assert asked == [20]
    assert len(found.vertices) > 20


def candidates(graph: Graph, vertex: int, known: set[int]) -> set[int]:
    return {s for s, d in graph.pairs if d == vertex and s not in known}


@given(graph=graphs(), rule=RULES, seed=st.integers(0, 10_000))
@settings(max_examples=200)
def test_expansion_by_brute_force(graph: Graph, rule: ExpansionAware, seed: int) -> None:
    seeds = graph.some(seed)
    sampled = graph.sample(rule, seeds)
    check_subgraph(graph, seeds, sampled)
    hop = hops_of(sampled)
    assert max(hop.values(), default=0) <= rule.max_hop
    for h in range(1, rule.max_hop + 1):
        known = {v for v, at in hop.items() if at < h}
        frontier = [v for v, at in hop.items() if at == h - 1]
        fresh = {v for v, at in hop.items() if at == h}
        # A vertex of the frontier admitted each of them, none more than `fanout`: such an assignment exists.
        flow = nx.DiGraph()
        flow.add_nodes_from(["start", "end"])
        for v in frontier:
            mine = candidates(graph, v, known)
            flow.add_edge("start", (h - 1, v), capacity=rule.fanout)
            flow.add_edges_from(((h - 1, v), (h, u), {"capacity": 1}) for u in mine & fresh)
            # Each admits as many as allowed.
            assert len(mine & fresh) >= min(rule.fanout, len(mine))
            if rule.select == "degree":
                best = sorted(mine, key=lambda u: (-int(graph.degree[u]), int(graph.keys[u])))[: rule.fanout]
                assert set(best) <= fresh
        flow.add_edges_from(((h, u), "end", {"capacity": 1}) for u in fresh)
        assert nx.maximum_flow_value(flow, "start", "end") == len(fresh)


@given(graph=graphs(), hops=st.integers(0, 4), select=st.sampled_from(["uniform", "degree"]), seed=st.integers(0, 99))
def test_without_bounds_it_is_the_closure(graph: Graph, hops: int, select: str, seed: int) -> None:
    seeds = graph.some(seed)
    closure = in_user_ids(graph, graph.sample(Closure(hops), seeds))
    for fanout in (-1, 1000):
        assert in_user_ids(graph, graph.sample(ExpansionAware(hops, fanout, select), seeds)) == closure
    induced = graph.sample(Induced(), seeds)
    for nothing in (ExpansionAware(0, 5), ExpansionAware(3, 0), Closure(0)):
        alone = graph.sample(nothing, seeds)
        for name in ("vertices", "row", "col", "edge_ids"):
            assert np.array_equal(getattr(alone, name), getattr(induced, name))


def test_draws_are_a_function_of_seed_and_round(seed: int) -> None:
    graph, seeds, rule = random_graph(seed, 300, 6000), np.arange(0, 300, 10), ExpansionAware(2, 2)

    def drawn(rule: ExpansionAware, **at: int) -> Any:
        batch = replace(graph.batch(seeds), **at)
        return in_user_ids(graph, run(rule.run(batch), LocalAccess(graph.local)))

    first = drawn(rule)
    assert drawn(rule) == drawn(rule, epoch=5, number=9) == first
    assert drawn(replace(rule, resample=1)) != first
    assert drawn(rule, seed=8) != first
    # The order of the seeds changes the vertices' numbers, not the admitted vertices.
    other = run(rule.run(replace(graph.batch(seeds[::-1]))), LocalAccess(graph.local))
    assert graph.keys[other.vertices[30:]].tolist() == first[0][30:]


def layers(
    src: np.ndarray, dst: np.ndarray, degree: np.ndarray, x: np.ndarray, weights: list[np.ndarray]
) -> np.ndarray:
    root = 1 / np.sqrt(1.0 + degree)
    for weight in weights:
        total = x * (root**2)[:, None]
        np.add.at(total, dst, x[src] * (root[src] * root[dst])[:, None])
        x = np.tanh(total @ weight)
    return x


def test_layers_over_a_closure_are_exact(seed: int) -> None:
    rng, depth = np.random.default_rng(seed), 3
    graph = random_graph(seed, 200, 500)
    x, weights = rng.standard_normal((200, 5)), [rng.standard_normal((5, 5)) for _ in range(depth)]
    whole = layers(graph.src, graph.dst, graph.degree, x, weights)
    inner = rng.permutation(200)[:20]
    errors = []
    for hops in (depth, depth - 1):
        found = graph.sample(Closure(hops), inner)
        mine = layers(found.row, found.col, found.extra["degree"], x[found.vertices], weights)
        errors.append(np.abs(mine[:20] - whole[inner]).max())
    assert errors[0] < 1e-12
    assert errors[1] > 1e-6  # so the test would notice one hop too few
    found = graph.sample(Closure(depth), inner)
    rim = np.bincount(found.col, minlength=len(found.vertices))
    assert np.abs(layers(found.row, found.col, rim, x[found.vertices], weights)[:20] - whole[inner]).max() > 1e-6


# -- the local function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Closure(2), ExpansionAware(2, 2), ExpansionAware(1, 3, "degree")])
def test_local_function(rule: Closure | ExpansionAware, seed: int) -> None:
    graph, inner = random_graph(seed, 120, 900), [5, 100, 5, 7]
    expected = graph.sample(rule, [5, 100, 7])
    for threads in (1, 2):
        found = server_subgraph(graph.local, inner, rule, seed=7, threads=threads)
        assert found.n_id.tolist() == graph.keys[expected.vertices].tolist()
        for name, value in (("row", expected.row), ("col", expected.col), ("e_id", expected.edge_ids)):
            assert np.array_equal(getattr(found, name), value)
        assert found.hop.tolist() == expected.extra["hop"].tolist()
        assert found.degree.tolist() == expected.extra["degree"].tolist()
    wide, narrow = (found.n_id, found.e_id, found.degree), (found.hop, found.row, found.col)
    assert {np.asarray(a).dtype for a in wide} == {np.dtype(np.int64)}
    assert {a.dtype for a in narrow} == {np.dtype(np.int32)}
    assert found.num_inner == 3
    assert found.inner.tolist() == [i < 3 for i in range(found.num_nodes)]


def test_defaults_are_the_papers_and_nothing_may_be_inner() -> None:
    assert ExpansionAware() == ExpansionAware(max_hop=1, fanout=15, select="uniform", resample=0)
    graph = random_graph(3, 100, 5000)
    found = server_subgraph(graph.local, np.arange(5))
    assert set(found.hop.tolist()) == {0, 1}
    assert 0 < found.num_nodes - 5 <= 75
    for graph in (random_graph(0).local, LocalGraph.from_edges([], [], 0)):
        found = server_subgraph(graph, [], Closure(3))
        assert (found.num_nodes, found.num_inner, len(found.row)) == (0, 0, 0)
    graph = random_graph(0).local
    with pytest.raises(ConfigError, match=r"vertices lie in 0\.\.30, the graph has 30"):
        server_subgraph(graph, [0, 30])
    with pytest.raises(ConfigError, match=r"vertices lie in -1\.\.2"):
        server_subgraph(graph, [2, -1])
    with pytest.raises(ConfigError, match="float64"):
        server_subgraph(graph, [0.5])
    with pytest.raises(ConfigError, match="one dimension"):
        server_subgraph(graph, [[1]])
    with pytest.raises(ConfigError, match="one type"):
        server_subgraph(LocalGraph.from_edges([0], [0], 1, source_keys=np.array([4, 5])), [0])
    with pytest.raises(UnknownNameError, match="did you mean 'degree'"):
        ExpansionAware(select="degrees")


def test_a_co_batch_is_the_closure_within_the_subgraph(seed: int) -> None:
    graph, rng = random_graph(seed, 150, 700), np.random.default_rng(seed)
    whole = server_subgraph(graph.local, rng.permutation(150)[:60], ExpansionAware(1, 2), seed=seed)
    x, train = rng.random((whole.num_nodes, 3)), rng.random(whole.num_nodes) < 0.5
    whole = replace(whole, tables={"x": x}, splits={"train": train})
    targets = rng.permutation(60)[:10]
    for hops in (0, 2):
        part = whole.co_batch(targets, hops)
        assert isinstance(part, ServerGraph)
        within = Graph(whole.row, whole.col, whole.n_id)
        expected = within.sample(Closure(hops), targets)
        assert part.n_id.tolist() == whole.n_id[expected.vertices].tolist()
        assert part.hop.tolist() == expected.extra["hop"].tolist()
        assert np.array_equal(part.row, expected.row)
        assert np.array_equal(part.col, expected.col)
        assert np.array_equal(part.e_id, whole.e_id[expected.edge_ids])
        assert part.degree.tolist() == whole.degree[expected.vertices].tolist()
        assert np.array_equal(part.tables["x"], x[expected.vertices])
        assert np.array_equal(part.splits["train"], train[expected.vertices])
    with pytest.raises(ConfigError, match="vertices lie in"):
        whole.co_batch([whole.num_nodes], 1)
