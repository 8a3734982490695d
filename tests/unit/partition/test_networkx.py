"""Graphs of networkx, and files of GML, Pajek and GraphML: against networkx and igraph, and what their formats say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
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
from atta.partition.importers import guess, import_graph
from tests.unit.partition.oracles import labels, refused, refuses, taken_in

ETYPE = "node__to__node"
KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


def edges_in(graph: Graph) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The stored edges in order: user ids of the ends, and every table as an attribute."""
    named, edges = labels(graph), graph.edges(ETYPE)
    columns = {name: table[:].tolist() for name, table in edges.tables.items()}
    values = [{name: column[place] for name, column in columns.items()} for place in range(len(edges))]
    return [(named[u], named[v], of) for u, v, of in zip(edges.src, edges.dst, values, strict=True)]


def both_directions(graph: nx.Graph) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The edges as Atta stores them: those without direction in both, the reverses last. A self-loop is one edge."""
    edges = list(graph.edges(data=True))
    return edges + ([] if graph.is_directed() else [(v, u, data) for u, v, data in edges if u != v])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_round_trip(kind: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    named = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=7, unique=True))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(named), st.sampled_from(named)), max_size=12))
    graph = kind()
    for place, label in enumerate(named):
        graph.add_node(label, age=place * 3, height=place / 4, z=[place, -place])
    for place, (u, v) in enumerate(pairs):
        graph.add_edge(u, v, weight=place / 2, time=2**40 + place, colour=place % 3)
    folder = tmp_path_factory.mktemp("nx")
    atta.from_networkx(graph, folder / "g")
    found = Graph.open(folder / "g")
    assert labels(found) == list(graph)
    for name in ("age", "height", "z"):
        assert found.table("node", name).tolist() == [value for _, value in graph.nodes(data=name)]
    assert edges_in(found) == both_directions(graph)


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


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (nx.Graph([(0, "a")]), "the vertex 'a' at position 1 is a str: labels are all integers or all strings"),
        (nx.Graph([(0, 1.5)]), r"the vertex 1\.5 at position 1 is a float"),
        (nx.grid_2d_graph(2, 2), r"the vertex \(0, 0\) at position 0 is a tuple"),
        (nx.Graph([(True, 5)]), "the vertex True at position 0 is a bool"),
        (nx.Graph([(0, 2**63)]), f"the vertex {2**63} at position 1 does not fit into int64"),
        (nx.Graph([("a\0", "b")]), "ends in a zero"),
        (nx.karate_club_graph(), "'club' is not imported: it holds str"),
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
    refuses(DataError, says, atta.from_networkx, graph, tmp_path / "g")
    assert not list(tmp_path.iterdir())
    if "is not imported" in says:
        atta.from_networkx(graph, tmp_path / "g", drop=[says.split("'")[1]])


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--drop weight: the source holds nothing of this name that is refused"):
        atta.from_networkx(nx.karate_club_graph(), tmp_path / "g", drop=["club", "weight"])
    atta.from_networkx(nx.karate_club_graph(), tmp_path / "g", drop=["club"])
    refuses(ConfigError, "--overwrite", atta.from_networkx, nx.karate_club_graph(), tmp_path / "g", drop=["club"])
    atta.from_networkx(nx.karate_club_graph(), tmp_path / "g", drop=["club"], overwrite=True)
    assert len(Graph.open(tmp_path / "g").edges(ETYPE)) == 2 * nx.karate_club_graph().number_of_edges()


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
    assert Graph.open(tmp_path / "g").files == Graph.open(tmp_path / "h").files


def test_graphml_with_names_defaults_and_keys_that_edges_have_too(tmp_path: Path) -> None:
    """rustworkx gives keys of vertices and of edges the same ids."""
    (tmp_path / "g.graphml").write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="d" for="node" attr.name="age" attr.type="int"><default>30</default></key>'
        '<key id="d" for="edge" attr.name="weight" attr.type="double"></key>'
        '<graph edgedefault="directed"><node id="n0"><data key="d">7</data></node><node id="01"/>'
        '<edge source="n0" target="01"><data key="d">0.5</data></edge></graph></graphml>'
    )
    graph = taken_in("networkx", tmp_path / "g.graphml", tmp_path / "g")
    assert graph.table("node", "age").tolist() == [7, 30]
    assert graph.edges(ETYPE).tables["weight"].tolist() == [0.5]
    assert labels(graph) == ["n0", "01"]


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
    assert refused("networkx", tmp_path / name, tmp_path, says).path == str(tmp_path / name)


def test_networkx_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, atta, atta.cli.main, atta.client.loaders.minibatch, atta.partition.importers, atta.cli.graphs.data\n"
        "atta.from_networkx\n"
        "assert 'networkx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


Pairs = Counter[tuple[Any, Any, float]]


def imported(path: Path, **options: Any) -> Graph:
    assert guess(path) == "networkx"
    return taken_in("networkx", path, path.parent / "g", **options)


def pairs(graph: Graph, table: str = "weight") -> Pairs:
    edges, named = graph.edges(ETYPE), labels(graph)
    values = edges.tables.get(table, np.ones(len(edges)))[:].tolist()
    return Counter((named[u], named[v], value) for u, v, value in zip(edges.src, edges.dst, values, strict=True))


def stored(edges: list[tuple[Any, Any, float]], *, directed: bool) -> Pairs:
    """The edges as Atta stores them: those without direction in both, a self-loop once."""
    return Counter([*edges, *([] if directed else [(v, u, w) for u, v, w in edges if u != v])])


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["text", "numbers", "none"])
@pytest.mark.parametrize("suffix", [".gml", ".gml.gz"])
def test_gml_of_networkx(directed: bool, kind: str, suffix: str, tmp_path: Path) -> None:
    graph = nx.gnm_random_graph(9, 15, seed=4, directed=directed)
    graph.add_edge(3, 3)
    for place, (_, _, data) in enumerate(graph.edges(data=True)):
        data["weight"] = place * 1e-5
    for v in graph:
        graph.nodes[v]["age"] = v * 3
    graph = nx.relabel_nodes(graph, {v: f"Nö {v}" if kind == "text" else v * 10 - 5 for v in graph})
    path = tmp_path / f"graph{suffix}"
    nx.write_gml(graph, path)
    options: dict[str, Any] = {}
    if kind == "none":
        options["drop"] = ["label"]
        graph = nx.convert_node_labels_to_integers(graph)
    found = imported(path, **options)
    assert labels(found) == list(graph)
    assert found.table("node", "age").tolist() == [age for _, age in graph.nodes(data="age")]
    assert pairs(found) == stored(list(graph.edges(data="weight")), directed=directed)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("suffix", [".gml", ".net", ".graphml"])
@pytest.mark.parametrize("named", [False, True])
def test_files_of_igraph(suffix: str, directed: bool, named: bool, tmp_path: Path) -> None:
    igraph = pytest.importorskip("igraph")
    rng = np.random.default_rng(3)
    ends = rng.integers(0, 12, (30, 2)).tolist()
    graph = igraph.Graph(12, ends, directed=directed)
    graph.es["weight"] = [float(f"1e{power}") for power in rng.integers(-9, 9, 30)]
    if named:
        graph.vs["name"] = [f"Vertex {v} ü" for v in range(12)]
    path = tmp_path / f"graph{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # igraph's own about what its formats hold
        {".gml": graph.write_gml, ".net": graph.write_pajek, ".graphml": graph.write_graphml}[suffix](str(path))
    first = {".gml": 0, ".net": 1, ".graphml": 0}[suffix]
    names = graph.vs["name"] if named else [f"n{v}" if suffix == ".graphml" else v + first for v in range(12)]
    found = imported(path)
    assert labels(found) == names
    want = stored([(names[e.source], names[e.target], e["weight"]) for e in graph.es], directed=directed)
    assert pairs(found) == want


def test_gml_that_networkx_refuses_or_misreads(tmp_path: Path) -> None:
    text = (
        'Creator "graph [ 1e5 ]"\n# graph [\nGraph_is_next 1\ngraph\n[ directed 1\n node [ id 4 label "A ü 1e-05" w 1e-05 ]\n'
        ' node [ id 2 label "two\nlines" w -Inf ] edge [ source 4 target 2 w -2E+3 ] edge [ source 4 target 2 w 1e2 ] ]'
    )
    for encoding in ("utf-8", "latin-1", "utf-8-sig"):
        (tmp_path / "g.gml").write_bytes(text.encode(encoding))
        found = imported(tmp_path / "g.gml")
        assert labels(found) == ["A ü 1e-05", "two lines"]
        assert found.table("node", "w").tolist() == [1e-05, -np.inf]
        assert sorted(pairs(found, "w").elements()) == [("A ü 1e-05", "two lines", w) for w in (-2000.0, 100.0)]


def test_labels_that_vertices_share_are_refused_by_name(tmp_path: Path) -> None:
    text = 'graph [ node [ id 8 label "x" ] node [ id 9 label "x" ] edge [ source 8 target 9 ] ]'
    (tmp_path / "g.gml").write_text(text)
    refuses(DataError, "'label' is not imported: it holds str", imported, tmp_path / "g.gml")
    assert labels(imported(tmp_path / "g.gml", drop=["label"])) == [8, 9]


PAJEK = """*Network Some people
% a comment
*Vertices 4
1 "Ann" 0.1 0.2 0.5 ellipse ic Red
2 "B \u00f6" 0.3 0.4 0.5 ic Blue
3 Carl 1 2 3
4 "" 1 1 1
*Arcs
1 2 2.5 c Blue
2 1
*Edges
3 1 -4 l "a label"
3 3
*Arcslist
4 1 2
*Edgeslist
2 3 4
"""


def test_pajek_has_arcs_and_edges_in_one_network(tmp_path: Path) -> None:
    (tmp_path / "p.net").write_text(PAJEK)
    notes = import_graph("networkx", tmp_path / "p.net", tmp_path / "h")
    assert notes == ["left out, because it only draws: shape, ic, c, l"]
    found = imported(tmp_path / "p.net")
    a, b, c, d = labels(found)
    assert (a, b, c, d) == ("Ann", "B ö", "Carl", "")
    arcs = [(a, b, 2.5), (b, a, 1.0), (d, a, 1.0), (d, b, 1.0)]
    edges = [(c, a, -4.0), (c, c, 1.0), (b, c, 1.0), (b, d, 1.0)]
    assert pairs(found) == stored(arcs, directed=True) + stored(edges, directed=False)
    assert found.table("node", "position").tolist() == [[0.1, 0.2, 0.5], [0.3, 0.4, 0.5], [1, 2, 3], [1, 1, 1]]
    assert found.provenance["name"] == "Some people"


@pytest.mark.parametrize(
    ("text", "named", "edges"),
    [
        ("*Vertices 3\n*Edges\n1 2\n", [1, 2, 3], [(1, 2, 1), (2, 1, 1)]),
        ('*vertices 3\n2 "b"\n*arcs\n1 2\n', ["1", "b", "3"], [("1", "b", 1)]),
        ('*vertices 2\n1 "7"\n2 "5"\n*arcs\n1 2\n', [7, 5], [(7, 5, 1)]),
        ("*Vertices 2\n*Matrix\n0 2.5\n1 0\n", [1, 2], [(1, 2, 2.5), (2, 1, 1)]),
        ("*Vertices 5 2\n*Matrix\n0 1 0\n0 0 3\n", [1, 2, 3, 4, 5], [(1, 4, 1), (2, 5, 3), (4, 1, 1), (5, 2, 3)]),
        ("*Vertices 2\r\n*Arcs\r\n1 2\r\n", [1, 2], [(1, 2, 1)]),
        ("\ufeff*Vertices\t2\r*Edges\r1 2\r", [1, 2], [(1, 2, 1), (2, 1, 1)]),
        ("words before\n# and a comment\n*Vertices 2\n*Arcs\n1 2\n", [1, 2], [(1, 2, 1)]),
        ("*Vertices 0\n", [], []),
    ],
)
def test_pajek_in_other_forms(text: str, named: list[Any], edges: list[Any], tmp_path: Path) -> None:
    (tmp_path / "p.net").write_bytes(text.encode())
    found = imported(tmp_path / "p.net")
    assert labels(found) == named
    assert pairs(found) == Counter(edges)


def test_pajek_with_modes_relations_and_more_than_a_network(tmp_path: Path) -> None:
    (tmp_path / "p.net").write_text(
        '*Vertices 4 1\n*Arcs :2 "likes it"\n1 2\n*Edges :5\n1 3\n*Partition ages\n*Vertices 4\n7\n8\n9\n*Arcs\n1 4\n'
    )
    refuses(DataError, r"'\*partition' is not imported", imported, tmp_path / "p.net")
    notes = import_graph("networkx", tmp_path / "p.net", tmp_path / "h", drop=["*partition"])
    assert notes == ['relation 2 is "likes it"']
    found = Graph.open(tmp_path / "h")
    assert pairs(found, "relation") == Counter([(1, 2, 2), (1, 3, 5), (3, 1, 5), (1, 4, 1)])
    assert found.table("node", "type").tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("*Vertices 3\n*Arcs\n\n1 4\n", "line 4: '4' is no vertex, they are numbered from 1 to 3"),
        ("*Vertices 3\n0 x\n", "line 2: '0' is no vertex"),
        ("*Vertices 3\n*Edges\n1\n", "line 3: wanted are two vertices and a value"),
        ("*Arcs\n1 2\n*Vertices 3\n", r"line 1: \*arcs before the line \*Vertices"),
        ("*Vertices 3\n*Vertices 3\n", r"line 2: a second line \*Vertices"),
        ("*Vertices many\n", r"line 1: wanted is \*Vertices with the number of vertices"),
        ("*Vertices 99999999999\n", "states 99999999999 vertices, which a file of this size does not describe"),
        ("*Vertices 2\n*Matrix\n1\n", "line 3: 1 numbers in a row of the matrix, wanted are 2"),
        ("*Vertices 1\n*Matrix\nx\n", "line 3: 'x' is no number"),
        ("*Vertices 2\n*Arcs\n1 2 1 [1-3]\n", "'intervals' is not imported"),
        ("*Vertices 2\n*Arcs\n1 2 \x1b[31m\n", r"line 3: '\\x1b\[31m' is neither a number nor the name"),
        ('*Vertices 2\n1 "a"\n2 "a"\n', "'label' is not imported"),
        ("*Vertices 2\n1 a 1 2\n2 b 1 2 3\n", "'position' is not imported: not every vertex has equally many numbers"),
    ],
)
def test_errors_of_pajek_name_the_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "p.net").write_text(text)
    refused("networkx", tmp_path / "p.net", tmp_path, says)


# As graph-tool writes it: more types, fractions in hexadecimal, commas between the numbers of a row, ids that count.
GRAPH_TOOL = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="key0" for="node" attr.name="pos" attr.type="vector_double" />
  <key id="key1" for="node" attr.name="level" attr.type="short" />
  <key id="key2" for="node" attr.name="flags" attr.type="vector_boolean" />
  <key id="key3" for="node" attr.name="name" attr.type="string" />
  <key id="key4" for="edge" attr.name="weight" attr.type="double" />
  <key id="key5" for="edge" attr.name="parts" attr.type="vector_int" />
  <key id="key6" for="node" attr.name="active" attr.type="boolean" />
  <graph id="G" edgedefault="directed" parse.nodeids="canonical" parse.edgeids="canonical" parse.order="nodesfirst">
    <node id="n0"><data key="key0">0x1.8p+0, 2</data><data key="key1">-3</data><data key="key2">1, 0</data>
      <data key="key3">one</data><data key="key6">\n  true </data></node>
    <node id="n1"><data key="key0">-inf, 0x1p-2</data><data key="key1">7</data><data key="key2">0, 0</data>
      <data key="key3">two</data><data key="key6">0</data></node>
    <edge id="e0" source="n0" target="n1"><data key="key4">0x1.999999999999ap-4</data><data key="key5">1, 2, 3</data></edge>
    <edge id="e1" source="n0" target="n1"><data key="key4">7</data><data key="key5">4, 5, 6</data></edge>
  </graph>
</graphml>
"""


