"""METIS: small cut, all constraints balanced, readable failures of the child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import psutil
import pytest

from atta.errors import ConfigError, UnknownNameError
from atta.observe.progress import Silent
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting.balance import constraints
from atta.partition.cutting.union import Union, weighted_rows
from atta.partition.methods.metis import Metis
from tests.unit.partition.oracles import write_graph
from tests.waiting import eventually


def dense(union: Union) -> np.ndarray:
    indptr, indices, weights = weighted_rows(union)
    out = np.zeros((union.num_nodes, union.num_nodes), int)
    out[np.repeat(np.arange(union.num_nodes), np.diff(indptr)), indices] = weights
    return out


def test_union_graph_counts_edges_in_either_direction(tmp_path):
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("a", 2)
        out.add_nodes("b", 3)
        out.add_edges("a__r__b", np.array([0, 0, 1]), np.array([2, 2, 0]))
        out.add_edges("b__s__a", np.array([2]), np.array([0]))
        out.add_edges("b__t__b", np.array([1, 1, 2]), np.array([1, 2, 1]))
    want = np.zeros((5, 5), int)
    want[0, 4] = want[4, 0] = 3  # twice a__r__b, once b__s__a
    want[1, 2] = want[2, 1] = 1
    want[3, 4] = want[4, 3] = 2  # the self-loop at 3 is left out
    assert np.array_equal(dense(Union.of(Graph.open(tmp_path / "g"))), want)


def test_constraints(tmp_path):
    graph = write_graph(tmp_path / "g", None, [0, 0, 1], [1, 1, 2], 4)
    assert constraints(graph).tolist() == [[1, 0, 1], [1, 2, 0], [1, 1, 0], [1, 0, 1]]


def test_finds_planted_cliques(tmp_path):
    ring = nx.relabel_nodes(
        nx.connected_caveman_graph(4, 12), dict(enumerate(np.random.default_rng(0).permutation(48)))
    )
    pairs = np.array([(u, v) for u, v in ring.edges] + [(v, u) for u, v in ring.edges])
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", 48)
        out.add_edges("node__to__node", pairs[:, 0], pairs[:, 1])
    partition_graph(tmp_path / "g", tmp_path / "data", parts=4)
    dataset = Dataset.open(tmp_path / "data")
    assert np.diff(dataset.book.offsets["node"]).tolist() == [12] * 4
    assert dataset.quality["cut_edges"] == 8  # one link between neighbouring cliques, in both directions


def test_balances_vertices_edges_and_training_vertices(tmp_path):
    # All training vertices lie in one corner of a grid. Balancing vertices alone would give them to few parts.
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(40, 40), ordering="sorted")
    pairs = np.array(grid.edges)
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", 1600, splits={"train": np.arange(400)})
        ends = np.concatenate([pairs, pairs[:, ::-1]])
        out.add_edges("node__to__node", ends[:, 0], ends[:, 1])
    partition_graph(tmp_path / "g", tmp_path / "data", parts=4)
    quality = Dataset.open(tmp_path / "data").quality
    assert max(quality["balance"].values()) < 1.1
    assert quality["edge_cut"] < 0.15


@pytest.mark.parametrize("n", [0, 1, 5])
def test_graphs_without_edges(tmp_path, n):
    graph = write_graph(tmp_path / "g", None, [], [], n)
    owners = Metis().assign(graph, 3, seed=0, progress=Silent())["node"]
    assert owners.shape == (n,)
    assert owners.dtype == np.int32
    assert set(owners.tolist()) <= {0, 1, 2}


def test_choosing_what_to_balance(messy_graph, tmp_path):
    assert constraints(messy_graph, ["val", "nodes", "val"]).sum(0).tolist() == [67, 200]
    with pytest.raises(UnknownNameError, match="did you mean 'train'"):
        partition_graph(messy_graph.path, tmp_path / "data", parts=2, balance=["nodes", "trian"])
    with pytest.raises(ConfigError, match="balances nodes only"):
        partition_graph(messy_graph.path, tmp_path / "data", parts=2, method="random", balance=["edges"])
    partition_graph(messy_graph.path, tmp_path / "data", parts=2, balance=["val", "train"])
    quality = Dataset.open(tmp_path / "data").quality
    assert quality["balance"]["val"] < 1.1
    assert quality["balance"]["train"] < 1.1


IN_A_THREAD = """
import os, signal, sys, threading
import numpy as np
from atta.partition.methods.metis import metis_owners

rng, n = np.random.default_rng(0), 60_000
ends = rng.integers(0, n, (2, 10 * n))
ends = ends[:, ends[0] != ends[1]]
source, target = np.divmod(np.unique(np.concatenate([ends[0] * n + ends[1], ends[1] * n + ends[0]])), n)
rows = np.searchsorted(source, np.arange(n + 1)), target, np.ones(len(target), np.int64)
weights = np.ones((n, 1), np.int64)
thread = threading.Thread(target=lambda: metis_owners(rows, weights, parts=4, seeds=range(3)), daemon=True)
thread.start()
if len(sys.argv) > 1:
    threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
thread.join()
"""


def test_sigterm_ends_a_process_that_runs_metis_in_a_thread() -> None:
    assert subprocess.run([sys.executable, "-c", IN_A_THREAD, "end"], check=False).returncode == -signal.SIGTERM


def test_a_killed_caller_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", IN_A_THREAD], env={**os.environ, "TMPDIR": str(tmp_path)}) as caller:
        [child] = eventually(psutil.Process(caller.pid).children)
        assert eventually(lambda: child.cpu_times().user > 0.5)  # METIS runs in it by now
        caller.kill()
    assert eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert list(tmp_path.iterdir()) == []
