"""Edge lists, against the lines themselves, pandas and networkx, and edges with times as CSV of JODIE, TGN and TGB."""

from __future__ import annotations

import gzip
import re
import resource
import tempfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.errors import AttaError, ConfigError, DataError
from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from atta.partition.importers.reading import edge_lines as parsing
from atta.partition.names import split_edge_type
from tests.unit.partition.oracles import labels, refused, refuses, taken_in

pytest.importorskip("pyarrow")
ONE = "node__to__node"
LIMITS = [0, 1, -1, 2**27 - 1, 2**27, 2**63 - 1, -(2**63)]
IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30) | st.sampled_from(LIMITS)


def lines_of(graph: Graph) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for edge_type in graph.schema.edge_types:
        source, _, target = split_edge_type(edge_type)
        edges, one, other = graph.edges(edge_type), labels(graph, source), labels(graph, target)
        tables = [values.tolist() for _, values in sorted(edges.tables.items())]
        rows = zip(edges.src, edges.dst, *tables, strict=True)
        found[edge_type] = [(one[u], other[v], *rest) for u, v, *rest in rows]
    return found


def imported(path: Path | list[Path], folder: Path, **options: Any) -> Graph:
    return taken_in("edges", path, folder / "g", **options)


def written(folder: Path, text: str | bytes, name: str = "edges.txt") -> Path:
    data = text.encode() if isinstance(text, str) else text
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_BLOCK", 64)


@pytest.mark.parametrize("separator", ["\t", ",", ";", "|", " ", "   ", " \t "])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["edges.txt", "edges.gz"])
@pytest.mark.usefixtures("small_blocks")
def test_lines_become_edges_in_their_order(separator: str, ending: str, name: str, tmp_path: Path) -> None:
    edges = np.random.default_rng(0).integers(-9, 90, (200, 2)).tolist()
    lines = [separator.join(map(str, edge)) for edge in edges]
    lines[70:70] = ["# a comment", "", "% another"]
    graph = imported(written(tmp_path, ending.join(lines), name), tmp_path)
    assert lines_of(graph) == {"node__to__node": [tuple(edge) for edge in edges]}
    assert labels(graph, "node") == sorted({v for edge in edges for v in edge})  # rows are in the order of ids


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_integers_of_any_size_stay_the_users_ids(edges: list[tuple[int, int]]) -> None:
    numbering, sides = _native.Numbering(), np.array(edges, np.int64).T
    pieces = [np.ascontiguousarray(part) for side in sides for part in np.split(side, [5])]
    rows = np.concatenate([numbering.number(part) for part in pieces])
    ids = numbering.ids()
    assert ids[rows].tolist() == sides.reshape(-1).tolist()
    assert ids.tolist() == list(dict.fromkeys(sides.reshape(-1).tolist()))


def test_many_ids_far_apart_are_numbered() -> None:
    ids = np.tile(np.random.default_rng(1).integers(-(2**62), 2**62, 50_000), 2)
    numbering = _native.Numbering()
    rows = numbering.number(ids)
    assert np.array_equal(numbering.ids()[rows], ids)
    assert len(numbering.ids()) == len(np.unique(ids))


@given(st.text("0179.-\t\n ,a", max_size=12))
@settings(max_examples=200, deadline=None)
def test_padded_numbers_are_seen(text: str) -> None:
    assert _native.has_padded_number(text.encode()) == bool(re.search(r"(?<![0-9.])0[0-9]", text))


