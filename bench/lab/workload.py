"""The work that every system of one benchmark does: batches to load, a model to train."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.errors import ConfigError, UnknownNameError

__all__ = ["SEEDS", "BenchWorkload", "Recipe", "ints"]

SEEDS = ("local", "global")
"""How the seeds are divided among the ranks."""


def ints(text: str) -> tuple[int, ...]:
    """Numbers with commas between them, such as fan-outs; raises ValueError for any other text."""
    return tuple(int(word) for word in text.split(","))


@dataclass(frozen=True)
class BenchWorkload:
    """Sample and fetch the split's vertices with their neighbourhoods, epoch after epoch.

    Attributes:
        num_neighbors: fan-outs, counted from the seeds.
        batch_size: seeds per batch and rank.
        split: name of the split whose vertices are the seeds.
        warm_up: epochs before measuring, at least 1.
        epochs: measured epochs, at least 1.
        seconds: at least this long is measured, in whole epochs.
        threads: number of threads that a process of a system may compute with.
        timeout_s: a system that takes longer, from its start, has failed.
        seed: seed of everything random, where the system lets one choose it.
        think_ms: how long a consumer computes on each batch, on another device; for loading only.
        seeds: ``"local"``: a rank gets the seeds near it; ``"global"``: any seeds, so that a batch needs the same work
            whatever the number of partitions. For loading only.
        drop_last: leave out the last batch of an epoch if it is not full; for loading only.
    """

    num_neighbors: tuple[int, ...]
    batch_size: int
    split: str = "train"
    warm_up: int = 6
    epochs: int = 2
    seconds: float = 10.0
    threads: int = 1
    timeout_s: float = 600.0
    seed: int = 0
    think_ms: float = 0.0
    seeds: str = "local"
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not self.num_neighbors or any(f < 1 and f != -1 for f in self.num_neighbors):
            raise ConfigError(
                f"--num-neighbors {','.join(map(str, self.num_neighbors))}: each must be positive, or -1 for all"
            )
        for name in ("batch_size", "warm_up", "epochs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if self.seconds < 0:
            raise ConfigError(f"--seconds {self.seconds:g}: must not be negative")
        if self.timeout_s <= 0:
            raise ConfigError(f"--timeout {self.timeout_s:g}: must be positive")
        if self.seeds not in SEEDS:
            raise UnknownNameError.of("--seeds", self.seeds, SEEDS)
        if not 0 <= self.think_ms < math.inf:
            raise ConfigError(f"--think {self.think_ms:g} ms: must not be negative")


@dataclass(frozen=True)
class Recipe:
    """The model that all systems of the training benchmark train: GraphSAGE (mean), a layer per hop, by Adam under DDP.

    Attributes:
        channels: number of features of a vertex.
        classes: number of classes.
        layers: number of layers, one per hop.
        hidden: width of the hidden layers.
        lr: learning rate.
        dropout: share of values dropped between layers.
        seed: seed of the initial weights.
    """

    channels: int
    classes: int
    layers: int
    hidden: int = 32
    lr: float = 0.003
    dropout: float = 0.0
    seed: int = 0
