"""``sancus``: rows of other servers are sent only when their readers' copies are not good enough any more (SANCUS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atta.train.settings import SancusSettings
from atta.train.strategies.exchange import reading_rows
from atta.train.strategies.forecasts import sancus_forecasts

if TYPE_CHECKING:
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY"]


def _decisions(settings: SancusSettings) -> Decisions:
    from atta.train.stale.decisions.common import decisions_of
    from atta.train.stale.decisions.sancus import SancusDecisions

    found: Decisions = decisions_of(SancusDecisions, settings)
    return found


STRATEGY = reading_rows(
    "sancus",
    "as exchange, but rows are sent only when the copies of their readers are too old",
    SancusSettings,
    _decisions,
    forecasts=sancus_forecasts,
)
