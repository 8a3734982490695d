"""The forecasts of all strategies, ranked."""

from __future__ import annotations

from collections.abc import Mapping

from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.rates import Machines, PlannedModel, Rates
from atta.train.planning.sizes import Sizes
from atta.train.strategies import STRATEGIES

__all__ = ["forecasts"]


def forecasts(
    sizes: Sizes, machines: Machines, model: PlannedModel, rates: Rates, losses: Mapping[str, str] | None = None
) -> list[Forecast]:
    """Forecasts of all strategies: those that fit into memory first, of these the fastest first, and of equally fast
    ones those with exact gradients.

    ``losses``: see ``Forecaster``. The same arguments give the same result.
    """
    forecaster = Forecaster(sizes, machines, model, rates, losses or {})
    found = [forecast for strategy in STRATEGIES.values() for forecast in strategy.forecasts(forecaster)]
    return sorted(found, key=lambda f: (not f.fits, f.seconds, not f.exact, f.name))
