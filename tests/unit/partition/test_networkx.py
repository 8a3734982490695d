"""Graphs of networkx: the written graph is the one in networkx, and the error names what cannot be written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atta
from atta.errors import ConfigError, DataError
from atta.partition import Graph
from atta.partition.importers import import_graph

ETYPE = "node__to__node"
KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


def back(graph: Graph) -> nx.MultiDiGraph:
    """A graph folder as a networkx graph: user ids, every table as an attribute."""
    ids = graph.user_ids("node")
    rows = np.arange(graph.schema.node_counts["node"]) if ids is None else ids
    names = sorted(graph.schema.node_tables["node"])
    made = nx.MultiDiGraph()
    for row, label in enumerate(rows.tolist()):
        made.add_node(label, **{name: graph.table("node", name)[row].tolist() for name in names})
    edges = graph.edges(ETYPE)
    for place in range(len(edges)):
        values = {name: table[place].tolist() for name, table in edges.tables.items()}
        made.add_edge(int(rows[edges.src[place]]), int(rows[edges.dst[place]]), **values)
    return made


def both_directions(graph: nx.Graph) -> nx.MultiDiGraph:
    """The stored edges of an undirected graph, by networkx' own conversion. A self-loop is one edge."""
    made = nx.MultiDiGraph()
    made.add_nodes_from(graph.nodes(data=True))
    for u, v, data in graph.edges(data=True):
        made.add_edge(u, v, **data)
        if not graph.is_directed() and u != v:
            made.add_edge(v, u, **data)
    return made


def edges_of(graph: nx.MultiDiGraph) -> Counter:
    return Counter((u, v, json.dumps(data, sort_keys=True)) for u, v, data in graph.edges(data=True))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_round_trip(kind: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=7, unique=True))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(labels), st.sampled_from(labels)), max_size=12))
    graph = kind()
    for place, label in enumerate(labels):
        graph.add_node(label, age=place * 3, height=place / 4, z=[place, -place])
    for place, (u, v) in enumerate(pairs):
        graph.add_edge(u, v, weight=place / 2, time=2**40 + place, colour=place % 3)
    folder = tmp_path_factory.mktemp("nx")
    atta.from_networkx(graph, folder / "g")
    found, want = back(Graph.open(folder / "g")), both_directions(graph)
    assert list(found.nodes(data=True)) == list(want.nodes(data=True))
    assert edges_of(found) == edges_of(want)


def test_order_of_edges_is_kept(tmp_path: Path) -> None:
    graph = nx.Graph([(5, 3), (3, 3), (9, 5), (3, 9)])
    atta.from_networkx(graph, tmp_path / "g")
    stored = Graph.open(tmp_path / "g")
    ids, edges = stored.user_ids("node"), stored.edges(ETYPE)
    pairs = list(zip(ids[edges.src].tolist(), ids[edges.dst].tolist(), strict=True))
    given_order = list(graph.edges())
    assert pairs == [*given_order, *((v, u) for u, v in given_order if u != v)]


def test_features_labels_and_splits(tmp_path: Path) -> None:
    graph = nx.path_graph(4, create_using=nx.DiGraph)
    for v in graph:
        graph.nodes[v].update(x=[v + 0.5, v], y=v % 2, train_mask=v < 2, active=v == 3)
    graph.graph.update(name="a path", num_classes=5)
    atta.from_networkx(graph, tmp_path / "g", undirected=True, normalize_features=True)
    stored = Graph.open(tmp_path / "g")
    rows = np.array([[v + 0.5, v] for v in range(4)], np.float32)
    assert np.allclose(stored.table("node", "x"), rows / rows.sum(axis=1, keepdims=True))
    assert stored.table("node", "y").tolist() == [0, 1, 0, 1]
    assert stored.table("node", "active").tolist() == [False, False, False, True]
    assert stored.split("node", "train").tolist() == [0, 1]
    assert stored.schema.num_classes == 5
    assert stored.provenance["name"] == "a path"
    assert len(stored.edges(ETYPE)) == 6  # the missing reverse edges
    graph.graph["num_classes"] = "five"
    with pytest.raises(DataError, match="'num_classes' is 'five', wanted is a number of classes"):
        atta.from_networkx(graph, tmp_path / "h")


def test_strings_become_names(tmp_path: Path) -> None:
    graph = nx.DiGraph([("Ann", "Bö"), ("Bö", "c")])
    atta.from_networkx(graph, tmp_path / "g")
    stored = Graph.open(tmp_path / "g")
    assert stored.user_ids("node") is None
    assert [bytes(r).rstrip(b"\0").decode() for r in stored.table("node", "name")] == ["Ann", "Bö", "c"]
    assert stored.edges(ETYPE).dst.tolist() == [1, 2]


