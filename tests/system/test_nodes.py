"""``atta train`` and ``atta bench strategies`` on several machines give every machine the figures of a run on one.

Every machine runs the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import atta
from tests.addresses import held_addresses

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

ATTA = (sys.executable, "-m", "atta.cli.main")
OPTIONS = ("--model", "sage", "--layers", "2", "--hidden", "8", "--dropout", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def parts(classes: Path) -> Path:
    return classes / "parts"


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
        # 160 seeds, 16 at a time, 2 trainers
        assert epoch["steps"] == {"minibatch": 5, "full": 1, "cooperative:co-batches=3": 3}[strategy[1]]
        assert min(epoch["peak_memory_bytes"]) > 50e6
        assert (epoch["crossed_bytes"] > 0) == (strategy[1] != "minibatch")
        assert epoch["crossed_bytes"] <= epoch["exchanged_bytes"]
    assert len(found) == 2
    assert losses(tmp_path / "1.json") == found
    assert found == pytest.approx(losses(tmp_path / "alone.json"), rel=1e-3)


def bench(parts: Path, target: Path, *words: str) -> dict[str, Any]:
    command = [*ATTA, "bench", "strategies", "--data", str(parts), "--layers", "2", "--batch-size", "16"]
    more = ["--num-neighbors", "3", "--runs", "1", "--warm-up", "1", "--epochs", "3", "--json", str(target)]
    done = subprocess.run([*command, *more, *words], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(target.read_text())
    return document


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
