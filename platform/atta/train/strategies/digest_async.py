"""``digest-async``: DIGEST without barriers. Each trainer steps by itself on weights that a daemon keeps (DIGEST-A)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.settings import AsyncDigestSettings
from atta.train.strategies.digest import decisions_on_tables
from atta.train.strategies.exchange import reading_rows
from atta.train.strategies.forecasts import async_forecasts

if TYPE_CHECKING:
    from atta.train.cooperative.across.trainer import ExchangeTrainer
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY"]

RESTARTS = 3


def _decisions(settings: AsyncDigestSettings) -> Decisions:
    from atta.train.stale.decisions.digest import AsyncDigestDecisions

    _check(settings)
    return decisions_on_tables(AsyncDigestDecisions, settings)


def _check(settings: AsyncDigestSettings) -> None:
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
    for option, given in refused.items():
        if given:
            raise ConfigError(f"{option}: does not go with digest-async, whose trainers do not wait for each other")
    for name, value in (
        ("lr-scale", settings.lr_scale), ("eval-interval", settings.eval_interval), ("lease", settings.lease)
    ):  # fmt: skip
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name}={value}: must be positive")
    if settings.server_size > 1 and settings.stale_across != "trainers":
        raise ConfigError(
            "--trainers-per-server above 1: trainers of a server wait for each other; give stale-across=trainers"
        )
    if settings.server_size > 1 and settings.restarts:
        raise ConfigError(
            f"restarts={settings.restarts}: one trainer of a server cannot start again alone; give --trainers-per-server 1"
        )


def _restarts(settings: AsyncDigestSettings) -> int:
    """Trainers of a server hand each other parts of the graph, so all of them would have to start again."""
    if settings.restarts is None:
        return RESTARTS if settings.server_size == 1 else 0
    return settings.restarts


def _trainers() -> type[ExchangeTrainer]:
    from atta.train.steps.asynchronous import AsyncDigestTrainer

    return AsyncDigestTrainer


STRATEGY = reading_rows(
    "digest-async",
    "as digest, but no trainer waits for others: weights change whenever a gradient comes",
    AsyncDigestSettings,
    _decisions,
    trainers=_trainers,
    forecasts=async_forecasts,
    restarts=_restarts,
)
