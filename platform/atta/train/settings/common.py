"""Settings that every training run has, whatever its strategy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from atta.errors import ConfigError, DataError, blaming, near_path
from atta.observe.plugins import OpenRegistry
from atta.observe.settings import NoOption, Option, named_settings
from atta.wire.parts import AUTO

DEEP_MODELS = ("resgcn+", "deepergcn")
MODELS = ("sage", "gcn", "gat", *DEEP_MODELS)
TYPED_MODELS = ("rgcn", "hetero-sage", "hetero-gat", "hgt")
MODEL: OpenRegistry[Any] = OpenRegistry(
    "model",
    "atta.models",
    dict.fromkeys((AUTO, *MODELS, *TYPED_MODELS)),
    "a sub-class of PyG's BasicGNN",
    lambda part: any(base.__name__ == "BasicGNN" for base in getattr(part, "__mro__", ())),
)
"""All names of models; ``atta.train.models`` makes those that come with Atta. ``auto`` is the first of those that fit the
graph."""
MODEL_OPTION = Option(
    "auto: first of sage, gcn, gat, resgcn+, deepergcn; typed: rgcn, hetero-sage, hetero-gat, hgt.", choices=MODEL
)
DEVICES = ("auto", "cpu", "cuda")
LEARNING_TASKS = ("auto", "classes", "labels", "regression", "link", "edge-classes", "unsupervised", "dgi")
REGRESSION_LOSSES = ("mse", "mae")
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
LR_SCHEDULES = ("none", "cosine", "step", "plateau")
_SEEDS = 1 << 64
DEFAULT_LAYERS = 3
MOST_LAYERS = 1000
"""Of models on whole graphs; GraNNDis trains up to 112."""
PROCESSES: dict[str, Any] = {"at_least": 1, "at_most": 1024, "too_many": "about one per core is useful"}
"""Bounds of a number of processes or threads."""
BATCH_SIZE, DEFAULT_BATCH = Option("Seeds per trainer and step.", at_least=1), 1024


@dataclass(frozen=True)
class TrainSettings:
    """What every training run has, whatever its strategy."""

    data: Annotated[str | None, Option("Partitioned dataset; its daemons are started here.")] = None
    cluster: Annotated[str | None, Option("Cluster file, or addresses, of running daemons.")] = None
    model: Annotated[str, MODEL_OPTION] = MODELS[0]
    strategy: Annotated[str, NoOption("the command has it, with the strategy's settings behind it")] = "minibatch"
    task: Annotated[
        str,
        Option(
            "auto (as table y looks), classes, labels, regression, link, edge-classes; without labels: unsupervised, dgi.",
            choices=LEARNING_TASKS,
        ),
    ] = "auto"
    class_weights: Annotated[str, Option("none, balanced, or a file of numbers.", metavar="WEIGHTS")] = "none"
    regression_loss: Annotated[str, Option("Squared or absolute error.", choices=REGRESSION_LOSSES)] = "mse"
    trainers: Annotated[int, Option("Trainer processes, on all machines together.", **PROCESSES)] = 1
    epochs: Annotated[int, Option("Passes over the training vertices.", at_least=1)] = 10
    layers: Annotated[int | None, Option("Layers; one fan-out holds for all.", unset="hops, or 3", at_least=1)] = None
    checkpoint_layers: Annotated[bool, Option("Deep models: recompute activations, keep none.")] = False
    hidden: Annotated[int, Option("Width of hidden layers.", at_least=1)] = 256
    heads: Annotated[int, Option("Attention heads (gat, hetero-gat, hgt).", at_least=1)] = 4
    lr: Annotated[float, Option("Learning rate of Adam.")] = 0.01
    lr_schedule: Annotated[str, Option("none, cosine (to 0), step, plateau.", choices=LR_SCHEDULES)] = "none"
    lr_every: Annotated[
        int, Option("Epochs until the rate falls (step), or evaluations without a better figure (plateau).", at_least=1)
    ] = 10
    lr_factor: Annotated[float, Option("The learning rate falls to this share.")] = 0.1
    clip_grad_norm: Annotated[float | None, Option("Clip the gradient of a step to this norm.", unset="never")] = None
    weight_decay: Annotated[float, Option("L2 penalty on the weights.")] = 0.0
    dropout: Annotated[float | None, Option("Share of activations dropped.", unset="0.5; of links 0")] = None
    seed: Annotated[int, Option("Seed of all random choices.")] = 0
    eval_every: Annotated[int, Option("Epochs between evaluations.", at_least=1)] = 1
    patience: Annotated[int | None, Option("Stop after so many evaluations no better.", unset="never", at_least=1)] = (
        None
    )
    early_stop: Annotated[
        str | None,
        Option(
            "The same for a metric, such as loss:5, which then also tells the best epoch.",
            metavar="METRIC:PATIENCE",
            unset="never",
        ),
    ] = None
    device: Annotated[str, Option("auto: a GPU per trainer if there are enough.", choices=DEVICES)] = "auto"
    threads: Annotated[
        int | None, Option("Threads of each daemon started here.", unset="shared cores", **PROCESSES)
    ] = None
    init_from: Annotated[
        str | None, Option("Weights to begin with: a file or folder.", metavar="PATH", unset="random")
    ] = None
    checkpoint: Annotated[str | None, Option("Write checkpoints into this folder.", metavar="DIR")] = None
    checkpoint_every: Annotated[int, Option("Epochs between checkpoints.", at_least=1)] = 1
    resume: Annotated[bool, Option("Continue from the checkpoint, if there is one.")] = False
    overwrite: Annotated[bool, Option("Replace the run that --checkpoint holds.")] = False
    max_restarts: Annotated[int, Option("Restarts of all trainers after a death.", at_least=0)] = 0
    rank_timeout: Annotated[
        float, Option("A trainer silent for so long is killed.", unit="s", at_least=1, at_most=86_400)
    ] = 60.0
    logger: Annotated[
        tuple[str, ...],
        Option("csv, tensorboard, wandb, mlflow or MODULE.CLASS.", metavar="NAME:K=V,K=V", repeated=True),
    ] = ()
    metrics: Annotated[str, Option("Serve Prometheus metrics of the run, on machine 0.", metavar="HOST:PORT")] = ""
    """Empty: none."""
    verbose: Annotated[bool, NoOption("the command has --quiet, its opposite")] = True

    @property
    def answer_s(self) -> float:
        """Seconds that trainers wait for each other: one may wait for a daemon that has gone, and shall say so first."""
        from atta.client.sessions.resuming import RECONNECT_S

        return max(self.rank_timeout, 2 * RECONNECT_S)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.layers or DEFAULT_LAYERS

    @property
    def dropped(self) -> float:
        """Share of activations that are dropped. A link's score multiplies two rows: half of both tell little."""
        return self.dropout if self.dropout is not None else 0.0 if self.task == "link" else 0.5


