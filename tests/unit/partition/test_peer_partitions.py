"""Partitions that other systems wrote: PyG's ``Partitioner`` and Dorylus' binary files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from atta.errors import DataError
from atta.partition import Dataset, Graph
from atta.partition.importers import import_graph
from atta.partition.run import partition_graph

pyg = pytest.importorskip("torch_geometric")


def pyg_graph(vertices: int = 60, edges: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    index = rng.integers(0, vertices, (2, edges))
    return index, rng.random((vertices, 3), np.float32), rng.random((edges, 2), np.float32)


@pytest.fixture(autouse=True)
def _without_metis(monkeypatch):
    """PyG asks METIS through extensions that need not be installed: every second vertex goes to the second part instead."""
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
        edges = graph.edges("__".join(key))
        assert np.array_equal(np.stack([edges.src, edges.dst]), index)
    for name in ("user", "item"):
        assert np.array_equal(graph.table(name, "x"), data[name].x.numpy())


def test_a_damaged_pyg_partition_is_refused(homogeneous, tmp_path):
    folder, *_ = homogeneous
    whole = (folder / "part_1/graph.pt").read_bytes()
    (folder / "part_1/graph.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"part_1/graph\.pt"):
        import_graph("pyg-parts", folder, tmp_path / "g")
    value = torch.load(folder / "part_0/graph.pt", weights_only=True)
    torch.save(value, folder / "part_1/graph.pt")
    with pytest.raises(DataError, match=r"part_1/edge_feats\.pt|edges of the graph are in no part"):
        import_graph("pyg-parts", folder, tmp_path / "g")
    assert not (tmp_path / "g").exists()


@pytest.fixture
def dorylus(tmp_path):
    index, x, _ = pyg_graph()
    folder = tmp_path / "dorylus"
    (folder / "parts_2").mkdir(parents=True)
    edges = index.T.astype("<u4")
    (folder / "graph.bsnap").write_bytes(struct.pack("<iIQ", 4, 60, len(edges)) + edges.tobytes())
    (folder / "features.bsnap").write_bytes(struct.pack("<I", 3) + x.tobytes())
    (folder / "labels.bsnap").write_bytes(struct.pack("<I", 5) + (np.arange(60, dtype="<u4") % 5).tobytes())
    (folder / "parts_2/graph.bsnap.parts").write_text("\n".join(str(v % 2) for v in range(60)) + "\n")
    return folder, index, x


def test_dorylus(dorylus, tmp_path):
    folder, index, x = dorylus
    import_graph("dorylus", folder, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    edges = graph.edges("node__to__node")
    assert np.array_equal(np.stack([edges.src, edges.dst]), index)
    assert np.array_equal(graph.table("node", "x"), x)
    assert np.array_equal(graph.table("node", "y"), np.arange(60) % 5)
    assert np.array_equal(graph.table("node", "part"), np.arange(60) % 2)
    assert graph.schema.num_classes == 5


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
        ("parts_2/graph.bsnap.parts", lambda b: b + b"1\n", "one partition per line"),
        ("parts_2/graph.bsnap.parts", lambda b: b"x\n" + b, "not a list"),
    ],
)
def test_damaged_dorylus_files_are_refused(dorylus, tmp_path, name, damage, cause):
    folder, *_ = dorylus
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(DataError, match=cause) as error:
        import_graph("dorylus", folder, tmp_path / "g")
    assert error.value.path.startswith(str(folder))
    assert not (tmp_path / "g").exists()
