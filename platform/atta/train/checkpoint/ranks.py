"""What each rank adds to a checkpoint, and the place in mid-epoch."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from atta.errors import DataError
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import remove_partial_file
from atta.train.checkpoint.files import VERSION, RunPlace, read_file, write_file

_RANK_FILES = "rank"


class RankShare(NamedTuple):
    """What trainer ``rank`` of ``world`` has saved."""

    rank: int
    world: int
    state: dict[str, Any]


def save_rank(folder: str | Path, rank: int, world: int, place: RunPlace, state: Mapping[str, Any]) -> None:
    """Write what ``rank`` of ``world`` keeps at a place: tensors and plain values.

    Raises the errors of ``save_checkpoint``.
    """
    saved = {"version": VERSION, "rank": rank, "world": world, "state": dict(state)}
    write_file(folder, _rank_file(rank, place), saved)


def load_rank(folder: str | Path, rank: int, world: int, at: RunPlace, device: torch.device) -> dict[str, Any]:
    """What ``save_rank`` has written.

    Raises:
        DataError: the file is missing or damaged, or comes from another trainer or number of trainers.
    """
    return _read(folder, rank, at, device, world).state


def load_shares(folder: str | Path, rank: int, world: int, at: RunPlace, device: torch.device) -> Iterator[RankShare]:
    """What trainers of a run have saved, of which there may have been more or fewer than ``world``: the files that fall
    to ``rank``. All ranks together read each of them.

    Raises:
        DataError: a file is missing or damaged, or of a run of another number of trainers than the others.
    """
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
        raise DataError(path, f"is missing: the checkpoint of {_words(at)} goes with a file of each trainer")
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


def _words(at: RunPlace) -> str:
    return str(at) if at.batch else f"{at.epoch} epochs"


@dataclass
class PartialEpoch:
    """Figures of one rank, from the start of an epoch.

    Attributes:
        loss: float64 scalar, sum of the seeds' losses, on the rank's device: reading it makes the CPU wait for a GPU.
        known: int64 scalar, number of seeds with a target.
        batches, seeds, edges, remote_bytes: counted so far.
        seconds: spent so far, without checkpoints.
        phases: seconds by phase.
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
        return cls(
            torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), dtype=torch.int64, device=device)
        )

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