def karate() -> nx.Graph:
    return nx.karate_club_graph()


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (nx.Graph([(0, "a")]), "the vertex 'a' at position 1 is a str: labels are all integers or all strings"),
        (nx.Graph([(0, 1.5)]), r"the vertex 1\.5 at position 1 is a float"),
        (nx.grid_2d_graph(2, 2), r"the vertex \(0, 0\) at position 0 is a tuple"),
        (nx.Graph([(True, 5)]), "the vertex True at position 0 is a bool"),
        (nx.Graph([(0, 2**63)]), f"the vertex {2**63} at position 1 does not fit into int64"),
        (nx.Graph([("a\0", "b")]), "ends in a zero"),
        (karate(), "'club' is not imported: it holds str"),
        (nx.Graph([(0, 1, {"weight": [1, 2]})]), "'weight' is not imported: it must be one number for each edge"),
        (nx.Graph([(0, 1, {"a b": 1})]), "'a b' is not imported: tables cannot have this name"),
        (nx.Graph([(0, 1, {"w": 1}), (1, 2)]), r"'w' is not imported: the edge \(1, 2\) has no such attribute"),
        (nx.Graph([(0, 1, {"w": 1}), (1, 2, {"w": None})]), "'w' is not imported: it holds NoneType, int"),
        (nx.Graph([(0, 1, {"w": [1]}), (1, 2, {"w": [1, 2]})]), "'w' is not imported: not every edge has equally many"),
        (nx.Graph([(0, 1, {"w": 2**64})]), "'w' is not imported: it holds int, wanted are numbers that fit"),
        (nx.Graph([(0, 1, {"w": 2**63}), (1, 2, {"w": -1})]), "'w' is not imported: its numbers do not fit"),
        (nx.Graph([(0, 1)], source="a book"), "'source' is not imported: it is an attribute of the whole graph"),
        (nx.MultiGraph([(0, 1, "likes", {})]), "'keys' is not imported: edges are identified by their positions"),
    ],
)
def test_what_cannot_be_written_is_named(graph: nx.Graph, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        atta.from_networkx(graph, tmp_path / "g")
    assert not list(tmp_path.iterdir())
    if "is not imported" in says:
        atta.from_networkx(graph, tmp_path / "g", drop=[says.split("'")[1]])


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--drop weight: the source holds nothing of this name that is refused"):
        atta.from_networkx(karate(), tmp_path / "g", drop=["club", "weight"])
    atta.from_networkx(karate(), tmp_path / "g", drop=["club"])
    with pytest.raises(ConfigError, match="--overwrite"):
        atta.from_networkx(karate(), tmp_path / "g", drop=["club"])
    atta.from_networkx(karate(), tmp_path / "g", drop=["club"], overwrite=True)
    assert len(Graph.open(tmp_path / "g").edges(ETYPE)) == 2 * karate().number_of_edges()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ["graphml", "graphml.gz", "json", "old.json"])
def test_files_say_what_the_graph_says(kind: Any, fmt: str, tmp_path: Path) -> None:
    graph = kind([(7, 3), (3, 3), (7, 9), (7, 9)])
    for place, (_, _, data) in enumerate(graph.edges(data=True)):
        data["weight"] = place / 4
    nx.set_node_attributes(graph, {7: 1, 3: 0, 9: 2}, "y")
    path = tmp_path / f"graph.{fmt}"
    if fmt.startswith("graphml"):
        nx.write_graphml(graph, path)
    else:
        value = nx.node_link_data(graph, edges="links" if fmt == "old.json" else "edges")
        path.write_text(json.dumps(value))
    import_graph("networkx", path, tmp_path / "g")
    atta.from_networkx(graph, tmp_path / "h")
    found, want = Graph.open(tmp_path / "g"), Graph.open(tmp_path / "h")
    assert found.files == want.files
    assert edges_of(back(found)) == edges_of(both_directions(graph))


def test_graphml_with_names_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="d" for="node" attr.name="age" attr.type="int"><default>30</default></key>'
        '<graph edgedefault="directed"><node id="n0"><data key="d">7</data></node><node id="01"/>'
        '<edge source="n0" target="01"/></graph></graphml>'
    )
    import_graph("networkx", tmp_path / "g.graphml", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert graph.table("node", "age").tolist() == [7, 30]
    assert [bytes(r).rstrip(b"\0") for r in graph.table("node", "name")] == [b"n0", b"01"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("g.graphml", "<graphml", "not readable as GraphML"),
        ("g.graphml", "<a/>", "not readable as GraphML"),
        ("g.json", "{", "not readable as node-link JSON"),
        ("g.json", "[]", "not readable as node-link JSON"),
        ("g.json", '{"nodes": [{}], "links": []}', "not readable as node-link JSON"),
        ("g.json", '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "an edge names the vertex 2"),
        ("g.json", '{"nodes": [{"id": 1}, {"id": 1}], "links": []}', "a vertex occurs twice"),
        ("g.dot", "", r"wanted is a file named \*\.graphml"),
    ],
)
def test_damaged_files(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=says) as error:
        import_graph("networkx", tmp_path / name, tmp_path / "out")
    assert error.value.path == str(tmp_path / name)


def test_networkx_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, atta, atta.cli.main, atta.client.loaders.minibatch, atta.partition.importers, atta.cli.graphs.data\n"
        "atta.from_networkx\n"
        "assert 'networkx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
