"""Checkpoints: a file from which a later run continues, and the best model so far.

Strategies in which trainers keep something from epoch to epoch also have a file per rank, named after the epoch. All
ranks write theirs before the checkpoint that goes with them, and remove earlier ones after it. So a crash leaves a
checkpoint with the files of all ranks.

Each is a zip archive as ``torch.save`` writes it. Its comment is a checksum of all bytes before it. ``torch.load``
reads it too.
"""

from __future__ import annotations

import fnmatch
import io
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import xxhash

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import open_regular
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile, disk_full, remove_partial_file
from atta.train.models.weights import safetensors_bytes
from atta.train.reports.epochs import EpochReport
from atta.train.settings import TrainSettings

__all__ = [
    "BEST",
    "BEST_WEIGHTS",
    "LAST",
    "SavedEmbeddings",
    "SavedModel",
    "check_folder",
    "load_checkpoint",
    "load_model",
    "load_rank",
    "load_weights",
    "prune_ranks",
    "save_best",
    "save_checkpoint",
    "save_rank",
    "seal",
]

LAST = "checkpoint.pt"
BEST = "best.pt"
BEST_WEIGHTS = "best.safetensors"
VERSION = 1
_MARK = b"atta-xxh3:"  # then 16 hex digits, which end the file
_DIGITS = 16
_RANK_FILES = "rank"
_WRAPPERS = ("gnn.", "module.")
_SHAPE = ("strategy", "task", "model", "hidden", "heads", "depth", "decoder")  # settings that determine the weights
_KEPT = (*_SHAPE, "lr_schedule", "target", "edge_type")  # settings that a run cannot change on its way
_EARLIER = {"task": "classes", "lr_schedule": "none", "decoder": "dot"}  # what files of earlier versions lack
_EMBEDDINGS = "embeddings."  # where weights have the rows of node types without features
_SAMPLED = "gnn."  # where models of sampled batches have the names of the others


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
) -> None:
    """Write everything that the next epoch depends on. A crash leaves the old file or the new one, never a part.

    Raises:
        DiskFullError: there is no space left; the old file is untouched.
        ConfigError: the file cannot be written.
    """
    done = len(epochs)
    state = {
        "version": VERSION,
        "shape": _shape(config),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": {} if schedule is None else schedule.state_dict(),
        "epochs": [asdict(e) for e in epochs],
        "loader": {"epoch": done, "batch": 0},  # the next batch to train on
    }
    _write(folder, LAST, state)


def save_best(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    epoch: EpochReport,
    *,
    embeddings: Mapping[str, torch.Tensor] | None = None,
    dataset_id: str = "",
) -> None:
    """Write the model of the epoch with the best figure of validation so far; its weights also as safetensors.

    embeddings: rows by node type, in the order of the tables of the dataset ``dataset_id``.
    """
    weights = {**model.state_dict(), **{f"{_EMBEDDINGS}{t}": rows for t, rows in (embeddings or {}).items()}}
    state = {"version": VERSION, "shape": _shape(config), "model": weights, "epoch": asdict(epoch)}
    if embeddings:
        state["dataset_id"] = dataset_id
    place = _write(folder, BEST, state)
    about = {name: str(value) for name, value in {**_shape(config), "epoch": epoch.epoch}.items()}
    with StagedFile(place.path / BEST_WEIGHTS, overwrite=True) as partial:
        partial.write_bytes(safetensors_bytes(_bare(weights), about))
    place.push(BEST_WEIGHTS)


@dataclass(frozen=True)
class SavedModel:
    """A model as a checkpoint has it.

    Attributes:
        path: of its file.
        shape: settings that determine the weights: model, hidden, heads, depth.
        weights: by the names that the model has without a trainer around it.
        embeddings: learnt rows by node type, in the order of the tables of the dataset ``dataset_id``.
    """

    path: Path
    shape: Mapping[str, Any]
    weights: Mapping[str, torch.Tensor]
    embeddings: Mapping[str, torch.Tensor]
    dataset_id: object


