"""``atta train`` and ``atta bench strategies`` on several machines give every machine the figures of a run on one.

Every machine runs the command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import atta
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from tests.addresses import held_addresses

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

ATTA = (sys.executable, "-m", "atta.cli.main")
OPTIONS = ("--model", "sage", "--layers", "2", "--hidden", "8", "--dropout", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch_geometric")
    folder = tmp_path_factory.mktemp("nodes")
    shares = {"train": 0.4, "val": 0.2, "test": 0.4}
    sizes = {"nodes": 400, "edges": 4000, "features": 6, "classes": 3, "seed": 5}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, **shares, inter=0.2))  # type: ignore[arg-type]
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    return folder / "parts"


@pytest.fixture(scope="module")
def cluster(parts: Path) -> Iterator[str]:
    with atta.local(parts, threads=1) as running:
        yield str(running.cluster_file)


def start(cluster: str, *words: str) -> subprocess.Popen[str]:
    command = [*ATTA, "train", "--cluster", cluster, "--trainers", "2", *OPTIONS, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def losses(report: Path) -> list[float]:
    return [e["loss"] for e in json.loads(report.read_text())["epochs"]]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(("--strategy", "minibatch", "--num-neighbors", "3", "--batch-size", "16"), marks=pytest.mark.slow),
        ("--strategy", "full", "--trainers-per-server", "2"),  # exchanges rows between the machines
        pytest.param(("--strategy", "cooperative:co-batches=3", "--trainers-per-server", "2"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[1],
)
def test_two_machines_train_as_one(cluster: str, tmp_path: Path, strategy: Sequence[str]) -> None:
    words = (*strategy, "--epochs", "2")
    alone = start(cluster, *words, "--json", str(tmp_path / "alone.json"))
    assert alone.wait(60) == 0, alone.communicate()[1]
    (endpoint,) = held_addresses(1)
    nodes = []
    for rank in (1, 0):
        place = ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", endpoint)
        nodes.append(start(cluster, *words, *place, "--json", str(tmp_path / f"{rank}.json")))
    for node in nodes:
        assert node.wait(60) == 0, node.communicate()[1]
    found = losses(tmp_path / "0.json")
    for epoch in json.loads((tmp_path / "0.json").read_text())["epochs"]:
        assert epoch["crossed_bytes"] == epoch["exchanged_bytes"]
        assert (
            epoch["steps"] == {"minibatch": 5, "full": 1, "cooperative": 3}[strategy[1]]
        )  # 160 seeds, 16 at a time, 2 trainers
        assert min(epoch["peak_memory_bytes"]) > 50e6
        assert (epoch["crossed_bytes"] > 0) == (strategy[1] != "minibatch")
        assert epoch["crossed_bytes"] <= epoch["exchanged_bytes"]
    assert len(found) == 2
    assert losses(tmp_path / "1.json") == found
    assert found == pytest.approx(losses(tmp_path / "alone.json"), rel=1e-3)


@pytest.mark.slow
def test_a_killed_trainer_is_named_where_it_was(cluster: str) -> None:
    (endpoint,) = held_addresses(1)
    words = ("--strategy", "full", "--trainers-per-server", "1", "--epochs", "100000", "--eval-every", "100000")
    nodes = [
        start(cluster, *words, "--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", endpoint)
        for rank in (0, 1)
    ]
    try:
        assert nodes[0].stderr is not None
        assert nodes[0].stderr.readline().startswith("epoch")
        trainers = [
            p
            for p in psutil.Process(nodes[1].pid).children(recursive=True)
            if "atta.train.launching.worker" in p.cmdline()
        ]
        assert len(trainers) == 1
        began = time.monotonic()
        trainers[0].send_signal(signal.SIGKILL)
        words_of = [node.communicate(timeout=30)[1] for node in nodes]
        assert time.monotonic() - began < 30
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert [node.returncode for node in nodes] == [1, 1]
    assert "was killed by SIGKILL" in words_of[1]
    assert "lost those of another machine: the cause is reported there" in words_of[0]


def bench(parts: Path, target: Path, *words: str) -> dict[str, Any]:
    command = [
        *ATTA,
        "bench",
        "strategies",
        "--data",
        str(parts),
        "--layers",
        "2",
        "--hidden",
        "8",
        "--batch-size",
        "16",
    ]
    more = ["--num-neighbors", "3", "--runs", "1", "--warm-up", "1", "--epochs", "3", "--json", str(target)]
    done = subprocess.run([*command, *more, *words], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(target.read_text())
    return document


@pytest.mark.slow
def test_exact_strategies_learn_the_same(parts: Path, tmp_path: Path) -> None:
    words = ("--trainers-per-server", "1", "--strategies", "full,preload", "--eval-every", "1")
    found = bench(parts, tmp_path / "s.json", *words)
    results = found["results"]
    assert results["preload"]["loss"]["median"] == pytest.approx(results["full"]["loss"]["median"], rel=1e-4)
    assert results["full"]["exchanged_bytes"]["median"] > 0
    assert results["preload"]["exchanged_bytes"]["median"] == 0
    assert set(found["ratios"]["epoch_seconds"]) == {"preload"}
    for figures in results.values():
        assert figures["epoch_seconds"]["median"] > 0
        assert figures["peak_memory_bytes"]["median"] > 50e6
        assert figures["test_accuracy"]["median"] > 0.35


def halo_rows(parts: Path) -> int:
    """Rows that servers of one trainer read from each other."""
    dataset = Dataset.open(parts)
    (edge_type,), (node_type,) = dataset.schema.edge_types, dataset.schema.node_types
    bounds = dataset.book.offsets[node_type]
    read = [set(dataset.part(p).csc(edge_type).indices.tolist()) for p in range(2)]
    return sum(len(rows - set(range(bounds[p], bounds[p + 1]))) for p, rows in enumerate(read))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_variants_beside_each_other(parts: Path, tmp_path: Path) -> None:
    """CAGNET's form of exchange sends features in every epoch; the others keep them. SANCUS skips every other one."""
    variants = {
        "cagnet": "--strategy exchange:rows=all,send-features",
        "sancus": "--strategy sancus:eps=1,warmup=0",
    }
    words = [word for name, options in variants.items() for word in ("--variant", f"{name}={options}")]
    more = ("--strategies", "full", "--trainers-per-server", "1", "--epochs", "4")
    found = bench(parts, tmp_path / "s.json", *more, *words)
    results = {name: {k: v["median"] for k, v in figures.items()} for name, figures in found["results"].items()}
    assert list(results) == ["full", *variants]
    assert results["cagnet"]["payload/features_bytes"] == 400 * 6 * 4  # each row travels to the other server
    assert results["sancus"]["payload/features_bytes"] == 0
    # A hidden layer has 8 columns. SANCUS sends its HALO rows in 2 of the 4 epochs, and their gradients in all.
    assert results["sancus"]["payload/rows_bytes"] == halo_rows(parts) * 8 * 4 * (2 / 4 + 1)
    assert results["cagnet"]["payload/rows_bytes"] == 2 * 400 * 8 * 4
    for figures in results.values():
        assert 0 < figures["waiting_share"] < 1
        assert figures["mean_epoch_seconds"] > 0


@pytest.mark.netns
@pytest.mark.slow
def test_only_gradients_cross_the_links(parts: Path, tmp_path: Path) -> None:
    words = ("--strategies", "cooperative,full", "--link", "50mbit", "--hidden", "64")
    results = bench(parts, tmp_path / "s.json", *words)["results"]
    cooperative, full = (results[name]["link_bytes"]["median"] for name in ("cooperative", "full"))
    weights = 2 * 6 * 64 + 64 + 2 * 64 * 3 + 3  # two layers of SAGE, from 6 features to 3 classes
    # Sums over two servers cross each way once. Besides the weights, about a dozen single numbers travel to all
    # trainers, in messages of about a hundred bytes each.
    assert 4 * weights < cooperative < 4 * weights + 20_000
    assert full > 2 * cooperative
