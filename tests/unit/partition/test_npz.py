"""The neutral npz layout, archives with CSR matrices, and reverse edges: files made here, damaged ones, and real graphs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import Graph
from atta.partition.exporters import export_graph
from atta.partition.graph.strings import to_strings
from atta.partition.importers import import_graph
from atta.partition.importers.reading.filling import missing_reverses, reverses_to_add
from tests.unit.partition import carried as c
from tests.unit.partition.exports import assert_same, plain
from tests.unit.partition.oracles import Runs, edge_pairs, refused, refuses, taken_in

ETYPE = "node__to__node"
BIG = 2**63 + 5
EDGES = np.stack([c.SRC, c.DST])
EVENTS = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2))


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 50), st.booleans())
def test_reverse_edges_are_added_once_each_and_to_each_instant(events, bucket, timed):
    src, dst, time = np.array(events, np.int64).reshape(-1, 3).T
    moment = time if timed else None
    extra = reverses_to_add(src, dst, moment)
    edges = [(u, v, t if timed else 0) for u, v, t in events]
    added = [(v, u, t) for u, v, t in (edges[place] for place in extra)]
    assert len(set(added)) == len(added)
    assert set(added) == {(v, u, t) for u, v, t in edges} - set(edges)
    assert np.flatnonzero(missing_reverses(src, dst, moment, bucket_edges=bucket)).tolist() == extra.tolist()


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
    np.save(folder / "train_mask.npy", np.array([1, 0, 0, 1], np.uint8))  # a mask of zeros and ones is a mask
    np.savez(folder / "split.npz", extra=np.array([2, 1]), val_masks=np.eye(4, dtype=bool)[:2])
    return folder, x


def test_npz(npz, tmp_path):
    folder, x = npz
    graph = taken_in("npz", folder, tmp_path / "g")
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
    graph = taken_in("npz", folder, tmp_path / "g", reverse=True)
    assert edge_pairs(graph) == [(0, 1), (1, 0), (2, 3), (2, 2)]
    assert edge_pairs(graph, "node__rev_to__node") == [(1, 0), (0, 1), (3, 2), (2, 2)]
    refuses(ConfigError, "not both", import_graph, "npz", folder, tmp_path / "both", undirected=True, reverse=True)


def test_npz_with_types(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    ends = {"paper__by__author": [[0, 1], [1, 0]], "paper__at__venue": [[1], [4]]}
    np.savez(folder / "graph.npz", **{f"edge_index__{name}": index for name, index in ends.items()})
    np.save(folder / "x__author.npy", np.ones((3, 2), np.float32))
    np.save(folder / "y.npy", np.array([1, 0]))
    (folder / "meta.json").write_text(json.dumps({"node_types": {"paper": 2}, "target_type": "paper"}))
    graph = taken_in("npz", folder, tmp_path / "g", undirected=True)
    assert graph.schema.node_counts == {"author": 3, "paper": 2, "venue": 5}
    assert edge_pairs(graph, "paper__by__author") == [(0, 1), (1, 0)]
    assert edge_pairs(graph, "venue__rev_at__paper") == [(4, 1)]
    assert "y" in graph.schema.node_tables["paper"]


def test_npz_knowledge_graph(tmp_path):
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), edge_type=np.array([3, 0, 3]))
    graph = taken_in("npz", tmp_path, tmp_path / "out" / "g")
    assert edge_pairs(graph, "node__r3__node") == [(0, 1), (2, 0)]
    assert edge_pairs(graph, "node__r0__node") == [(1, 2)]


def bad_member(folder: Path) -> None:
    with zipfile.ZipFile(folder / "graph.npz", "w") as archive:
        archive.writestr("edge_index.npy", b"\x93NUMPY garbage")


def bad_column(folder: Path) -> None:
    (folder / "x.npy").unlink()
    matrix = {"data": [1.0], "indices": [99], "indptr": [0, 1, 1, 1, 1, 1, 1], "shape": [6, 3]}
    np.savez(folder / "x_sparse.npz", format=np.array(b"csr"), **matrix)


def complex_features(folder: Path) -> None:
    (folder / "x.npy").unlink()
    sp.save_npz(folder / "x_sparse.npz", sp.csr_matrix(np.ones((c.N, 2), complex)))


def with_array(name: str, values: Any):
    return lambda folder: np.save(folder / f"{name}.npy", values)


def with_edges(dtype: Any, place: tuple[int, int], value: Any, **others: Any):
    def change(folder: Path) -> None:
        index = EDGES.astype(dtype)
        index[place] = value
        np.savez(folder / "graph.npz", edge_index=index, **others)

    return change


def with_split(values: Any):
    return lambda folder: np.savez(folder / "split.npz", extra=np.array(values))


def with_meta(**entries: Any):
    return lambda folder: (folder / "meta.json").write_text(json.dumps(entries))


IDS = np.arange(c.N)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_array("ids", np.array([1, 2, 3, BIG, 5, 6], np.uint64)), rf"ids\.npy: ids: {BIG} at position 3 is too large"),
        (with_array("ids", IDS + 0.5), r"ids\.npy: ids: 0\.5 at position 0 \(float64\); wanted are integers"),
        (with_array("ids", np.where(IDS == 4, np.nan, IDS)), r"ids: nan at position 4 \(float64\)"),
        (with_array("ids", IDS // 2), "the id 0 occurs twice"),
        (with_array("ids", IDS[:3]), r"ids: \[3\] numbers for 6 vertices"),
        (with_array("ids", IDS > 2), r"ids: False at position 0 \(bool\)"),
        (with_edges(np.uint64, (0, 2), BIG), rf"graph\.npz: edge_index of 'node__to__node', source: {BIG} at position 2"),
        (with_edges(np.uint64, (1, 8), 2**64 - 1), rf"destination: {2**64 - 1} at position 8 is too large"),
        (with_edges(np.float64, (0, 0), 0), r"source: 0\.0 at position 0 \(float64\)"),
        (with_edges(np.float64, (0, 3), np.nan), r"source: nan at position 3"),
        (with_edges(np.int64, (1, 7), -2), r"destination: -2 at position 7 is negative"),
        (with_edges(np.int64, (0, 0), 0, edge_type=EDGES[0] / 2), r"edge_type: 0\.0 at position 0"),
        (with_split([0.5, 1]), r"split\.npz: extra: 0\.5 at position 0"),
        (with_split([1, -1]), r"extra: -1 at position 1 is negative"),
        (with_array("train_mask", np.arange(c.N)), "train: a mask holds truth values"),
        (with_split([0, 1, 1, 0, 0, 1]), "extra: the vertex 0 occurs twice; a mask of numbers is called extra_mask"),
        (with_split(3), r"split\.npz: extra: wanted is a list of numbers, not an array \[\]"),
        (with_array("x", np.array(1.0)), r"x\.npy: holds float64\[\], wanted are rows of numbers"),
        (with_array("x", np.ones((c.N, 2), complex)), r"x\.npy: holds complex128\[6, 2\]"),
        (with_array("x", np.zeros((c.N, 2), "M8[s]")), r"x\.npy: holds datetime64\[s\]\[6, 2\]"),
        (with_array("x", np.zeros(c.N, [("a", "f4")])), r"x\.npy: holds .*\[6\], wanted"),
        (with_array("x", np.array([["1"]] * c.N)), r"x\.npy: holds <U1\[6, 1\]"),
        (with_array("y", np.array(1)), r"y\.npy: holds int64\[\]"),
        (with_array("y", np.array(list("abcabc"))), r"y\.npy: holds <U1\[6\]"),
        (with_meta(num_nodes=None), r"meta\.json: 'num_nodes' is None, wanted is a number of vertices"),
        (with_meta(num_nodes="six"), "'num_nodes' is 'six'"),
        (with_meta(num_nodes=6.7), r"'num_nodes' is 6\.7"),
        (with_meta(node_types={"node": -1}), "'node' is -1"),
        (with_meta(node_types=["node"]), r"meta\.json: 'node_types' is \['node'\], wanted is an object"),
        (with_meta(relations=3), r"meta\.json: 'relations' is 3, wanted are names"),
        (with_meta(relations=[[]]), r"'relations' is \[\[\]\]"),
        (with_meta(num_classes=-5), r"meta\.json: 'num_classes' is -5, wanted is a number of classes"),
        (with_meta(node_types={"node": 4}), "6 feature rows for 4"),
        (lambda folder: (folder / "meta.json").write_text("{"), r"meta\.json"),
        (lambda folder: np.savez(folder / "graph.npz", edge_index=np.zeros((3, 2), np.int64)), r"graph\.npz"),
        (lambda folder: np.savez(folder / "graph.npz", other=np.zeros(2)), r"graph\.npz"),
        (lambda folder: np.savez(folder / "graph.npz", edge_index=np.array([{}], object)), r"graph\.npz"),
        (lambda folder: (folder / "graph.npz").write_bytes((folder / "graph.npz").read_bytes()[:-40]), r"graph\.npz"),
        (bad_member, r"graph\.npz"),
        (bad_column, r"x_sparse\.npz"),
        (complex_features, r"x_sparse\.npz: a sparse matrix of complex128, wanted are numbers"),
        (with_edges(np.int64, (1, 0), c.N), f"the destination {c.N}"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_npz_is_named(tmp_path: Path, change: Any, says: str) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"features", "labels"})
    change(source)
    refused("npz", source, tmp_path, says, AttaError)


def test_unknown_format_and_missing_source(tmp_path: Path) -> None:
    refused("nzp", tmp_path, tmp_path, "did you mean 'npz'", UnknownNameError)
    refused("npz", tmp_path / "nowhere", tmp_path, "nowhere")


@pytest.mark.parametrize("sparse", [False, True])
def test_features_beyond_float32(tmp_path: Path, sparse: bool) -> None:
    x, out = np.array([[1.0, np.inf], [0, 2]]), tmp_path / "s"
    for number, large in enumerate((3e38, 1e300)):
        (source := out / str(number)).mkdir(parents=True)
        np.savez(source / "graph.npz", edge_index=[[0], [1]])
        x[1, 0] = large
        sp.save_npz(source / "x_sparse.npz", sp.csr_matrix(x)) if sparse else np.save(source / "x.npy", x)
    import_graph("npz", out / "0", tmp_path / "g")
    assert np.array_equal(Graph.open(tmp_path / "g").table("node", "x"), [[1, np.inf], [np.float32(3e38), 2]])
    with pytest.raises(ConfigError, match="table 'x' of 'node': holds numbers beyond float32"):
        import_graph("npz", out / "1", tmp_path / "h")


def test_unsigned_end_points_say_how_many_vertices_there_are(tmp_path: Path) -> None:
    for number, index in enumerate((EDGES.astype(np.uint64), np.zeros((2, 0), np.uint8))):
        (source := tmp_path / f"s{number}").mkdir()
        np.savez(source / "graph.npz", edge_index=index)
        import_graph("npz", source, tmp_path / f"g{number}")
        assert Graph.open(tmp_path / f"g{number}").schema.node_counts == {"node": index.max() + 1 if index.size else 0}


def test_relation_numbers_of_no_edges(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=np.zeros((2, 0), np.int64), edge_type=np.zeros(0, np.int64))
    with_meta(num_nodes=6)(tmp_path)
    schema = taken_in("npz", tmp_path, tmp_path / "g").schema
    assert (schema.node_counts, schema.edge_counts) == ({"node": 6}, {"node__to__node": 0})


def test_npz_edges_as_files_of_their_own(tmp_path: Path) -> None:
    graph = plain(tmp_path / "g")
    export_graph("npz", tmp_path / "g", tmp_path / "out")
    with np.load(tmp_path / "out/graph.npz") as archive:
        for name in archive.files:
            np.save(tmp_path / f"out/{name}.npy", archive[name])
    (tmp_path / "out/graph.npz").unlink()
    assert_same(graph, taken_in("npz", tmp_path / "out", tmp_path / "back"))
    np.save(tmp_path / "out/edge_index.npy", np.array([{}], dtype=object))
    refused("npz", tmp_path / "out", tmp_path, r"edge_index\.npy")


def test_typed_npz_edges_as_files_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "edge_index__a__r__b.npy", np.array([[0, 1], [2, 0]]))
    np.save(tmp_path / "edge_index__b__s__b.npy", np.array([[0], [3]]))
    np.save(tmp_path / "ids__a.npy", np.array([9, 7]))
    graph = taken_in("npz", tmp_path, tmp_path / "g")
    assert graph.schema.edge_counts == {"a__r__b": 2, "b__s__b": 1}
    assert graph.edges("a__r__b").dst.tolist() == [2, 0]
    assert graph.user_ids("a").tolist() == [9, 7]


A = sp.csr_array((np.ones(5), ([0, 0, 1, 3, 3], [1, 2, 0, 3, 1])), shape=(4, 4))
X = sp.csr_array(np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 3], [1, 0, 0]]))
LABELS = np.array([0, 2, 1, 2])


def csr(prefix: str, array: sp.csr_array) -> dict[str, Any]:
    return {prefix + part: getattr(array, part) for part in ("data", "indices", "indptr", "shape")}


def imported(path: Path) -> tuple[Graph, np.ndarray]:
    graph = taken_in("npz", path, path.parent / "g")
    edges, made = graph.edges(ETYPE), np.zeros((4, 4))
    np.add.at(made, (edges.src[:], edges.dst[:]), edges.tables.get("weight", np.ones(len(edges))))
    return graph, made


@pytest.mark.parametrize("adjacency", ["adj_", "adj_matrix.", ""])
@pytest.mark.parametrize("features", ["attr_", "attr_matrix.", "dense"])
def test_csr_sets(adjacency: str, features: str, tmp_path: Path) -> None:
    of_vertices = {"attr_matrix": X.toarray()} if features == "dense" else csr(features, X)
    names = {"node_names": np.array(["a", "ü", "c", "d"]), "train_mask": LABELS == 2}
    np.savez(tmp_path / "set.npz", **csr(adjacency, A), **of_vertices, labels=LABELS, **names)
    graph, edges = imported(tmp_path / "set.npz")
    assert np.array_equal(edges, A.toarray())
    assert np.array_equal(graph.table("node", "x"), X.toarray())
    assert graph.table("node", "y").tolist() == LABELS.tolist()
    assert to_strings(graph.table("node", "name")).tolist() == ["a", "ü", "c", "d"]
    assert graph.split("node", "train").tolist() == [1, 3]
    assert not graph.schema.edge_tables[ETYPE]


def test_matrices_of_scipy_with_weights(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "adj.npz", A * 2.5)
    assert np.array_equal(imported(tmp_path / "adj.npz")[1], A.toarray() * 2.5)
    for kind in ("csc", "coo"):
        sp.save_npz(tmp_path / f"{kind}.npz", (A * 2.5).asformat(kind))
        assert np.array_equal(imported(tmp_path / f"{kind}.npz")[1], A.toarray() * 2.5)
    sp.save_npz(tmp_path / "bsr.npz", A.tobsr())
    refused("npz", tmp_path / "bsr.npz", tmp_path, "a sparse matrix in the format 'bsr'; csr, csc, coo are read")


def test_objects_are_named_and_never_loaded(tmp_path: Path) -> None:
    loud = Runs(open, str(tmp_path / "trace"), "w")
    objects = {"attr_names": np.array([loud], object), "metadata": np.array({}, object)}
    np.savez(tmp_path / "set.npz", **csr("adj_", A), labels=LABELS, **objects, class_names=np.array(list("abcd")))
    notes = import_graph("npz", tmp_path / "set.npz", tmp_path / "g", drop=["metadata"])
    assert notes == ["left out: class_names, attr_names"]
    assert Graph.open(tmp_path / "g").schema.num_classes == 4
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("whole", [b"PK\x05\x06", b"PK\x01\x02\x2d\x03\x2d", b"NUMPY"])
def test_a_damaged_archive_is_named(whole: bytes, tmp_path: Path) -> None:
    np.savez(path := tmp_path / "set.npz", **csr("adj_", A), labels=LABELS)
    good = path.read_bytes()
    path.write_bytes(good.replace(whole, whole[:-1] + b"\xe8"))
    assert path.read_bytes() != good
    refused("npz", path, tmp_path, r"set\.npz: not a readable npz archive")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"colour": [1]}, "'colour' is not imported: nothing says what it is"),
        ({"labels": np.array([{}], object)}, "'labels' is not imported: it holds Python objects, which are never loaded"),
        ({"labels": [1, 2]}, r"labels has the shape \[2\], the graph has 4 vertices"),
        ({"attr_matrix": np.ones((3, 2))}, r"features has the shape \[3, 2\]"),
        ({"adj_indices": A.indices + 2}, "not a sparse matrix: indices must be < 4"),
        ({"adj_shape": (4, 5)}, r"the edges are a matrix \[4, 5\], wanted is a square one"),
        ({"adj_data": np.array([{}], object)}, "holds no edges as numbers: wanted are adj_data"),
    ],
)  # fmt: skip
def test_errors_of_csr_sets(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **{**csr("adj_", A), "labels": LABELS, **change})
    refused("npz", tmp_path / "set.npz", tmp_path, says)