@pytest.mark.usefixtures("small_blocks")
def test_strings_are_numbered_as_they_first_come(tmp_path: Path) -> None:
    names = ["Ann Lee", "Zoé", "007", "12:30", "1e4", "x", "Bob"]
    edges = [(names[i % 7], names[i * i % 5]) for i in range(60)]
    graph = imported(written(tmp_path, "".join(f"{u}\t{v}\n" for u, v in edges)), tmp_path)
    assert lines_of(graph)["node__to__node"] == edges
    assert labels(graph, "node") == list(dict.fromkeys(v for edge in edges for v in edge))


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters=",;|"), min_size=1, max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=30), st.sampled_from([" ", "\t"]))
@settings(max_examples=25, deadline=None)
def test_strings_of_any_script(edges: list[tuple[str, str]], separator: str) -> None:
    # The first letter makes no line a comment, and no name a number: words above numbers are a heading.
    lines = [f"~{u}{separator}~{v}" for u, v in edges]
    with tempfile.TemporaryDirectory() as folder:
        graph = imported(written(Path(folder), "\n".join(lines)), Path(folder))
        assert lines_of(graph) == {ONE: [(f"~{u}", f"~{v}") for u, v in edges]}


def test_numbers_are_strings_if_the_user_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "1 7\n2 1\n")
    assert lines_of(imported(path, tmp_path, string_ids=True)) == {"node__to__node": [("1", "7"), ("2", "1")]}


