"""Importers on small files made here, on damaged ones, and on the real graphs."""

from __future__ import annotations

import gzip
import json
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Graph
from atta.partition.importers import import_graph
from atta.partition.importers.reading.filling import missing_reverses, reverses_to_add
from tests.unit.partition.oracles import edge_pairs

ETYPE = "node__to__node"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=25))
def test_reverse_edges_are_added_once_each(edges):
    array = np.array(edges, np.int64).reshape(-1, 2)
    extra = reverses_to_add(array[:, 0], array[:, 1])
    added = [(v, u) for u, v in array[extra].tolist()]
    stored = set(edges)
    assert len(set(added)) == len(added)
    assert set(added) == {(v, u) for u, v in stored if (v, u) not in stored}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)), max_size=40),
    st.integers(1, 50),
    st.booleans(),
)
def test_looking_at_ranges_of_vertices_changes_nothing(events, bucket, timed):
    src, dst, time = np.array(events, np.int64).reshape(-1, 3).T
    moment = time if timed else None
    marked = missing_reverses(src, dst, moment, bucket_edges=bucket)
    assert np.flatnonzero(marked).tolist() == reverses_to_add(src, dst, moment).tolist()


def test_events_are_reversed_by_instant():
    src, dst, time = np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([10, 20, 20])
    assert reverses_to_add(src, dst, time).tolist() == [0]


@pytest.mark.parametrize(("timed", "ends"), [(True, [(0, 1), (1, 0), (1, 0), (0, 1)]), (False, [(0, 1), (1, 0)])])
def test_a_note_says_what_undirected_does_beside_times(tmp_path, timed, ends):
    (tmp_path / "src").mkdir()
    times = {"time": np.array([1, 2])} if timed else {}
    np.savez(tmp_path / "src/graph.npz", edge_index=np.array([[0, 1], [1, 0]]), **times)
    notes = import_graph("npz", tmp_path / "src", tmp_path / "g", undirected=True)
    assert edge_pairs(Graph.open(tmp_path / "g")) == ends
    said = f"{ETYPE}: 2 reverse edges added, each with the time of its edge; a reverse that is there at another time is"
    assert [note.startswith(said) for note in notes] == [True] * timed


@pytest.fixture
def npz(tmp_path):
    folder = tmp_path / "npz"
    folder.mkdir()
    x = np.array([[1, 0, 3], [0, 0, 0], [0, -2, 2], [0, 5, 0]], np.float32)
    np.savez(folder / "graph.npz", edge_index=np.array([[0, 1, 2, 2], [1, 0, 3, 2]]))
    sp.save_npz(folder / "x_sparse.npz", sp.csr_matrix(x))
    np.save(folder / "y.npy", np.array([0, 1, 1, 2]))
    np.save(folder / "train_mask.npy", np.array([True, False, False, True]))
    np.savez(folder / "split.npz", extra=np.array([2, 1]), val_masks=np.eye(4, dtype=bool)[:2])
    return folder, x


