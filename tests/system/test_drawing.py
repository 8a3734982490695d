"""A batch as a networkx graph shows the neighbourhood that networkx itself finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import atta
from atta.partition import GraphWriter, partition_graph

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


def test_types_are_told_apart(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("paper", 4, ids=[5, 6, 7, 8])
        out.add_nodes("author", 3, ids=[5, 6, 7])
        out.add_edges("author__writes__paper", [0, 1, 2], [0, 0, 1])
        out.add_edges("paper__cites__paper", [1, 1], [0, 0])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    with atta.local(tmp_path / "data", threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [-1], ("paper", np.array([5])), batch_size=1)
        drawn = next(iter(loader)).to_networkx()
    assert set(drawn) == {("paper", 5), ("paper", 6), ("author", 5), ("author", 6)}
    assert sorted((u, v, key) for u, v, key in drawn.edges(keys=True)) == [
        (("author", 5), ("paper", 5), ("author__writes__paper", 0)),
        (("author", 6), ("paper", 5), ("author__writes__paper", 1)),
        (("paper", 6), ("paper", 5), ("paper__cites__paper", 0)),
        (("paper", 6), ("paper", 5), ("paper__cites__paper", 1)),
    ]
