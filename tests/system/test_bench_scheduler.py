"""``atta bench scheduler`` with daemons: every policy delivers batches, and the report has all figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench-scheduler")
    sizes: Any = {"nodes": 600, "edges": 9000, "features": 12, "classes": 4, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=0.5, val=0.1, test=0.1, inter=0.1))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return folder / "parts"


@pytest.mark.slow
def test_policies_on_loopback(dataset: Path, tmp_path: Path) -> None:
    target = tmp_path / "scheduler.json"
    words = [
        "--num-neighbors",
        "4,3",
        "--batch-size",
        "10",
        "--policies",
        "two-level,sequential,prefetch",
        "--depths",
        "1,4",
    ]
    words += ["--rtt", "4ms", "--think", "1ms", "--warm-up", "1", "--seconds", "0s", "--runs", "1", "--netns", "off"]
    words += ["--cache-share", "0"]  # else rows and edges are at home, and nothing waits for a round trip
    command = [sys.executable, "-m", "atta.cli.main", "bench", "scheduler", "--data", str(dataset), *words]
    done = subprocess.run(
        [*command, "--json", str(target), "--quiet"], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert set(document["results"]) == {"two-level", "sequential", "prefetch-1", "prefetch-4"}
    assert document["config"]["rtt_ms"] == 4.0
    for figures in document["results"].values():
        # The second hop and its rows wait for each other. In most batches some seeds lie elsewhere, which costs a third
        # round trip.
        assert figures["completion_ms"]["median"] > 2 * 4.0
        assert figures["completion_ms_p95"]["median"] >= figures["completion_ms"]["median"] / 2
        assert figures["queue_bytes"]["median"] > 0
        assert 0 < figures["busy/consumer"]["median"] <= 1
        assert figures["busiest"]["median"] >= figures["busy/cores"]["median"]
    assert set(document["ratios"]["seeds_per_s"]) == {"sequential", "prefetch-1", "prefetch-4"}
