"""The checkpoint of a run, from which a later one continues, and the best model so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import save

from atta.errors import DataError
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile
from atta.train.checkpoint.files import BEST, BEST_WEIGHTS, LAST, VERSION, RunPlace, read_file, write_file
from atta.train.checkpoint.weights import EMBEDDINGS, IDS, SavedEmbeddings, bare
from atta.train.reports.epochs import EpochReport
from atta.train.settings import TrainSettings

_SHAPE = ("strategy", "task", "model", "hidden", "heads", "depth", "decoder")  # settings that determine the weights
_KEPT = (*_SHAPE, "lr_schedule", "target", "edge_type")  # settings that a run cannot change on its way


class SavedRun(NamedTuple):
    """How far a run is: its complete epochs, and its next batch."""

    epochs: list[EpochReport]
    place: RunPlace


class Stateful(Protocol):
    """What a checkpoint saves and fills."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what ``state_dict`` saved."""


def save_checkpoint(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Sequence[EpochReport],
    *,
    schedule: Stateful | None = None,
    place: RunPlace | None = None,
) -> None:
    """Write everything that the next epoch depends on; the rest of an epoch depends on the files of ranks, too. A
    crash leaves the old file or the new one, never a part.

    place: the next batch of each trainer; None: the first one of an epoch.

    Raises:
        DiskFullError: there is no space left; the old file is untouched.
        ConfigError: the file cannot be written.
    """
    place = place or RunPlace(len(epochs))
    state = {
        "version": VERSION,
        "shape": _shape(config),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": {} if schedule is None else schedule.state_dict(),
        "epochs": [asdict(e) for e in epochs],
        "loader": asdict(place),  # the next batch to train on
    }
    write_file(folder, LAST, state)


def save_best(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    epoch: EpochReport,
    *,
    embeddings: SavedEmbeddings | None = None,
) -> None:
    """Write the model of the epoch with the best figure of validation so far; its weights also as safetensors."""
    learnt = {} if embeddings is None else {f"{EMBEDDINGS}{t}": rows for t, rows in embeddings.rows.items()}
    weights = {**model.state_dict(), **learnt}
    state = {"version": VERSION, "shape": _shape(config), "model": weights, "epoch": asdict(epoch)}
    if embeddings is not None:
        state[IDS] = dict(embeddings.ids)
    place = write_file(folder, BEST, state)
    about = {name: str(value) for name, value in {**_shape(config), "epoch": epoch.epoch}.items()}
    with StagedFile(place.path / BEST_WEIGHTS, overwrite=True) as partial:
        partial.write_bytes(save({name: t.contiguous() for name, t in bare(weights).items()}, about))
    place.push(BEST_WEIGHTS)


def remove_best(folder: str | Path) -> None:
    """Remove what ``save_best`` of another run has written, if anything."""
    place = Mirror(folder)
    for name in (BEST, BEST_WEIGHTS):
        place.remove(name)


def load_checkpoint(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    schedule: Stateful | None = None,
) -> SavedRun:
    """Fill model, optimiser and schedule from the checkpoint in ``folder``; return how far the run is.

    Only tensors and plain values are read, so a file cannot run code.

    Raises:
        DataError: the file is damaged, or comes from another version or model.
    """
    path = Mirror(folder).pull(LAST)
    if not path.is_symlink() and not path.exists():
        return SavedRun([], RunPlace(0))
    saved = read_file(path, device)
    shape = saved.get("shape", {})
    if not isinstance(shape, dict):
        raise DataError(path, "does not tell its model")
    for name, value in _shape(config).items():
        if (was := shape.get(name)) != value:
            raise DataError(path, f"was made with {name} {was}, not {value}")
    try:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if schedule is not None:
            schedule.load_state_dict(saved["schedule"])
        epochs = [EpochReport.from_dict(e) for e in saved["epochs"]]
        return SavedRun(epochs, RunPlace(**{**saved["loader"], "epoch": len(epochs)}))
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise DataError(path, f"does not fit this dataset and model: {error}") from error


def place_in(folder: str | Path) -> RunPlace:
    """Where the checkpoint in ``folder`` goes on; raises DataError if it is missing or damaged."""
    found: Any = read_file(Mirror(folder).pull(LAST), torch.device("cpu")).get("loader")
    try:
        return RunPlace(**found)
    except TypeError:
        raise DataError(folder, f"{LAST} does not tell its place") from None


def _shape(config: TrainSettings) -> dict[str, Any]:
    return {name: getattr(config, name, None) for name in _KEPT}  # not every strategy has them all
