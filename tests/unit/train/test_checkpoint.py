"""Checkpoints: everything comes back, nothing else is read, and the old one survives a crash."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from atta.errors import ConfigError, DataError, DiskFullError
from atta.partition.disk.staging import StagedFile
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint.files import BEST, BEST_WEIGHTS, LAST, VERSION, check_folder, load_model, seal
from atta.train.checkpoint.run import load_checkpoint, remove_best, save_best, save_checkpoint
from atta.train.models import build_model
from atta.train.reports.epochs import PHASES

CPU = torch.device("cpu")
CONFIG = TrainConfig(data="x", num_neighbors=(2, 2), hidden=4)
EPOCH = EpochReport(0, 1.0, 0.5, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.25)


def trained(steps: int, config: TrainConfig = CONFIG) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = build_model(config, 3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3), torch.empty((2, 0), dtype=torch.int64), [4, 0, 0], [0, 0]).sum().backward()
        optimizer.step()
    return model, optimizer


def test_model_optimiser_and_curve_come_back(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    save_checkpoint(tmp_path / "new", CONFIG, model, optimizer, [EPOCH])
    again, its_optimizer = trained(1)
    assert load_checkpoint(tmp_path / "new", CONFIG, again, its_optimizer, CPU).epochs == [EPOCH]
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    moments = [s["exp_avg"] for s in optimizer.state_dict()["state"].values()]
    for mine, its in zip(moments, (s["exp_avg"] for s in its_optimizer.state_dict()["state"].values()), strict=True):
        assert torch.equal(mine, its)
    assert [p.name for p in (tmp_path / "new").iterdir()] == [LAST]


def test_best_model_is_a_file_of_its_own(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, CONFIG, *trained(0), CPU).epochs == [], "without a checkpoint the run begins"
    model, _ = trained(2)
    save_best(tmp_path, CONFIG, model, EPOCH)
    saved = torch.load(tmp_path / BEST, weights_only=True)
    assert saved["epoch"]["val_accuracy"] == 0.25
    assert set(saved["model"]) == set(model.state_dict())
    with zipfile.ZipFile(tmp_path / BEST) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"atta-xxh3:")


def test_without_a_best_model_the_last_one_is_taken(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    save_best(tmp_path, CONFIG, trained(2)[0], EPOCH)
    assert load_model(tmp_path).path.name == BEST
    for _ in range(2):  # the second time there is nothing to remove
        remove_best(tmp_path)
        assert load_model(tmp_path).path.name == LAST
        assert not (tmp_path / BEST_WEIGHTS).exists()


def test_another_model_or_strategy_and_a_truncated_file_are_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    other = TrainConfig(data="x", num_neighbors=(2, 2), hidden=8)
    with pytest.raises(DataError, match="hidden 4, not 8"):
        load_checkpoint(tmp_path, other, *trained(0, other), CPU)
    other = TrainConfig(data="x", strategy="full", layers=2, hidden=4)
    with pytest.raises(DataError, match="strategy minibatch, not full"):
        load_checkpoint(tmp_path, other, *trained(0), CPU)
    for keep in (2000, 100, 0):
        os.truncate(tmp_path / LAST, keep)
        with pytest.raises(DataError, match=LAST):
            load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive = io.BytesIO()
    torch.save({"version": VERSION, "model": Evil()}, archive)
    (tmp_path / LAST).write_bytes(seal(archive.getvalue()))
    with pytest.raises(DataError, match="cannot be read"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    (tmp_path / LAST).write_bytes(seal(pickle.dumps(Evil()) + b".."))
    with pytest.raises(DataError, match="cannot be read"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    assert not (tmp_path / "hacked").exists()
    torch.save({"version": VERSION}, tmp_path / LAST)
    with pytest.raises(DataError, match=f"{LAST}: does not end with its checksum"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)


def test_every_flipped_bit_is_noticed(tmp_path: Path, seed: int) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(2), [EPOCH])
    whole = (tmp_path / LAST).read_bytes()
    bits = random.Random(seed).sample(range(8 * len(whole)), 150)
    # The checksum itself, and the mark before it that tells files with a checksum from others.
    bits += range(8 * (len(whole) - 30), 8 * len(whole))
    fresh = trained(0)
    for bit in bits:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / LAST).write_bytes(flipped)
        with pytest.raises(DataError, match=LAST):
            load_checkpoint(tmp_path, CONFIG, *fresh, CPU)
    (tmp_path / LAST).write_bytes(whole)
    assert load_checkpoint(tmp_path, CONFIG, *fresh, CPU).epochs == [EPOCH]


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    before = (tmp_path / LAST).read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        for save in (
            lambda: save_checkpoint(tmp_path, CONFIG, *trained(2), [EPOCH, EPOCH]),
            lambda: save_best(tmp_path, CONFIG, trained(2)[0], EPOCH),
        ):
            with pytest.raises(DiskFullError, match=r"\.pt: no space left"):
                save()
        with pytest.raises(DiskFullError, match=r"deep.*: no space left"):
            check_folder(tmp_path / "deep" / "er")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [p.name for p in tmp_path.iterdir()] == [LAST]
    assert (tmp_path / LAST).read_bytes() == before


def test_pipes_and_folders_are_no_checkpoints(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LAST)
    with pytest.raises(DataError, match=f"{LAST}: a named pipe"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    with pytest.raises(ConfigError, match=f"{LAST} in it is not a regular file"):
        check_folder(tmp_path)
    with pytest.raises(ConfigError, match="not a regular file"):
        save_checkpoint(tmp_path, CONFIG, *trained(0), [EPOCH])


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match=f"--checkpoint .*{place}: cannot be written: Not a directory"):
            check_folder(tmp_path / place)

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
        check_folder(tmp_path)


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in (LAST, BEST):
        (tmp_path / f"{name}.partial").write_bytes(b"half")
    with StagedFile(tmp_path / BEST):  # another process is writing this one
        check_folder(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == [f"{BEST}.partial"]
