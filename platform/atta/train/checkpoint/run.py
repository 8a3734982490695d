"""The checkpoint of a run, from which a later one continues, and the best model so far."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save

from atta.errors import DataError, blaming
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile, remove_partial_file
from atta.partition.schema import Schema
from atta.train.checkpoint.files import (
    BEST,
    BEST_WEIGHTS,
    EMBEDDINGS,
    IDS,
    LAST,
    NAMES,
    RunPlace,
    SavedEmbeddings,
    bare,
    check_names,
    fill,
    load_first,
    names_of,
    read_file,
    write_file,
)
from atta.train.reports.epochs import EpochReport
from atta.train.settings.common import TrainSettings
from atta.train.settings.minibatch import UNTABLED
from atta.train.steps.step import LearningRate
from atta.train.tasks.types import embedded_types

_RANK_FILES = "rank"


class RankShare(NamedTuple):
    """What trainer ``rank`` of ``world`` has saved."""

    rank: int
    world: int
    state: dict[str, Any]


def save_rank(folder: str | Path, rank: int, world: int, place: RunPlace, state: Mapping[str, Any]) -> None:
    """Write what ``rank`` of ``world`` keeps at a place: tensors and plain values. Raises the errors of ``save_checkpoint``."""
    write_file(folder, _rank_file(rank, place), {"rank": rank, "world": world, "state": dict(state)})


def load_rank(folder: str | Path, rank: int, world: int, at: RunPlace, device: torch.device) -> dict[str, Any]:
    """What ``save_rank`` has written. Raises DataError: the file is missing or damaged, or comes from another trainer
    or number of trainers."""
    return _read(folder, rank, at, device, world).state


def load_shares(folder: str | Path, rank: int, world: int, at: RunPlace, device: torch.device) -> Iterator[RankShare]:
    """What trainers of a run have saved, of which there may have been more or fewer than ``world``: the files that fall
    to ``rank``. All ranks together read each of them. Raises DataError: a file is missing or damaged, or of a run of
    another number of trainers than the others."""
    own = Mirror(folder).pull(_rank_file(rank, at)).exists()
    found = _read(folder, rank if own else 0, at, device)
    if own:
        yield found
    of, number = found.world, rank + world
    del found  # it may be large
    for other in range(number, of, world):
        yield _read(folder, other, at, device, of)


def _read(folder: str | Path, rank: int, at: RunPlace, device: torch.device, world: int | None = None) -> RankShare:
    """``world``: that the file must be of; None: it tells."""
    path = Mirror(folder).pull(_rank_file(rank, at))
    if not path.exists():
        words = str(at) if at.batch else f"{at.epoch} epochs"
        raise DataError(path, f"is missing: the checkpoint of {words} goes with a file of each trainer")
    saved = read_file(path, device)
    if not isinstance(saved.get("state"), dict):
        raise DataError(path, "has no state of a trainer")
    told = saved.get("world")
    if type(told) is not int or world not in (None, told):
        raise DataError(path, f"was made with --trainers {told}, not {world or 'a number of them'}")
    if saved.get("rank") != rank:
        raise DataError(path, f"is of trainer {saved.get('rank')}, not {rank}")
    return RankShare(rank, told, saved["state"])


def prune_ranks(folder: str | Path, rank: int, world: int, at: RunPlace) -> None:
    """Remove this rank's files of other places than ``at``. Rank 0 also removes those of ranks from ``world`` on."""
    place, kept = Mirror(folder), _rank_file(rank, at)
    for name in fnmatch.filter(place.names(), f"{_RANK_FILES}-*-*.pt"):
        number = Path(name).stem.rpartition("-")[2]
        of_nobody = rank == 0 and number.isdecimal() and int(number) >= world
        if name != kept and (number == str(rank) or of_nobody):
            remove_partial_file(place.path / name)
            place.remove(name)


def _rank_file(rank: int, at: RunPlace) -> str:
    within = f"-{at.batch}" if at.batch else ""
    return f"{_RANK_FILES}-{at.epoch}{within}-{rank}.pt"


