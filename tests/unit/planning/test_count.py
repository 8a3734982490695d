"""Counts against networkx and sets, on small graphs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.samplers.kernels.sums import PRICE
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import server_subgraph
from atta.samplers.operators.server import Closure
from atta.train.planning.count import (
    Question,
    Servers,
    count_sizes,
    fitted_alpha,
    largest,
    mini_batch_of,
    received_rows,
    split_trainers,
    work_of,
)
from atta.train.planning.sizes import Expansion, ServerWork, Sizes
from tests.unit.operators.oracles import Graph, graphs


def servers_of(graph: Graph, servers: int) -> Servers:
    return Servers(graph.local, np.arange(servers + 1) * graph.nodes // servers, np.arange(0, graph.nodes, 2))


def random_graph(nodes: int, edges: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph(rng.integers(0, nodes, edges), rng.integers(0, nodes, edges), np.arange(nodes))


def ask(graph: Graph, servers: int, trainers: int = 1, layers: int = 2, **more: object) -> Sizes:
    question = Question(servers, trainers, layers, **more)  # type: ignore[arg-type]
    return count_sizes(servers_of(graph, servers), question)


def reached(graph: Graph, inner: range, hops: int) -> set[int]:
    against = nx.DiGraph()
    against.add_nodes_from(range(graph.nodes))
    against.add_edges_from(zip(graph.dst.tolist(), graph.src.tolist(), strict=True))
    return {v for start in inner for v in nx.single_source_shortest_path_length(against, start, cutoff=hops)}


def ranges(graph: Graph, servers: int) -> list[range]:
    bounds = (np.arange(servers + 1) * graph.nodes // servers).tolist()
    return [range(a, b) for a, b in pairwise(bounds)]


@given(graph=graphs(), servers=st.integers(1, 3), layers=st.integers(1, 4))
@settings(max_examples=50)
def test_closures_hop_by_hop(graph: Graph, servers: int, layers: int) -> None:
    found = ask(graph, servers, layers=layers)
    per_hop = [[reached(graph, inner, h) for inner in ranges(graph, servers)] for h in range(layers + 1)]
    assert found.closure_by_hop == pytest.approx([np.mean([len(s) for s in sets]) for sets in per_hop])
    assert found.closure.vertices == max(len(s) for s in per_hop[-1])
    assert found.closure.mean_vertices == pytest.approx(np.mean([len(s) for s in per_hop[-1]]))
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert found.closure.edges == max(sum(s in v and d in v for s, d in pairs) for v in per_hop[-1])
    outside = [len(v) - len(r) for v, r in zip(per_hop[-1], ranges(graph, servers), strict=True)]
    assert found.closure.preloaded == max(outside)
    assert (found.vertices, found.edges, found.targets) == (graph.nodes, len(pairs), len(range(0, graph.nodes, 2)))


@given(graph=graphs(), servers=st.integers(2, 4))
@settings(max_examples=50)
def test_rows_that_servers_exchange(graph: Graph, servers: int) -> None:
    found = ask(graph, servers).exchanged
    read = [
        {s for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True) if d in inner and s not in inner}
        for inner in ranges(graph, servers)
    ]
    assert found.external == max(len(rows) for rows in read)
    into = [sum(d in inner for d in graph.dst.tolist()) for inner in ranges(graph, servers)]
    assert found.edges == max(into)
    assert found.internal == 0


@given(graph=graphs(), servers=st.integers(1, 3), layers=st.integers(1, 3))
@settings(max_examples=50)
def test_without_bounds_sampling_is_the_closure(graph: Graph, servers: int, layers: int) -> None:
    found = ask(graph, servers, layers=layers, settings=[Expansion(layers, -1), Expansion(layers + 1, -1)])
    assert found.sampled == {Expansion(layers, -1): found.closure}


@given(graph=graphs(), servers=st.integers(2, 3))
@settings(max_examples=50)
def test_larger_fanouts_are_larger(graph: Graph, servers: int) -> None:
    some = [Expansion(1, k) for k in (0, 1, 3, -1)]
    found = ask(graph, servers, settings=some)
    sizes = [found.sampled[s].vertices for s in some]
    assert sizes == sorted(sizes)
    assert sizes[0] == max(len(r) for r in ranges(graph, servers))
    assert sizes[-1] <= found.closure.vertices


@pytest.mark.parametrize("seen", [pytest.param(10**6, marks=pytest.mark.slow), 500, 0])
def test_rows_that_trainers_exchange(seen: int) -> None:
    graph = random_graph(200, 800, seed=1)
    share = ask(graph, 2, trainers=3, divided_edges=seen)
    assert share.whole_split is (seen > 500)
    found = server_subgraph(graph.local, np.arange(100), Closure(2))
    n = found.num_nodes
    owner = (np.arange(n) * 3 // n).astype(np.int32)
    read = defaultdict(set)
    for row, col in zip(found.row.tolist(), found.col.tolist(), strict=True):
        if owner[row] != owner[col]:
            read[int(owner[col])].add(row)
    in_order = work_of(found, owner, 3)
    assert in_order.internal == max(len(rows) for rows in read.values())
    assert 0 < share.closure.internal <= n
    assert np.abs(np.bincount(split_trainers(found, 3, most_edges=seen)) - n / 3).max() < 0.1 * n


def test_external_rows_go_to_each_reader_and_large_graphs_are_sampled() -> None:
    # Vertex 3 belongs to the other server. Each trainer of the first one has vertex 0 or 1, so both read it.
    graph = Graph(np.array([2, 2, 3, 3]), np.array([0, 1, 0, 1]), np.arange(4))
    found = count_sizes(Servers(graph.local, np.array([0, 2, 4]), np.arange(4)), Question(2, 2, 1, settings=()))
    assert found.exchanged.external == 4
    assert received_rows(np.array([0, 1, 1, 1]), np.array([7, 7, 7, 2]), 3).tolist() == [1, 2, 0]
    assert received_rows(np.array([], int), np.array([], int), 2).tolist() == [0, 0]
    graph = random_graph(80, 400, seed=6)
    assert ask(graph, 1, settings=()).exchanged.external == 0
    assert ask(graph, 4).counted_servers == 4
    assert ask(graph, 4, extracted_edges=800).counted_servers == 2
    assert ask(graph, 4, extracted_edges=1).counted_servers == 1


def test_mini_batches_by_sets() -> None:
    graph = random_graph(60, 200, seed=2)
    found = mini_batch_of(servers_of(graph, 2), np.array([3, 40]), [-1, -1])
    hops = [{v for seed in (3, 40) for v in reached(graph, range(seed, seed + 1), h)} for h in range(3)]
    assert found.vertices == (2, len(hops[1]) - 2, len(hops[2]) - len(hops[1]))
    into = [sum(d in h for d in graph.dst.tolist()) for h in (hops[0], hops[1] - hops[0])]
    assert list(found.edges) == into


@pytest.mark.slow
def test_means_of_mini_batches_and_what_is_remote() -> None:
    graph = random_graph(400, 3000, seed=3)
    found = ask(graph, 2, trainers=2, num_neighbors=(-1, -1), batch_size=8)
    assert found.mini_batch.vertices[0] == 8
    assert 0 < found.mini_batch.remote < sum(found.mini_batch.vertices)
    assert ask(graph, 2, trainers=2, num_neighbors=(-1, -1), batch_size=8) == found
    alone = ask(graph, 1, num_neighbors=(2, 2), batch_size=8)
    assert alone.mini_batch.remote == 0
    assert alone.mini_batch.edges[0] <= 16


@pytest.mark.parametrize(("sums", "crossing"), [(False, 1 + 18), (True, 1 + 1 + 2 * PRICE)])
def test_owners_sum_the_rows_that_one_vertex_reads(sums: bool, crossing: float) -> None:
    """Seed 0 reads 1, 3 and 20. Of the other server 1 and 20 read ten vertices each, which come in a sum each; 3 reads one,
    which comes as it is."""
    src = [1, 3, 20, *range(30, 40), *range(38, 48), 30, 2]
    dst = [0, 0, 0, *(1,) * 10, *(20,) * 10, 3, 1]
    whole = Servers(Graph(np.array(src), np.array(dst), np.arange(50)).local, np.array([0, 10, 50]), np.array([0]))
    question = Question(2, 1, 2, num_neighbors=(-1, -1), batch_size=1, batches=1, sums=sums, co_batches=())
    batch = count_sizes(whole, question).mini_batch
    assert batch is not None
    assert (batch.remote, batch.crossing) == (1 + 18, crossing)


def test_co_batches_shrink_with_their_number() -> None:
    graph = random_graph(400, 1200, seed=4)
    found = ask(graph, 2, co_batches=(1, 2, 8, 1000), rule=Expansion(1, 3), settings=[Expansion(1, 3)])
    assert list(found.co_batches) == [1, 2, 8]  # a server has 100 targets
    sizes = [found.co_batches[n].vertices for n in (1, 2, 8)]
    assert sizes == sorted(sizes, reverse=True)
    whole = found.sampled[Expansion(1, 3)]
    assert sizes[0] <= whole.vertices
    assert {work.preloaded for work in found.co_batches.values()} == {whole.preloaded}  # once, for all of them


def test_questions_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Question(0, 1, 1)
    with pytest.raises(ConfigError, match="one per layer"):
        Question(1, 1, 3, num_neighbors=(5, 5))
    empty = Servers(LocalGraph.from_edges([], [], 4), np.array([0, 4]), np.arange(4))
    with pytest.raises(ConfigError, match="1 servers, not 2"):
        count_sizes(empty, Question(2, 1, 1))
    assert count_sizes(empty, Question(1, 2, 3)).closure == ServerWork(4, 0, 4, 0)
    # The slowest counts.
    assert largest([ServerWork(1, 8, 1, 3, 9, 0), ServerWork(5, 2, 5, 1, 4, 7)]) == ServerWork(5, 8, 3, 3, 9, 7)


@given(alpha=st.floats(0.05, 0.9), degree=st.floats(2, 50), hops=st.integers(1, 5))
def test_alpha_is_found_again(alpha: float, degree: float, hops: int) -> None:
    closure = [degree ** (alpha * h) for h in range(hops + 1)]
    assert fitted_alpha(closure, 1e12, degree) == pytest.approx(alpha)
    # It looks at no hop that ran out of vertices.
    assert fitted_alpha([10, 20, 100, 100], 100, 10) == pytest.approx(0.30103, abs=1e-5)
    assert fitted_alpha([10], 100, 10) is None
    assert fitted_alpha([10, 10], 10, 1) is None