def epoch_seed(seed: int, epoch: int, rank: int = 0, world: int = 1) -> int:
    """A seed of each rank in each epoch, below 2**64: torch and numpy take no larger ones."""
    return ((seed * 1_000_003 + epoch) * world + rank) % _SEEDS


def parse_early_stop(text: str) -> tuple[str, int]:
    """Read ``METRIC:PATIENCE``: a metric of validation, and evaluations without a better one. Raises ConfigError."""
    metric, colon, number = text.rpartition(":")
    metric = metric.strip().removeprefix("val_")
    if not (colon and metric and number.isdecimal() and int(number)):
        raise ConfigError(f"--early-stop {text}: give METRIC:PATIENCE, such as loss:5")
    return metric, int(number)


def patience_of(settings: TrainSettings) -> int | None:
    """Evaluations in a row without a better figure after which a run stops; None: it does not."""
    return settings.patience if settings.early_stop is None else parse_early_stop(settings.early_stop)[1]


def parse_logger(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``NAME:KEY=VALUE,KEY=VALUE``: one of ``LOGGERS``, or the module and name of what makes a logger, and what that is
    called with. A value is JSON, or else a text. Nothing is imported. Raises ConfigError."""
    with blaming(ConfigError, f"--logger {text}", of=ConfigError):
        name, given = named_settings(text)
    if name not in LOGGERS and not ("." in name and all(part.isidentifier() for part in name.split("."))):
        raise ConfigError(
            f"--logger {text!r}: give NAME or NAME:KEY=VALUE,...; NAME is {', '.join(LOGGERS)} or MODULE.CLASS"
        )
    return name, {key: _json_or_text(value) for key, value in given.items()}


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def check_places(data: str | None, cluster: str | None, **paths: str | None) -> None:
    """Refuse a dataset, a cluster file, and ``paths`` by their options, that are not there: at once, as loading torch takes
    seconds. Raises DataError: one is missing or damaged; ConfigError: a cluster file makes no sense."""
    from atta.partition.dataset import Dataset
    from atta.partition.disk.store import is_url
    from atta.wire.clusterfile import is_file, read_cluster

    if data is not None:
        Dataset.described(data)
    if cluster is not None and is_file(cluster):
        read_cluster(cluster)
    for option, path in paths.items():
        if path is not None and not is_url(path) and not Path(path).exists():
            raise DataError(path, f"--{option.replace('_', '-')}: there is no such file or folder{near_path(path)}")