KINDS: dict[str, tuple[str, dict[str, list[tuple[Any, ...]]]]] = {
    "SNAP": ("# Nodes: 3 Edges: 2\n# FromNodeId\tToNodeId\n5\t7\n7\t9\n", {ONE: [(5, 7), (7, 9)]}),
    "a comment names the columns": ("# to from\n5 7\n", {ONE: [(7, 5)]}),
    "KONECT, directed, blanks and tabs": ("% asym positive\n% 2 3 3\n1 2\t3 100 \n2 3 1\t50\n",
                                          {ONE: [(1, 2, 100, 3), (2, 3, 50, 1)]}),
    "KONECT, undirected": ("% sym weighted\n1 2 0.5\n3 3 1\n2 1 2\n",
                           {ONE: [(1, 2, 0.5), (3, 3, 1), (2, 1, 2), (2, 1, 0.5), (1, 2, 2)]}),
    "KONECT, two sides": ("% bip unweighted\n1 1\n1 3\n2 2\n", {"left__to__right": [(1, 1), (1, 3), (2, 2)]}),
    "KONECT, ones of no meaning": ("%asym unweighted\n1 2 1 9\n", {ONE: [(1, 2, 9)]}),
    "triples": ("a b\tlikes\tc\nc\thates\ta b\nc\tlikes\tc\n",
                {"node__hates__node": [("c", "a b")], "node__likes__node": [("a b", "c"), ("c", "c")]}),
    "triples of numbers": ("1 likes 2\n2 likes 1\n", {"node__likes__node": [(1, 2), (2, 1)]}),
    "a heading of triples": ("head,relation,tail\n1,5,2\n", {"node__5__node": [(1, 2)]}),
    "columns in another order": ("weight,Target,Source,time\n1,2,3,4\n2.5,3,4,5\n", {ONE: [(3, 2, 4, 1), (4, 3, 5, 2.5)]}),
    "one end has a known name": ("whom,source\n1,2\n", {ONE: [(2, 1)]}),
    "an unknown heading": ("a;b\n1;2\n", {ONE: [(1, 2)]}),
    "a mark of the byte order": ("\ufeffsrc,dst\n1,2\n", {ONE: [(1, 2)]}),
    "quotes": ('source,target\n"a, b",c\n', {ONE: [("a, b", "c")]}),
    "only a heading": ("source,target\n", {ONE: []}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_edge_lists(kind: str, tmp_path: Path) -> None:
    text, edges = KINDS[kind]
    path = written(tmp_path, text)
    assert guess(path) == "edges"
    assert lines_of(imported(path, tmp_path)) == edges


def test_more_relations_than_files_may_be_open(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(f"a\tr{i % 90}\tb{i % 7}\n" for i in range(200)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, hard))
    try:
        graph = imported(path, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    edges = {f"node__r{r}__node": [("a", f"b{i % 7}") for i in range(r, 200, 90)] for r in range(90)}
    assert lines_of(graph) == edges


def test_files_that_networkx_writes(tmp_path: Path) -> None:
    graph = nx.les_miserables_graph()
    labelled = nx.convert_node_labels_to_integers(graph, first_label=5)
    nx.write_weighted_edgelist(labelled, tmp_path / "e.gz")
    found = lines_of(imported(tmp_path / "e.gz", tmp_path, columns={"weight": "3"}))[ONE]
    assert found == [(u, v, w) for u, v, w in labelled.edges(data="weight")]
    for _, _, data in labelled.edges(data=True):
        data["since"] = data["weight"] + 0.5
    nx.write_edgelist(labelled, tmp_path / "e.txt", data=True)
    assert guess(tmp_path / "e.txt") == "edges"
    both = lines_of(imported(tmp_path / "e.txt", tmp_path, columns={"since": "since"}))[ONE]
    assert both == [(u, v, w + 0.5, w) for u, v, w in found]
    nx.write_edgelist(nx.path_graph(["a", "b", "c"]), tmp_path / "n.txt")
    assert lines_of(imported(tmp_path / "n.txt", tmp_path))[ONE] == [("a", "b"), ("b", "c")]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("0 1 {'weight': 4}\n1 2 {}\n", "line 2: column 'weight': '{}' is no number"),
        ("0 1 {'time': 4}\n1 2 {'b': 4}\n", "line 2: 4 columns instead of 3"),
        ("0 1 {'a': 'two words'}\n", "data=False"),
        ("a b {'kind': 'red'}\n", "'kind' is not imported"),
    ],
)
def test_attributes_in_braces_that_differ_are_named(text: str, cause: str, tmp_path: Path) -> None:
    refuses(DataError, re.escape(cause), imported, written(tmp_path, text), tmp_path)


def test_two_columns_may_hold_ids_of_two_types(tmp_path: Path) -> None:
    path = written(tmp_path, "userId,movieId,weight\n1,31,2.5\n31,1,3.0\n")
    said = {"src": "userId", "dst": "movieId"}
    notes = import_graph("edges", path, tmp_path / "one", columns=said)
    assert "--bipartite" in notes[0]
    assert Graph.open(tmp_path / "one").schema.node_counts == {"node": 2}
    graph = imported(path, tmp_path, columns=said, bipartite=True, rename={"left": "user", "right": "movie"})
    assert lines_of(graph) == {"user__to__movie": [(1, 31, 2.5), (31, 1, 3.0)]}
    assert {t: labels(graph, t) for t in graph.schema.node_types} == {"user": [1, 31], "movie": [1, 31]}
    with pytest.raises(ConfigError, match="have no direction"):
        imported(written(tmp_path, "% sym weighted\n1 2 3\n"), tmp_path, bipartite=True)


def test_columns_are_those_that_pandas_reads(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"rating": rng.integers(1, 11, 50) / 2, "userId": rng.integers(0, 9, 50),
                          "movieId": rng.integers(0, 9, 50), "timestamp": rng.integers(10**9, 2 * 10**9, 50)})  # fmt: skip
    table.to_csv(tmp_path / "r.csv", index=False)
    with pytest.raises(DataError, match="'rating' is not imported"):
        imported(tmp_path / "r.csv", tmp_path, columns={"src": "userId", "dst": "movieId"})
    columns = {"src": "userId", "dst": "3", "stars": "rating"}
    graph = imported(tmp_path / "r.csv", tmp_path, columns=columns)
    assert lines_of(graph)[ONE] == [*zip(table.userId, table.movieId, table.rating, table.timestamp, strict=True)]
    assert list(graph.schema.edge_tables[ONE]) == ["stars", "time"]
    assert graph.schema.edge_tables[ONE]["time"].dtype == "<i8"


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    one = written(tmp_path, "source,target,weight\n5,1,2\n", "one.csv")
    two = written(tmp_path, "weight\ttarget\tsource\n0.5\t5\t9\n", "two.gz")
    assert lines_of(imported([one, two], tmp_path)) == {ONE: [(5, 1, 2.0), (9, 5, 0.5)]}
    assert lines_of(imported([two, one], tmp_path)) == {ONE: [(9, 5, 0.5), (5, 1, 2.0)]}
    other = written(tmp_path, "1,2\n", "other.csv")
    refuses(DataError, r"other.csv: has dst, src, but one.csv has dst, src, weight", imported, [one, other], tmp_path)


