"""Times of vertices: what a seed sees, by brute force, and what its negatives are drawn from."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.partition.dataset import VertexTimes
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy, Positives, draw_negatives
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.requests import LocalAccess, run
from tests.unit.placement.harness import Typed
from tests.unit.placement.strategies import graphs
from tests.unit.placement.test_neighbourhoods import local

Edge = tuple[str, int]
"""Edge type, and position in the input."""


def seen(graph: Typed, edge_type: str, target: int, at: int) -> list[int]:
    """The in-edges of a vertex (user id) that exist at a time: by their time, their source and their position."""
    src, dst, tables = graph.edges[edge_type]
    source, _, _ = edge_type.split("__")
    of_edges = tables.get("time", np.full(len(src), -1)).tolist()
    rows = graph.rows(source, src)
    of_sources = graph.times.get(source, np.full(len(graph.ids[source]), -1))[rows].tolist()
    since = [max(pair) for pair in zip(of_edges, of_sources, strict=True)]
    found = [i for i in np.flatnonzero(dst == target).tolist() if since[i] <= at]
    return sorted(found, key=lambda i: (since[i], src[i], i))


def timed(graph: Typed, edge_type: str) -> bool:
    """Whether edges of a type have times, or their sources. If not, the last ones are any."""
    return "time" in graph.edges[edge_type][2] or edge_type.split("__", maxsplit=1)[0] in graph.times


def grown(graph: Typed, seed: tuple[str, int], at: int, fan_outs: dict[str, list[int]], hops: int) -> list[list[Edge]]:
    """The edges of a seed's tree, hop by hop, if the latest ones are taken."""
    known, frontier, by_hop = {seed}, [seed], []
    for hop in range(hops):
        edges: list[Edge] = []
        reached: list[tuple[str, int]] = []
        for edge_type in sorted(fan_outs):
            source, _, target = edge_type.split("__")
            count = fan_outs[edge_type][hop]
            for node_type, vertex in frontier if count else []:
                if node_type != target:
                    continue
                visible = seen(graph, edge_type, vertex, at)
                taken = visible if count < 0 else visible[-count:]
                edges += [(edge_type, i) for i in taken]
                reached += [(source, int(graph.edges[edge_type][0][i])) for i in taken]
        by_hop.append(sorted(edges))
        frontier = [v for v in dict.fromkeys(reached) if v not in known]
        known |= {*frontier}
    return by_hop


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_tree_has_what_exists_at_its_time(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    hops, seed_type = draw(st.integers(1, 3)), draw(st.sampled_from(sorted(graph.ids)))
    method = draw(st.sampled_from(["temporal", "last"]))
    fan_outs = {e: [draw(st.sampled_from([-1, 0, 1, 3])) for _ in range(hops)] for e in graph.edges}
    seeds = rng.integers(0, len(graph.ids[seed_type]), 4)
    own = seed_type in graph.times and draw(st.booleans())
    times = graph.times[seed_type][seeds].astype(int) if own else rng.integers(0, 50, 4)
    sampler = LocalSampler(local(graph), method=method)
    found = sampler.sample(seeds, fan_outs, seed_type=seed_type, input_time=None if own else times)
    edges: list[list[list[Edge]]] = [[[] for _ in range(hops)] for _ in seeds]
    for edge_type, sizes in found.num_sampled_edges.items():
        trees = found.tree[edge_type.split("__")[2]][found.col[edge_type]]
        hop_of = np.repeat(np.arange(hops), sizes)
        for tree, hop, e in zip(trees.tolist(), hop_of.tolist(), found.e_id[edge_type].tolist(), strict=True):
            edges[tree][hop].append((edge_type, e))
    for tree, (row, at) in enumerate(zip(seeds.tolist(), times.tolist(), strict=True)):
        seed = seed_type, int(graph.ids[seed_type][row])
        wanted = grown(graph, seed, at, fan_outs, hops)
        if all(max(counts) < 1 or (method == "last" and timed(graph, e)) for e, counts in fan_outs.items()):
            assert [sorted(of_hop) for of_hop in edges[tree]] == wanted
            continue
        first = [(e, i) for e in fan_outs if e.split("__")[2] == seed_type for i in seen(graph, e, seed[1], at)]
        assert {*edges[tree][0]} <= {*first}
        assert Counter(e for e, _ in edges[tree][0]) == Counter(e for e, _ in wanted[0])
        for edge_type, i in (edge for of_hop in edges[tree] for edge in of_hop):
            assert i in seen(graph, edge_type, int(graph.edges[edge_type][1][i]), at)


def drawn(graph, since, ends, times, spec, key):
    keys = graph.keys if graph.source_keys is None else graph.source_keys
    by_rank = np.argsort(keys), np.argsort(graph.keys)
    begin = [None if t is None else VertexTimes.joined([t], r) for t, r in zip(since, by_rank, strict=True)]
    given = Positives(*ends, by_rank, graph.source_keys is None, times, (begin[0], begin[1]))
    sources, targets = run(draw_negatives(spec, given, key), LocalAccess(graph))
    count = len(sources)
    of_positive = np.arange(count) // int(spec.amount) if spec.triplet else np.arange(count) % len(times)
    return sources, targets, times[of_positive]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_negative_end_exists_at_the_time_of_its_edge(data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes, edges = (draw(st.integers(1, 12)), draw(st.integers(2, 12))), draw(st.integers(0, 40))
    one_type = draw(st.booleans())
    keys = [rng.permutation(100)[:size] for size in sizes]
    since: list[Any] = [rng.integers(0, 20, size) if draw(st.booleans()) else None for size in sizes]
    if one_type:
        sizes, keys[0], since[0] = (sizes[1], sizes[1]), keys[1], since[1]
    src, dst = rng.integers(0, sizes[0], edges), rng.integers(0, sizes[1], edges)
    graph = LocalGraph.from_edges(
        src, dst, sizes[1], keys=keys[1], node_time=since[1],
        source_keys=None if one_type else keys[0], source_time=None if one_type else since[0],
    )  # fmt: skip
    ends = rng.integers(0, sizes[0], 6), rng.integers(0, sizes[1], 6)
    strategy, triplet = draw(st.sampled_from(NegativeStrategy)), draw(st.booleans())
    spec = NegativeLinks(triplet, draw(st.sampled_from([1.0, 3.0])), strategy)
    sources = targets = times = np.empty(0, int)
    with contextlib.suppress(ConfigError):  # there may be no negatives to draw
        sources, targets, times = drawn(graph, (since[0], since[1]), ends, rng.integers(0, 25, 6), spec, 5)
    chosen = [(targets, 1)]
    if not triplet and strategy in (NegativeStrategy.UNIFORM, NegativeStrategy.EXACT):
        chosen.append((sources, 0))
    for vertices, end in chosen:
        if since[end] is None:
            continue
        earliest = int(np.lexsort((keys[end], since[end]))[0])
        for pair, (vertex, at) in enumerate(zip(vertices.tolist(), times.tolist(), strict=True)):
            if strategy is NegativeStrategy.IN_BATCH:
                own = pair // int(spec.amount) if triplet else pair % 6
                others = [int(v) for i, v in enumerate(ends[1]) if since[end][v] <= at and i != own]
                assert vertex in (others or [int(ends[1][own])])
            elif (since[end] <= at).any():
                assert since[end][vertex] <= at
            else:
                assert vertex == earliest
    if strategy is NegativeStrategy.EXACT:
        pairs = {*zip(sources.tolist(), targets.tolist(), strict=True)}
        assert not pairs & {*zip(src.tolist(), dst.tolist(), strict=True)}


@pytest.mark.parametrize("strategy", [NegativeStrategy.UNIFORM, NegativeStrategy.DEGREE, NegativeStrategy.IN_BATCH])
def test_negatives_are_as_likely_as_without_times(strategy: NegativeStrategy) -> None:
    """Of 40 targets 10 exist at time 9: in-degrees are 1 for even and 16 for odd vertices."""
    degrees = np.where(np.arange(40) % 2, 16, 1)
    since = np.random.default_rng(3).permutation(40)
    ends = np.zeros(degrees.sum(), int), np.repeat(np.arange(40), degrees)
    graph = LocalGraph.from_edges(*ends, 40, source_keys=[7], node_time=since)
    count = 40_000
    ends = np.zeros(count, int), np.arange(count) % 40
    times = np.where(np.arange(count) % 2, 9, 39)
    _, targets, at = drawn(graph, (None, since), ends, times, NegativeLinks(True, 1.0, strategy), 11)
    for time in (9, 39):
        weight = np.where(degrees == 16, 8.0, 1.0) if strategy is NegativeStrategy.DEGREE else np.ones(40)
        weight = weight * (since <= time)
        found = np.bincount(targets[at == time], minlength=40)
        assert ((found > 0) == (weight > 0)).all()
        expected = found.sum() * weight / weight.sum()
        chi = ((found - expected)[weight > 0] ** 2 / expected[weight > 0]).sum()
        assert chi < 100, "39 or 9 degrees of freedom"


def test_times_of_vertices_that_contradict_each_other() -> None:
    graph = LocalGraph.from_edges([0, 1], [1, 0], 2, node_time=[3, 5])
    other = LocalGraph.from_edges([0, 1], [1, 0], 2, node_time=[3, 4])
    untimed = LocalGraph.from_edges([0], [0], 1, source_keys=[0, 1], source_time=[3, 5])
    sampler = LocalSampler({"a__to__b": untimed}, method="last")
    for wrong, says in (
        (lambda: LocalGraph.from_edges([0, 1], [1, 0], 2, node_time=[1, 2, 3]), r"node_time: \[3\] for 2 vertices"),
        (lambda: LocalGraph.from_edges([0, 1], [1, 0], 2, source_time=[1, 2]), "their times are node_time"),
        (lambda: LocalGraph.from_edges([0, 1], [1, 0], 2, node_time=[0.5, 2]), "node_time: must be integers"),
        (
            lambda: LocalSampler({"a__to__a": graph, "a__in__a": other}, method="last"),
            "disagree about the times of node type 'a'",
        ),
        (lambda: sampler.sample([0], {"a__to__b": [1]}, seed_type="b"), "input_time"),
    ):
        with pytest.raises(ConfigError, match=says):
            wrong()
    found = LocalSampler(graph, method="temporal").sample([0, 1], [-1])
    assert (found.n_id.tolist(), found.tree.tolist()) == ([0, 1, 0], [0, 1, 1]), "vertex 1 is later than vertex 0"
