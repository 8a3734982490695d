"""A batch as a networkx graph shows the neighbourhood that networkx itself finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest

import atta
from atta.partition import partition_graph
from tests.system.conftest import CITES, WRITES

HOPS = [-1, -1]


@pytest.fixture(scope="module")
def club(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[nx.Graph, atta.LocalCluster]]:
    graph = nx.relabel_nodes(nx.karate_club_graph(), lambda v: 1000 + 7 * v)
    nx.set_node_attributes(graph, {v: v % 3 for v in graph}, "y")
    folder = tmp_path_factory.mktemp("club")
    atta.from_networkx(graph, folder / "graph", drop=["club"])
    partition_graph(folder / "graph", folder / "data", parts=2, method="random")
    with atta.local(folder / "data", threads=1) as cluster:
        yield graph, cluster


def test_a_batch_is_the_neighbourhood(club: tuple[nx.Graph, atta.LocalCluster]) -> None:
    graph, cluster = club
    seeds = [1000, 1007 + 7 * 10]
    loader = atta.NeighborLoader(cluster, HOPS, np.array(seeds), batch_size=2, tables=["y"], edge_tables=["weight"])
    (batch,) = list(loader)
    drawn = batch.to_networkx(tables=["y"])
    distance = {v: min(nx.shortest_path_length(graph, s, v) for s in seeds) for v in graph}
    assert {v: data["hop"] for v, data in drawn.nodes(data=True)} == {v: d for v, d in distance.items() if d <= 2}
    assert all(data == {"node_type": "node", "hop": distance[v], "y": v % 3} for v, data in drawn.nodes(data=True))
    expected = {(u, v) for v in graph if distance[v] < 2 for u in graph[v]}
    assert {(u, v) for u, v, _ in drawn.edges(keys=True)} == expected
    assert drawn.number_of_edges() == len(expected) == batch.num_edges
    for u, v, key, data in drawn.edges(keys=True, data=True):
        assert data["weight"] == graph[u][v]["weight"]
        assert data["e_id"] == key
    assert list(drawn) == batch.n_id().tolist()
    plain = next(iter(atta.NeighborLoader(cluster, HOPS, np.array(seeds), batch_size=2))).to_networkx()
    assert all(data.keys() == {"node_type", "hop"} for _, data in plain.nodes(data=True))


def test_trees_are_told_apart(club: tuple[nx.Graph, atta.LocalCluster]) -> None:
    graph, cluster = club
    seeds = [1000, 1007]
    loader = atta.NeighborLoader(cluster, [-1], np.array(seeds), batch_size=2, disjoint=True)
    drawn = next(iter(loader)).to_networkx()
    expected = {(s, tree) for tree, s in enumerate(seeds)} | {
        (u, tree) for tree, s in enumerate(seeds) for u in graph[s]
    }
    assert set(drawn) == expected
    assert all(u[1] == v[1] for u, v in drawn.edges())


def test_types_are_told_apart(typed: tuple[Any, atta.LocalCluster]) -> None:
    data, cluster = typed
    drawn = next(iter(atta.NeighborLoader(cluster, [-1], ("paper", np.array([5])), batch_size=1))).to_networkx()
    expected = [
        ((edge_type[0], source), ("paper", 5), ("__".join(edge_type), number))
        for edge_type in (CITES, WRITES)
        for number, (source, target) in enumerate(data[edge_type].edge_index.T.tolist())
        if target == 5
    ]
    assert sorted(drawn.edges(keys=True)) == sorted(expected)
    assert set(drawn) == {("paper", 5), *(source for source, _, _ in expected)}
