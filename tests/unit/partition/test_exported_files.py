"""Exported files as their own libraries read them, and importers on files with ids."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.partition import Graph, GraphWriter
from atta.partition.exporters import export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.exports import ETYPE, assert_same, need, plain, shop
from tests.unit.partition.oracles import refused


def test_npz_as_numpy_reads_it(tmp_path: Path) -> None:
    graph = plain(tmp_path / "g")
    export_graph("npz", tmp_path / "g", tmp_path / "out")
    edges = graph.edges(ETYPE)
    with np.load(tmp_path / "out/graph.npz") as archive:
        assert np.array_equal(archive["edge_index"], [edges.src, edges.dst])
        assert np.array_equal(archive["edge_weight"], edges.tables["weight"])
    assert np.array_equal(np.load(tmp_path / "out/x.npy"), graph.table("node", "x"))
    assert np.array_equal(np.load(tmp_path / "out/ids.npy"), graph.user_ids("node"))
    assert np.flatnonzero(np.load(tmp_path / "out/train_mask.npy")).tolist() == [0, 3, 9]
    assert json.loads((tmp_path / "out/meta.json").read_text())["num_classes"] == 2


def test_ogb_as_text(tmp_path: Path) -> None:
    graph = plain(tmp_path / "g", weight=False)
    export_graph("ogb", tmp_path / "g", tmp_path / "out")

    def lines(name: str) -> list[str]:
        return gzip.decompress((tmp_path / "out" / name).read_bytes()).decode().splitlines()

    edges, ids = graph.edges(ETYPE), graph.user_ids("node")
    assert lines("raw/edge.csv.gz") == [f"{u},{v}" for u, v in zip(edges.src, edges.dst, strict=True)]
    assert lines("raw/num-node-list.csv.gz") == ["10"]
    assert lines("raw/num-edge-list.csv.gz") == ["25"]
    assert lines("raw/node-label.csv.gz") == ["nan", "0", "1", "nan", "0", "1", "nan", "0", "1", "nan"]
    assert lines("split/given/train.csv.gz") == ["0", "3", "9"]
    assert lines("split/given/test.csv.gz") == []
    assert ids is not None
    assert lines("mapping/nodeidx2id.csv.gz") == ["node idx,id", *(f"{i},{user}" for i, user in enumerate(ids))]
    features = np.array([line.split(",") for line in lines("raw/node-feat.csv.gz")], np.float64).astype(np.float32)
    assert np.array_equal(features, graph.table("node", "x"))


def load_torch(path: Path) -> Any:
    torch = pytest.importorskip("torch", reason="needs torch")
    from torch_geometric.data import Data, HeteroData, data, storage

    names = ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage")
    admitted = [Data, HeteroData, data.DataEdgeAttr, data.DataTensorAttr, *(getattr(storage, n) for n in names)]
    with torch.serialization.safe_globals(admitted):
        return torch.load(path, weights_only=True)


def test_data_as_pyg_reads_it(tmp_path: Path) -> None:
    need("pyg")
    graph = plain(tmp_path / "g")
    export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    data = load_torch(tmp_path / "out.pt")
    assert data.validate()
    edges = graph.edges(ETYPE)
    assert (data.num_nodes, data.num_edges, data.num_node_features) == (10, 25, 4)
    assert np.array_equal(data.edge_index.numpy(), [edges.src, edges.dst])
    assert np.array_equal(data.edge_weight.numpy(), edges.tables["weight"])
    assert np.array_equal(data.x.numpy(), graph.table("node", "x"))
    assert data.y.tolist() == graph.table("node", "y").tolist()
    assert data.train_mask.nonzero().flatten().tolist() == [0, 3, 9]
    assert np.array_equal(data.n_id.numpy(), graph.user_ids("node"))
    assert data.num_classes == 2


def test_heterodata_as_pyg_reads_it(tmp_path: Path) -> None:
    need("pyg")
    shop(tmp_path / "g")
    export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    data = load_torch(tmp_path / "out.pt")
    assert data.validate()
    assert data.node_types == ["item", "user"]
    assert data["user", "buys", "item"].edge_index.tolist() == [[2, 0, 2], [1, 1, 2]]
    assert data["user", "buys", "item"].time.tolist() == [30, 10, 20]
    assert data["user", "buys", "item"].price.tolist() == [7.5, 2.5, 5]
    assert data["user"].n_id.tolist() == [700, 5, 42]
    assert data["item"].num_nodes == 3


def test_graph_as_dgl_reads_it(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    shop(tmp_path / "g")
    export_graph("dgl", tmp_path / "g", tmp_path / "out.bin")
    (graph,), labels = dgl.load_graphs(str(tmp_path / "out.bin"))
    assert graph.canonical_etypes == [("user", "buys", "item"), ("user", "knows", "user")]
    assert [rows.tolist() for rows in graph.edges(etype="buys", order="eid")] == [[2, 0, 2], [1, 1, 2]]
    assert graph.edges["buys"].data["price"].tolist() == [7.5, 2.5, 5]
    assert graph.nodes["user"].data["_ID"].tolist() == [700, 5, 42]
    assert graph.nodes["user"].data["label"].tolist() == [1, -1, 0]
    assert graph.nodes["user"].data["train_mask"].tolist() == [1, 0, 1]
    assert graph.nodes["user"].data["feat"].shape == (3, 2)
    assert labels["num_classes"].tolist() == [2]


def test_a_file_of_dgl_may_have_any_name(tmp_path: Path) -> None:
    pytest.importorskip("dgl", reason="needs dgl")
    shop(tmp_path / "g")
    export_graph("dgl", tmp_path / "g", tmp_path / "out")
    import_graph("dgl", tmp_path / "out", tmp_path / "back")
    assert Graph.open(tmp_path / "back").schema == Graph.open(tmp_path / "g").schema
    (tmp_path / "none").write_text("{}")
    refused("dgl", tmp_path / "none", tmp_path, "none: not a partition configuration")


def test_dgl_files_that_are_not_read(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    import torch

    one = dgl.graph((torch.tensor([0, 1]), torch.tensor([1, 2])))
    dgl.save_graphs(str(tmp_path / "two.bin"), [one, one])
    refused("dgl", tmp_path / "two.bin", tmp_path, "holds 2 graphs")
    (tmp_path / "bad.bin").write_bytes(b"no graph at all, but long enough")
    refused("dgl", tmp_path / "bad.bin", tmp_path, r"bad\.bin: not readable by dgl")
    one.ndata["_ID"] = torch.tensor([4, 4, 5])  # no ids: not distinct
    dgl.save_graphs(str(tmp_path / "one.bin"), [one])
    refused("dgl", tmp_path / "one.bin", tmp_path, "'_ID' is not imported: _ID: the id 4 occurs twice")
    import_graph("dgl", tmp_path / "one.bin", tmp_path / "g", undirected=True, drop=["_ID"])
    assert Graph.open(tmp_path / "g").user_ids("node") is None
    assert len(Graph.open(tmp_path / "g").edges(ETYPE)) == 4


@pytest.mark.usefixtures("dgl_in_a_child")
def test_a_file_that_ends_the_process_which_loads_it(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    import torch

    graph = dgl.graph((torch.tensor([0, 1, 0]), torch.tensor([1, 2, 1])))
    tensors = {"feat": torch.eye(3, 2), "none": torch.empty(3, 0), "half": torch.ones(3).bfloat16()}
    graph.ndata.update(tensors)
    graph.edata["weight"] = torch.arange(3.0)
    dgl.save_graphs(str(tmp_path / "good.bin"), [graph])
    import_graph("dgl", tmp_path / "good.bin", tmp_path / "g", drop=["half"])
    found = Graph.open(tmp_path / "g")
    assert found.table("node", "x").tolist() == [[1, 0], [0, 1], [0, 0]]
    assert found.table("node", "none").shape == (3, 0)
    edges = found.edges(ETYPE)
    assert (edges.src.tolist(), edges.dst.tolist()) == ([0, 1, 0], [1, 2, 1])
    assert edges.tables["weight"].tolist() == [0, 1, 2]

    content = bytearray((tmp_path / "good.bin").read_bytes())
    content[24:32] = (2**60 - 1).to_bytes(8, "little")  # the number of graphs: C++ cannot hold so many and aborts
    (tmp_path / "bad.bin").write_bytes(content)
    refused("dgl", tmp_path / "bad.bin", tmp_path, r"bad\.bin: not readable: it ended the process that called dgl")
    assert {path.name for path in tmp_path.iterdir()} == {"good.bin", "bad.bin", "g"}


def test_tables_as_arrow_reads_them(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    graph = shop(tmp_path / "g")
    export_graph("table", tmp_path / "g", tmp_path / "out")
    users, items = (parquet.read_table(tmp_path / f"out/nodes/{t}.parquet").to_pydict() for t in ("user", "item"))
    buys = parquet.read_table(tmp_path / "out/edges/user__buys__item.parquet").to_pydict()
    assert users["id"] == [700, 5, 42]
    assert users["x"] == graph.table("user", "x").tolist()
    assert users["split_train"] == [True, False, True]
    assert items == {"id": ["apple", "pear", "äpfel"]}
    assert buys["src"] == [42, 700, 42]
    assert buys["dst"] == ["pear", "pear", "äpfel"]
    assert buys["price"] == [7.5, 2.5, 5]


@pytest.mark.parametrize(
    "rows",
    [
        np.array([[97, 0, 98]], np.uint8),  # a zero inside
        np.array([[97, 98, 0]], np.uint8),  # wider than needed
        np.array([[0xFF]], np.uint8),  # not UTF-8
        np.array([[97], [97]], np.uint8),  # twice the same
        np.array([[97, 98]], np.int8),
    ],
)
def test_a_table_called_name_need_not_hold_names(tmp_path: Path, rows: np.ndarray) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", len(rows), tables={"name": rows})
    export_graph("table", tmp_path / "g", tmp_path / "out")
    assert parquet.read_table(tmp_path / "out/nodes/node.parquet")["id"].to_pylist() == list(range(len(rows)))
    import_graph("table", tmp_path / "out", tmp_path / "back")
    assert_same(Graph.open(tmp_path / "g"), Graph.open(tmp_path / "back"))
