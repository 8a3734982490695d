"""``exchange``: all vertices in one step, each computed by one trainer; rows travel to all who read them, between servers
too.

This is exact full-graph training as CAGNET and other systems do it. Each server holds its own partition and the features
of its HALO vertices, and no process holds the whole graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.settings import ExchangeSettings
from atta.train.strategies.full import check_servers
from atta.train.strategies.strategy import TrainingStrategy

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.cooperative.across.trainer import ExchangeTrainer

__all__ = ["STRATEGY"]


def _trainer(settings: ExchangeSettings, cluster: atta.Cluster, device: torch.device) -> ExchangeTrainer:
    from atta.train.cooperative.across.trainer import ExchangeTrainer

    return ExchangeTrainer(settings, cluster, device)


def _check_parts(settings: ExchangeSettings, parts: int) -> None:
    """Refuse servers that do not have a partition each; raises ConfigError, which says what would go."""
    if settings.servers != parts:
        raise ConfigError(
            f"--trainers {settings.trainers} --trainers-per-server {settings.server_size}: make {settings.servers} servers, "
            f"the dataset has {parts} partitions, and each server takes one; --trainers-per-server is then --trainers "
            f"divided by {parts}"
        )


def _evaluation(settings: ExchangeSettings) -> str:
    """What validation and test vertices are predicted from."""
    return "whole graph"


STRATEGY = TrainingStrategy(
    name="exchange",
    sentence="all vertices in one step, each computed once; rows travel between servers",
    settings=ExchangeSettings,
    trainer=_trainer,
    check=check_servers,
    evaluation=_evaluation,
    counted="training vertices",
    check_parts=_check_parts,
)