def test_npz(npz, tmp_path):
    folder, x = npz
    import_graph("npz", folder, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert np.array_equal(graph.table("node", "x"), x)
    assert graph.table("node", "x").dtype == np.float32
    assert edge_pairs(graph) == [(0, 1), (1, 0), (2, 3), (2, 2)]
    assert graph.schema.num_classes == 3
    splits = {name: graph.split("node", name).tolist() for name in graph.schema.splits["node"]}
    assert splits == {"train": [0, 3], "extra": [1, 2], "val_0": [0], "val_1": [1]}
    import_graph("npz", folder, tmp_path / "g", undirected=True, normalize_features=True, overwrite=True)
    graph, sums = Graph.open(tmp_path / "g"), np.abs(x).sum(1, keepdims=True)
    assert edge_pairs(graph) == [(0, 1), (1, 0), (2, 3), (2, 2), (3, 2)]
    assert np.allclose(graph.table("node", "x"), x / np.where(sums == 0, 1, sums))
    import_graph("npz", folder, tmp_path / "g", reverse=True, overwrite=True)
    graph = Graph.open(tmp_path / "g")
    assert edge_pairs(graph) == [(0, 1), (1, 0), (2, 3), (2, 2)]
    assert edge_pairs(graph, "node__rev_to__node") == [(1, 0), (0, 1), (3, 2), (2, 2)]
    with pytest.raises(ConfigError, match="not both"):
        import_graph("npz", folder, tmp_path / "both", undirected=True, reverse=True)


def test_npz_with_types(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    index = {
        "edge_index__paper__by__author": np.array([[0, 1], [1, 0]]),
        "edge_index__paper__at__venue": np.array([[1], [4]]),
    }
    np.savez(folder / "graph.npz", **index)
    np.save(folder / "x__author.npy", np.ones((3, 2), np.float32))
    np.save(folder / "y.npy", np.array([1, 0]))
    (folder / "meta.json").write_text(json.dumps({"node_types": {"paper": 2}, "target_type": "paper"}))
    import_graph("npz", folder, tmp_path / "g", undirected=True)
    graph = Graph.open(tmp_path / "g")
    assert graph.schema.node_counts == {"author": 3, "paper": 2, "venue": 5}
    assert edge_pairs(graph, "paper__by__author") == [(0, 1), (1, 0)]
    assert edge_pairs(graph, "venue__rev_at__paper") == [(4, 1)]
    assert "y" in graph.schema.node_tables["paper"]


def test_npz_knowledge_graph_and_events(tmp_path):
    for name, extra in [("kg", {"edge_type": np.array([3, 0, 3])}), ("events", {"time": np.array([1, 2, 3])})]:
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "graph.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), **extra)
        import_graph("npz", tmp_path / name, tmp_path / f"{name}-g")
    kg, events = Graph.open(tmp_path / "kg-g"), Graph.open(tmp_path / "events-g")
    assert edge_pairs(kg, "node__r3__node") == [(0, 1), (2, 0)]
    assert edge_pairs(kg, "node__r0__node") == [(1, 2)]
    assert events.edges(ETYPE).tables["time"].tolist() == [1, 2, 3]


def bad_edges(folder):
    np.savez(folder / "graph.npz", edge_index=np.zeros((3, 2), np.int64))


def no_edges(folder):
    np.savez(folder / "graph.npz", other=np.zeros(2))


def cut_archive(folder):
    path = folder / "graph.npz"
    path.write_bytes(path.read_bytes()[:-40])


def object_archive(folder):
    np.savez(folder / "graph.npz", edge_index=np.array([{}], dtype=object))


def bad_member(folder):
    with zipfile.ZipFile(folder / "graph.npz", "w") as archive:
        archive.writestr("edge_index.npy", b"\x93NUMPY garbage")


def bad_column(folder):
    matrix = {
        "data": np.ones(1, np.float32),
        "indices": np.array([99]),
        "indptr": np.array([0, 1, 1, 1, 1]),
        "shape": np.array([4, 3]),
    }
    np.savez(folder / "x_sparse.npz", format=np.array(b"csr"), **matrix)


def few_rows(folder):
    sp.save_npz(folder / "x_sparse.npz", sp.csr_matrix(np.ones((3, 3), np.float32)))
    (folder / "meta.json").write_text('{"node_types": {"node": 4}}')


def bad_meta(folder):
    (folder / "meta.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (bad_edges, "graph.npz"), (no_edges, "graph.npz"), (cut_archive, "graph.npz"), (object_archive, "graph.npz"),
        (bad_member, "graph.npz"),
        (bad_column, "x_sparse.npz"), (few_rows, "3 feature rows for 4"), (bad_meta, "meta.json"),
    ],
)  # fmt: skip
def test_bad_npz(npz, tmp_path, spoil, says):
    spoil(npz[0])
    with pytest.raises(DataError, match=says):
        import_graph("npz", npz[0], tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert not (tmp_path / "g.partial").exists()


def test_edge_to_a_vertex_that_does_not_exist(npz, tmp_path):
    np.savez(npz[0] / "graph.npz", edge_index=np.array([[0], [4]]))
    with pytest.raises(ConfigError, match="the destination 4"):
        import_graph("npz", npz[0], tmp_path / "g")


def test_unknown_format_and_missing_source(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'npz'"):
        import_graph("nzp", tmp_path, tmp_path / "g")
    with pytest.raises(DataError, match="nowhere"):
        import_graph("npz", tmp_path / "nowhere", tmp_path / "g")


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        out.writelines(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)


@pytest.fixture
def ogb(tmp_path):
    folder = tmp_path / "ogb"
    write_csv(folder / "raw/num-node-list.csv.gz", [4])
    write_csv(folder / "raw/edge.csv.gz", [[0, 1], [1, 2], [3, 3]])
    write_csv(folder / "raw/node-feat.csv.gz", [[0.5, 1], [2, -3.25], [0, 0], [1, 1]])
    write_csv(folder / "raw/node-label.csv.gz", [2, "nan", 0, 1])
    write_csv(folder / "raw/node_year.csv.gz", [2001, 2002, 2003, 2004])
    for name, rows in {"train": [0, 3], "valid": [1], "test": [2]}.items():
        write_csv(folder / f"split/time/{name}.csv.gz", rows)
    return folder


def test_ogb(ogb, tmp_path, monkeypatch):
    monkeypatch.setattr("atta.partition.importers.reading.rows._LINES", 2)  # fewer than there are
    import_graph("ogb", ogb, tmp_path / "g", undirected=True)
    graph = Graph.open(tmp_path / "g")
    assert edge_pairs(graph) == [(0, 1), (1, 2), (3, 3), (1, 0), (2, 1)]
    assert graph.table("node", "x").tolist() == [[0.5, 1], [2, -3.25], [0, 0], [1, 1]]
    assert graph.table("node", "y").tolist() == [2, -1, 0, 1]
    assert graph.table("node", "node_year").tolist() == [2001, 2002, 2003, 2004]
    assert {n: graph.split("node", n).tolist() for n in ("train", "val", "test")} == {
        "train": [0, 3],
        "val": [1],
        "test": [2],
    }


@pytest.mark.parametrize("name", ["raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/num-node-list.csv.gz"])
@pytest.mark.parametrize(
    "text",
    [b"not gzip", gzip.compress(b"1,2\nx,y\n", mtime=0), gzip.compress(b"1,2\n" * 4000, mtime=0)[:-20]],
    ids=["no gzip", "no numbers", "truncated"],
)
def test_bad_ogb(ogb, tmp_path, name, text):
    (ogb / name).write_bytes(text)
    with pytest.raises(DataError, match=name.split("/")[1]):
        import_graph("ogb", ogb, tmp_path / "g")


REAL = {  # vertices, directed edges after making them undirected, classes, features
    "cora": (2708, 10556, 7, 1433),
    "amazon_computers": (13752, 2 * 245861, 10, 767),
    "facebook_pagepage": (22470, 2 * 170823 + 179, 4, 4714),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", REAL)
def test_real_graphs(shared_data, tmp_path, name):
    import_graph("npz", shared_data / name, tmp_path / "g", undirected=True)
    graph = Graph.open(tmp_path / "g", verify=False)
    nodes, edges, classes, features = REAL[name]
    assert graph.schema.node_counts == {"node": nodes}
    assert graph.schema.edge_counts == {ETYPE: edges}
    assert graph.schema.num_classes == classes
    assert graph.table("node", "x").shape == (nodes, features)
    stored = graph.edges(ETYPE)
    matrix = sp.coo_array((np.ones(edges), (stored.src, stored.dst)), shape=(nodes, nodes)).tocsr()
    assert (matrix != matrix.T).nnz == 0
    assert matrix.max() == 1


@pytest.mark.shared_data
def test_real_typed_graph(shared_data, tmp_path):
    import_graph("npz", shared_data / "dblp_hgb", tmp_path / "g", undirected=True)
    graph = Graph.open(tmp_path / "g", verify=False)
    assert graph.schema.node_counts == {"author": 4057, "paper": 14328, "term": 7723, "venue": 20}
    assert sum(graph.schema.edge_counts.values()) == 239_566
    assert graph.schema.splits["author"]["test"] == 2840
