"""Checkpoints: one file that a later run continues from, and the best model so far."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from atta.errors import DataError
from atta.train.config import TrainConfig
from atta.train.report import EpochReport

__all__ = ["BEST", "LAST", "load_checkpoint", "save_best", "save_checkpoint"]

LAST = "checkpoint.pt"
BEST = "best.pt"
VERSION = 1
_SHAPE = ("strategy", "model", "hidden", "heads", "depth")  # settings that decide which weights there are


def save_checkpoint(
    folder: str | Path,
    config: TrainConfig,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Sequence[EpochReport],
) -> None:
    """Write everything that the next epoch depends on; a crash leaves the old file or the new one, never half of it."""
    done = len(epochs)
    state = {
        "version": VERSION,
        "shape": _shape(config),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs": [asdict(e) for e in epochs],
        "loader": {"epoch": done, "batch": 0},  # the next batch to train on
    }
    _write(Path(folder) / LAST, state)


def save_best(folder: str | Path, config: TrainConfig, model: torch.nn.Module, epoch: EpochReport) -> None:
    """Write the model of the epoch with the best validation accuracy so far."""
    state = {"version": VERSION, "shape": _shape(config), "model": model.state_dict(), "epoch": asdict(epoch)}
    _write(Path(folder) / BEST, state)


def load_checkpoint(
    folder: str | Path,
    config: TrainConfig,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> list[EpochReport]:
    """Fill model and optimiser from the checkpoint in ``folder``; returns the epochs already done, none without a checkpoint.

    Only tensors and plain values are read: a file cannot run code.

    Raises:
        DataError: the file is damaged, of another version or of another model.
    """
    path = Path(folder) / LAST
    if not path.exists():
        return []
    saved = _read(path, device)
    if saved.get("version") != VERSION:
        raise DataError(path, f"checkpoint version {saved.get('version')!r}, this is {VERSION}")
    for name, value in _shape(config).items():
        was = saved.get("shape", {}).get(name)
        if was != value:
            raise DataError(path, f"was made with {name} {was}, not {value}")
    try:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return [EpochReport(**e) for e in saved["epochs"]]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(path, f"does not fit this dataset and model: {error}") from error


def _shape(config: TrainConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _SHAPE}


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError) as error:
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(path, f"cannot be read as a checkpoint: {cause}") from error
    if not isinstance(saved, dict):
        raise DataError(path, "is no checkpoint")
    return saved


def _write(path: Path, state: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise DataError(path, f"cannot be written: {error.strerror}") from error
