"""``pipegcn``: rows and gradients of the epoch before, sent while this one computes (PipeGCN)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atta.train.settings import PipeGcnSettings
from atta.train.strategies.exchange import reading_rows
from atta.train.strategies.forecasts import pipegcn_forecasts

if TYPE_CHECKING:
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY"]


def _decisions(settings: PipeGcnSettings) -> Decisions:
    from atta.train.stale.decisions.common import decisions_of
    from atta.train.stale.decisions.pipegcn import PipeGcnDecisions

    found: Decisions = decisions_of(PipeGcnDecisions, settings)
    return found


STRATEGY = reading_rows(
    "pipegcn",
    "as exchange, with rows and gradients of the epoch before, sent while this one computes",
    PipeGcnSettings,
    _decisions,
    forecasts=pipegcn_forecasts,
)