def load_model(folder: str | Path) -> SavedModel:
    """The best model of a folder of checkpoints; where there was no evaluation, that of the last checkpoint.

    Raises:
        DataError: there is none, or it is damaged or of another version.
    """
    place = Mirror(folder)
    path = next((p for p in (place.pull(BEST), place.pull(LAST)) if p.exists()), None)
    if path is None:
        raise DataError(folder, f"has no {BEST} and no {LAST}: not a folder of atta train --checkpoint")
    saved = _read(path, torch.device("cpu"))
    if saved.get("version") != VERSION:
        raise DataError(path, f"checkpoint version {saved.get('version')!r}, this is {VERSION}")
    shape, weights = saved.get("shape"), saved.get("model")
    if not isinstance(shape, dict) or not isinstance(weights, dict):
        raise DataError(path, "has no model")
    found = _bare(weights)
    rows = {name: found.pop(name) for name in list(found) if name.startswith(_EMBEDDINGS)}
    embeddings = {name.removeprefix(_EMBEDDINGS): tensor for name, tensor in rows.items()}
    return SavedModel(path, shape, found, embeddings, saved.get("dataset_id"))


def _bare(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of the model itself: trainers wrap it, each strategy in its own way."""
    return {
        next((name.removeprefix(w) for w in _WRAPPERS if name.startswith(w)), name): t for name, t in weights.items()
    }


def load_checkpoint(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    schedule: Stateful | None = None,
) -> list[EpochReport]:
    """Fill model, optimiser and schedule from the checkpoint in ``folder``; return the epochs already done, none without a
    checkpoint.

    Only tensors and plain values are read, so a file cannot run code.

    Raises:
        DataError: the file is damaged, or comes from another version or model.
    """
    path = Mirror(folder).pull(LAST)
    if not path.is_symlink() and not path.exists():
        return []
    saved = _read(path, device)
    if saved.get("version") != VERSION:
        raise DataError(path, f"checkpoint version {saved.get('version')!r}, this is {VERSION}")
    for name, value in _shape(config).items():
        was = saved.get("shape", {}).get(name, _EARLIER.get(name))
        if was != value:
            raise DataError(path, f"was made with {name} {was}, not {value}")
    try:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if schedule is not None:
            schedule.load_state_dict(saved.get("schedule", {}))
        return [EpochReport.from_dict(e) for e in saved["epochs"]]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(path, f"does not fit this dataset and model: {error}") from error


class SavedEmbeddings(NamedTuple):
    """Rows by node type, in the order of the tables of a dataset."""

    rows: Mapping[str, torch.Tensor]
    dataset_id: object


def load_weights(path: str | Path, model: torch.nn.Module, device: torch.device) -> SavedEmbeddings:
    """Fill the model with the weights of another run's checkpoint, whatever its strategy; returns its embeddings.

    path: a file that ``save_checkpoint`` or ``save_best`` wrote, or a folder with one (``best.pt`` comes first).

    Raises:
        DataError: there is no such file, it is damaged, or its weights have other names or shapes.
    """
    place = Mirror(path)
    path = place.path
    if path.is_dir():
        path = next((p for p in (place.pull(BEST), place.pull(LAST)) if p.exists()), path / BEST)
    if not path.exists():
        raise DataError(path, "--init-from: there is no such file")
    saved = _read(path, device)
    weights = saved.get("model")
    if not isinstance(weights, dict):
        raise DataError(path, "--init-from: holds no model")
    rows = {name: weights.pop(name) for name in list(weights) if name.startswith(_EMBEDDINGS)}
    embeddings = {name.removeprefix(_EMBEDDINGS): tensor for name, tensor in rows.items()}
    given = {name.removeprefix(_SAMPLED): tensor for name, tensor in weights.items()}
    own = {name.removeprefix(_SAMPLED): name for name in model.state_dict()}
    wanted = {name: model.state_dict()[full].shape for name, full in own.items()}
    for name in sorted(given.keys() | wanted.keys()):
        there = tuple(given[name].shape) if name in given else "absent"
        here = tuple(wanted[name]) if name in wanted else "absent"
        if there != here:
            raise DataError(path, f"--init-from: does not fit this model: {name} is {there} there and {here} here")
    model.load_state_dict({own[name]: tensor for name, tensor in given.items()})
    return SavedEmbeddings(embeddings, saved.get("dataset_id"))


def save_rank(folder: str | Path, rank: int, world: int, done: int, state: Mapping[str, Any]) -> None:
    """Write what ``rank`` of ``world`` keeps after ``done`` epochs: tensors and plain values.

    Raises the errors of ``save_checkpoint``.
    """
    saved = {"version": VERSION, "rank": rank, "world": world, "state": dict(state)}
    _write(folder, _rank_file(rank, done), saved)


def load_rank(folder: str | Path, rank: int, world: int, done: int, device: torch.device) -> dict[str, Any]:
    """What ``save_rank`` has written.

    Raises:
        DataError: the file is missing or damaged, or comes from another trainer or number of trainers.
    """
    path = Mirror(folder).pull(_rank_file(rank, done))
    if not path.exists():
        raise DataError(path, f"is missing: the checkpoint of {done} epochs goes with a file of each trainer")
    saved = _read(path, device)
    if saved.get("version") != VERSION or not isinstance(saved.get("state"), dict):
        raise DataError(path, f"checkpoint version {saved.get('version')!r}, this is {VERSION}")
    if saved.get("world") != world:
        raise DataError(path, f"was made with --trainers {saved.get('world')}, not {world}")
    if saved.get("rank") != rank:
        raise DataError(path, f"is of trainer {saved.get('rank')}, not {rank}")
    found: dict[str, Any] = saved["state"]
    return found


def prune_ranks(folder: str | Path, rank: int, world: int, done: int) -> None:
    """Remove this rank's files of other epochs than ``done``. Rank 0 also removes those of ranks from ``world`` on."""
    place, kept = Mirror(folder), _rank_file(rank, done)
    for name in fnmatch.filter(place.names(), f"{_RANK_FILES}-*-*.pt"):
        number = Path(name).stem.rpartition("-")[2]
        of_nobody = rank == 0 and number.isdecimal() and int(number) >= world
        if name != kept and (number == str(rank) or of_nobody):
            remove_partial_file(place.path / name)
            place.remove(name)


def _rank_file(rank: int, done: int) -> str:
    return f"{_RANK_FILES}-{done}-{rank}.pt"


def _shape(config: TrainSettings) -> dict[str, Any]:
    return {name: getattr(config, name, _EARLIER.get(name)) for name in _KEPT}  # not every strategy has them all


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that checkpoints cannot be written to, before training begins.

    The check leaves nothing behind, and removes the partial file of an earlier run that was killed.

    Raises:
        ConfigError: the folder cannot be written to, or a checkpoint's name belongs to something else.
        DiskFullError: there is no space left.
    """
    mirror = Mirror(folder)
    mirror.check_writable()
    folder = mirror.path
    for path in (folder / LAST, folder / BEST, folder / BEST_WEIGHTS):
        if path.exists() and not path.is_file():
            raise ConfigError(f"--checkpoint {folder}: {path.name} in it is not a regular file")
        remove_partial_file(path)
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        full = disk_full(folder, error)
        raise full or ConfigError(f"--checkpoint {folder}: cannot be written: {error.strerror}") from None


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            content = file.read()
        _check_seal(path, content)
        saved = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError) as error:
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(path, f"cannot be read as a checkpoint: {cause}") from error
    if not isinstance(saved, dict):
        raise DataError(path, "is no checkpoint")
    return saved


def _write(folder: str | Path, name: str, state: dict[str, Any]) -> Mirror:
    content, place = io.BytesIO(), Mirror(folder)  # torch.save hides errors of files
    torch.save(state, content)
    with StagedFile(place.path / name, overwrite=True) as partial:
        partial.write_bytes(seal(content.getvalue()))
    place.push(name)
    return place


def seal(archive: bytes) -> bytes:
    """Append the checksum of an archive as its comment."""
    size = len(_MARK) + _DIGITS
    sealed = archive[:-2] + size.to_bytes(2, "little") + _MARK
    return sealed + _digest(sealed)


def _check_seal(path: Path, content: bytes) -> None:
    # A damaged mark looks like a file without a checksum, so a file without one is refused too.
    if content[-_DIGITS - len(_MARK) : -_DIGITS] != _MARK:
        raise DataError(path, "does not end with its checksum: cut short, altered, or not written by atta train")
    if content[-_DIGITS:] != _digest(content[:-_DIGITS]):
        raise DataError(path, "altered: its checksum differs from its content")


def _digest(content: bytes) -> bytes:
    return xxhash.xxh3_64(content).hexdigest().encode()