@pytest.mark.parametrize("blocks", [64, 8 << 20])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3,abc,1", r"line 402: column 'target': 'abc' is no integer"),
        ("3,007,1", r"line 402: column 'target': '007' is no integer"),
        ("3,,1", r"line 402: column 'target': '' is no integer"),
        ("3,1.5,1", r"line 402: column 'target': '1.5' is no integer"),
        ("3,99999999999999999999,1", r"line 402: column 'target': '99999999999999999999' does not fit into 64 bits"),
        ("3,4,heavy", r"line 402: column 'weight': 'heavy' is no number"),
        ("3,4,", r"line 402: column 'weight': '' is no number"),
        ("3,4", r"line 402: 2 columns instead of 3: '3,4'"),
        ("3,4,5,6", r"line 402: 4 columns instead of 3: '3,4,5,6'"),
        ("3,\udcff,5", r"line 402: not UTF-8: invalid start byte at byte 2"),
    ],
)
def test_a_bad_line_is_named(line, said, blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(parsing, "_BLOCK", blocks)
    text = "source,target,weight\n" + "# c\n" * 100 + "1,2,3\n" * 300 + line + "\n" + "1,2,3\n" * 300
    path = written(tmp_path, text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=rf"edges\.txt: {said}") as caught:
        imported(path, tmp_path)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["edges.txt"]


def test_a_fraction_behind_whole_numbers_makes_the_column_float64(tmp_path: Path) -> None:
    path = written(tmp_path, "source,target,weight\n" + "1,2,3\n" * 300 + "2,1,2.5\n")
    graph = imported(path, tmp_path)
    assert graph.edges(ONE).tables["weight"].tolist() == [3.0] * 300 + [2.5]
    assert graph.provenance["notes"] == []


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (b"", {}, "holds no edges"),
        (b"word\nother\n", {}, "'word' has no two columns"),
        (b"\x00\x01 \x02", {}, "zero bytes"),
        (b"\xff\xfe a\n", {}, "line 1: not UTF-8"),
        (gzip.compress(b"1 2\n" * 99, mtime=0)[:-9], {}, "not readable as gzip"),
        (b"1 2\n", {"columns": {"weight": "3"}}, "--columns weight=3: .* no such column; there are: 1, 2"),
        (b"1 2\n", {"columns": {"src": "1", "dst": "1"}}, "named twice"),
        (b"1 2 3\n", {"columns": {"a__b": "3"}}, "--columns a__b=3: edge tables cannot have this name"),
        (b"1 2\n", {"columns": {"weight": "2"}}, "no two columns for the ends"),
        (b"a,b\n1,2\n", {"columns": {"src": "c"}}, "--columns src=c: .* there are: a, b"),
        (b"who,whom\n1,2\n", {"columns": {"src": "Who"}}, r"--columns src=Who: .* column; did you mean 'who'\?$"),
        (b"1 2 3 4 5\n", {"drop": ["4"]}, r"'3' is not imported: .*; nor of '5' \(--drop 3 leaves it out\)"),
        (b"% asym dynamic\n1 2 1 5\n", {}, "'dynamic' is not imported"),
    ],
)
def test_what_is_no_edge_list_is_refused(data: bytes, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(AttaError, match=said) as caught:
        imported(written(tmp_path, data), tmp_path, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "g").exists()


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_LONGEST_LINE", 1000)
    monkeypatch.setattr(parsing, "_BLOCK", 64)
    with pytest.raises(DataError, match="line 3: longer than 1000 bytes"):
        imported(written(tmp_path, "1 2\n1 2\n" + "1" * 5000), tmp_path)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("# Nodes: 5 Edges: 2\n1 2\n2 3\n", "edges.txt: its comments say 5 nodes, its lines have 3"),
        ("# Nodes: 3 Edges: 9\n1 2\n2 3\n", "edges.txt: its comments say 9 edges, its lines have 2"),
        ("% asym unweighted\n% 9 3 3\n1 2\n2 3\n", "edges.txt: its comments say 9 edges, its lines have 2"),
        ("# Undirected graph\n1 2\n", "edges.txt: a comment calls the graph undirected; --undirected adds reverses that it lacks"),
        ("1 2\n2 x\n", "edges.txt: ids are taken as strings, because 'x' is no integer"),
        ("who,whom\nann,bob\n", "edges.txt: the first line is taken for an edge; --columns src=who,dst=whom makes it a heading"),
    ],
)  # fmt: skip
def test_doubts_are_told(text: str, note: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    assert import_graph("edges", path, tmp_path / "g") == [note]
    if "--columns" in note:
        assert lines_of(imported(path, tmp_path, columns={"src": "who", "dst": "whom"})) == {ONE: [("ann", "bob")]}


def test_only_edge_lists_have_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "1 2\n")
    for options in ({"columns": {"src": "1"}}, {"string_ids": True}):
        refused("npz", path, tmp_path, "only the format edges", ConfigError, **options)


