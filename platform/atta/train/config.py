"""Every setting of a training run: one frozen object for the command line, Python and the trainer processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError, UnknownNameError

__all__ = ["DEVICES", "MODELS", "STRATEGIES", "TrainConfig"]

MODELS = ("sage", "gcn", "gat")
STRATEGIES = ("minibatch",)
DEVICES = ("auto", "cpu", "cuda")

_AT_LEAST_ONE = (
    *("trainers", "epochs", "batch_size", "hidden", "heads", "eval_every"),
    *("layers", "eval_batch_size", "threads", "patience"),
)


@dataclass(frozen=True)
class TrainConfig:
    """What to train and how. Raises ConfigError for settings that make no sense."""

    data: str | None = None
    """Partitioned dataset; its daemons are started for the run unless ``cluster`` names running ones."""
    cluster: str | None = None
    model: str = "sage"
    strategy: str = "minibatch"
    trainers: int = 1
    epochs: int = 10
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per vertex and hop, counted from the seeds, -1 = all; one hop per layer."""
    layers: int | None = None
    """Layers of the model: as many as there are hops, or any number with a single fan-out, which then holds for every hop."""
    batch_size: int = 1024
    """Seeds per trainer and step."""
    hidden: int = 256
    heads: int = 4
    """Attention heads (gat)."""
    lr: float = 0.01
    weight_decay: float = 0.0
    dropout: float = 0.5
    seed: int = 0
    seeds: str = "local"
    eval_every: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    eval_num_neighbors: tuple[int, ...] | None = None
    """Fan-outs of validation and test (default: those of training)."""
    eval_batch_size: int | None = None
    patience: int | None = None
    """Stop after so many evaluations in a row without a better validation accuracy (default: never)."""
    device: str = "auto"
    threads: int | None = None
    """Worker threads per daemon (default: the cores shared among the daemons)."""
    checkpoint: str | None = None
    """Folder for a checkpoint after every epoch."""
    resume: bool = False
    verbose: bool = True
    """Print a line per epoch on standard error, with a progress bar if that is a terminal."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("model", self.model, MODELS),
            ("strategy", self.strategy, STRATEGIES),
            ("device", self.device, DEVICES),
            ("seed policy", self.seeds, ("local", "global")),
        ):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if (self.data is None) == (self.cluster is None):
            raise ConfigError("give either --data (a partitioned dataset) or --cluster (running daemons)")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_option(name)} {value}: must be at least 1")
        for name in ("num_neighbors", "eval_num_neighbors"):
            self._check_fan_outs(name)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout {self.dropout}: must lie in [0, 1)")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"--lr {self.lr}: must be positive")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"--weight-decay {self.weight_decay}: must not be negative")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"--seed {self.seed}: must be 0 to 2**63 - 1")
        if self.resume and self.checkpoint is None:
            raise ConfigError("--resume needs --checkpoint DIR")

    def _check_fan_outs(self, name: str) -> None:
        hops = getattr(self, name)
        if hops is None:
            return
        text = f"{_option(name)} {','.join(map(str, hops))}"
        if not hops or any(k < -1 or k == 0 for k in hops):
            raise ConfigError(f"{text}: one number per layer, each -1 (all) or at least 1")
        if len(hops) not in (1, self.depth):
            raise ConfigError(f"{text}: {len(hops)} hops for {self.depth} layers")

    @property
    def depth(self) -> int:
        """Number of layers, and of hops."""
        return len(self.num_neighbors) if self.layers is None else self.layers

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of training, one per layer, from the seeds outwards."""
        return self._per_layer(self.num_neighbors)

    @property
    def eval_fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of validation and test, one per layer."""
        return self._per_layer(self.eval_num_neighbors or self.num_neighbors)

    def _per_layer(self, hops: tuple[int, ...]) -> tuple[int, ...]:
        return hops * self.depth if len(hops) == 1 else hops

    def to_dict(self) -> dict[str, Any]:
        """Every setting by name, as plain JSON values and tuples."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """The inverse of ``to_dict``, also after a round trip through JSON; an unknown setting is a UnknownNameError."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in settings:
            if name not in known:
                raise UnknownNameError.of("setting", name, known)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        return cls(**values)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
