"""A disk without room for a checkpoint: the error comes before the run where possible, and the old checkpoint stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train.checkpoint import BEST, BEST_WEIGHTS, LAST


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    generate("sbm", tmp_path / "graph", GenerateOptions(200, 2000, features=8, classes=3, train=0.5, val=0.2))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random")
    return tmp_path / "parts"


def train(dataset: Path, checkpoint: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["train", "--data", str(dataset), "--checkpoint", str(checkpoint), *words]
    command += ["--num-neighbors", "2,2", "--hidden", "16", "--device", "cpu", "--threads", "1", "--quiet"]
    return subprocess.run(
        [sys.executable, "-m", "atta.cli.main", *command], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_the_disk_is_full_in_the_middle_of_a_run(dataset: Path, small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    assert train(dataset, folder, "--epochs", "1").returncode == 0
    before = (folder / LAST).read_bytes()
    rest = (1 << 20) - sum(-(-p.stat().st_size // 4096) * 4096 for p in folder.iterdir())
    (small_disk / "others").write_bytes(bytes(rest - 8192))  # room to test the folder, but not for another checkpoint
    done = train(dataset, folder, "--epochs", "3", "--resume")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no space left" in done.stderr
    assert str(folder) in done.stderr
    assert (folder / LAST).read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == [BEST, BEST_WEIGHTS, LAST]
