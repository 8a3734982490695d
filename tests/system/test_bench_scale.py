"""``atta bench scale`` with daemons: one number of partitions, every figure that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_tiny_graph_on_two_partitions(tmp_path: Path) -> None:
    target = tmp_path / "scale.json"
    words = ["--parts", "2", "--nodes", "600", "--edges", "6000", "--features", "8", "--method", "random"]
    words += ["--num-neighbors", "4,3", "--batch-sizes", "8,2", "--warm-up", "10", "--batches", "3", "--profiled", "0"]
    words += ["--caches", "off", "--rounds", "1", "--netns", "off", "--work", str(tmp_path / "work"), "--quiet"]
    command = [sys.executable, "-m", "atta.cli.main", "bench", "scale", *words]
    done = subprocess.run(
        [*command, "--json", str(target)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert document["about"].startswith("Time is not divided by kind of code")
    found = {name: figure["median"] for name, figure in document["results"]["atta-uncached"].items()}
    assert found["first_10_share, first batches/2 parts"] > 0
    assert 0 <= found["filled_s, first batches/2 parts"] < 60
    for size in (8, 2):
        sections, main = f"2 parts, {size} seeds/", f", {size} seeds/2 parts"
        of = {n.removeprefix(sections).removesuffix(main): v for n, v in found.items() if sections in n or main in n}
        assert of["batches"] >= 2 * 3
        assert of["cpu_ms_per_batch"] == pytest.approx(of["cpu_us_per_seed"] * size / 1e3)
        processes = sum(value for name, value in of.items() if name.startswith("processes/"))
        assert processes == pytest.approx(of["cpu_us_per_seed"])
        # Half of all vertices lie elsewhere and nothing is cached. Each hop asks the other daemon.
        assert of["vertices_per_seed"] / 4 < of["remote_rows_per_seed"] < of["vertices_per_seed"]
        assert of["remote_tasks_per_batch"] > 1
        assert of["remote_requests_per_batch"] > 1
        # The rows of the vertices that lie elsewhere: 8 float32 features and a label.
        assert of["answer_bytes_per_batch"] > of["remote_rows_per_seed"] * size * 40
        assert {f"threads/{role}_us_per_seed" for role in ("event_loop", "worker", "grpc")} <= of.keys()
