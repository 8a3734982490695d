"""``exchange``, ``sancus`` and ``pipegcn``: all vertices in one step, each computed by one trainer; rows travel to all who
read them, between servers too.

Exact full-graph training (``exchange``) is what CAGNET and other systems do. Each server holds its own partition and the
features of its HALO vertices, and no process holds the whole graph. ``sancus`` sends rows only when their readers' copies
are not good enough any more. ``pipegcn`` reads rows of the epoch before, sent while this one computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.exchange.policies import ExactPolicy, PipeGcnPolicy, SancusPolicy
from atta.train.exchange.policy import RowPolicy, policy_of
from atta.train.settings import ExchangeSettings, PipeGcnSettings, SancusSettings, ServerSettings
from atta.train.strategies.strategy import TrainingStrategy, check_servers

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.exchange.trainer import ExchangeTrainer
    from atta.train.planning.forecast import Forecast, Forecaster

_TURNS = "owners take turns, so links carry as much in each epoch"
GAP_SENDS = 0.5
"""Share of epochs in which ``bound=gap`` sends. It depends on the rows: with the default bound ``_GAP_RANGE``."""
_GAP_RANGE = "0.3 to 0.75"


def check_server_parts(settings: ServerSettings, parts: int) -> None:
    """Refuse servers that do not have a partition each; raises ConfigError, which says what would."""
    if settings.servers != parts:
        servers = f"{settings.servers} server{'s' * (settings.servers > 1)}"
        raise ConfigError(
            f"--trainers {settings.trainers} --trainers-per-server {settings.server_size}: make {servers}, "
            f"the dataset has {parts} partitions, and each server takes one; --trainers-per-server is then --trainers "
            f"divided by {parts}"
        )


def whole_graph(settings: Any) -> str:
    """What validation and test vertices are predicted from."""
    return "whole graph"


def reading_rows(
    name: str,
    sentence: str,
    settings: type[ExchangeSettings],
    *,
    forecasts: Callable[[Forecaster], Iterator[Forecast]],
    policy: Callable[[Any], RowPolicy],
    trainers: Callable[[], type[ExchangeTrainer]],
    **more: Any,
) -> TrainingStrategy:
    """The record of a strategy in which trainers read rows of others.

    ``policy`` makes it from the strategy's settings. ``trainers`` imports the class of its trainers. ``more``: other
    fields of the record.
    """

    def trainer(settings: Any, cluster: atta.Cluster, device: torch.device) -> ExchangeTrainer:
        return trainers()(settings, cluster, device, policy(settings))

    def check(settings: Any) -> None:
        check_servers(settings)
        policy(settings)

    return TrainingStrategy(
        name=name,
        sentence=sentence,
        settings=settings,
        trainer=trainer,
        check=check,
        evaluation=whole_graph,
        counted="training vertices",
        check_parts=check_server_parts,
        forecasts=forecasts,
        **more,
    )


def _trainers() -> type[ExchangeTrainer]:
    from atta.train.exchange.trainer import ExchangeTrainer

    return ExchangeTrainer


def exchange_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel in every epoch."""
    if forecaster.machines.servers > 1:
        yield forecaster.reading("exchange", "exchange", forward=1, backward=1)


def sancus_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """After the warm-up rows travel every eps + 1 epochs, or when they have changed; gradients in every epoch."""
    if forecaster.machines.servers < 2:
        return
    eps, first = 1, f"the first {SancusSettings.warmup} epochs are exact"
    for bound, reason in (("epoch", ""), ("adaptive", _TURNS)):
        yield forecaster.reading(
            "sancus",
            f"sancus, {bound} bound {eps}",
            settings=f"bound={bound},eps={eps}" if bound != SancusSettings.bound else f"eps={eps}",
            forward=1 / (eps + 1),
            backward=1,
            ages=(0, eps),
            copies=1,
            risk=f"{first}; deeper models and larger bounds lose more accuracy",
            measured="sancus-e1",
            reason=reason,
        )
    yield forecaster.reading(
        "sancus",
        "sancus, gap bound",
        settings="bound=gap",
        forward=GAP_SENDS,
        backward=1,
        ages=(0, None),
        copies=2,  # the second is of own rows as they were sent: of each at most one for each of its readers
        risk=f"{first}; then the change of rows is bounded, not their age",
        measured="sancus-gap",
        reason=f"rows travel when they have changed: half of the epochs is assumed, {_GAP_RANGE} were found; owners "
        "keep a second copy of their rows",
    )


def pipegcn_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel in every epoch, while trainers compute. Two versions of each are kept."""
    if forecaster.machines.servers > 1:
        yield forecaster.reading(
            "pipegcn",
            "pipegcn",
            forward=1,
            backward=1,
            ages=(1, 1),
            copies=4,
            overlaps=True,
            risk="rows and gradients are always one epoch old, which slows down convergence a little",
            measured="pipegcn",
        )


STRATEGIES = (
    reading_rows(
        "exchange",
        "all vertices in one step, each computed once; rows travel between servers",
        ExchangeSettings,
        forecasts=exchange_forecasts,
        policy=lambda settings: ExactPolicy(),
        trainers=_trainers,
    ),
    reading_rows(
        "sancus",
        "as exchange, but rows are sent only when the copies of their readers are too old",
        SancusSettings,
        forecasts=sancus_forecasts,
        policy=partial(policy_of, SancusPolicy),
        trainers=_trainers,
    ),
    reading_rows(
        "pipegcn",
        "as exchange, with rows and gradients of the epoch before, sent while this one computes",
        PipeGcnSettings,
        forecasts=pipegcn_forecasts,
        policy=partial(policy_of, PipeGcnPolicy),
        trainers=_trainers,
    ),
)
