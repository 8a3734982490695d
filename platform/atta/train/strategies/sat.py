"""``sat``: as ``digest``, and rows are predicted from their last synchronisations where that is better (SAT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atta.train.settings import SatSettings
from atta.train.strategies.digest import decisions_on_tables
from atta.train.strategies.exchange import reading_rows
from atta.train.strategies.forecasts import sat_forecasts

if TYPE_CHECKING:
    from atta.train.cooperative.across.trainer import ExchangeTrainer
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY"]


def _decisions(settings: SatSettings) -> Decisions:
    from atta.train.stale.decisions.sat import SatDecisions

    return decisions_on_tables(SatDecisions, settings)


def _trainers() -> type[ExchangeTrainer]:
    from atta.train.cooperative.across.digest import SatTrainer

    return SatTrainer


STRATEGY = reading_rows(
    "sat",
    "as digest, with rows predicted from their past where that is better",
    SatSettings,
    _decisions,
    trainers=_trainers,
    forecasts=sat_forecasts,
)
