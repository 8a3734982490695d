"""Checkpoints: everything comes back, nothing else is read, the old one survives a crash."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from atta.errors import DataError
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint import BEST, LAST, load_checkpoint, save_best, save_checkpoint
from atta.train.models import build_model
from atta.train.report import PHASES

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
    assert load_checkpoint(tmp_path / "new", CONFIG, again, its_optimizer, CPU) == [EPOCH]
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    moments = [s["exp_avg"] for s in optimizer.state_dict()["state"].values()]
    for mine, its in zip(moments, (s["exp_avg"] for s in its_optimizer.state_dict()["state"].values()), strict=True):
        assert torch.equal(mine, its)
    assert [p.name for p in (tmp_path / "new").iterdir()] == [LAST]


def test_without_a_checkpoint_the_run_begins(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, CONFIG, *trained(0), CPU) == []


def test_best_model_is_a_file_of_its_own(tmp_path: Path) -> None:
    model, _ = trained(2)
    save_best(tmp_path, CONFIG, model, EPOCH)
    saved = torch.load(tmp_path / BEST, weights_only=True)
    assert saved["epoch"]["val_accuracy"] == 0.25
    assert set(saved["model"]) == set(model.state_dict())


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    os.truncate(tmp_path / LAST, keep)
    with pytest.raises(DataError, match=LAST):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)


def test_another_model_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    other = TrainConfig(data="x", num_neighbors=(2, 2), hidden=8)
    with pytest.raises(DataError, match="hidden 4, not 8"):
        load_checkpoint(tmp_path, other, *trained(0, other), CPU)


def test_another_strategy_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    other = TrainConfig(data="x", strategy="full", layers=2, hidden=4)
    with pytest.raises(DataError, match="strategy minibatch, not full"):
        load_checkpoint(tmp_path, other, *trained(0), CPU)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"version": 1, "model": Evil()}, tmp_path / LAST)
    with pytest.raises(DataError, match="cannot be read"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    (tmp_path / LAST).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="cannot be read"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    assert not (tmp_path / "hacked").exists()
