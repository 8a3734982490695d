"""OGB's typed and binary layouts, its splits and ``meta_dict.pt``, against the arrays that they were written from."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError
from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from tests.unit.partition.carried import _csv as csv
from tests.unit.partition.oracles import Runs, ends_of, refused, taken_in

RNG = np.random.default_rng(2)
COUNTS = {"author": 7, "paper": 20}
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
EDGES = {WRITES: np.stack([RNG.integers(0, 7, 25), RNG.integers(0, 20, 25)]), CITES: RNG.integers(0, 20, (2, 30))}
FEAT, YEAR = RNG.random((20, 4)).astype(np.float32), RNG.integers(1990, 2020, (20, 1))
LABEL = np.where(np.arange(20) % 3 == 0, np.nan, RNG.integers(0, 5, 20))[:, None]
TYPES = {key: np.full((edges.shape[1], 1), n) for n, (key, edges) in enumerate(EDGES.items())}
ATTR, WEIGHT = RNG.random((30, 2)).astype(np.float32), RNG.random((30, 1)).astype(np.float32)
SPLIT = {"train": np.arange(10), "valid": np.arange(15, 10, -1), "test": np.array([19, 17])}
ATTA = {"train": "train", "valid": "val", "test": "test"}


def save_dict(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        out.writestr("archive/version", "3\n")


def typed_text(folder: Path) -> None:
    raw = folder / "raw"
    csv(raw / "num-node-dict.csv.gz", np.array([[20, 7]]), "paper,author\n")
    csv(raw / "triplet-type-list.csv.gz", np.array([CITES, WRITES]))
    csv(raw / "nodetype-has-label.csv.gz", np.array([["True", "False"]]), "paper,author\n")
    csv(raw / "node-label/paper/node-label.csv.gz", LABEL)
    csv(raw / "node-feat/paper/node-feat.csv.gz", FEAT)
    csv(raw / "node-feat/paper/node_year.csv.gz", YEAR)
    for key, edges in EDGES.items():
        here = raw / "relations" / "___".join(key)
        csv(here / "edge.csv.gz", edges.T)
        csv(here / "num-edge-list.csv.gz", np.array([edges.shape[1]]))
        csv(here / "edge_reltype.csv.gz", TYPES[key])
    csv(raw / "relations/paper___cites___paper/edge-feat.csv.gz", ATTR)
    csv(raw / "relations/paper___cites___paper/edge_weight.csv.gz", WEIGHT)
    csv(folder / "split/time/nodetype-has-split.csv.gz", np.array([["True", "False"]]), "paper,author\n")
    for name, rows in SPLIT.items():
        csv(folder / f"split/time/paper/{name}.csv.gz", rows)


def typed_archives(folder: Path) -> None:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    names = {key: "___".join(key) for key in EDGES}
    np.savez_compressed(raw / "num_nodes_dict.npz", **{t: np.array([n]) for t, n in COUNTS.items()})
    np.savez_compressed(raw / "num_edges_dict.npz", **{names[k]: np.array([e.shape[1]]) for k, e in EDGES.items()})
    np.savez_compressed(raw / "edge_index_dict.npz", **{names[k]: e for k, e in EDGES.items()})
    np.savez_compressed(raw / "node_feat_dict.npz", paper=np.asfortranarray(FEAT))
    np.savez_compressed(raw / "node_year.npz", paper=YEAR)
    np.savez_compressed(raw / "edge_reltype.npz", **{names[k]: t for k, t in TYPES.items()})
    np.savez_compressed(raw / "edge_feat_dict.npz", **{names[CITES]: ATTR})
    np.savez_compressed(raw / "edge_weight.npz", **{names[CITES]: WEIGHT})
    np.savez_compressed(raw / "node-label.npz", paper=LABEL)
    save_dict(folder / "split/time/split_dict.pt", {name: {"paper": rows} for name, rows in SPLIT.items()})


def archive(folder: Path, *, compressed: bool = True, fortran: bool = False, **more: Any) -> None:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    save = np.savez_compressed if compressed else np.savez
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    arrays = {"edge_index": order(EDGES[CITES]), "num_nodes_list": np.array([20]), "num_edges_list": np.array([30])}
    arrays |= {"node_feat": order(FEAT), "node_year": YEAR, "edge_feat": order(ATTR), "edge_weight": WEIGHT}
    save(folder / "raw/data.npz", **(arrays | more))
    save(folder / "raw/node-label.npz", node_label=LABEL)


def check(graph: Graph, paper: str, cites: str) -> None:
    assert np.array_equal(graph.table(paper, "x"), FEAT)
    assert np.array_equal(graph.table(paper, "node_year"), YEAR[:, 0])
    assert np.array_equal(graph.table(paper, "y"), np.nan_to_num(LABEL[:, 0], nan=-1))
    assert {n: graph.split(paper, ATTA[n]).tolist() for n in SPLIT} == {n: sorted(r) for n, r in SPLIT.items()}
    tables = graph.edges(cites).tables
    assert np.array_equal(ends_of(graph, cites), EDGES[CITES])
    assert np.array_equal(tables["edge_attr"], ATTR)
    assert np.array_equal(tables["weight"], WEIGHT[:, 0])


@pytest.mark.parametrize("layout", [typed_text, typed_archives])
def test_typed(tmp_path: Path, layout: Any) -> None:
    layout(tmp_path / "mag")
    assert guess(tmp_path / "mag") == "ogb"
    assert import_graph("ogb", tmp_path / "mag", tmp_path / "g") == []
    graph = Graph.open(tmp_path / "g")
    check(graph, "paper", "paper__cites__paper")
    assert graph.schema.node_counts == COUNTS
    assert np.array_equal(ends_of(graph, "author__writes__paper"), EDGES[WRITES])
    for key in EDGES:
        assert np.array_equal(graph.edges("__".join(key)).tables["edge_reltype"], TYPES[key][:, 0])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("fortran", [True, False])
def test_archive(tmp_path: Path, compressed: bool, fortran: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.partition.importers.reading.rows.BLOCK_BYTES", 64)  # several blocks
    archive(tmp_path / "papers", compressed=compressed, fortran=fortran)
    for name, rows in SPLIT.items():
        csv(tmp_path / f"papers/split/time/{name}.csv.gz", rows)
    assert guess(tmp_path / "papers") == "ogb"
    check(taken_in("ogb", tmp_path / "papers", tmp_path / "g"), "node", "node__to__node")


def test_submission_with_its_meta(tmp_path: Path) -> None:
    """``DatasetSaver`` puts the folder and ``meta_dict.pt`` into one."""
    archive(tmp_path / "submission/tiny")
    save_dict(tmp_path / "submission/tiny/split/time/split_dict.pt", SPLIT)
    meta = {"num classes": 9, "is hetero": "False", "add_inverse_edge": "True", "binary": "True"}
    save_dict(tmp_path / "submission/meta_dict.pt", meta)
    graph = taken_in("ogb", tmp_path / "submission", tmp_path / "g")
    assert graph.schema.num_classes == 9
    pairs = ends_of(graph)
    assert np.array_equal(pairs[:, 0::2], EDGES[CITES])
    assert np.array_equal(pairs[:, 1::2], EDGES[CITES][::-1])
    assert np.array_equal(graph.edges("node__to__node").tables["edge_attr"], np.repeat(ATTR, 2, axis=0))
    save_dict(tmp_path / "submission/meta_dict.pt", meta | {"is hetero": "True"})
    refused("ogb", tmp_path / "submission", tmp_path, r"meta_dict\.pt: 'is hetero' is True")


@pytest.mark.parametrize("layout", [typed_text, typed_archives])
def test_tables_that_are_renamed_are_what_their_new_names_say(tmp_path: Path, layout: Any) -> None:
    layout(tmp_path / "raw_set")
    import_graph("ogb", tmp_path / "raw_set", tmp_path / "y", rename={"node_year": "y", "y": "old"})
    graph = Graph.open(tmp_path / "y")
    assert graph.schema.num_classes == YEAR.max() + 1
    assert np.array_equal(graph.table("paper", "y"), YEAR[:, 0])
    import_graph("ogb", tmp_path / "raw_set", tmp_path / "x", rename={"node_year": "x", "x": "old"})
    features = Graph.open(tmp_path / "x").table("paper", "x")
    assert features.dtype == np.float32
    assert np.array_equal(features, YEAR[:, 0])


@pytest.mark.parametrize("old", [True, False])
def test_links(tmp_path: Path, old: bool) -> None:
    """The graph comes in, and a note tells of the edges that are its splits."""
    archive(tmp_path / "s")
    (tmp_path / "s/raw/node-label.npz").unlink()
    folder = tmp_path / "s/split/time"
    folder.mkdir(parents=True)
    if old:
        for name in SPLIT:
            (folder / f"{name}.pt").write_bytes(b"not looked at")
    else:
        save_dict(folder / "split_dict.pt", {name: {"edge": EDGES[CITES].T, "year": YEAR} for name in SPLIT})
    (note,) = import_graph("ogb", tmp_path / "s", tmp_path / "g")
    assert "hold edges, which are no splits of vertices" in note
    assert Graph.open(tmp_path / "g").schema.edge_counts == {"node__to__node": 30}


def test_targets_of_a_regression(tmp_path: Path) -> None:
    archive(tmp_path / "s")
    targets = RNG.random((20, 1))
    np.savez(tmp_path / "s/raw/node-label.npz", node_label=targets)
    graph = taken_in("ogb", tmp_path / "s", tmp_path / "g")
    assert np.array_equal(graph.table("node", "y"), targets[:, 0])
    assert graph.schema.num_classes is None


@pytest.mark.parametrize("columns", [1, 2])
def test_labels_that_pandas_wrote(tmp_path: Path, columns: int) -> None:
    pandas = pytest.importorskip("pandas")
    typed_text(tmp_path / "s")
    path = tmp_path / "s/raw/node-label/paper/node-label.csv.gz"
    labels = np.repeat(LABEL, columns, axis=1)
    pandas.DataFrame(labels).to_csv(path, header=False, index=False)
    import_graph("ogb", tmp_path / "s", tmp_path / "g")
    want = np.nan_to_num(labels, nan=-1)
    assert np.array_equal(Graph.open(tmp_path / "g").table("paper", "y"), want[:, 0] if columns == 1 else want)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: archive(s, num_nodes_list=np.array([10, 10])), "'num_nodes_list' holds 2 graphs; only single graphs"),
        (lambda s: archive(s, num_edges_list=np.array([31])), "states 31 edges, data.npz has 30"),
        (lambda s: archive(s, edge_index=EDGES[CITES].T), r"an edge index of the shape \[30, 2\] instead of \[2, E\]"),
        (lambda s: archive(s, edge_index=EDGES[CITES] + 9), "an edge has the (source|destination) 2.*, but there are only 20"),
        (lambda s: archive(s, node_feat=FEAT[:19]), "'node_feat' of 'node' has 19 rows for 20 vertices"),
        (lambda s: archive(s, edge_weight=WEIGHT[:29]), "ends before the edges: 29 rows"),
        (lambda s: archive(s, colour=YEAR), "'colour' is not imported: the layout has no such array"),
        (lambda s: archive(s, node_name=np.array([{}] * 20)), r"node_name\.npy: it holds objects"),
        (lambda s: np.savez(s / "raw/more.npz", a=YEAR), r"'more\.npz' is not imported: the layout has no such file"),
        (lambda s: (s / "raw/data.npz").write_bytes(b"PK\3\4"), r"data\.npz: not a readable npz archive"),
        (lambda s: save_dict(s / "split/a/split_dict.pt", {"train": Runs(os.mkdir, "harm")}), "refused: it names posix.mkdir"),
        (lambda s: save_dict(s / "split/a/split_dict.pt", {"hold": YEAR}), "'hold' is not imported"),
        (lambda s: save_dict(s / "split/a/split_dict.pt", [1]), "holds no dictionary of splits"),
    ],
)  # fmt: skip
def test_refused_archives(tmp_path: Path, change: Any, says: str) -> None:
    archive(tmp_path / "s")
    change(tmp_path / "s")
    refused("ogb", tmp_path / "s", tmp_path, says, AttaError)
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("file", "rows", "says"),
    [
        ("raw/num-node-dict", [[20, 7], [3, 3]], "wanted are a line of node types and one of their vertices"),
        ("raw/node-feat/paper/node_year", YEAR[:-1], "'node_year' of 'paper' has 19 rows|19 rows for 20 vertices"),
        ("raw/node-feat/paper/colour", YEAR, r"'colour\.csv\.gz' is not imported"),
        ("raw/relations/paper___cites___paper/num-edge-list", [4], r"states 4 edges, edge\.csv\.gz has 30"),
        ("raw/relations/author___writes___paper/edge", EDGES[WRITES].T[:, ::-1], "an edge has the source"),
        ("split/time/nodetype-has-split", [["True", "True"]], r"wanted are a line of node types, and a line of True"),
        ("split/time/paper/hold", [1], r"'hold\.csv\.gz' is not imported"),
    ],
)
def test_refused_texts(tmp_path: Path, file: str, rows: Any, says: str) -> None:
    typed_text(tmp_path / "s")
    heading = "paper,author\n" if "dict" in file else "paper,venue\n" if "nodetype" in file else ""
    csv(tmp_path / f"s/{file}.csv.gz", np.array(rows), heading)
    refused("ogb", tmp_path / "s", tmp_path, says, AttaError)
