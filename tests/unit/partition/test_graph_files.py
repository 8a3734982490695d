"""Files of GML, Pajek and GraphML: against networkx and igraph, which wrote them, and against what their formats say."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from atta.errors import DataError
from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from tests.unit.partition.oracles import labels, refused

EDGES = "node__to__node"
Pairs = Counter[tuple[Any, Any, float]]


def imported(path: Path, **options: Any) -> Graph:
    """The graph folder of a file, whose format is guessed."""
    assert guess(path) == "networkx"
    import_graph("networkx", path, path.parent / "g", overwrite=True, **options)
    return Graph.open(path.parent / "g")


def pairs(graph: Graph, table: str = "weight") -> Pairs:
    """The stored edges by labels, with a table of theirs (1 if there is none)."""
    edges, named = graph.edges(EDGES), labels(graph)
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
    (tmp_path / "g.gml").write_text(
        'graph [ node [ id 8 label "x" ] node [ id 9 label "x" ] edge [ source 8 target 9 ] ]'
    )
    with pytest.raises(DataError, match="'label' is not imported: it holds str"):
        imported(tmp_path / "g.gml")
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
    with pytest.raises(DataError, match=r"'\*partition' is not imported"):
        imported(tmp_path / "p.net")
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
    with pytest.raises(DataError, match=says):
        imported(tmp_path / "p.net")


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
    assert {name: rows.dtype.kind for name, rows in tables.items()} == {
        "pos": "f",
        "level": "i",
        "flags": "b",
        "active": "b",
    }
    assert found.edges(EDGES).tables["parts"].tolist() == [[1, 2, 3], [4, 5, 6]]
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
        (('"two"', '"x"'), None),
        (('id="e1"', 'id="x"'), "'keys' is not imported"),
        (('edgedefault="directed"', ""), None),
        (("UTF-8", "UTF-88"), "not readable as GraphML: unknown encoding: UTF-88"),
        (("</graphml>", '<graph edgedefault="directed"/></graphml>'), "'graph' is not imported: the file holds 2"),
        (("</node>\n    <node", "</node\n    <node"), "not readable as GraphML: not well-formed"),
    ],
)
def test_other_graphml(change: tuple[str, str], says: str | None, tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_text(GRAPH_TOOL.replace(*change, 1))
    if says is None:
        imported(tmp_path / "g.graphml")
        return
    with pytest.raises(DataError, match=says):
        imported(tmp_path / "g.graphml")


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
@pytest.mark.parametrize("entity", ['a "&b;&b;"', 'a SYSTEM "file:///etc/hostname"', '% a "x"'])
def test_entities_are_refused_before_they_expand(entity: str, encoding: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE g [<!ENTITY {entity}>]>\n<graphml>&a;</graphml>'
    (tmp_path / "g.graphml").write_bytes(text.encode(encoding))
    refused("networkx", tmp_path / "g.graphml", tmp_path, "declares the entity 'a'; files with entities are not read")
