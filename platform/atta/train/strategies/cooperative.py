"""``cooperative``: large batches of a server's subgraph, which its trainers share (GraNNDis, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.settings import CooperativeSettings
from atta.train.strategies.full import STRATEGY as FULL
from atta.train.strategies.full import check_full

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.cooperative.trainer import ServerTrainer
    from atta.train.planning.forecast import Forecast, Forecaster

__all__ = ["STRATEGY"]


def _trainer(settings: CooperativeSettings, cluster: atta.Cluster, device: torch.device) -> ServerTrainer:
    from atta.train.cooperative.trainer import ServerTrainer

    return ServerTrainer(settings, cluster, device)


def _check(settings: CooperativeSettings) -> None:
    check_full(settings)
    if (settings.co_batches is None) == (settings.memory is None):
        raise ConfigError("--strategy cooperative: give either co-batches=R (steps per epoch) or memory=SIZE")


def _forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    bounds = forecaster.sizes.co_batch_rule
    for batches, work in forecaster.sizes.co_batches.items():
        options = (
            *("--strategy", f"cooperative:co-batches={batches},eas={bounds.max_hop},{bounds.fanout}"),
            *("--trainers-per-server", str(forecaster.machines.trainers)),
        )
        yield forecaster.shared("cooperative", f"cooperative, {batches} co-batches", work, options, steps=batches)


STRATEGY = replace(
    FULL,
    name="cooperative",
    sentence="large batches shared by the trainers of a server",
    settings=CooperativeSettings,
    trainer=_trainer,
    check=_check,
    forecasts=_forecasts,
)
