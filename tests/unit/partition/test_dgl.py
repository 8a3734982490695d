"""DistDGL's partitions, opened: the same graph, and on request the same partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.importers import import_graph

pytest.importorskip("dgl", reason="needs DGL (atta[dgl])")

# In a process of its own: DGL prints, and its METIS keeps its memory.
MAKE = """
import sys, numpy as np, torch, dgl
rng = np.random.default_rng(1)
n, m = 300, 2000
src, dst = rng.integers(0, n, m), rng.integers(0, n, m)
graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
graph.ndata["feat"] = torch.arange(n, dtype=torch.float32)[:, None].repeat(1, 3)
graph.ndata["label"] = torch.from_numpy(rng.integers(0, 4, n))
graph.ndata["train_mask"] = torch.arange(n) < 50
graph.edata["number"] = torch.arange(m)
nodes, edges = dgl.distributed.partition_graph(graph, "g", 3, sys.argv[1], part_method="random", return_mapping=True)
np.savez(sys.argv[1] + "/truth.npz", src=src, dst=dst, nodes=nodes.numpy(), edges=edges.numpy())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dgl")
    done = subprocess.run(
        [sys.executable, "-c", MAKE, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return path


def test_the_graph_and_its_partitions(folder: Path, tmp_path: Path) -> None:
    import_graph("dgl", folder / "g.json", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    truth = np.load(folder / "truth.npz")
    old = truth["nodes"]  # by DGL's new ids
    edges = graph.edges("node__to__node")
    found = sorted(zip(old[edges.src].tolist(), old[edges.dst].tolist(), strict=True))
    assert found == sorted(zip(truth["src"].tolist(), truth["dst"].tolist(), strict=True))
    assert np.array_equal(graph.table("node", "x")[:, 0], old)
    assert np.array_equal(graph.split("node", "train"), np.flatnonzero(old < 50))
    assert graph.schema.num_classes == 4
    partition_graph(tmp_path / "g", tmp_path / "d", parts=3, method="given", options={"table": "part"})
    dataset = Dataset.open(tmp_path / "d")
    for part in range(3):
        lo, hi = dataset.book.range("node", part)
        assert np.array_equal(np.sort(dataset.ids("node")[lo:hi]), np.flatnonzero(graph.table("node", "part") == part))


def test_what_is_wrong_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reverse edges"):
        import_graph("dgl", folder / "g.json", tmp_path / "g", undirected=True)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="num_parts"):
        import_graph("dgl", tmp_path / "other.json", tmp_path / "g")
    (tmp_path / "moved.json").write_text((folder / "g.json").read_text())
    with pytest.raises(DataError, match="part 0 is not readable"):
        import_graph("dgl", tmp_path / "moved.json", tmp_path / "g")
