"""Parts of one's own in real processes: a wheel of ``examples/own_parts`` in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch_geometric.nn import GraphSAGE

import atta
from atta.cli.main import cli
from atta.errors import SamplingContractError, UnknownNameError
from atta.observe.plugins import VARIABLE
from atta.partition import Dataset, Graph
from atta.samplers import LocalGraph
from atta.samplers.operators import OPERATORS, sample_locally
from atta.train import TrainConfig, fit
from atta.train.checkpoint.files import write_file
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph

EXAMPLE = Path(__file__).parents[2] / "examples/own_parts"
AGES = [[0], [0], [1], [1], [1], [1]]
"""By epoch, of the one layer whose rows travel: two epochs are exact."""


@dataclass(frozen=True)
class Fresh:
    """A new environment, and a folder to work in."""

    python: Path
    folder: Path

    def run(self, *words: object) -> str:
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
        command = [str(self.python), *map(str, words)]
        found = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
        return found.stdout

    def atta(self, line: str) -> str:
        return self.run("-m", "atta.cli.main", *line.split())


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """The wheel of the example, installed. Atta and large packages are those of the tests' environment."""
    folder = tmp_path_factory.mktemp("fresh")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    made = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run([*pip, *made], check=True, capture_output=True, timeout=120)
    venv.create(folder / "env", with_pip=False)
    (wheel,) = folder.glob("*.whl")
    python = folder / "env/bin/python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=60
    )
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return Fresh(python, folder)


BATCHES = """
import json, sys
import atta

data, seeds = sys.argv[1], json.loads(sys.argv[2])
found = {}
with atta.local(data, threads=1, verify=False) as cluster:
    for batch in atta.NeighborLoader(cluster, [3], input_nodes=seeds, batch_size=100, method="first"):
        n_id, (row, col) = batch.n_id(), batch.edge_index()
        for source, target in zip(n_id[row].tolist(), n_id[col].tolist(), strict=True):
            found.setdefault(target, []).append(source)
    batches = atta.BatchLoader(
        cluster, "snowball", {"width": 8}, input_nodes=seeds[:40], batch_size=20, seed_policy="global"
    )
    grown = [batch.n_id().tolist() for batch in batches]
print(json.dumps([found, grown]))
"""