def test_what_nobody_recognises_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not recognised; --format names what it is: dgl, "):
        guess(written(tmp_path, "prose\nof no format at all\n"))
    refuses(DataError, "no such file", guess, tmp_path / "absent")
    written(tmp_path, "id,age\n1,2\n", "people.csv")
    refuses(DataError, f"has tables without schema.json; atta schema {tmp_path} writes a first one", guess, tmp_path)


RNG = np.random.default_rng(3)
N = 300
USER, ITEM = RNG.integers(0, 20, N), RNG.integers(0, 9, N)
TIME, STATE = np.sort(RNG.integers(0, 1000, N)), RNG.integers(0, 2, N)
FEATS = RNG.random((N, 5)).astype(np.float32)
HEADING = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


def jodie(path: Path, heading: str = HEADING, time: np.ndarray = TIME, feats: np.ndarray = FEATS) -> Path:
    columns = zip(USER.tolist(), ITEM.tolist(), time.tolist(), STATE.tolist(), feats.tolist(), strict=True)
    lines = [",".join(map(str, (u, i, float(t), s, *f))) for u, i, t, s, f in columns]
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def ends(graph: Graph, edge_type: str) -> list[np.ndarray]:
    source, _, target = edge_type.split("__")
    edges = graph.edges(edge_type)
    return [np.array(labels(graph, source))[edges.src], np.array(labels(graph, target))[edges.dst]]


