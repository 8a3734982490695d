"""``atta bench strategies`` with a straggler, workers that die, and prices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.test_digest_async import graph  # noqa: F401 - a fixture
from tests.system.test_dorylus import parts_of


@pytest.mark.slow
def test_value_and_faults_of_a_run(graph: Path, own_interpreters: None, tmp_path: Path) -> None:  # noqa: F811
    prices, out = tmp_path / "prices.toml", tmp_path / "out.json"
    prices.write_text("[instances]\nhere = 3600.0\n[worker]\nper_request = 1.0\n")
    command = [
        *(sys.executable, "-m", "atta.cli.main", "bench", "strategies", "--data", str(parts_of(graph, 2))),
        *("--trainers-per-server", "1", "--strategies", "full", "--model", "gcn", "--layers", "2", "--hidden", "8"),
        *("--variant", "async=--strategy digest-async:eval-interval=0.1"),
        *("--variant", "dorylus=--strategy dorylus:intervals=2,workers=2,mode=pipe"),
        *("--stop", "1:0.1/0.2", "--worker-faults", "delay=0:0.01,kill=0.1", "--prices", str(prices)),
        *("--warm-up", "1", "--epochs", "5", "--runs", "1", "--json", str(out), "--quiet"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = {
        s: {n: v["median"] for n, v in figures.items()} for s, figures in json.loads(out.read_text())["results"].items()
    }
    for figures in found.values():
        workers = figures.get("workers_cost", 0.0)
        seconds = (figures["cost"] - workers) / 2  # two servers at one a second
        assert figures["value"] == pytest.approx(1 / (seconds * figures["cost"]))
    assert found["dorylus"]["workers_cost"] >= 6 * 2 * 2 * 3  # epochs, trainers, intervals, tasks of each
    assert "workers_cost" not in found["async"]
