"""Every setting of a training run: one frozen object for the command line, Python and the trainer processes."""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import ConfigError, UnknownNameError

__all__ = ["DEVICES", "MODELS", "STRATEGIES", "TrainConfig"]

MODELS = ("sage", "gcn", "gat")
STRATEGIES = ("minibatch",)
DEVICES = ("auto", "cpu", "cuda")


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
    """In-neighbours per vertex and hop, counted from the seeds; one hop per layer."""
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
    device: str = "auto"
    threads: int | None = None
    """Worker threads per daemon (default: the cores shared among the daemons)."""
    checkpoint: str | None = None
    """Folder for a checkpoint after every epoch."""
    resume: bool = False
    verbose: bool = True
    """Print a line per epoch on standard error."""

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
        for name in ("trainers", "epochs", "batch_size", "hidden", "heads", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if not self.num_neighbors or any(k < -1 for k in self.num_neighbors):
            raise ConfigError(f"--num-neighbors {self.num_neighbors}: one number per layer, each -1 (all) or more")
        if self.eval_num_neighbors is not None and len(self.eval_num_neighbors) != len(self.num_neighbors):
            raise ConfigError("--eval-num-neighbors must have as many hops as --num-neighbors")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout {self.dropout}: must lie in [0, 1)")
        if not self.lr > 0 or self.weight_decay < 0:
            raise ConfigError(f"--lr {self.lr} --weight-decay {self.weight_decay}: must be positive and not negative")
        if self.resume and self.checkpoint is None:
            raise ConfigError("--resume needs --checkpoint DIR")