@pytest.mark.parametrize("name", ["wikipedia.csv", "tgbl-wiki_edgelist_v2.csv"])
def test_jodie(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.partition.importers.reading.rows._LINES", 64)  # several pieces
    source = jodie(tmp_path / name)
    assert guess(source) == "tgb"
    graph = taken_in("tgb", source, tmp_path / "g")
    assert graph.schema.node_counts == {"user": len(np.unique(USER)), "item": len(np.unique(ITEM))}
    src, dst = ends(graph, "user__to__item")
    tables = graph.edges("user__to__item").tables
    assert np.array_equal([src, dst], [USER, ITEM])
    assert np.array_equal(tables["time"], TIME)
    assert np.array_equal(tables["state_label"], STATE)
    assert (tables["time"].dtype, tables["state_label"].dtype) == (np.int64, np.int64)
    assert np.array_equal(tables["edge_attr"], FEATS)


def test_jodie_of_one_node_type_with_fractions_of_seconds(tmp_path: Path) -> None:
    heading = "source,destination,timestamp,state_label,comma_separated_list_of_features"
    graph = taken_in("tgb", jodie(tmp_path / "uci.csv", heading, TIME + 0.25, FEATS[:, :0]), tmp_path / "g")
    src, dst = ends(graph, "node__to__node")
    assert np.array_equal([src, dst], [USER, ITEM])
    assert np.array_equal(graph.edges("node__to__node").tables["time"], TIME + 0.25)
    assert set(graph.edges("node__to__node").tables) == {"time", "state_label"}


@pytest.mark.parametrize("bipartite", [True, False])
def test_what_tgn_makes_of_it(tmp_path: Path, bipartite: bool) -> None:
    u, i = USER + 1, ITEM + 1 + (20 if bipartite else 0)
    rows = zip(u.tolist(), i.tolist(), TIME.tolist(), STATE.tolist(), strict=True)
    lines = [f"{n},{a},{b},{float(t)},{float(s)},{n + 1}" for n, (a, b, t, s) in enumerate(rows)]
    (tmp_path / "ml_wiki.csv").write_text("\n".join([",u,i,ts,label,idx", *lines]) + "\n")
    nodes = RNG.random((30, 4))
    np.save(tmp_path / "ml_wiki.npy", np.concatenate([np.zeros((1, 5)), FEATS]))
    np.save(tmp_path / "ml_wiki_node.npy", nodes)
    assert guess(tmp_path / "ml_wiki.csv") == "tgb"
    graph = taken_in("tgb", tmp_path / "ml_wiki.csv", tmp_path / "g")
    edge_type = "user__to__item" if bipartite else "node__to__node"
    src, dst = ends(graph, edge_type)
    assert np.array_equal([src, dst], [u, i])
    assert np.array_equal(graph.edges(edge_type).tables["edge_attr"], FEATS)
    assert np.array_equal(graph.edges(edge_type).tables["time"], TIME)
    for node_type in graph.schema.node_types:
        ids = graph.user_ids(node_type)
        assert ids is not None
        assert np.array_equal(graph.table(node_type, "x"), nodes[ids].astype(np.float32))


def test_edge_list_of_tgb(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "tkgl-tiny_edgelist.csv"
    source.write_text("timestamp,head,tail,relation_type\n3,10,12,7\n1,12,11,7\n2,10,11,8\n")
    assert guess(source) == "tgb"
    graph = taken_in("tgb", source, tmp_path / "g")
    assert [e.tolist() for e in ends(graph, "node__7__node")] == [[10, 12], [12, 11]]
    assert graph.edges("node__7__node").tables["time"].tolist() == [3, 1]
    source = tmp_path / "tgbl-comment_edgelist.csv"
    source.write_text("ts,src,dst,subreddit,num_words,score\n3,ann,bob,news,12,-4\n5,bob,cid,news,7,2\n")
    refused("tgb", source, tmp_path, "'subreddit' is not imported")
    tables = taken_in("tgb", source, tmp_path / "h", drop=["subreddit"]).edges("node__to__node").tables
    found = {name: rows.tolist() for name, rows in tables.items()}
    assert found == {"time": [3, 5], "num_words": [12, 7], "score": [-4, 2]}


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        (["2019-01-01", "1969-12-31"], [1546300800, -86400]),
        (["2005-02-14 00:00:03", "2005-02-14T00:01"], [1108339203, 1108339260]),
    ],
)
def test_dates_become_seconds(tmp_path: Path, dates: list[str], seconds: list[int]) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "tgbn-tiny_edgelist.csv"
    source.write_text(f"time,user_id,genre,weight\n{dates[0]},u1,rock,0.5\n{dates[1]},u2,rock,1\n")
    (note,) = import_graph("tgb", source, tmp_path / "g")
    assert "seconds since 1970" in note
    assert Graph.open(tmp_path / "g").edges("node__to__node").tables["time"].tolist() == seconds
    source.write_text(source.read_text() + "2019-13-01,u2,pop,1\n" + "soon,u2,pop,1\n")
    refused("tgb", source, tmp_path, r"edgelist\.csv: line")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0.5,1,2,0,1,2,3,4,5", r"vertices are whole numbers up to 2\*\*53, not 0\.5"),
        ("1,1,2,0,1,2", "not a readable csv file"),
        ("ann,1,2,0,1,2,3,4,5", "not a readable csv file"),
    ],
)
def test_refused(tmp_path: Path, line: str, says: str) -> None:
    source = jodie(tmp_path / "wikipedia.csv")
    source.write_text(source.read_text() + line)
    refused("tgb", source, tmp_path, says)
