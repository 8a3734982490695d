"""Every setting of a training run: one frozen object for the command line, Python and the trainer processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError, UnknownNameError
from atta.samplers.dag.plan import SpecLimits
from atta.samplers.local.server import Rule
from atta.samplers.operators.server import Closure, ExpansionAware

__all__ = ["DEEP_MODELS", "DEVICES", "MODELS", "STRATEGIES", "TrainConfig"]

DEEP_MODELS = ("resgcn+", "deepergcn")
MODELS = ("sage", "gcn", "gat", *DEEP_MODELS)
STRATEGIES = ("minibatch", "full", "cooperative")
DEVICES = ("auto", "cpu", "cuda")

_AT_LEAST_ONE = (
    *("trainers", "epochs", "batch_size", "hidden", "heads", "eval_every"),
    *("layers", "eval_batch_size", "threads", "patience"),
    *("trainers_per_server", "co_batches", "memory"),
)
_BELONGS = {
    "minibatch": ("num_neighbors", "batch_size", "seeds", "eval_num_neighbors", "eval_batch_size"),
    "full or cooperative": ("trainers_per_server", "eas", "resample_every"),
    "cooperative": ("co_batches", "memory"),
}
"""Settings that only some strategies look at; any other one belongs to all."""
_MOST_LAYERS = 1000
_MOST = {"trainers": 1024, "trainers_per_server": 1024, "threads": 1024}
"""Processes and threads: one per core is useful, so more than this is a slip of the pen."""


@dataclass(frozen=True)
class TrainConfig:
    """What to train and how. Raises ConfigError for settings that make no sense."""

    data: str | None = None
    """Partitioned dataset; its daemons are started for the run unless ``cluster`` names running ones."""
    cluster: str | None = None
    model: str = "sage"
    strategy: str = "minibatch"
    """``minibatch``: sampled batches, each trainer its own. ``full``, ``cooperative``: the trainers of a server share the subgraph
    of all its vertices, or of large batches of them (GraNNDis)."""
    trainers: int = 1
    epochs: int = 10
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    """In-neighbours per vertex and hop, counted from the seeds, -1 = all; one hop per layer."""
    layers: int | None = None
    """Layers of the model: as many as there are hops, or any number with a single fan-out, which then holds for every hop. For
    ``full`` and ``cooperative`` any number (default 3)."""
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
    trainers_per_server: int | None = None
    """Consecutive trainers that form a server (default: all of them form one)."""
    eas: tuple[int, int] | None = None
    """Expansion-aware sampling: (hops, new neighbours per vertex) outside the server's own vertices (default: exact closure)."""
    resample_every: int = 0
    """Epochs after which the expansion-aware sample is drawn anew, 0 = never."""
    co_batches: int | None = None
    """Steps per epoch (cooperative); 1 stays on the device, as ``full`` does."""
    memory: int | None = None
    """Bytes per trainer, from which the number of steps follows instead (cooperative)."""
    checkpoint_layers: bool = False
    """Compute activations of deep models again in backward rather than keep them."""
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
        for name, most in _MOST.items():
            if (value := getattr(self, name)) is not None and value > most:
                raise ConfigError(f"{_option(name)} {value}: must be at most {most} (about one per core is useful)")
        self._check_strategy()
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

    def _check_strategy(self) -> None:
        self._check_belonging()
        if self.model == "gat" and self.hidden % self.heads:
            raise ConfigError(f"--hidden {self.hidden}: gat divides it among --heads {self.heads}, which does not go")
        if self.checkpoint_layers and self.model not in DEEP_MODELS:
            raise ConfigError(f"--checkpoint-layers: only for --model {' and '.join(DEEP_MODELS)}, not {self.model}")
        if self.strategy == "minibatch":
            self._check_mini_batches()
        else:
            self._check_servers()

    def _check_mini_batches(self) -> None:
        if self.depth > SpecLimits.hops:
            raise ConfigError(f"--layers {self.depth}: mini-batches have a hop per layer, at most {SpecLimits.hops}")
        for name in ("num_neighbors", "eval_num_neighbors"):
            self._check_fan_outs(name)

    def _check_servers(self) -> None:
        if self.depth > _MOST_LAYERS:
            raise ConfigError(f"--layers {self.depth}: must be at most {_MOST_LAYERS}")
        if self.trainers % self.server_size:
            raise ConfigError(
                f"--trainers {self.trainers}: cannot form servers of --trainers-per-server {self.server_size}"
            )
        if self.resample_every < 0:
            raise ConfigError(f"--resample-every {self.resample_every}: must not be negative")
        if self.resample_every and self.eas is None:
            raise ConfigError("--resample-every: goes with --eas, an exact closure is always the same")
        if self.eas is not None:
            text = ",".join(map(str, self.eas))
            if len(self.eas) != 2:
                raise ConfigError(f"--eas {text}: give MAX_HOP,FANOUT, such as 1,15")
            try:
                self.rule(0)
            except ConfigError as error:
                raise ConfigError(f"--eas {text}: {error}") from error
        if self.strategy == "cooperative" and (self.co_batches is None) == (self.memory is None):
            raise ConfigError("--strategy cooperative: give either --co-batches R (steps per epoch) or --memory SIZE")

    def _check_belonging(self) -> None:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for strategies, names in _BELONGS.items():
            for name in names:
                if self.strategy not in strategies.split(" or ") and getattr(self, name) != defaults[name]:
                    raise ConfigError(f"{_option(name)}: belongs to --strategy {strategies}, not {self.strategy}")

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

    @property
    def server_size(self) -> int:
        """Trainers per server."""
        return self.trainers_per_server or self.trainers

    @property
    def servers(self) -> int:
        """How many servers the trainers form."""
        return self.trainers // self.server_size

    def check_parts(self, parts: int) -> None:
        """Refuse servers that do not go with the dataset's partitions; raises ConfigError, which says what would."""
        if self.strategy == "minibatch" or self.servers in (1, parts):
            return
        raise ConfigError(
            f"--trainers {self.trainers} --trainers-per-server {self.server_size}: make {self.servers} servers, the dataset has "
            f"{parts} partitions; take --trainers {parts * self.server_size} (a server per partition), or one server for all"
        )

    def rule(self, epoch: int) -> Rule:
        """Who joins a server's own vertices in this epoch; raises ConfigError for ``eas`` out of range."""
        if self.eas is None:
            return Closure(self.depth)
        max_hop, fanout = self.eas
        return ExpansionAware(max_hop, fanout, resample=epoch // self.resample_every if self.resample_every else 0)

    @property
    def evaluation(self) -> str:
        """What validation and test vertices are predicted from, for people."""
        if self.strategy == "minibatch":
            return f"sampled neighbours, {','.join(map(str, self.eval_fan_outs))}"
        if self.eas is None:
            return f"exact closure of {self.depth} hops"
        return f"expansion-aware sample, as trained: max_hop {self.eas[0]}, fanout {self.eas[1]}"

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
