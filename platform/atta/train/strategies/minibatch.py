"""``minibatch``: each trainer samples batches of its own (DistDGL, ByteGNN)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.settings.common import TYPED_MODELS
from atta.train.settings.minibatch import (
    EDGE_CLASSES,
    INFOMAX,
    LINK,
    UNSUPERVISED,
    MinibatchSettings,
    check_links,
    parse_fan_outs,
)
from atta.train.strategies.strategy import TrainingStrategy, trainer_at

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.planning.forecast import Forecast, Forecaster

_TRAINERS = {
    LINK: ("steps.links:LinkTrainer", "steps.links:TypedLinkTrainer"),
    EDGE_CLASSES: ("steps.links:LinkTrainer", "steps.links:TypedLinkTrainer"),
    UNSUPERVISED: ("steps.unlabelled:WalkTrainer",) * 2,
    INFOMAX: ("steps.unlabelled:InfomaxTrainer",) * 2,
}
"""By task: the trainer of models of one type, and that of typed models."""


def _trainer(settings: MinibatchSettings, cluster: atta.Cluster, device: torch.device) -> Any:
    usual = ("steps.minibatch:MinibatchTrainer", "steps.typed:TypedTrainer")
    return trainer_at(_TRAINERS.get(settings.task, usual)[settings.model in TYPED_MODELS])(settings, cluster, device)


def _check(settings: MinibatchSettings) -> None:
    from atta.samplers.dag.plan import SpecLimits

    depth = settings.depth
    if depth > SpecLimits.hops:
        raise ConfigError(f"--layers {depth}: mini-batches have a hop per layer, at most {SpecLimits.hops}")
    for option, hops in (
        ("--num-neighbors", settings.num_neighbors),
        ("--eval-num-neighbors", settings.eval_num_neighbors),
    ):
        if hops is not None:
            _check_fan_outs(option, hops, depth)
    _check_method(settings.method)
    _check_types(settings)
    check_links(settings)


def _check_method(name: str) -> None:
    from atta.samplers.methods import Method

    if Method(name).temporal:
        raise ConfigError(f"method={name}: needs a time for each seed; give them to a loader in Python as input_time")


def _check_types(settings: MinibatchSettings) -> None:
    given = {
        "--target": settings.target,
        "--num-neighbors-by-type": settings.num_neighbors_by_type,
        "--embed": settings.embed,
        "--embedding-lr": settings.embedding_lr,
    }
    for option, value in given.items():
        if value is not None and settings.model not in TYPED_MODELS:
            cure = "; atta import --reverse makes any graph typed" if option == "--embed" else ""
            raise ConfigError(f"{option}: goes with --model {', '.join(TYPED_MODELS)}, not {settings.model}{cure}")
    if settings.embedding_lr is not None and not 0 < settings.embedding_lr < math.inf:
        raise ConfigError(f"--embedding-lr {settings.embedding_lr}: must be positive")
    if settings.num_neighbors_by_type is not None:
        parse_fan_outs(settings.num_neighbors_by_type, settings.depth)


def _check_fan_outs(option: str, hops: tuple[int, ...], depth: int) -> None:
    text = f"{option} {','.join(map(str, hops))}"
    if not hops or any(k < -1 or k == 0 for k in hops):
        raise ConfigError(f"{text}: one number per layer, each -1 (all) or at least 1")
    if len(hops) not in (1, depth):
        raise ConfigError(f"{text}: {len(hops)} hops for {depth} layers")


def _forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    from atta.samplers.dag.plan import SpecLimits

    sizes = forecaster.sizes
    if sizes.mini_batch is not None and sizes.targets and forecaster.model.layers <= SpecLimits.hops:
        fan_outs = ",".join(map(str, sizes.num_neighbors))
        options = ("--strategy", "minibatch", "--num-neighbors", fan_outs, "--batch-size", str(sizes.batch_size))
        yield forecaster.sampled(sizes.mini_batch, options)


MINIBATCH = TrainingStrategy(
    name="minibatch",
    sentence="sampled batches per trainer",
    settings=MinibatchSettings,
    trainer=_trainer,
    check=_check,
    evaluation=lambda settings: f"sampled neighbours, {','.join(map(str, settings.eval_fan_outs))}",
    links=True,
    forecasts=_forecasts,
)
STRATEGIES = (MINIBATCH,)