@dataclass
class PartialEpoch:
    """Figures of one rank, from the start of an epoch; ``seconds``: without checkpoints.

    Attributes:
        loss: float64 scalar, sum of the seeds' losses, on the rank's device: reading it makes the CPU wait for a GPU.
        known: int64 scalar, number of seeds with a target.
    """

    loss: torch.Tensor
    known: torch.Tensor
    batches: int = 0
    seeds: int = 0
    edges: int = 0
    remote_bytes: float = 0.0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    @classmethod
    def empty(cls, device: torch.device) -> PartialEpoch:
        """Of an epoch that begins."""
        loss, known = (torch.zeros((), dtype=dtype, device=device) for dtype in (torch.float64, torch.int64))
        return cls(loss, known)

    def to_state(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {**vars(self), "phases": dict(self.phases)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PartialEpoch:
        """The inverse of ``to_state``. Raises TypeError and KeyError for something else."""
        return cls(**{**state, "phases": dict(state["phases"])})


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's random numbers on the CPU and on ``device``, uint8 tensors."""
    found = {"cpu": torch.get_rng_state()}
    return {**found, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else found


def set_random_state(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Go on with the random numbers that came next at ``random_state``."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


_SHAPE = ("strategy", "task", "model", "hidden", "heads", "depth", "decoder")  # settings that determine the weights
_KEPT = (*_SHAPE, "lr", "weight_decay", "lr_schedule", "target", "edge_type")  # those that a run cannot change


class SavedRun(NamedTuple):
    """How far a run is: its complete epochs, and its next batch."""

    epochs: list[EpochReport]
    place: RunPlace


def save_checkpoint(
    folder: str | Path,
    config: TrainSettings,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Sequence[EpochReport],
    *,
    schedule: LearningRate | None = None,
    place: RunPlace | None = None,
    schema: Schema | None = None,
) -> None:
    """Write everything that the next epoch depends on; the rest of an epoch depends on the files of ranks, too. A crash
    leaves the old file or the new one, never a part. Raises DiskFullError, and ConfigError: it cannot be written.
    place: the next batch of each trainer; None: the first one of an epoch; schema: of the data, whose names are kept."""
    place = place or RunPlace(len(epochs))
    state = {
        "shape": _shape(config, schema),
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
    schema: Schema | None = None,
) -> None:
    """Write the model of the epoch with the best figure of validation so far; its weights also as safetensors."""
    learnt = {} if embeddings is None else {f"{EMBEDDINGS}{t}": rows for t, rows in embeddings.rows.items()}
    weights = {**model.state_dict(), **learnt}
    state = {"shape": _shape(config, schema), "model": weights, "epoch": asdict(epoch)}
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
    schedule: LearningRate | None = None,
    schema: Schema | None = None,
) -> SavedRun:
    """Fill model, optimiser and schedule from the checkpoint in ``folder``; return how far the run is. A file cannot run code:
    only tensors and plain values are read. Raises DataError: it is damaged, or of another version, model or data."""
    path = Mirror(folder).pull(LAST)
    if not path.is_symlink() and not path.exists():
        return SavedRun([], RunPlace(0))
    saved = _read_run(path, config, schema, device)
    try:
        fill(model, bare(saved["model"]), path)
        optimizer.load_state_dict(saved["optimizer"])
        if schedule is not None:
            schedule.load_state_dict(saved["schedule"])
        epochs = _epochs_of(path, saved)
        return SavedRun(epochs, RunPlace(**{**saved["loader"], "epoch": len(epochs)}))
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise DataError(path, f"does not fit this model: {error}") from error


def place_in(folder: str | Path) -> RunPlace:
    """Where the checkpoint in ``folder`` goes on; raises DataError if it is missing or damaged."""
    found: Any = read_file(Mirror(folder).pull(LAST), torch.device("cpu")).get("loader")
    try:
        return RunPlace(**found)
    except TypeError:
        raise DataError(folder, f"{LAST} does not tell its place") from None


def check_saved(config: TrainSettings, schema: Schema) -> list[EpochReport]:
    """Refuse to go on with a run, or to begin with weights, of other data or another kind of model. Returns the epochs of the
    run to go on with. Raises DataError."""
    cpu = torch.device("cpu")
    if config.resume and config.checkpoint is not None and (path := Mirror(config.checkpoint).pull(LAST)).exists():
        return _epochs_of(path, _read_run(path, config, schema, cpu))
    if config.init_from is not None:
        found = load_first(config.init_from, cpu, schema)
        model, task = found.shape.get("model"), found.shape.get("task")
        if (model, task in UNTABLED) != (config.model, config.task in UNTABLED):
            has = f"--init-from: has a model {model} of --task {task}"
            raise DataError(found.path, f"{has}, which does not fit {config.model} of --task {config.task}")
    return []


def _epochs_of(path: Path, saved: Mapping[str, Any]) -> list[EpochReport]:
    with blaming(DataError, path, "does not fit this model", of=(LookupError, ValueError, TypeError, AttributeError)):
        return [EpochReport.from_dict(e) for e in saved["epochs"]]


def _read_run(path: Path, config: TrainSettings, schema: Schema | None, device: torch.device) -> dict[str, Any]:
    saved = read_file(path, device)
    shape = saved.get("shape", {})
    if not isinstance(shape, dict):
        raise DataError(path, "does not tell its model")
    for name, value in _shape(config).items():
        if (was := shape.get(name)) != value:
            raise DataError(path, f"was made with {name} {was}, not {value}")
    check_names(path, shape, schema)
    return saved


def _shape(config: TrainSettings, schema: Schema | None = None) -> dict[str, Any]:
    shape = {name: getattr(config, name, None) for name in _KEPT}  # not every strategy has them all
    if schema is None:
        return shape
    unread = {f"features of {t}" for t in embedded_types(schema, config)}
    return {**shape, NAMES: {what: names for what, names in names_of(schema, shape).items() if what not in unread}}
