"""Which trainer of a job this process is, and of how many there are."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.samplers.arguments import whole

_MOST = (1 << 32) - 1
_VARIABLES = "RANK", "WORLD_SIZE"


@dataclass(frozen=True)
class TrainerRank:
    """One trainer of a job.

    Attributes:
        rank: its number, from 0.
        world: how many there are.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError if there is no such trainer."""
        if not self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} trainers")

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world}"

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> TrainerRank:
        """The trainer with these numbers. What is None is found in this process, see ``here``.

        Raises:
            ConfigError: a number is none, or there is no such trainer.
        """
        if rank is not None and world_size is not None:
            return cls(whole("rank", rank, 0, _MOST), whole("world_size", world_size, 1, _MOST))
        found = cls.here()
        if rank is None and world_size is None:
            return found
        if rank is not None:
            return cls(whole("rank", rank, 0, _MOST), found.world)
        return cls(found.rank, whole("world_size", world_size, 1, _MOST))

    @classmethod
    def here(cls) -> TrainerRank:
        """This process in torch's process group; without one what RANK and WORLD_SIZE say; without these the only one.

        Raises:
            ConfigError: only one of the variables is set, or one is no number: who launched this process sets the other
                one later, with the process group.
        """
        if (group := _group()) is not None:
            return group
        said = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        for name, text in said.items():
            if not text.strip().isdecimal():
                raise ConfigError(f"environment variable {name}={text!r}: must be a whole number")
        if len(said) == 1:
            (name,), (missing,) = said, set(_VARIABLES) - set(said)
            raise ConfigError(
                f"environment variable {name} is set and {missing} is not: make the loader after torch's process "
                "group, or give rank= and world_size="
            )
        return cls(int(said["RANK"]), whole("WORLD_SIZE", int(said["WORLD_SIZE"]), 1, _MOST)) if said else cls()


def _group() -> TrainerRank | None:
    """This process in the process group of torch; None if there is none. Does not import torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return TrainerRank(distributed.get_rank(), distributed.get_world_size())
