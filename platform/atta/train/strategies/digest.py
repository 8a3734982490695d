"""``digest``: rows of other servers are pulled from tables on the daemons every N epochs (DIGEST). ``sat`` predicts them
from their last synchronisations where that is better (SAT). ``digest-async`` has no barriers: each trainer steps by itself
on weights that a daemon keeps (DIGEST-A).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.exchange.policies import AsyncDigestPolicy, DigestPolicy, SatPolicy
from atta.train.exchange.policy import policy_of
from atta.train.settings import DEEP_MODELS, AsyncDigestSettings, DigestSettings, SatSettings
from atta.train.settings.servers import HISTORY_CODECS
from atta.train.strategies.exchange import reading_rows

if TYPE_CHECKING:
    from atta.train.exchange.trainer import ExchangeTrainer
    from atta.train.planning.forecast import Forecast, Forecaster

RESTARTS = 3
_CUT = "gradients end at the cut, which costs more accuracy the more edges are cut and the deeper the model is"


def _digest(settings: DigestSettings, kind: type[DigestPolicy] = DigestPolicy) -> DigestPolicy:
    """The policy of a ``kind``. Raises ConfigError for options that tables on daemons cannot follow."""
    if settings.depth < 2 and settings.model not in DEEP_MODELS and not settings.send_features:
        raise ConfigError(
            f"--layers {settings.depth}: a single layer of {settings.model} reads features only, which never change, so "
            "tables on the daemons would have no rows; take more layers, or --strategy exchange"
        )
    if settings.codec == "delta-int8":
        raise ConfigError(
            "codec=delta-int8: a daemon does not know what each reader has; take bf16, fp16, int8 or none"
        )
    if settings.average == "weights" and settings.clip_grad_norm is not None:
        raise ConfigError("--clip-grad-norm: there is no gradient of all trainers with average=weights")
    found: DigestPolicy = policy_of(kind, settings)
    return found


def _sat(settings: SatSettings) -> DigestPolicy:
    from atta.train.exchange.history import PolylineCodec, row_codec

    found = row_codec(settings.history_codec)
    if not isinstance(found, PolylineCodec) and found.name not in HISTORY_CODECS:
        raise ConfigError(f"history-codec={found.name}: must be one of {', '.join(HISTORY_CODECS)}")
    return _digest(settings, SatPolicy)


def _digest_async(settings: AsyncDigestSettings) -> DigestPolicy:
    _check_async(settings)
    return _digest(settings, AsyncDigestPolicy)


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


def _digest_trainers() -> type[ExchangeTrainer]:
    from atta.train.exchange.digest import DigestTrainer

    return DigestTrainer


def _sat_trainers() -> type[ExchangeTrainer]:
    from atta.train.exchange.digest import SatTrainer

    return SatTrainer


def _async_trainers() -> type[ExchangeTrainer]:
    from atta.train.exchange.asynchronous import AsyncDigestTrainer

    return AsyncDigestTrainer


def digest_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows travel every N epochs, gradients never. Two versions are kept."""
    if forecaster.machines.servers > 1:
        every = SatSettings.sync_every
        yield forecaster.reading(
            "digest",
            f"digest, every {every} epochs",
            settings=f"sync-every={every}",
            forward=1 / every,
            backward=0,
            ages=(1, every),
            copies=2,
            risk=_CUT,
            measured="digest-10",
        )


def sat_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """As digest, with a window of versions from which HALO rows are predicted after each synchronisation."""
    if forecaster.machines.servers > 1:
        every, window = SatSettings.sync_every, SatSettings.window
        yield forecaster.reading(
            "sat",
            f"sat, every {every} epochs",
            settings=f"sync-every={every}",
            forward=1 / every,
            backward=0,
            ages=(1, every),
            copies=2 + window,
            predicted=window / every,
            risk=f"{_CUT}; predictions replace stale rows only where they are better",
            measured="sat",
        )


def async_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """As digest, but trainers do not wait for each other, and weights are in one daemon. A trainer is a server."""
    if forecaster.machines.servers > 1 and forecaster.machines.trainers == 1:
        every = SatSettings.sync_every
        yield forecaster.reading(
            "digest-async",
            f"digest-async, every {every} steps",
            settings=f"sync-every={every}",
            forward=1 / every,
            backward=0,
            ages=(1, None),
            copies=2,
            at_one_daemon=True,
            risk=f"{_CUT}; gradients of old weights, which more trainers make older",
            measured="digest-async",
            reason="a slow trainer holds nobody up, but all gradients go to one daemon",
        )


STRATEGIES = (
    reading_rows(
        "digest",
        "as exchange, but rows are pulled from tables on the daemons every N epochs, and gradients end at the cut",
        DigestSettings,
        forecasts=digest_forecasts,
        policy=_digest,
        trainers=_digest_trainers,
    ),
    reading_rows(
        "sat",
        "as digest, with rows predicted from their past where that is better",
        SatSettings,
        forecasts=sat_forecasts,
        policy=_sat,
        trainers=_sat_trainers,
    ),
    reading_rows(
        "digest-async",
        "as digest, but no trainer waits for others: weights change whenever a gradient comes",
        AsyncDigestSettings,
        forecasts=async_forecasts,
        policy=_digest_async,
        trainers=_async_trainers,
        restarts=_restarts,
    ),
)
