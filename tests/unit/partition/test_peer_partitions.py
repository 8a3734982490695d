"""Partitions of other systems: PyG's ``Partitioner`` and Dorylus' binary files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from atta.errors import ConfigError
from atta.partition import Dataset, Graph, GraphWriter
from atta.partition.cutting.run import partition_graph
from atta.partition.exporters import export_graph
from tests.unit.partition import carried as c
from tests.unit.partition.oracles import content, edge_pairs, ends_of, refused, taken_in

pyg = pytest.importorskip("torch_geometric")


def pyg_graph() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 60, (2, 300)), rng.random((60, 3), np.float32), rng.random((300, 2), np.float32)


@pytest.fixture(autouse=True)
def _without_metis(monkeypatch):
    """PyG calls METIS through extensions that may be missing. Here every second vertex goes to the second part instead."""
    from torch_geometric.loader.cluster import ClusterData

    monkeypatch.setattr(ClusterData, "_metis", lambda self, edge_index, num_nodes: torch.arange(num_nodes) % 2)


@pytest.fixture
def homogeneous(tmp_path):
    from torch_geometric.data import Data
    from torch_geometric.distributed import Partitioner

    index, x, attr = pyg_graph()
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(index), edge_attr=torch.from_numpy(attr))
    data.time = torch.arange(data.num_edges)
    Partitioner(data, 2, str(tmp_path / "parts")).generate_partition()
    return tmp_path / "parts", index, x, attr


def test_pyg_partitions_are_opened(homogeneous, tmp_path):
    folder, index, x, attr = homogeneous
    graph = taken_in("pyg-parts", folder, tmp_path / "g")
    edges = graph.edges("node__to__node")
    assert np.array_equal(ends_of(graph), index)
    assert np.array_equal(graph.table("node", "x"), x)
    assert np.array_equal(edges.tables["edge_attr"], attr)
    assert np.array_equal(edges.tables["time"], np.arange(index.shape[1]))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="given", options={"table": "part"})
    dataset = Dataset.open(tmp_path / "d")
    parts = torch.load(folder / "node_map.pt", weights_only=True).numpy()
    for part in range(2):
        assert (parts[dataset.ids("node")[slice(*dataset.book.range("node", part))]] == part).all()


def test_pyg_heterogeneous_partitions_are_opened(tmp_path):
    from torch_geometric.data import HeteroData
    from torch_geometric.distributed import Partitioner

    rng = np.random.default_rng(2)
    data = HeteroData()
    for name, count in (("user", 30), ("item", 50)):
        data[name].x = torch.from_numpy(rng.random((count, 4), np.float32))
    ends = {
        ("user", "buys", "item"): np.stack([rng.integers(0, 30, 200), rng.integers(0, 50, 200)]),
        ("item", "of", "user"): np.stack([rng.integers(0, 50, 120), rng.integers(0, 30, 120)]),
    }
    for key, index in ends.items():
        data[key].edge_index = torch.from_numpy(index)
    Partitioner(data, 3, str(tmp_path / "parts")).generate_partition()
    graph = taken_in("pyg-parts", tmp_path / "parts" / "META.json", tmp_path / "g")
    for key, index in ends.items():
        assert np.array_equal(ends_of(graph, "__".join(key)), index)
    for name in ("user", "item"):
        assert np.array_equal(graph.table(name, "x"), data[name].x.numpy())


def test_a_damaged_pyg_partition_is_refused(homogeneous, tmp_path):
    folder, *_ = homogeneous
    whole = (folder / "part_1/graph.pt").read_bytes()
    (folder / "part_1/graph.pt").write_bytes(whole[: len(whole) // 2])
    refused("pyg-parts", folder, tmp_path, r"part_1/graph\.pt")
    value = torch.load(folder / "part_0/graph.pt", weights_only=True)
    torch.save(value, folder / "part_1/graph.pt")
    refused("pyg-parts", folder, tmp_path, r"part_1/edge_feats\.pt|edges of the graph are in no part")


@pytest.fixture
def dorylus(tmp_path):
    (tmp_path / "dorylus/parts_2").mkdir(parents=True)
    (tmp_path / "dorylus/parts_2/graph.bsnap.parts").write_text("0\n1\n" * 3)
    return c.dorylus(tmp_path / "dorylus", {"features", "labels"})


def test_dorylus_tells_partitions_and_classes(dorylus, tmp_path):
    labels = dorylus / "labels.bsnap"
    labels.write_bytes(struct.pack("<I", 7) + labels.read_bytes()[4:])
    graph = taken_in("dorylus", dorylus, tmp_path / "g")
    assert graph.table("node", "part").tolist() == [0, 1] * 3
    assert graph.schema.num_classes == 7


def test_dorylus_edges_alone(dorylus, tmp_path):
    for name in ("features.bsnap", "labels.bsnap", "parts_2/graph.bsnap.parts"):
        (dorylus / name).unlink()
    stored = edge_pairs(taken_in("dorylus", dorylus / "graph.bsnap", tmp_path / "g", undirected=True))
    given = {*zip(c.SRC.tolist(), c.DST.tolist(), strict=True)}
    assert set(stored) == given | {(v, u) for u, v in given}


@pytest.mark.parametrize(
    ("name", "damage", "cause"),
    [
        ("graph.bsnap", lambda b: b[:-1], "heading says"),
        ("graph.bsnap", lambda b: b + b"\0", "heading says"),
        ("graph.bsnap", lambda b: struct.pack("<i", 8) + b[4:], "only 4 are read"),
        ("graph.bsnap", lambda b: b[:4] + struct.pack("<I", 10) + b[8:], "heading says|end point"),
        ("features.bsnap", lambda b: b[:-4], "heading says"),
        ("labels.bsnap", lambda b: b[:2], "heading says"),
        ("labels.bsnap", lambda b: struct.pack("<I", 2) + b[4:], "has the label 2, but its heading says 2 classes"),
        ("vertices.bsnap", lambda b: b, r"'vertices\.bsnap' is not imported"),
        ("parts_2/graph.bsnap.parts", lambda b: b + b"1\n", "one partition per line"),
        ("parts_2/graph.bsnap.parts", lambda b: b"x\n" + b, "not a list"),
    ],
)
def test_damaged_dorylus_files_are_refused(dorylus, tmp_path, name, damage, cause):
    path = dorylus / name
    path.write_bytes(damage(path.read_bytes() if path.exists() else b""))
    assert refused("dorylus", dorylus, tmp_path, cause).path.startswith(str(dorylus))


def written(tmp_path, *, typed: bool):
    rng = np.random.default_rng(8)
    with GraphWriter(tmp_path / "graph") as out:
        tables = {"x": rng.random((40, 3), np.float32), "y": rng.integers(0, 4, 40)}
        out.add_nodes("node", 40, tables=tables, splits={"train": [1, 5, 30]})
        tables = {"edge_attr": rng.random((200, 2), np.float32), "time": np.arange(200)}
        out.add_edges("node__to__node", rng.integers(0, 40, 200), rng.integers(0, 40, 200), tables=tables)
        if typed:
            out.add_nodes("tag", 9, tables={"x": rng.random((9, 2), np.float32)})
            out.add_edges("tag__on__node", rng.integers(0, 9, 60), rng.integers(0, 40, 60))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=3, method="random")
    return Graph.open(tmp_path / "graph"), Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("typed", [False, True])
def test_partitions_for_pyg_come_back(tmp_path, typed):
    graph, dataset = written(tmp_path, typed=typed)
    export_graph("pyg-parts", tmp_path / "data", tmp_path / "pyg")
    back = taken_in("pyg-parts", tmp_path / "pyg", tmp_path / "back")
    parts = {}
    for node_type in graph.schema.node_types:
        sizes = np.diff(dataset.book.offsets[node_type])
        parts[node_type, "part"] = np.repeat(np.arange(3), sizes)[np.argsort(dataset.ids(node_type))].tolist()
    assert content(back) == content(graph) | parts
    assert back.schema.num_classes == graph.schema.num_classes


@pytest.mark.parametrize("typed", [False, True])
def test_pyg_itself_opens_the_partitions(tmp_path, typed):
    from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore
    from torch_geometric.distributed.partition import load_partition_info

    graph, _ = written(tmp_path, typed=typed)
    export_graph("pyg-parts", tmp_path / "data", tmp_path / "pyg")
    seen = 0
    for part in range(3):
        _, parts, _, node_map, _ = load_partition_info(str(tmp_path / "pyg"), part)
        assert parts == 3
        stores = LocalGraphStore.from_partition(str(tmp_path / "pyg"), part)
        features = LocalFeatureStore.from_partition(str(tmp_path / "pyg"), part)
        key = ("node", "to", "node") if typed else None
        edges = [a for a in stores.get_all_edge_attrs() if not typed or a.edge_type == key]
        row, col = stores.get_edge_index(edges[0])
        mine = (node_map["node"] if typed else node_map).numpy() == part
        assert mine[col.numpy()].all()
        seen += len(row)
        x = features.get_tensor(group_name="node" if typed else None, attr_name="x")
        ids = features.get_global_id("node" if typed else None)
        assert np.array_equal(x.numpy(), graph.table("node", "x")[ids.numpy()])
    assert seen == 200


def test_what_pyg_partitions_cannot_hold_is_refused(tmp_path):
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 3, ids=[10, 20, 30])
        out.add_edges("node__to__node", [0, 1], [1, 2])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    with pytest.raises(ConfigError, match="users' ids of node type 'node'"):
        export_graph("pyg-parts", tmp_path / "data", tmp_path / "out")
    with pytest.raises(ConfigError, match="is made from a partitioned dataset"):
        export_graph("pyg-parts", tmp_path / "graph", tmp_path / "out")
    assert not (tmp_path / "out").exists()
