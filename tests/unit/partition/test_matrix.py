"""Adjacency matrices as text: against scipy, networkx and brute force, and errors that name the line."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.partition import Graph
from atta.partition.importers import guess, matrix
from tests.unit.partition.oracles import refused, taken_in

EDGES = "node__to__node"
BANNER = "%%MatrixMarket matrix coordinate "


def imported(path: Path, **options: Any) -> Graph:
    folder = path.parent / f"{path.name}.graph-folder"
    return taken_in(guess(path), path, folder, **options)


def dense(graph: Graph, edge_type: str = EDGES) -> np.ndarray:
    """The stored edges as a matrix; entries of several edges are added."""
    source, _, target = edge_type.split("__")
    edges = graph.edges(edge_type)
    made = np.zeros((graph.schema.node_counts[source], graph.schema.node_counts[target]))
    np.add.at(made, (edges.src[:], edges.dst[:]), edges.tables.get("weight", np.ones(len(edges))))
    return made


@pytest.fixture(params=[16 << 20, 7])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_BLOCK_BYTES", request.param)


@pytest.mark.parametrize("field", ["pattern", "integer", "real"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "rectangular"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("block_bytes")
def test_market_is_what_scipy_reads(field: str, symmetry: str, packed: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = np.round(rng.random((6, 6)), 2) * (rng.random((6, 6)) < 0.4)
    values = np.ceil(values * 9) if field != "real" else values
    if symmetry == "symmetric":
        values = np.tril(values) + np.tril(values, -1).T
    elif symmetry == "skew-symmetric":
        values = np.tril(values, -1) - np.tril(values, -1).T
    elif symmetry == "rectangular":
        values = values[:4]
    entries = sp.coo_array(values.astype(np.int64 if field == "integer" else np.float64))
    written = "general" if symmetry == "rectangular" else symmetry
    if field == "pattern" and symmetry == "skew-symmetric":
        written = "general"  # a pattern has no signs
    stream = io.BytesIO()
    scipy.io.mmwrite(stream, entries, field=field, symmetry=written, comment=" a comment\n and another")
    path = tmp_path / ("m.mtx.gz" if packed else "m.mtx")
    path.write_bytes(gzip.compress(stream.getvalue()) if packed else stream.getvalue())
    want = scipy.io.mmread(io.BytesIO(stream.getvalue())).toarray()
    graph = imported(path)
    edge_type = "left__to__right" if symmetry == "rectangular" else EDGES
    assert np.array_equal(dense(graph, edge_type), want)
    for node_type in graph.schema.node_types:
        count = graph.schema.node_counts[node_type]
        assert graph.user_ids(node_type).tolist() == list(range(1, count + 1))
    kinds = {name: rows.dtype.kind for name, rows in graph.edges(edge_type).tables.items()}
    assert kinds == {"pattern": {}, "integer": {"weight": "i"}, "real": {"weight": "f"}}[field]


def test_market_keeps_the_order_and_mirrors_after_it(tmp_path: Path) -> None:
    (tmp_path / "m.mtx").write_text(f"{BANNER[1:]}integer symmetric\n% c\n\n3 3 4\n3 1 5\n2 2 7\n\n2 1 0\n3 1 5\n")
    edges = imported(tmp_path / "m.mtx").edges(EDGES)
    assert list(zip(edges.src.tolist(), edges.dst.tolist(), edges.tables["weight"].tolist(), strict=True)) == [
        (2, 0, 5), (1, 1, 7), (1, 0, 0), (2, 0, 5), (0, 2, 5), (0, 1, 0), (0, 2, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{BANNER}real general\n3 3 2\n1 2 1\n3 1 4O\n", "line 4: '4O' is no number"),
        (f"{BANNER}real general\n2 2 1\n1 2 0x10\n", "line 3: '0x10' is no number"),
        (f"{BANNER}integer general\n2 2 1\n1 2 1.5\n", r"line 3: '1\.5' is no whole number"),
        (f"{BANNER}integer general\n2 2 1\n1 2 {2**63}\n", f"line 3: '{2**63}' is no whole number"),
        (f"{BANNER}real general\n% c\n2 2 1\n1 3 1\n", "line 4: 3 is no vertex, they are numbered from 1 to 2"),
        (f"{BANNER}pattern general\n2 2 1\n0 1\n", "line 3: 0 is no vertex"),
        (f"{BANNER}real general\n2 2 1\n1.5 1 1\n", r"line 3: 1\.5 is no vertex"),
        (f"{BANNER}pattern general\n2 2 2\n1 2\n1 2 5\n", "line 4: 3 numbers, an entry of this matrix has 2"),
        (f"{BANNER}pattern general\n2 2 2\n1 2\n", "ends after 1 of 2 entries"),
        (f"{BANNER}pattern general\n2 2 1\n1 2\n\n2 1\n", "line 5: more entries than the 1 stated"),
        (f"{BANNER}real symmetric\n2 3 0\n", "line 2: a symmetric matrix of 2 rows and 3 columns"),
        (f"{BANNER}complex hermitian\n1 1 0\n", "line 1: the field of this MatrixMarket file is 'complex'"),
        ("%%MatrixMarket matrix array real general\n1 1\n5\n", "the layout of this MatrixMarket file is 'array'"),
        (f"{BANNER}real\n1 1 0\n", "the symmetry of this MatrixMarket file is nothing"),
        (f"{BANNER}real general\n", "ends after line 1, before"),
        (f"{BANNER}real general\n2 2\n1 2 1\n", "line 2: wanted are the numbers of rows, columns and entries"),
        (f"{BANNER}real general\n2 -2 0\n", "line 2: '-2' is no number of vertices"),
        (f"{BANNER}real general\n9 {10**14} 1\n1 2 1\n", f"states {10**14} vertices, which a file of this size"),
        (f"{BANNER}real general\n2 2 1\n1 2 \x1b[31m\n", r"line 3: '\\x1b\[31m' is no number"),
    ],
)
def test_errors_of_market_name_the_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.mtx").write_text(text)
    assert guess(tmp_path / "m.mtx") == "matrix"
    refused("matrix", tmp_path / "m.mtx", tmp_path, says)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    text = f"{BANNER}pattern general\n2 2 2\n1 2\n2 1\n" + "\n" * 99999
    (tmp_path / "m.mtx.gz").write_bytes(gzip.compress(text.encode())[:-20])
    refused("matrix", tmp_path / "m.mtx.gz", tmp_path, "not readable as gzip")


def metis_text(graph: nx.Graph, flags: str, weights: int) -> str:
    lines = ["% first", f"{len(graph)} {graph.number_of_edges()} {flags} {weights}".strip()]
    for place, v in enumerate(graph):
        words = [graph.nodes[v]["size"]] if flags[:-2] == "1" else []
        words += graph.nodes[v]["weight"][:weights] if flags[-2:-1] == "1" else []
        for u, data in graph[v].items():
            words += [u + 1, *([data["weight"]] if flags[-1] == "1" else [])]
        lines += [" ".join(map(str, words)), *(["% comment"] if place % 3 == 0 else [])]
    return "\n".join(lines) + "\n"


@settings(max_examples=40, deadline=None)
@given(data=st.data(), flags=st.sampled_from(["000", "001", "010", "011", "100", "111"]), weights=st.integers(1, 3))
def test_metis_is_the_graph_that_was_written(tmp_path_factory, data, flags, weights):
    weights = weights if flags[1] == "1" else 1
    graph = nx.gnp_random_graph(data.draw(st.integers(1, 12)), 0.3, seed=data.draw(st.integers(0, 999)))
    for v in graph:
        graph.nodes[v].update(size=v * 3 + 1, weight=[v, v + 2**40, 7])
    for place, (_, _, values) in enumerate(graph.edges(data=True)):
        values["weight"] = place + 2
    path = tmp_path_factory.mktemp("metis") / "m.graph"
    path.write_text(metis_text(graph, flags, weights))
    found = imported(path)
    weighted = "weight" if flags[2] == "1" else None
    assert np.array_equal(dense(found), nx.to_numpy_array(graph, weight=weighted))
    assert found.user_ids("node").tolist() == [v + 1 for v in graph]
    edges = found.edges(EDGES)
    assert list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)) == [(v, u) for v in graph for u in graph[v]]
    tables = {"size": flags[0], "weight": flags[1]}
    assert set(found.schema.node_tables["node"]) == {name for name, flag in tables.items() if flag == "1"}
    if flags[1] == "1":
        rows = [graph.nodes[v]["weight"][:weights] for v in graph]
        assert found.table("node", "weight").tolist() == (rows if weights > 1 else [row[0] for row in rows])
    if flags[0] == "1":
        assert found.table("node", "size").tolist() == [graph.nodes[v]["size"] for v in graph]


@pytest.mark.usefixtures("block_bytes")
def test_metis_in_pieces_without_a_last_newline(tmp_path: Path) -> None:
    graph = nx.cycle_graph(30)
    (tmp_path / "m.graph").write_text(metis_text(graph, "0", 1).replace(" 0 1", "").rstrip())
    assert np.array_equal(dense(imported(tmp_path / "m.graph")), nx.to_numpy_array(graph))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3 1\n2\n1\n", "ends after the lines of 2 of 3 vertices"),
        ("3 2\n2\n1\n\n", "states 2 edges, each in two lists; the lists hold 2 neighbours"),
        ("3 1\n2\n3\n\n", "vertex 1 has the neighbour 2, which does not list it"),
        ("3 1\n% c\n2\n4\n\n", "line 4: 4 is no vertex, they are numbered from 1 to 3"),
        ("3 1\n2\n1\n\n2\n", "line 5: there are only 3 vertices"),
        ("3 1 1\n2 5\n1\n\n", "line 3: 1 numbers; wanted are 0 numbers, then pairs of a neighbour and a weight"),
        ("3 1 10 2\n2 5 2\n1\n\n", "line 3: 1 numbers; wanted are 2 numbers, then neighbours"),
        ("3 1 1 2\n", "line 1: 2 weights for each vertex, but the format 001 has none"),
        ("3 1\n2\nq\n\n", "line 3: 'q' is no whole number"),
        ("3 1\n-2\n1\n\n", "line 2: -2 is no vertex"),
    ],
)
def test_errors_of_metis_name_the_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.graph").write_text(text)
    refused("matrix", tmp_path / "m.graph", tmp_path, says)


@pytest.mark.parametrize("text", ["3 x\n", "3 1 7\n", "3\n", ""])
def test_what_metis_would_not_write_is_not_taken_for_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.graph").write_text(text)
    refused("matrix", tmp_path / "m.graph", tmp_path, "")
    assert not matrix.recognises(tmp_path / "m.graph", text.encode())