def test_parts_of_a_wheel_are_used_by_name(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = nx.relabel_nodes(nx.gnp_random_graph(300, 0.03, seed=3, directed=True), lambda n: 7 * n + 2)
    nx.write_adjlist(drawn, fresh.folder / "graph.adjlist")
    fresh.atta("import graph.adjlist graph --quiet")
    fresh.atta("partition graph data --parts 3 --method chunks --quiet")
    made = Dataset.open(fresh.folder / "data")
    assert (made.num_parts, made.provenance["method"]) == (3, "chunks")
    with pytest.raises(UnknownNameError, match="unknown partition method 'chunks'"):  # it is not installed here
        atta.partition.partition_graph(fresh.folder / "graph", fresh.folder / "other", parts=3, method="chunks")

    seeds = sorted(drawn.nodes)
    found, grown = json.loads(fresh.run("-c", BATCHES, "data", json.dumps(seeds)))
    expected = {str(seed): sorted(drawn.predecessors(seed))[:3] for seed in seeds if drawn.in_degree(seed)}
    assert found == expected
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from atta_own_parts.snowball import Snowball  # type: ignore[import-not-found]

    src, dst = (np.array(ends) // 7 for ends in zip(*drawn.edges, strict=True))
    graph = LocalGraph.from_edges(src, dst, len(seeds), keys=np.array(seeds))
    for number, vertices in enumerate(grown):
        inside = set(vertices)
        wanted = sample_locally(graph, Snowball(width=8), np.array(vertices[:20]) // 7, number=number)
        assert vertices == wanted.n_id.tolist()
        assert len(inside) == len(vertices) <= 20 + 2 * 8
    assert "snowball" not in OPERATORS


@pytest.mark.slow
def test_a_strategy_and_a_model_of_a_wheel_train(fresh: Fresh) -> None:
    listed = json.loads(fresh.atta("plugins --json -"))["plugins"]
    assert {one["name"] for one in listed} >= {"stale", "first", "snowball", "chunks", "gin", "adjlist"}
    assert not [one for one in listed if one["fault"]]
    fresh.atta("generate sbm demo --nodes 2000 --edges 16000 --features 16 --classes 4 --quiet")
    fresh.atta("partition demo demo-2p --parts 2 --quiet")
    run = "train --data demo-2p --trainers 2 --trainers-per-server 1 --model gin --layers 2 --hidden 16 --device cpu "
    run += "--epochs 6 --strategy stale:exact-epochs=2 "
    assert "epochs 0 to 1 are exact" in fresh.atta(f"{run} --explain")
    said = fresh.atta(f"{run} --json run.json --checkpoint kept")
    report = json.loads((fresh.folder / "run.json").read_text())
    assert report["strategy"] == "stale"
    assert "seeds/s over" in said
    layers = [epoch["rows"]["layers"] for epoch in report["epochs"]]
    assert [[layer["age_max"] for layer in of_epoch if layer["direction"] == "forward"] for of_epoch in layers] == AGES
    fresh.atta("predict --data demo-2p --checkpoint kept --out classes --what classes --quiet")
    assert (fresh.folder / "classes").is_dir()


@pytest.fixture
def by_place(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The package of the example lies in the current folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setenv(VARIABLE, "")
    return monkeypatch


def simulated(
    graph: Graph, owner: np.ndarray, model: GraphSAGE, epochs: int, exact_epochs: int, rate: float
) -> list[float]:
    """Losses of two layers whose second one reads rows of the other part as they were an epoch before: on the whole graph,
    in one process, without a word of Atta's training."""
    edges = graph.edges("node__to__node")
    edge_index = torch.from_numpy(np.stack([edges.src, edges.dst]).astype(np.int64))
    x, y = (torch.from_numpy(np.array(graph.table("node", name))) for name in ("x", "y"))
    train = torch.from_numpy(np.array(graph.split("node", "train")).astype(np.int64))
    optimizer, before, losses = torch.optim.Adam(model.parameters(), rate), torch.zeros(0), []
    for epoch in range(1, epochs + 1):
        hidden = model.act(model.convs[0](x, edge_index))
        out = torch.zeros(len(x), int(y.max()) + 1)
        for part in (0, 1):
            mine = torch.from_numpy(owner == part)[:, None]
            read = hidden if epoch <= exact_epochs else torch.where(mine, hidden, before)
            out = torch.where(mine, model.convs[1](read, edge_index), out)
        before = hidden.detach()
        loss = torch.nn.functional.cross_entropy(out[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def test_a_method_that_daemons_lack_is_refused_before_trainers_start(
    small_graph: SmallGraph, by_place: pytest.MonkeyPatch
) -> None:
    with atta.local(small_graph.dataset(2, "random"), threads=1, verify=False) as cluster:
        for name in ("uniform", "labor"):
            cluster.check_method(name)
        by_place.setenv(VARIABLE, "atta.methods/first=atta_own_parts.first:first")
        config = TrainConfig(cluster=str(cluster.cluster_file), more={}, verbose=False, method="first")
        first = cluster.replicas[0][0]
        with pytest.raises(
            UnknownNameError, match=f"the daemon at {first} does not know the method 'first'; install it"
        ):
            fit(config)


def test_stale_computes_with_the_rows_of_the_epoch_before(
    small_graph: SmallGraph, by_place: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    by_place.setenv(VARIABLE, "atta.strategies/stale=atta_own_parts.stale:stale")
    torch.manual_seed(5)
    model = GraphSAGE(16, 8, 2, 4)
    shape = {"model": "sage", "depth": 2, "hidden": 8, "heads": 4}
    write_file(tmp_path, "begin.pt", {"shape": shape, "model": model.state_dict()})
    data = small_graph.dataset(2, "random")
    common: dict[str, Any] = {"data": str(data), "layers": 2, "hidden": 8, "dropout": 0.0, "epochs": 6, "lr": 0.05}
    common |= {
        "trainers": 2,
        "trainers_per_server": 1,
        "device": "cpu",
        "threads": 1,
        "eval_every": 6,
        "verbose": False,
    }
    config = TrainConfig(strategy="stale", more={"exact_epochs": 2}, init_from=str(tmp_path / "begin.pt"), **common)
    report = fit(config)
    graph, dataset = Graph.open(small_graph.folder / "graph"), Dataset.open(data)
    owner = dataset.book.owner("node", dataset.to_internal("node", small_graph.ids))
    wanted = simulated(graph, owner, model, 6, 2, 0.05)
    assert [epoch.loss for epoch in report.epochs] == pytest.approx(wanted, rel=1e-4)
    layers = [epoch.rows.layers for epoch in report.epochs if epoch.rows]
    assert [[layer.age_max for layer in of_epoch if layer.direction == "forward"] for of_epoch in layers] == AGES


def test_daemons_say_which_method_they_lack(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, by_place: pytest.MonkeyPatch
) -> None:
    cluster = placements["2 parts by random, 2 threads"]
    by_place.setenv(VARIABLE, "atta_own_parts.first:first")  # its daemons began without it
    with pytest.raises(UnknownNameError, match=r"unknown neighbour method 'first'; there are: .*uniform.*atta plugins"):
        next(iter(atta.NeighborLoader(cluster, [3], small_graph.train_ids, method="first")))
    by_place.setenv(VARIABLE, "")
    with pytest.raises(UnknownNameError, match="unknown neighbour method 'fist'"):
        atta.NeighborLoader(cluster, [3], small_graph.train_ids, method="fist")


def test_daemons_with_other_methods_do_not_work_together(
    small_graph: SmallGraph, by_place: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    addresses, data, running = held_addresses(2), small_graph.dataset(2, "random"), []
    peers = tmp_path / "cluster.toml"
    daemons = enumerate(addresses)
    peers.write_text("".join(f'[[daemon]]\npart = {part}\naddress = "{address}"\n' for part, address in daemons))
    try:
        for part, (address, more) in enumerate(
            zip(addresses, ("", "--plugin atta_own_parts.first:first"), strict=True)
        ):
            words = (
                f"serve --data {data} --part {part} --listen {address} --peers {peers} --threads 1 --exit-with-parent"
            )
            command = [sys.executable, "-m", "atta.cli.main", *words.split(), *more.split()]
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))
        with pytest.raises(SamplingContractError, match=r"\(neighbour method first: [0-9a-f]{16}, there missing\)"):
            atta.connect(addresses, wait=True)
        shown = CliRunner().invoke(cli, ["status", "--cluster", str(peers)], env={"COLUMNS": "300"})
        assert shown.exit_code == 1
        assert " differs " in shown.output
        assert f"would draw other batches than {addresses[0]} (neighbour method first: " in str(shown.exception)
    finally:
        for daemon in running:
            daemon.communicate(timeout=30)  # ends the daemon's standard input
