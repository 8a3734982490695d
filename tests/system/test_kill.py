"""A run that is killed at any moment leaves no dataset or a whole one, and the next run succeeds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from atta.partition import Dataset, Graph, GraphWriter, partition_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, n, m = np.random.default_rng(1), 20_000, 300_000
    folder = tmp_path_factory.mktemp("kill")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes(
            "node", n, tables={"x": rng.random((n, 32), dtype=np.float32)}, splits={"train": np.arange(n // 10)}
        )
        out.add_edges("node__to__node", rng.integers(0, n, m), rng.integers(0, n, m))
    return folder / "graph"


def start(graph: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "atta.cli.main", "partition", str(graph), str(out), "--parts", "3", "--quiet"]
    return subprocess.Popen([*command, "--method", "ldg", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def duration(graph: Path, out: Path) -> float:
    """Seconds that an undisturbed run takes."""
    started = time.monotonic()
    with start(graph, out) as child:
        child.communicate(timeout=120)
    assert child.returncode == 0
    return time.monotonic() - started


def test_killed_at_random_times(graph: Path, tmp_path: Path, seed: int) -> None:
    whole = duration(graph, tmp_path / "whole")
    reference = Dataset.open(tmp_path / "whole").dataset_id
    rng, killed_while_writing = np.random.default_rng(seed), 0
    for number in range(40):
        if number >= 10 and killed_while_writing:
            break
        out = tmp_path / f"d{number % 2}"
        with start(graph, out, "--overwrite") as child:
            # Starting Python takes most of a short run, so half of the kills wait until the first file exists.
            deadline = time.monotonic() + 60
            while number % 2 and not list(tmp_path.glob(f"{out.name}.partial/**/*.npy")) and child.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0, 0.2 / (1 + number) if number % 2 else whole)))
            child.kill()
            child.communicate(timeout=60)
        killed_while_writing += out.with_name(f"{out.name}.partial").exists()
        if out.exists():
            assert Dataset.open(out, verify=True).dataset_id == reference
    assert killed_while_writing
    assert Graph.open(graph, verify=True)
    for name in ("d0", "d1"):
        partition_graph(graph, tmp_path / name, parts=3, method="ldg", overwrite=True)
        assert Dataset.open(tmp_path / name, verify=True).dataset_id == reference
        assert not list(tmp_path.glob(f"{name}.partial")) + list(tmp_path.glob(f"{name}.old"))