@pytest.mark.parametrize("space", ["xmlns", "none", "x:"])
def test_graphml_of_graph_tool(space: str, tmp_path: Path) -> None:
    text = GRAPH_TOOL
    if space == "none":
        text = text.replace(' xmlns="http://graphml.graphdrawing.org/xmlns"', "")
    if space == "x:":
        text = re.sub(r"(</?)(\w)", r"\1x:\2", text).replace("xmlns=", "xmlns:x=")
    (tmp_path / "g.graphml").write_text(text)
    found = imported(tmp_path / "g.graphml")
    assert labels(found) == ["one", "two"]
    tables = {name: found.table("node", name) for name in ("pos", "level", "flags", "active")}
    assert {name: rows.tolist() for name, rows in tables.items()} == {
        "pos": [[1.5, 2.0], [-np.inf, 0.25]], "level": [-3, 7], "flags": [[True, False], [False, False]], "active": [True, False]
    }  # fmt: skip
    assert "".join(rows.dtype.kind for rows in tables.values()) == "fibb"
    assert found.edges(ETYPE).tables["parts"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert pairs(found) == Counter([("one", "two", 0.1), ("one", "two", 7.0)])
    assert labels(imported(tmp_path / "g.graphml", drop=["name", "keys"])) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("vector_int", "vector_string"), "'parts' is not imported: it holds list"),
        (("vector_int", "python_object"), "'parts' is not imported: it holds str"),
        (("4, 5, 6", "4, 5"), "'parts' is not imported: not every edge has equally many numbers"),
        (("vector_int", "tensor"), "not readable as GraphML: 'tensor'"),
        (("-3", "-3.5"), "not readable as GraphML: invalid literal for int"),
        (('id="e1"', 'id="x"'), "'keys' is not imported"),
        (("UTF-8", "UTF-88"), "not readable as GraphML: unknown encoding: UTF-88"),
        (("</graphml>", '<graph edgedefault="directed"/></graphml>'), "'graph' is not imported: the file holds 2"),
        (("</node>\n    <node", "</node\n    <node"), "not readable as GraphML: not well-formed"),
    ],
)
def test_refused_graphml(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_text(GRAPH_TOOL.replace('edgedefault="directed"', "").replace(*change, 1))
    refused("networkx", tmp_path / "g.graphml", tmp_path, says)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
@pytest.mark.parametrize("entity", ['a "&b;&b;"', 'a SYSTEM "file:///etc/hostname"', '% a "x"'])
def test_entities_are_refused_before_they_expand(entity: str, encoding: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE g [<!ENTITY {entity}>]>\n<graphml>&a;</graphml>'
    (tmp_path / "g.graphml").write_bytes(text.encode(encoding))
    refused("networkx", tmp_path / "g.graphml", tmp_path, "declares the entity 'a'; files with entities are not read")
