"""The bounds of balance that methods promise are kept or said, at any size; METIS, and what it balances."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import networkx as nx
import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import ConfigError, UnknownNameError
from atta.observe.progress import Silent
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting.balance import constraints
from atta.partition.cutting.union import Union, weighted_rows
from atta.partition.methods import METHODS, make_method
from atta.partition.methods.metis import Metis
from tests.unit.partition.oracles import write_graph
from tests.unit.partition.test_methods import graphs
from tests.waiting import eventually

PROMISED = {
    "metis": {"nodes": "0.03", "edges": "0.08", "train": "0.02", "val": "0.02", "types": "0.03"},
    "ldg": dict.fromkeys(("nodes", "edges", "train", "val", "types"), "0.03"),
    "fennel": dict.fromkeys(("nodes", "edges", "train", "val", "types"), "0.1"),
    "block": {"nodes": "0.1", "train": "0.02", "val": "0.02", "test": "0.02"},
    "random": {"types": "0"},
}
"""By how much a partition may exceed its even share, as docs/guide/partitioning.md says."""


def loads_of(graph: Graph, dataset: Dataset, name: str) -> dict[str, list[list[int]]]:
    schema = graph.schema
    internal = {t: dataset.to_internal(t, np.arange(n)) for t, n in schema.node_counts.items()}
    owners = {t: dataset.book.owner(t, ids).tolist() for t, ids in internal.items()}
    weights = {t: [int(name == "nodes")] * n for t, n in schema.node_counts.items()}
    if name == "edges":
        for e in schema.edge_types:
            for head in graph.edges(e).dst.tolist():
                weights[schema.endpoints(e)[1]][head] += 1
    for t in schema.splits:
        for row in graph.split(t, name).tolist() if name in schema.splits[t] else ():
            weights[t][row] = 1
    things = {f"type {t}": {t: [1] * n} for t, n in schema.node_counts.items()} if name == "types" else {name: weights}
    return {
        thing: [
            [w for t, ws in of.items() for w, owner in zip(ws, owners[t], strict=True) if owner == part]
            for part in range(dataset.num_parts)
        ]
        for thing, of in things.items()
    }


def missed(graph: Graph, dataset: Dataset, bounds: dict[str, str]) -> dict[str, tuple[int, int]]:
    """What a partition holds too much of: how much the fullest holds, and what it may hold. Exact arithmetic."""
    found = {}
    for name, bound in bounds.items():
        for thing, held in loads_of(graph, dataset, name).items():
            share = Fraction(sum(map(sum, held)), len(held))
            heaviest = max((w for part in held for w in part), default=0)
            allowed = floor(max(share * (1 + Fraction(bound)), ceil(share), heaviest))
            if (most := max(map(sum, held))) > allowed:
                found[thing] = (most, allowed)
    return found


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"given", "extend"}))
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_every_vertex_has_an_owner_and_bounds_are_kept_or_said(method: str, data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        graph = draw(graphs(Path(folder)))
        splits = {name for per_type in graph.schema.splits.values() for name in per_type}
        asked = [None, ["nodes"], ["types", "edges"], *[[name] for name in sorted(splits & {"val"})]]
        balance = draw(st.sampled_from(asked)) if method in ("metis", "ldg", "fennel") else None
        vertices, path = sum(graph.schema.node_counts.values()), Path(folder, "data")
        parts = min(draw(st.integers(1, 12) | st.just(30)), max(1, vertices))
        made = partition_graph(graph.path, path, parts=parts, method=method, balance=balance, seed=1)
        dataset = Dataset.open(path)
        one, again = (make_method(method).assign(graph, parts, seed=1, progress=Silent()) for _ in range(2))
        assert {t: owners.tolist() for t, owners in one.items()} == {t: owners.tolist() for t, owners in again.items()}
        named = balance or ("nodes", "edges", "train")
        bounds = {n: b for n, b in PROMISED[method].items() if n in named or method in ("block", "random")}
        expected = missed(graph, dataset, bounds)
        said = {m["of"]: (m["count"], m["allowed"]) for m in dataset.quality["missed"]}
        assert said == expected
        assert len(made["missed"]) == len(expected)
        for line, (thing, (most, allowed)) in zip(made["missed"], said.items(), strict=True):
            assert line.startswith(f"balance of {thing} missed by {most - allowed}: partition ")


def graph_in(folder: Path, vertices: int) -> Path:
    """Every vertex has ten in-edges; a fifth of the vertices are to be trained on."""
    src, dst = np.random.default_rng(0).integers(0, vertices, 10 * vertices), np.repeat(np.arange(vertices), 10)
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", vertices, splits={"train": np.arange(vertices // 5)})
        out.add_edges("node__to__node", src, dst)
    np.save(folder / "owners.npy", np.zeros(vertices, np.int64))
    return folder / "graph"


def run(*words: object) -> Result:
    found = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found


def test_the_commands_say_a_missed_bound(tmp_path: Path) -> None:
    graph, earlier, data = graph_in(tmp_path, 20), tmp_path / "earlier", tmp_path / "data"
    partition_graph(graph, earlier, parts=2, method="given", options={"path": str(tmp_path / "owners.npy")})
    line = "balance of train missed by 2: partition 0 has 4 and may have 2 (an even share is 2.0)"
    words = ("partition", graph, data, "--parts", 2, "--method", f"extend:data={earlier}")
    assert f"note: {line}" in run(*words).stderr
    assert line in " ".join(run("inspect", data).stdout.split())
    assert "missed by" not in run("inspect", earlier).stdout  # owners that were given promise nothing
    compared = run("partition", graph, tmp_path / "all", "--parts", 16, "--compare", "ldg,random").stdout
    made = Dataset.described(tmp_path / "all/ldg").quality["missed"]
    assert compared.count("ldg: balance of ") == len(made)


def test_types_are_balanced_on_request(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("a", 400)
        out.add_nodes("b", 80)
        out.add_edges("a__by__b", rng.integers(0, 400, 3000), rng.integers(0, 80, 3000))
    assert partition_graph(tmp_path / "g", tmp_path / "d", parts=4, method="ldg", balance=["types"])["missed"] == []


def test_bounds_that_can_be_kept_are_kept(tmp_path: Path) -> None:
    made = partition_graph(graph_in(tmp_path, 1000), tmp_path / "data", parts=4, method="random")
    assert made["missed"] == []


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
    shuffled = dict(enumerate(np.random.default_rng(0).permutation(48)))
    ring = nx.relabel_nodes(nx.connected_caveman_graph(4, 12), shuffled)
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
rows = [np.searchsorted(source, np.arange(n + 1)), target, np.ones(len(target), np.int64)]
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
