"""A disk without room for a checkpoint: the error comes before the run where possible, and the old checkpoint stays."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from atta.errors import AttaError
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import TrainConfig, fit
from atta.train.checkpoint.files import BEST, BEST_WEIGHTS, LAST


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers")
def test_the_disk_is_full_in_the_middle_of_a_run(tmp_path: Path) -> None:
    generate("sbm", tmp_path / "graph", GenerateOptions(200, 2000, features=8, classes=3, train=0.5, val=0.2))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        folder = disk / "checkpoints"
        settings = TrainConfig(
            data=str(tmp_path / "parts"), checkpoint=str(folder), num_neighbors=(2, 2), hidden=16, device="cpu",
            threads=1, verbose=False, epochs=1,
        )  # fmt: skip
        fit(settings)
        before = (folder / LAST).read_bytes()
        rest = (1 << 20) - sum(-(-p.stat().st_size // 4096) * 4096 for p in folder.iterdir())
        (disk / "others").write_bytes(bytes(rest - 8192))  # room to test the folder, but not for another checkpoint
        with pytest.raises(AttaError, match="no space left") as full:
            fit(replace(settings, epochs=3, resume=True))
        assert str(folder) in str(full.value)
        assert (folder / LAST).read_bytes() == before
        assert sorted(p.name for p in folder.iterdir()) == [BEST, BEST_WEIGHTS, LAST]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
