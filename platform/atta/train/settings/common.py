"""Settings that every training run has, whatever its strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option

__all__ = [
    "DEEP_MODELS",
    "DEVICES",
    "LEARNING_TASKS",
    "LR_SCHEDULES",
    "MODELS",
    "MOST_LAYERS",
    "MOST_PROCESSES",
    "ONE_PER_CORE",
    "REGRESSION_LOSSES",
    "TYPED_MODELS",
    "EarlyStop",
    "TrainSettings",
    "epoch_seed",
    "parse_early_stop",
    "patience_of",
]

DEEP_MODELS = ("resgcn+", "deepergcn")
MODELS = ("sage", "gcn", "gat", *DEEP_MODELS)
TYPED_MODELS = ("rgcn", "hetero-sage", "hetero-gat", "hgt")
DEVICES = ("auto", "cpu", "cuda")
LEARNING_TASKS = ("auto", "classes", "labels", "regression", "link", "edge-classes", "unsupervised", "dgi")
REGRESSION_LOSSES = ("mse", "mae")
LR_SCHEDULES = ("none", "cosine", "step", "plateau")
_SEEDS = 1 << 64
DEFAULT_LAYERS = 3
MOST_LAYERS = 1000
"""Of models on whole graphs; GraNNDis trains up to 112."""
MOST_PROCESSES = 1024
ONE_PER_CORE = "about one per core is useful"


@dataclass(frozen=True)
class TrainSettings:
    """What every training run has, whatever its strategy."""

    data: Annotated[str | None, Option("Partitioned dataset; its daemons are started for the run.")] = None
    cluster: Annotated[str | None, Option("Cluster file (or addresses) of daemons that run already.")] = None
    model: Annotated[str, Option("resgcn+ and deepergcn are deep; the ones after them are for typed graphs.",
                                 choices=(*MODELS, *TYPED_MODELS))] = "sage"  # fmt: skip
    strategy: Annotated[str, Option("How trainers get what they compute on.")] = "minibatch"
    task: Annotated[
        str,
        Option(
            "What table y holds (auto: as it looks); or of edges: link, edge-classes; or, without labels, "
            "unsupervised (GraphSAGE), dgi.",
            choices=LEARNING_TASKS,
        ),
    ] = "auto"
    class_weights: Annotated[
        str,
        Option("Weights of classes in the loss: none, balanced, or a file with a number per class.", metavar="WEIGHTS"),
    ] = "none"
    regression_loss: Annotated[
        str, Option("Squared or absolute error, with --task regression.", choices=REGRESSION_LOSSES)
    ] = "mse"
    trainers: Annotated[
        int,
        Option(
            "Trainer processes, on all machines together.", at_least=1, at_most=MOST_PROCESSES, too_many=ONE_PER_CORE
        ),
    ] = 1
    epochs: Annotated[int, Option("Passes over the training vertices.", at_least=1)] = 10
    layers: Annotated[
        int | None,
        Option("Model layers; with a single fan-out it holds for all.", unset="one per hop, or 3", at_least=1),
    ] = None
    checkpoint_layers: Annotated[
        bool, Option("Deep models: recompute activations in backward instead of keeping them, to save memory.")
    ] = False
    hidden: Annotated[int, Option("Width of hidden layers.", at_least=1)] = 256
    heads: Annotated[int, Option("Attention heads (gat, hetero-gat, hgt).", at_least=1)] = 4
    lr: Annotated[float, Option("Learning rate of Adam.")] = 0.01
    lr_schedule: Annotated[
        str,
        Option(
            "The learning rate over epochs: cosine falls to 0; step and plateau fall by --lr-factor.",
            choices=LR_SCHEDULES,
        ),
    ] = "none"
    lr_every: Annotated[
        int,
        Option("Epochs until it falls (step), or evaluations in a row without a better figure (plateau).", at_least=1),
    ] = 10
    lr_factor: Annotated[float, Option("What it is multiplied by when it falls (step, plateau).")] = 0.1
    clip_grad_norm: Annotated[
        float | None, Option("Clip the gradient of a step, that of all trainers together, to this norm.", unset="never")
    ] = None
    weight_decay: Annotated[float, Option("L2 penalty on the weights.")] = 0.0
    dropout: Annotated[float, Option("Probability with which an activation is dropped.")] = 0.5
    seed: Annotated[int, Option("Seed of all random choices.")] = 0
    eval_every: Annotated[
        int, Option("Epochs between evaluations; the last epoch is always evaluated.", at_least=1)
    ] = 1
    patience: Annotated[
        int | None,
        Option(
            "Stop after this many evaluations in a row without a better validation accuracy.", unset="never", at_least=1
        ),
    ] = None
    early_stop: Annotated[
        str | None,
        Option(
            "Stop after so many evaluations in a row without a better figure of validation, such as loss:5; it also "
            "decides which epoch is the best.",
            metavar="METRIC:PATIENCE",
            unset="never",
        ),
    ] = None
    device: Annotated[
        str, Option("Where models compute; auto: a GPU per trainer if there are enough.", choices=DEVICES)
    ] = "auto"
    threads: Annotated[
        int | None,
        Option(
            "Worker threads per daemon started here.",
            unset="the cores, shared among the daemons",
            at_least=1,
            at_most=MOST_PROCESSES,
            too_many=ONE_PER_CORE,
        ),
    ] = None
    init_from: Annotated[
        str | None,
        Option(
            "Begin with the weights of this checkpoint: a file, or a folder with best.pt.",
            metavar="CHECKPOINT",
            unset="random weights",
        ),
    ] = None
    checkpoint: Annotated[str | None, Option("Write checkpoints into this folder.", metavar="DIR")] = None
    checkpoint_every: Annotated[
        int, Option("Epochs between checkpoints; the last epoch always writes one.", at_least=1)
    ] = 1
    resume: Annotated[bool, Option("Continue from the checkpoint, if there is one.")] = False
    max_restarts: Annotated[
        int, Option("How often all trainers start again from the newest checkpoint when one dies.", at_least=0)
    ] = 0
    rank_timeout: Annotated[
        float,
        Option(
            "After this time a trainer without a sign of life is killed, and a collective that waits for others fails.",
            unit="s",
            at_least=1,
            at_most=86_400,
        ),
    ] = 60.0
    logger: Annotated[
        tuple[str, ...] | None,
        Option(
            "Where figures of epochs go: csv, or MODULE.CLASS with the methods of Lightning's loggers, each followed by "
            "its arguments as KEY=VALUE.",
            metavar="LOGGER,...",
            unset="nowhere",
        ),
    ] = None
    metrics: Annotated[
        str,
        Option("Prometheus metrics of the run over HTTP, such as 127.0.0.1:9091, from machine 0.", metavar="HOST:PORT"),
    ] = ""
    """Empty: none."""
    verbose: Annotated[bool, NoOption("the command has --quiet, its opposite")] = True

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.layers or DEFAULT_LAYERS


def epoch_seed(seed: int, epoch: int, rank: int = 0, world: int = 1) -> int:
    """A seed of each rank in each epoch, below 2**64: torch and numpy take no larger ones."""
    return ((seed * 1_000_003 + epoch) * world + rank) % _SEEDS


class EarlyStop(NamedTuple):
    """``--early-stop``: a metric of validation, and after how many evaluations without a better one a run stops."""

    metric: str
    patience: int


def parse_early_stop(text: str) -> EarlyStop:
    """Read ``METRIC:PATIENCE``. Raises ConfigError."""
    metric, colon, number = text.rpartition(":")
    metric = metric.strip().removeprefix("val_")
    if not (colon and metric and number.isdecimal() and int(number)):
        raise ConfigError(f"--early-stop {text}: give METRIC:PATIENCE, such as loss:5")
    return EarlyStop(metric, int(number))


def patience_of(settings: TrainSettings) -> int | None:
    """Evaluations in a row without a better figure after which a run stops; None: it does not."""
    return settings.patience if settings.early_stop is None else parse_early_stop(settings.early_stop).patience
