"""``exchange``: all vertices in one step, each computed by one trainer; rows travel to all who read them, between servers
too.

This is exact full-graph training as CAGNET and other systems do it. Each server holds its own partition and the features
of its HALO vertices, and no process holds the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.settings import ExchangeSettings, ServerSettings
from atta.train.strategies.forecasts import exchange_forecasts
from atta.train.strategies.full import check_servers
from atta.train.strategies.strategy import TrainingStrategy, no_forecasts

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.cooperative.across.trainer import ExchangeTrainer
    from atta.train.planning.forecast import Forecast, Forecaster
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY", "check_server_parts", "reading_rows"]


def check_server_parts(settings: ServerSettings, parts: int) -> None:
    """Refuse servers that do not have a partition each; raises ConfigError, which says what would go."""
    if settings.servers != parts:
        servers = f"{settings.servers} server{'s' * (settings.servers > 1)}"
        raise ConfigError(
            f"--trainers {settings.trainers} --trainers-per-server {settings.server_size}: make {servers}, "
            f"the dataset has {parts} partitions, and each server takes one; --trainers-per-server is then --trainers "
            f"divided by {parts}"
        )


def _evaluation(settings: ExchangeSettings) -> str:
    """What validation and test vertices are predicted from."""
    return "whole graph"


def reading_rows(
    name: str,
    sentence: str,
    settings: type[ExchangeSettings],
    decisions: Callable[[Any], Decisions],
    *,
    trainers: Callable[[], type[ExchangeTrainer]] | None = None,
    forecasts: Callable[[Forecaster], Iterator[Forecast]] = no_forecasts,
    restarts: Callable[[Any], int] | None = None,
) -> TrainingStrategy:
    """The record of a strategy in which trainers read rows of others.

    ``decisions`` are made from its settings. ``trainers`` imports the class of its trainers; None: ``ExchangeTrainer``.
    ``forecasts``: one of ``atta.train.strategies.forecasts``. ``restarts``: as in ``TrainingStrategy``; None: never.
    """

    def trainer(settings: Any, cluster: atta.Cluster, device: torch.device) -> ExchangeTrainer:
        kind = (trainers or _trainers)()
        return kind(settings, cluster, device, decisions(settings))

    def check(settings: Any) -> None:
        check_servers(settings)
        decisions(settings)

    found = TrainingStrategy(
        name=name,
        sentence=sentence,
        settings=settings,
        trainer=trainer,
        check=check,
        evaluation=_evaluation,
        counted="training vertices",
        check_parts=check_server_parts,
        forecasts=forecasts,
    )
    return found if restarts is None else replace(found, restarts=restarts)


def _trainers() -> type[ExchangeTrainer]:
    from atta.train.cooperative.across.trainer import ExchangeTrainer

    return ExchangeTrainer


def _decisions(settings: ExchangeSettings) -> Decisions:
    from atta.train.stale.decisions.common import ExchangeDecisions

    return ExchangeDecisions()


STRATEGY = reading_rows(
    "exchange",
    "all vertices in one step, each computed once; rows travel between servers",
    ExchangeSettings,
    _decisions,
    forecasts=exchange_forecasts,
)
