"""Graph folders in other formats: reading gives the same graph, as do their own libraries, and nothing is lost silently."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.exporters import EXPORTERS, export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.exports import CAN, ETYPE, Drawn, assert_same, need, plain, shop, target
from tests.unit.partition.oracles import edge_pairs, refused, refuses, taken_in

formats = pytest.mark.parametrize("fmt", sorted(EXPORTERS))


@formats
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_round_trip(fmt: str, data: st.DataObject) -> None:
    need(fmt)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = Drawn(data.draw, CAN[fmt]).write(folder / "g")
        with pytest.MonkeyPatch.context() as patch:  # several chunks of rows
            patch.setattr("atta.partition.exporters.common._CHUNK_ROWS", 3)
            patch.setattr("atta.partition.exporters.table._ROWS", 4)
            export_graph(fmt, folder / "g", target(fmt, folder))
        assert {p.name for p in folder.iterdir()} == {"g", target(fmt, folder).name}
        assert_same(graph, taken_in(fmt, target(fmt, folder), folder / "back"))


def lossy(path: Path, fmt: str) -> str:
    with GraphWriter(path) as out:
        tables = {"x": np.zeros((2, 2, 2), np.float32), "y": np.array([0, 1]), "feat": np.zeros((2, 1))}
        names = {"n_id": np.arange(2)} if fmt == "pyg" else {}
        out.add_nodes("node", 2, tables={**tables, **names}, splits={"train": [0], "odd": [1]})
        out.add_edges(ETYPE, np.array([0]), np.array([1]), tables={"weight": np.ones(1), "edge_weight": np.ones(1)})
        out.add_edges("node__attr__node", np.array([0]), np.array([1]), tables={"edge_weight": np.ones(1)})
        out.num_classes = 5
    return {
        "npz": r"node table 'feat' of 'node'.*edge table 'weight' of 'node__to__node'",
        "pyg": r"node table 'n_id'.*edge table 'edge_weight'",
        "dgl": r"node table 'feat'",
        "table": r"node table 'x' of 'node' \(<f4\[2, 2\]\)",
        "ogb": r"several or named types",
    }[fmt]


@formats
def test_a_lossy_export_is_refused(fmt: str, tmp_path: Path) -> None:
    need(fmt)
    words = lossy(tmp_path / "g", fmt)
    refuses(ConfigError, words, export_graph, fmt, tmp_path / "g", target(fmt, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize(
    ("fmt", "y", "odd", "says"),
    [
        ("pyg", np.ones((2, 1), np.int64), False, "cannot hold the node table 'y' of 'node'"),
        ("ogb", np.ones((2, 3), np.int8), False, "cannot hold the node table 'y' of 'node'"),
        ("ogb", np.zeros(2, np.float32), True, r"node table 'y'.*edge table 'weight'.*split 'odd'"),
        *((fmt, None, False, "without edge types|named types") for fmt in ("npz", "pyg", "dgl", "ogb")),
    ],
)
def test_what_would_come_back_otherwise(fmt: str, y: Any, odd: bool, says: str, tmp_path: Path) -> None:
    need(fmt)
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", 2, tables={} if y is None else {"y": y}, splits={"odd": [1]} if odd else {})
        if y is not None:
            out.add_edges(ETYPE, np.array([0]), np.array([1]), tables={"weight": np.ones(1)} if odd else {})
    refuses(ConfigError, says, export_graph, fmt, tmp_path / "g", target(fmt, tmp_path))


@formats
def test_what_exists_is_kept(fmt: str, tmp_path: Path) -> None:
    need(fmt)
    plain(tmp_path / "g", weight=False)
    dst = target(fmt, tmp_path)
    export_graph(fmt, tmp_path / "g", dst)
    refuses(ConfigError, r"exists already.*--overwrite", export_graph, fmt, tmp_path / "g", dst)
    export_graph(fmt, tmp_path / "g", dst, overwrite=True)
    with pytest.raises(ConfigError, match=r"so it is not overwritten|wanted is the name of a file"):
        export_graph(fmt, tmp_path / "g", tmp_path / "g", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["g", dst.name])


def test_wrong_sources_and_formats(tmp_path: Path) -> None:
    refuses(UnknownNameError, "did you mean 'npz'", export_graph, "nzp", tmp_path, tmp_path / "out")
    refuses(DataError, "no such folder", export_graph, "npz", tmp_path / "g", tmp_path / "out")
    plain(tmp_path / "g")
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    with pytest.raises(ConfigError, match="d: a partitioned dataset; export the graph folder"):
        export_graph("npz", tmp_path / "d", tmp_path / "out")
    (tmp_path / "g/nodes/node/x.npy").write_bytes(b"short")
    refuses(DataError, r"x\.npy: truncated", export_graph, "npz", tmp_path / "g", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "g"]


def test_the_command(tmp_path: Path) -> None:
    plain(tmp_path / "g")
    arguments = ["export", "npz", str(tmp_path / "g"), str(tmp_path / "out")]
    done = CliRunner().invoke(cli, arguments)
    assert done.output == f"{tmp_path}/out: exported from {tmp_path}/g\n"
    assert isinstance(CliRunner().invoke(cli, arguments).exception, ConfigError)
    assert CliRunner().invoke(cli, [*arguments, "--overwrite", "--quiet"]).output == ""
    import_graph("npz", tmp_path / "out", tmp_path / "back")
    assert_same(Graph.open(tmp_path / "g"), Graph.open(tmp_path / "back"))


def load_torch(path: Path) -> Any:
    need("pyg")
    import torch
    from torch_geometric.data import Data, HeteroData, data, storage

    names = ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage")
    admitted = [Data, HeteroData, data.DataEdgeAttr, data.DataTensorAttr, *(getattr(storage, n) for n in names)]
    with torch.serialization.safe_globals(admitted):
        found = torch.load(path, weights_only=True)
    assert found.validate()
    return found


def test_data_as_pyg_reads_it(tmp_path: Path) -> None:
    graph = plain(tmp_path / "g")
    export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    data = load_torch(tmp_path / "out.pt")
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
    shop(tmp_path / "g")
    export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    data = load_torch(tmp_path / "out.pt")
    assert data.node_types == ["item", "user"]
    assert data["user", "buys", "item"].edge_index.tolist() == [[2, 0, 2], [1, 1, 2]]
    assert data["user", "buys", "item"].time.tolist() == [30, 10, 20]
    assert data["user", "buys", "item"].price.tolist() == [7.5, 2.5, 5]
    assert data["user"].n_id.tolist() == [700, 5, 42]
    assert data["item"].num_nodes == 3


def test_graph_as_dgl_reads_it(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    shop(tmp_path / "g")
    export_graph("dgl", tmp_path / "g", tmp_path / "out")  # a file of DGL may have any name
    (graph,), labels = dgl.load_graphs(str(tmp_path / "out"))
    assert graph.canonical_etypes == [("user", "buys", "item"), ("user", "knows", "user")]
    assert [rows.tolist() for rows in graph.edges(etype="buys", order="eid")] == [[2, 0, 2], [1, 1, 2]]
    assert graph.edges["buys"].data["price"].tolist() == [7.5, 2.5, 5]
    users = graph.nodes["user"].data
    assert {name: users[name].tolist() for name in ("_ID", "label", "train_mask")} == {
        "_ID": [700, 5, 42], "label": [1, -1, 0], "train_mask": [1, 0, 1]
    }  # fmt: skip
    assert users["feat"].shape == (3, 2)
    assert labels["num_classes"].tolist() == [2]
    assert taken_in("dgl", tmp_path / "out", tmp_path / "back").schema == Graph.open(tmp_path / "g").schema


def test_dgl_files_that_are_not_read(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    import torch

    one = dgl.graph((torch.tensor([0, 1]), torch.tensor([1, 2])))
    dgl.save_graphs(str(tmp_path / "two.bin"), [one, one])
    (tmp_path / "none").write_text("{}")
    (tmp_path / "bad.bin").write_bytes(b"no graph at all, but long enough")
    one.ndata["_ID"] = torch.tensor([4, 4, 5])  # no ids: not distinct
    dgl.save_graphs(str(tmp_path / "one.bin"), [one])
    for name, says in (
        ("none", "none: not a partition configuration"),
        ("two.bin", "holds 2 graphs"),
        ("bad.bin", r"bad\.bin: not readable by dgl"),
        ("one.bin", "'_ID' is not imported: _ID: the id 4 occurs twice"),
    ):
        refused("dgl", tmp_path / name, tmp_path, says)
    found = taken_in("dgl", tmp_path / "one.bin", tmp_path / "g", undirected=True, drop=["_ID"])
    assert found.user_ids("node") is None
    assert len(found.edges(ETYPE)) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("dgl_in_a_child")
def test_a_file_that_ends_the_process_which_loads_it(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="needs dgl")
    import torch

    graph = dgl.graph((torch.tensor([0, 1, 0]), torch.tensor([1, 2, 1])))
    tensors = {"feat": torch.eye(3, 2), "none": torch.empty(3, 0), "half": torch.ones(3).bfloat16()}
    graph.ndata.update(tensors)
    graph.edata["weight"] = torch.arange(3.0)
    dgl.save_graphs(str(tmp_path / "good.bin"), [graph])
    found = taken_in("dgl", tmp_path / "good.bin", tmp_path / "g", drop=["half"])
    assert found.table("node", "x").tolist() == [[1, 0], [0, 1], [0, 0]]
    assert found.table("node", "none").shape == (3, 0)
    assert edge_pairs(found) == [(0, 1), (1, 2), (0, 1)]
    assert found.edges(ETYPE).tables["weight"].tolist() == [0, 1, 2]

    content = bytearray((tmp_path / "good.bin").read_bytes())
    content[24:32] = (2**60 - 1).to_bytes(8, "little")  # the number of graphs: C++ cannot hold so many and aborts
    (tmp_path / "bad.bin").write_bytes(content)
    refused("dgl", tmp_path / "bad.bin", tmp_path, r"bad\.bin: not readable: it ended the process that called dgl")
    assert {path.name for path in tmp_path.iterdir()} == {"good.bin", "bad.bin", "g"}


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
