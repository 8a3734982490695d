"""Strategies whose trainers read rows of others: all vertices in one step, each computed by one trainer. ``exchange``
is exact full-graph training, as in CAGNET. ``sancus`` and ``pipegcn`` send stale rows by messages. ``digest``, ``sat``
and ``digest-async`` leave them in tables on the daemons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.exchange import policies
from atta.train.exchange.budget import BudgetPolicy, explained
from atta.train.settings.common import DEEP_MODELS
from atta.train.settings.servers import (
    HISTORICAL_MODELS,
    HISTORY_CODECS,
    AsyncDigestSettings,
    BudgetSettings,
    DigestSettings,
    ExchangeSettings,
    HistoricalSettings,
    PipeGcnSettings,
    SancusSettings,
    SatSettings,
    ServerSettings,
    StaleSettings,
)
from atta.train.strategies.strategy import (
    Forecasts,
    TrainingStrategy,
    check_servers,
    made_servers,
    no_forecasts,
    refuse,
    trainer_at,
)

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.planning.forecast import Forecast, Forecaster

RESTARTS = 3
_BUDGETED = "exchange.budgeted:BudgetTrainer"
GAP_SENDS = 0.5
"""Share of epochs in which ``bound=gap`` sends. It depends on the rows: with the default bound 0.3 to 0.75."""


def check_server_parts(settings: ServerSettings, parts: int) -> None:
    """Refuse servers that do not have a partition each; raises ConfigError, which says what would."""
    if settings.servers != parts:
        size, over = divmod(settings.trainers, parts)
        more = f"--trainers {parts * (size + 1)} --trainers-per-server {size + 1}"
        cure = more if over or not size else f"--trainers-per-server {size}"
        raise ConfigError(f"{made_servers(settings, parts)}, and each server takes one; take {cure}")


whole_graph = partial(TrainingStrategy, evaluation=lambda settings: "whole graph", check_parts=check_server_parts)
"""The record of a strategy that trains on the whole graph, with a server for each partition."""


def reading_rows(
    name: str,
    sentence: str,
    settings: type[ExchangeSettings],
    policy: type[policies.RowPolicy],
    *,
    forecasts: Forecasts = no_forecasts,
    trainer: str = "exchange.trainer:ExchangeTrainer",
    check: Callable[[Any], None] = check_servers,
    **more: Any,
) -> TrainingStrategy:
    """The record of a strategy with this ``policy``. ``trainer``: the place of its class; ``more``: other fields."""

    def make(settings: Any, cluster: atta.Cluster, device: torch.device) -> Any:
        if getattr(settings, "budget", 0):
            return trainer_at(_BUDGETED)(settings, cluster, device, policies.policy_of(BudgetPolicy, settings))
        return trainer_at(trainer)(settings, cluster, device, policies.policy_of(policy, settings))

    def checks(settings: Any) -> None:
        check(settings)
        policies.policy_of(policy, settings)

    return whole_graph(
        name=name, sentence=sentence, settings=settings, trainer=make, check=checks, forecasts=forecasts, **more
    )


def _check_budget(settings: BudgetSettings) -> None:
    check_servers(settings)
    if settings.budget and settings.codec != "none":
        raise ConfigError(f"codec={settings.codec}: does not go with --accuracy-loss, which chooses how rows travel")


def _check_tables(settings: StaleSettings) -> None:
    if settings.depth < 2 and settings.model not in DEEP_MODELS and not settings.send_features:
        raise ConfigError(
            f"--layers {settings.depth}: a single layer of {settings.model} reads features only, which never change, so "
            "tables on the daemons would have no rows; take more layers, or --strategy exchange"
        )
    if settings.codec == "delta-int8":
        raise ConfigError("codec=delta-int8: a daemon does not know what each reader has; take bf16, fp16, int8, none")


def _check_digest(settings: DigestSettings) -> None:
    check_servers(settings)
    _check_tables(settings)
    if settings.average == "weights" and settings.clip_grad_norm is not None:
        raise ConfigError("--clip-grad-norm: there is no gradient of all trainers with average=weights")


def _check_historical(settings: HistoricalSettings) -> None:
    check_servers(settings)
    if settings.model not in HISTORICAL_MODELS:
        raise ConfigError(
            f"--model {settings.model}: historical goes with {' and '.join(HISTORICAL_MODELS)}, whose layers only add up "
            "rows of neighbours"
        )
    _check_tables(settings)
    if settings.server_size > 1 and settings.stale_across != "trainers":
        raise ConfigError(
            "--trainers-per-server above 1: trainers sample apart; give --trainers-per-server 1, or stale-across=trainers"
        )
    refuse({"send-features": settings.send_features}, "historical, whose first layer adds up features once")
    if not settings.fan_out:
        raise ConfigError("fan-out=0: must be -1 (all) or at least 1")
    if not 0 < settings.momentum <= 1:
        raise ConfigError(f"momentum={settings.momentum}: must be above 0 and at most 1")


def _check_sat(settings: SatSettings) -> None:
    from atta.train.exchange.codecs import PolylineCodec, row_codec

    _check_digest(settings)
    found = row_codec(settings.history_codec)
    if not isinstance(found, PolylineCodec) and found.name not in HISTORY_CODECS:
        raise ConfigError(f"history-codec={found.name}: must be one of {', '.join(HISTORY_CODECS)}")


def _check_async(settings: AsyncDigestSettings) -> None:
    refused = {
        "--checkpoint": settings.checkpoint is not None,
        "--metrics": bool(settings.metrics),  # there are no epochs while it trains
        "--patience": settings.patience is not None,
        "--early-stop": settings.early_stop is not None,
        "--lr-schedule": settings.lr_schedule != "none",
        "--clip-grad-norm": settings.clip_grad_norm is not None,
        "grad-sync-every": settings.grad_sync_every is not None,
        "average=weights": settings.average != "gradients",
        "phase=paper": settings.phase != "early",
    }
    refuse(refused, "digest-async, whose trainers do not wait for each other")
    for name in ("lr_scale", "eval_interval", "lease"):
        if (value := getattr(settings, name)) is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name.replace('_', '-')}={value}: must be positive")
    if settings.server_size > 1 and settings.stale_across != "trainers":
        raise ConfigError(
            "--trainers-per-server above 1: trainers of a server wait for each other; give stale-across=trainers"
        )
    if settings.server_size > 1 and settings.restarts:
        raise ConfigError(
            f"restarts={settings.restarts}: one trainer of a server cannot start again alone; give --trainers-per-server 1"
        )
    _check_digest(settings)


def _restarts(settings: AsyncDigestSettings) -> int:
    """Trainers of a server hand each other parts of the graph, so all of them would have to start again."""
    if settings.restarts is None:
        return RESTARTS if settings.server_size == 1 else 0
    return settings.restarts


def _forecasts(*ways: dict[str, Any], alone: bool = False) -> Forecasts:

    def forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
        machines = forecaster.machines
        for way in ways if machines.servers > 1 and (machines.trainers == 1 or not alone) else ():
            yield forecaster.reading(**way)

    return forecasts


def _historical_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    machines, sizes, layers = forecaster.machines, forecaster.sizes, forecaster.model.layers
    able = forecaster.model.model in HISTORICAL_MODELS and layers > 1
    if machines.servers == 1 or machines.trainers > 1 or not able:
        return
    found = forecaster.reading(
        "historical",
        f"historical, batches of {sizes.batch_size}",
        forward=(layers - 2) / (layers - 1),  # the first hidden rows do not travel
        backward=0,
        ages=(1, 1),
        copies=2,
        again=1,
        steps=max(1, math.ceil(sizes.targets / (machines.servers * sizes.batch_size))),
        risk="rows get older with every step of an epoch, and most gradients end at the cut",
    )
    yield replace(found, options=(*found.options, "--batch-size", str(sizes.batch_size)))


_EXACT = "the first half of the epochs, at most 50, is exact"
_SPEEDS = "owners that compute slowly send sooner, as readers would be ahead of them"
_EVERY, _WINDOW = policies.DigestPolicy.sync_every, SatSettings.window
_COSTS = {"sancus": 1.4, "gap": 1.25, "pipegcn": 2.4, "digest": 1.8}
"""Epochs beside one of exact training to within 1 point of its best accuracy, or 3 points where 1 was not reached: the
worst of the graphs in bench/results/stale-accuracy.md."""
_BOUNDED = {"strategy": "sancus", "backward": 1, "epochs": _COSTS["sancus"]}
_CUT = "gradients end at the cut, which costs more accuracy the more edges are cut and the deeper the model is"
_TABLES = {
    "settings": {"sync_every": _EVERY},
    "forward": 1 / _EVERY,
    "backward": 0,
    "ages": (1, _EVERY),
    "copies": 2,
    "epochs": _COSTS["digest"],
}

STRATEGIES = (
    reading_rows(
        "exchange",
        "all vertices in one step, each computed once; rows travel between servers, exact unless --accuracy-loss is given",
        BudgetSettings,
        policies.RowPolicy,
        check=_check_budget,
        explain=explained,
        forecasts=_forecasts({"strategy": "exchange", "name": "exchange", "forward": 1, "backward": 1}),
    ),
    reading_rows(
        "sancus",
        "as exchange, but rows are sent only when the copies of their readers are too old",
        SancusSettings,
        policies.SancusPolicy,
        forecasts=_forecasts(
            *(
                _BOUNDED
                | {
                    "name": f"sancus, {bound} bound 1",
                    "settings": settings,
                    "forward": 1 / 2,
                    "ages": (0, 1),
                    "copies": 1,
                    "risk": f"{_EXACT}; deeper models and larger bounds lose more accuracy",
                    "measured": "sancus-e1",
                    "reason": reason,
                }
                for bound, settings, reason in (
                    ("epoch", {"eps": 1}, ""),
                    ("adaptive", {"bound": "adaptive", "eps": 1}, _SPEEDS),
                )
            ),
            _BOUNDED
            | {
                "name": "sancus, gap bound",
                "settings": {"bound": "gap"},
                "forward": GAP_SENDS,
                "ages": (0, None),
                "copies": 2,  # the second is of own rows as they were sent: of each at most one for each of its readers
                "risk": f"{_EXACT}; then the change of rows is bounded, not their age",
                "measured": "sancus-gap",
                "epochs": _COSTS["gap"],
                "reason": "rows travel when they have changed: half of the epochs is assumed, 0.3 to 0.75 were found; "
                "owners keep a second copy of their rows",
            },
        ),
    ),
    reading_rows(
        "pipegcn",
        "as exchange, with rows and gradients of the epoch before, sent while this one computes",
        PipeGcnSettings,
        policies.PipeGcnPolicy,
        forecasts=_forecasts(
            {
                "strategy": "pipegcn",
                "name": "pipegcn",
                "forward": 1,
                "backward": 1,
                "ages": (1, 1),
                "copies": 4,  # two versions of rows, two of gradients
                "overlaps": True,
                "risk": "rows and gradients are always one epoch old, which slows down convergence",
                "measured": "pipegcn",
                "epochs": _COSTS["pipegcn"],
            }
        ),
    ),
    reading_rows(
        "digest",
        "as exchange, but rows are pulled from tables on the daemons every N epochs, and gradients end at the cut",
        DigestSettings,
        policies.DigestPolicy,
        trainer="exchange.trainer:DigestTrainer",
        check=_check_digest,
        forecasts=_forecasts(
            _TABLES
            | {"strategy": "digest", "name": f"digest, every {_EVERY} epochs", "risk": _CUT, "measured": "digest-10"}
        ),
    ),
    reading_rows(
        "sat",
        "as digest, with rows predicted from their past where that is better",
        SatSettings,
        policies.SatPolicy,
        trainer="exchange.trainer:SatTrainer",
        check=_check_sat,
        forecasts=_forecasts(
            _TABLES
            | {
                "strategy": "sat",
                "name": f"sat, every {_EVERY} epochs",
                "copies": 2 + _WINDOW,
                "predicted": _WINDOW / _EVERY,
                "risk": f"{_CUT}; predictions replace stale rows only where they are better",
                "measured": "sat",
            }
        ),
    ),
    reading_rows(
        "digest-async",
        "as digest, but no trainer waits for others: weights change whenever a gradient comes",
        AsyncDigestSettings,
        policies.AsyncDigestPolicy,
        trainer="exchange.asynchronous:AsyncDigestTrainer",
        check=_check_async,
        restarts=_restarts,
        forecasts=_forecasts(
            _TABLES
            | {
                "strategy": "digest-async",
                "name": f"digest-async, every {_EVERY} steps",
                "ages": (1, None),
                "at_one_daemon": True,
                "risk": f"{_CUT}; gradients of old weights, which more trainers make older",
                "measured": "digest-async",
                "reason": "a slow trainer holds nobody up, but all gradients go to one daemon",
            },
            alone=True,
        ),
    ),
    whole_graph(
        name="historical",
        sentence="sampled mini-batches of own vertices, with stale rows of all neighbours that were not sampled",
        settings=HistoricalSettings,
        trainer=trainer_at("exchange.historical:HistoricalTrainer"),
        check=_check_historical,
        forecasts=_historical_forecasts,
    ),
)
