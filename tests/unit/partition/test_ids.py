"""Numbers that cannot be ids are refused with value and place: too large for int64, fractions, NaN, negative rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from atta.errors import AttaError, ConfigError, DataError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.exporters import export_graph
from atta.partition.importers import import_graph
from tests.unit.partition import carried as c

BIG = 2**63 + 5
EDGES = np.stack([c.SRC, c.DST])


def with_array(name: str, values: Any):
    def change(folder: Path) -> None:
        np.save(folder / f"{name}.npy", values)

    return change


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
    ],
)  # fmt: skip
def test_npz(tmp_path: Path, change: Any, says: str) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"features", "labels"})
    change(source)
    with pytest.raises(DataError, match=says):
        import_graph("npz", source, tmp_path / "g")
    assert not list(tmp_path.glob("g*"))


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


def test_complex_sparse_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=[[0], [1]])
    sp.save_npz(tmp_path / "x_sparse.npz", sp.csr_matrix(np.ones((2, 2), complex)))
    with pytest.raises(DataError, match=r"x_sparse\.npz: a sparse matrix of complex128, wanted are numbers"):
        import_graph("npz", tmp_path, tmp_path / "g")


def test_unsigned_end_points_say_how_many_vertices_there_are(tmp_path: Path) -> None:
    for number, index in enumerate((EDGES.astype(np.uint64), np.zeros((2, 0), np.uint8))):
        (source := tmp_path / f"s{number}").mkdir()
        np.savez(source / "graph.npz", edge_index=index)
        import_graph("npz", source, tmp_path / f"g{number}")
        assert Graph.open(tmp_path / f"g{number}").schema.node_counts == {"node": index.max() + 1 if index.size else 0}


def test_relation_numbers_of_no_edges(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=np.zeros((2, 0), np.int64), edge_type=np.zeros(0, np.int64))
    with_meta(num_nodes=6)(tmp_path)
    import_graph("npz", tmp_path, tmp_path / "g")
    schema = Graph.open(tmp_path / "g").schema
    assert (schema.node_counts, schema.edge_counts) == ({"node": 6}, {"node__to__node": 0})


def test_a_mask_of_zeros_and_ones_is_a_mask(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"labels"})
    np.save(source / "train_mask.npy", np.array([0, 1, 1, 0, 0, 1], np.uint8))
    import_graph("npz", source, tmp_path / "g")
    assert Graph.open(tmp_path / "g").split("node", "train").tolist() == [1, 2, 5]


def wide_npz(folder: Path, mask: np.ndarray) -> None:
    np.savez(folder / "graph.npz", edge_index=EDGES)
    np.save(folder / "y.npy", np.arange(c.N))
    np.save(folder / "train_mask.npy", mask)


def wide_table(folder: Path, mask: np.ndarray) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": np.arange(c.N), "m": mask.tolist()}), folder / "n.parquet")
    nodes = {"node": {"files": "n.parquet", "id": "id", "splits": {"train": "m"}}}
    (folder / "schema.json").write_text(json.dumps({"nodes": nodes}))


def wide_networkx(folder: Path, mask: np.ndarray) -> None:
    nodes = [{"id": row, "train_mask": values} for row, values in enumerate(mask.tolist())]
    (folder / "g.json").write_text(json.dumps({"directed": True, "nodes": nodes, "links": []}))


WIDE = [("npz", wide_npz, "."), ("table", wide_table, "."), ("networkx", wide_networkx, "g.json")]


@pytest.mark.parametrize(("fmt", "write", "name"), WIDE)
def test_a_mask_with_columns_is_a_split_per_column(tmp_path: Path, fmt: str, write: Any, name: str) -> None:
    mask = np.zeros((c.N, 2), bool)
    mask[[0, 2], 0] = mask[1, 1] = True
    (tmp_path / "s").mkdir()
    write(tmp_path / "s", mask)
    import_graph(fmt, tmp_path / "s" / name, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert {s: graph.split("node", s).tolist() for s in graph.schema.splits["node"]} == {
        "train_0": [0, 2],
        "train_1": [1],
    }


def test_a_mask_with_columns_in_partitions_of_pyg(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    mask = np.zeros((c.N, 2), bool)
    mask[[0, 2], 0] = mask[1, 1] = True
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", c.N, tables={"train_mask": mask})
        out.add_edges("node__to__node", *EDGES)
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    export_graph("pyg-parts", tmp_path / "d", tmp_path / "out")
    import_graph("pyg-parts", tmp_path / "out", tmp_path / "back")
    back = Graph.open(tmp_path / "back")
    assert {s: back.split("node", s).tolist() for s in back.schema.splits["node"]} == {
        "train_0": [0, 2],
        "train_1": [1],
    }


def test_a_mask_of_no_or_three_dimensions(tmp_path: Path) -> None:
    for number, mask in enumerate((np.array(True), np.ones((c.N, 2, 2), bool))):
        (source := tmp_path / f"s{number}").mkdir()
        wide_npz(source, mask)
        with pytest.raises(DataError, match=r"train_mask\.npy: train: \[.*\] is neither one value for each vertex"):
            import_graph("npz", source, tmp_path / "g")


@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        ("mapping/nodeidx2id", [[0, 1], [1, BIG], [2, 3], [3, 4], [4, 5], [5, 6]], "nodeidx2id"),
        ("raw/edge", [[0, BIG]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, 1.5]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, "nan"]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, -1]], "destination -1"),
        ("raw/edge-feat", [[1, 2]], r"edge-feat\.csv\.gz: ends before the edges: 1 rows"),
        ("raw/edge-feat", [[1, 2]] * 10, r"edge-feat\.csv\.gz: "),
        ("raw/num-edge-list", [8], r"states 8 edges, edge\.csv\.gz has 9"),
        ("split/time/holdout", [1], r"'holdout\.csv\.gz' is not imported"),
    ],
)
def test_ogb(tmp_path: Path, name: str, rows: list, says: str) -> None:
    source = c.ogb(tmp_path / "s", {"features", "splits", "user ids"})
    c._csv(source / f"{name}.csv.gz", np.array(rows, dtype=object), "heading\n" if "mapping" in name else "")
    with pytest.raises(AttaError, match=says):
        import_graph("ogb", source, tmp_path / "g")
    assert not list(tmp_path.glob("g*"))


def test_a_damaged_file_of_ogb(tmp_path: Path) -> None:
    source = c.ogb(tmp_path / "s", set())
    content = bytearray((source / "raw/edge.csv.gz").read_bytes())
    content[10:30] = b"\xff" * 20  # after the heading of gzip
    (source / "raw/edge.csv.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"edge\.csv\.gz: not readable as gzip: Error -3"):
        import_graph("ogb", source, tmp_path / "g")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d, t: d.update({"n_id": t.arange(6) / 2}), r"'n_id' is not imported: n_id: 0\.0 at position 0"),
        (lambda d, t: d.update({"n_id": t.zeros(6, dtype=t.int64)}), "'n_id' is not imported: n_id: the id 0 occurs twice"),
        (lambda d, t: d.update({"n_id": t.arange(4)}), r"'n_id' is not imported: \[4\] is not one row"),
        (lambda d, t: d.update({"edge_index": d["edge_index"] / 2}), r"source: 0\.0 at position 0 \(float32\)"),
        (lambda d, t: d.update({"edge_index": d["edge_index"] - 1}), "source: -1 at position 0 is negative"),
        (lambda d, t: d.update({"edge_index": d["edge_index"][0]}), r"has the shape \[9\] instead of \[2, E\]"),
        (lambda d, t: d.update({"description": "six"}), "'description' is not imported: it is a str"),
        (lambda d, t: d.update({"years": [1, 2]}), "'years' is not imported: it is a list"),
        (lambda d, t: d.update({"adj": t.eye(6).to_sparse()}), "'adj' is not imported: it is a sparse tensor"),
        (lambda d, t: d.update({"adj": t.eye(6).to_sparse_csr()}), "'adj' is not imported: it is a sparse tensor"),
        (lambda d, t: d.update({"half": t.zeros(6, dtype=t.bfloat16)}), "'half' is not imported: it is a tensor of torch.bfloat16"),
        (lambda d, t: d.update({"prices": t.zeros(7)}), r"'prices' is not imported: \[7\] is not one row .*vertex \(6\),"),
        (lambda d, t: d.update({"edge_attr": t.zeros(6)}), r"'edge_attr' is not imported: \[6\] is not one row .*edge \(9\)"),
        (lambda d, t: d.update({"edge_weight": t.zeros(9, 2)}), r"'edge_weight' is not imported: \[9, 2\] is not one number"),
        (lambda d, t: d.update(edge_time=t.zeros(9), time=t.zeros(9)), "'edge_time' is not imported: there is another tensor"),
        (lambda d, t: d.update({"batch": t.arange(6) // 3}), "'batch' is not imported: it tells several graphs apart"),
        (lambda d, t: d.update({"split_x": t.zeros(6)}), "'split_x' is not imported: tables cannot have this name"),
        (lambda d, t: d.update({"edge_label_index": t.zeros(9)}), "'edge_label_index' is not imported: edges that are seeds"),
        (lambda d, t: d.update({"train_mask": t.arange(6)}), "train_mask: a mask holds truth values"),
        (lambda d, t: d.update({"num_classes": "many"}), "'num_classes' is not imported: it is a str"),
        (lambda d, t: d.update({"num_classes": 2**70}), rf"d\.pt: 'num_classes' is {2**70}, wanted is a number of classes"),
    ],
)  # fmt: skip
def test_pyg(tmp_path: Path, change: Any, says: str) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    value = data.Data(x=torch.from_numpy(c.X), edge_index=torch.from_numpy(EDGES)).to_dict()
    change(value, torch)
    torch.save(data.Data.from_dict(value), tmp_path / "d.pt")
    with pytest.raises(DataError, match=says):
        import_graph("pyg", tmp_path / "d.pt", tmp_path / "g")
    if "is not imported" in says and "there is" not in says:
        name = says.split("'")[1]
        import_graph("pyg", tmp_path / "d.pt", tmp_path / "g", drop=[name])
        assert list(Graph.open(tmp_path / "g").schema.node_tables["node"]) == ["x"]


def test_pyg_with_unsigned_end_points(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    torch.save({"edge_index": torch.tensor([[0, 3], [1, 2]], dtype=torch.uint8)}, tmp_path / "g.pt")
    import_graph("pyg", tmp_path / "g.pt", tmp_path / "g")
    assert Graph.open(tmp_path / "g").schema.node_counts == {"node": 4}


def test_typed_pyg(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    value = data.HeteroData()
    value["a"].x = torch.zeros(3, 2)
    value["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    value.licence = "none"
    torch.save(value, tmp_path / "d.pt")
    with pytest.raises(DataError, match="'licence' is not imported: it belongs to no node type"):
        import_graph("pyg", tmp_path / "d.pt", tmp_path / "g")
    value.licence, value.num_classes = None, "many"
    torch.save(value, tmp_path / "d.pt")
    with pytest.raises(DataError, match="'num_classes' is not imported: it belongs to no node type"):
        import_graph("pyg", tmp_path / "d.pt", tmp_path / "g", drop=["licence"])


@pytest.mark.parametrize(
    ("ids", "says"),
    [([0.0, 1, 2, 3, 4, 5], r"0\.0 at position 0"), ([0, 0, 1, 2, 3, 4], "the id 0 occurs twice")],
)
def test_dgl(tmp_path: Path, ids: list, says: str) -> None:
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    graph = dgl.graph((torch.from_numpy(c.SRC), torch.from_numpy(c.DST)), num_nodes=c.N)
    graph.ndata["_ID"] = torch.tensor(ids)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    with pytest.raises(DataError, match=says):
        import_graph("dgl", tmp_path / "g.bin", tmp_path / "g")
    del graph.ndata["_ID"]
    graph.ndata["two words"] = torch.zeros(c.N)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph], {"of the graph": torch.zeros(1)})
    with pytest.raises(DataError, match="'two words' is not imported: tables cannot have this name"):
        import_graph("dgl", tmp_path / "g.bin", tmp_path / "g")
    with pytest.raises(DataError, match="'of the graph' is not imported: it is a tensor of the whole graph"):
        import_graph("dgl", tmp_path / "g.bin", tmp_path / "g", drop=["two words"])
    import_graph("dgl", tmp_path / "g.bin", tmp_path / "g", drop=["two words", "of the graph"])
    for stated in ([2.5], [-1], [3, 3]):
        dgl.save_graphs(str(tmp_path / "g.bin"), [graph], {"num_classes": torch.tensor(stated)})
        with pytest.raises(DataError, match=r"g\.bin: 'num_classes' is .*, wanted is a number of classes"):
            import_graph("dgl", tmp_path / "g.bin", tmp_path / "h", drop=["two words"])


@pytest.mark.parametrize(
    ("file", "column", "values", "says"),
    [
        (
            "nodes",
            "id",
            np.array([1, 2, BIG, 4, 5, 6], np.uint64),
            f"the column 'id': {BIG} at position 2 is too large",
        ),
        ("nodes", "id", [1, 1, 2, 3, 4, 5], "the id 1 occurs twice"),
        ("edges", "a", np.array([*c.SRC[:-1], BIG], np.uint64), f"the column 'a': {BIG} at position 8 is too large"),
        ("edges", "a", c.SRC + 0.5, "the column 'a' holds double, the ids of vertices are int64"),
        ("edges", "b", [*c.DST[:-1].tolist(), None], "empty ids"),
        ("edges", "b", [*map(str, c.DST)], "the column 'b' holds string, the ids of vertices are int64"),
        ("edges", "b", [*c.DST[:-1].tolist(), -1], "names the vertex -1, which is in no node file"),
        ("nodes", "train", [0, 1, 2, 0, 0, 0], "the column 'train': a mask holds truth values"),
        ("nodes", "wealth", [0.0] * 6, "'wealth' is not imported: schema.json does not name the column"),
    ],
)
def test_tables(tmp_path: Path, file: str, column: str, values: Any, says: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", {"splits"})
    whole = parquet.read_table(source / f"{file}.parquet").to_pydict()
    parquet.write_table(pa.table({**whole, column: values}), source / f"{file}.parquet")
    with pytest.raises(DataError, match=says):
        import_graph("table", source, tmp_path / "g")
    assert not list(tmp_path.glob("g*"))


def test_a_narrow_id_column_knows_larger_numbers_as_strangers(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", set())
    parquet.write_table(pa.table({"id": np.arange(6, dtype=np.int8)}), source / "nodes.parquet")
    parquet.write_table(pa.table({"a": [300], "b": [0]}), source / "edges.parquet")
    with pytest.raises(DataError, match="the column 'a' names the vertex 300, which is in no node file"):
        import_graph("table", source, tmp_path / "g")


def test_a_file_that_the_schema_does_not_name(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", set())
    (source / "more.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"'more\.csv' is not imported: schema\.json does not name it"):
        import_graph("table", source, tmp_path / "g")
    import_graph("table", source, tmp_path / "g", drop=["more.csv"])


def test_an_ignored_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", {"edge ids"})
    schema = json.loads((source / "schema.json").read_text())
    schema["edges"]["node__to__node"]["ignore"] = ["number"]
    (source / "schema.json").write_text(json.dumps(schema))
    import_graph("table", source, tmp_path / "g")
    assert Graph.open(tmp_path / "g").schema.edge_tables["node__to__node"] == {}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ind.tiny.test.index", f"{BIG}\n5\n", r"test\.index: not a list of numbers"),
        ("ind.tiny.test.index", "4\n4.5\n", r"test\.index: not a list of numbers"),
        ("ind.tiny.test.index", "4\n-5\n", "distinct non-negative numbers"),
    ],
)
def test_planetoid(tmp_path: Path, name: str, text: str, says: str) -> None:
    source = c.planetoid(tmp_path, set())
    (source / name).write_text(text)
    with pytest.raises(DataError, match=says):
        import_graph("planetoid", source, tmp_path / "g")


def test_several_labels_of_a_planetoid_vertex(tmp_path: Path) -> None:
    import pickle

    source, many = c.planetoid(tmp_path, set()), np.eye(3, dtype=np.int32)[c.Y[:4]]
    many[1] = 1
    (source / "ind.tiny.ally").write_bytes(pickle.dumps(many, protocol=2))
    with pytest.raises(DataError, match="a vertex has several labels"):
        import_graph("planetoid", source, tmp_path / "g")


def test_dorylus(tmp_path: Path) -> None:
    source = c.dorylus(tmp_path, {"labels"})
    (source / "vertices.bsnap").write_bytes(b"")
    with pytest.raises(DataError, match=r"'vertices\.bsnap' is not imported"):
        import_graph("dorylus", source, tmp_path / "g")
    (source / "vertices.bsnap").unlink()
    whole = (source / "labels.bsnap").read_bytes()
    (source / "labels.bsnap").write_bytes(b"\2\0\0\0" + whole[4:])
    with pytest.raises(DataError, match="has the label 2, but its heading says 2 classes"):
        import_graph("dorylus", source, tmp_path / "g")
    (source / "labels.bsnap").write_bytes(b"\7\0\0\0" + whole[4:])
    import_graph("dorylus", source, tmp_path / "g")
    assert Graph.open(tmp_path / "g").schema.num_classes == 7


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda out: out.add_nodes("a", 2, ids=np.array([1, BIG], np.uint64)), f"ids: {BIG} at position 1 does not fit"),
        (lambda out: out.add_nodes("a", 2, ids=[0.5, 1]), "ids are integers, not float64"),
        (lambda out: out.add_nodes("a", 2, ids=[True, False]), "ids are integers, not bool"),
        (lambda out: out.add_edges("n__to__n", [0.0], [1.0]), "an edge has the source 0.0: vertices are numbered by integers"),
        (lambda out: out.add_edges("n__to__n", [0], np.array([BIG], np.uint64)), f"an edge has the destination {BIG}"),
        (lambda out: out.add_split("s", [0.5], "n"), "split 's': rows are integers, not float64"),
        (lambda out: out.add_split("s", np.array([BIG], np.uint64), "n"), f"rows: {BIG} at position 0"),
        (lambda out: [out.add_table("t", np.zeros(3), "n") for _ in "ab"], "table 't' of 'n' is given twice"),
        (lambda out: [out.add_split("s", [0], "n") for _ in "ab"], "split 's' of 'n' is given twice"),
    ],
)  # fmt: skip
def test_graph_writer(tmp_path: Path, use: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says), GraphWriter(tmp_path / "g") as out:  # noqa: PT012
        out.add_nodes("n", 3)
        use(out)
    assert not list(tmp_path.iterdir())
