"""Partitions of other systems: PyG's ``Partitioner`` and Dorylus' binary files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from atta.errors import ConfigError, DataError
from atta.partition import Dataset, Graph
from atta.partition.cutting.run import partition_graph
from atta.partition.exporters import export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import ends_of, refused

pyg = pytest.importorskip("torch_geometric")


def pyg_graph(vertices: int = 60, edges: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    index = rng.integers(0, vertices, (2, edges))
    return index, rng.random((vertices, 3), np.float32), rng.random((edges, 2), np.float32)


@pytest.fixture(autouse=True)
def _without_metis(monkeypatch):
    """PyG calls METIS through extensions that may be missing.

    Here every second vertex goes to the second part instead.
    """
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
    import_graph("pyg-parts", folder, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    edges = graph.edges("node__to__node")
    assert np.array_equal(np.stack([edges.src, edges.dst]), index)
    assert np.array_equal(graph.table("node", "x"), x)
    assert np.array_equal(edges.tables["edge_attr"], attr)
    assert np.array_equal(edges.tables["time"], np.arange(index.shape[1]))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="given", options={"table": "part"})
    dataset = Dataset.open(tmp_path / "d")
    parts = torch.load(folder / "node_map.pt", weights_only=True).numpy()
    assert all(
        np.all(parts[dataset.ids("node")[slice(*dataset.book.offsets["node"][p : p + 2])]] == p) for p in range(2)
    )


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
    import_graph("pyg-parts", tmp_path / "parts" / "META.json", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
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
    index, x, _ = pyg_graph()
    folder = tmp_path / "dorylus"
    (folder / "parts_2").mkdir(parents=True)
    edges = index.T.astype("<u4")
    (folder / "graph.bsnap").write_bytes(struct.pack("<iIQ", 4, 60, len(edges)) + edges.tobytes())
    (folder / "features.bsnap").write_bytes(struct.pack("<I", 3) + x.tobytes())
    (folder / "labels.bsnap").write_bytes(struct.pack("<I", 7) + (np.arange(60, dtype="<u4") % 5).tobytes())
    (folder / "parts_2/graph.bsnap.parts").write_text("\n".join(str(v % 2) for v in range(60)) + "\n")
    return folder, index, x


def test_dorylus(dorylus, tmp_path):
    folder, index, x = dorylus
    import_graph("dorylus", folder, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert np.array_equal(ends_of(graph, "node__to__node"), index)
    assert np.array_equal(graph.table("node", "x"), x)
    assert np.array_equal(graph.table("node", "y"), np.arange(60) % 5)
    assert np.array_equal(graph.table("node", "part"), np.arange(60) % 2)
    assert graph.schema.num_classes == 7


def test_dorylus_edges_alone(dorylus, tmp_path):
    folder, index, _ = dorylus
    for name in ("features.bsnap", "labels.bsnap", "parts_2/graph.bsnap.parts"):
        (folder / name).unlink()
    import_graph("dorylus", folder / "graph.bsnap", tmp_path / "g", undirected=True)
    edges = Graph.open(tmp_path / "g").edges("node__to__node")
    stored = set(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    assert stored == {(u, v) for u, v in index.T.tolist()} | {(v, u) for u, v in index.T.tolist()}


@pytest.mark.parametrize(
    ("name", "damage", "cause"),
    [
        ("graph.bsnap", lambda b: b[:-1], "heading says"),
        ("graph.bsnap", lambda b: b + b"\0", "heading says"),
        ("graph.bsnap", lambda b: struct.pack("<i", 8) + b[4:], "only 4 are read"),
        ("graph.bsnap", lambda b: b[:4] + struct.pack("<I", 10) + b[8:], "heading says|end point"),
        ("features.bsnap", lambda b: b[:-4], "heading says"),
        ("labels.bsnap", lambda b: b[:2], "heading says"),
        ("labels.bsnap", lambda b: struct.pack("<I", 2) + b[4:], "has the label 4, but its heading says 2 classes"),
        ("vertices.bsnap", lambda b: b, r"'vertices\.bsnap' is not imported"),
        ("parts_2/graph.bsnap.parts", lambda b: b + b"1\n", "one partition per line"),
        ("parts_2/graph.bsnap.parts", lambda b: b"x\n" + b, "not a list"),
    ],
)
def test_damaged_dorylus_files_are_refused(dorylus, tmp_path, name, damage, cause):
    folder, *_ = dorylus
    (folder / name).write_bytes(damage((folder / name).read_bytes() if (folder / name).exists() else b""))
    with pytest.raises(DataError, match=cause) as error:
        import_graph("dorylus", folder, tmp_path / "g")
    assert error.value.path.startswith(str(folder))
    assert not (tmp_path / "g").exists()


def written(tmp_path, *, typed: bool):
    from atta.partition import GraphWriter

    rng = np.random.default_rng(8)
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes(
            "node",
            40,
            tables={"x": rng.random((40, 3), np.float32), "y": rng.integers(0, 4, 40)},
            splits={"train": [1, 5, 30]},
        )
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
    import_graph("pyg-parts", tmp_path / "pyg", tmp_path / "back")
    back = Graph.open(tmp_path / "back")
    for edge_type in graph.schema.edge_types:
        have, want = back.edges(edge_type), graph.edges(edge_type)
        assert np.array_equal(have.src, want.src)
        assert np.array_equal(have.dst, want.dst)
        assert have.tables.keys() == want.tables.keys()
        assert all(np.array_equal(have.tables[n], want.tables[n]) for n in want.tables)
    for node_type in graph.schema.node_types:
        assert all(
            np.array_equal(back.table(node_type, n), graph.table(node_type, n))
            for n in graph.schema.node_tables[node_type]
        )
        parts = np.repeat(np.arange(3), np.diff(dataset.book.offsets[node_type]))
        assert np.array_equal(back.table(node_type, "part")[dataset.ids(node_type)], parts)
    assert np.array_equal(back.split("node", "train"), [1, 5, 30])
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
        row, col = next(
            stores.get_edge_index(a) for a in stores.get_all_edge_attrs() if not typed or a.edge_type == key
        )
        mine = (node_map["node"] if typed else node_map).numpy() == part
        assert mine[col.numpy()].all()
        seen += len(row)
        x = features.get_tensor(group_name="node" if typed else None, attr_name="x")
        ids = features.get_global_id("node" if typed else None)
        assert np.array_equal(x.numpy(), graph.table("node", "x")[ids.numpy()])
    assert seen == 200


def test_what_pyg_partitions_cannot_hold_is_refused(tmp_path):
    from atta.partition import GraphWriter

    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 3, ids=[10, 20, 30])
        out.add_edges("node__to__node", [0, 1], [1, 2])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    with pytest.raises(ConfigError, match="users' ids of node type 'node'"):
        export_graph("pyg-parts", tmp_path / "data", tmp_path / "out")
    with pytest.raises(ConfigError, match="is made from a partitioned dataset"):
        export_graph("pyg-parts", tmp_path / "graph", tmp_path / "out")
    assert not (tmp_path / "out").exists()
