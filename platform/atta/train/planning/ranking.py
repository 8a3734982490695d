"""The forecasts of all strategies, ranked."""

from __future__ import annotations

from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.rates import Machines, PlannedModel, Rates
from atta.train.planning.sizes import Sizes
from atta.train.strategies import STRATEGIES

__all__ = ["forecasts"]


def forecasts(sizes: Sizes, machines: Machines, model: PlannedModel, rates: Rates) -> list[Forecast]:
    """What every strategy would take: those that fit first, the fastest first among them.

    The same arguments give the same result.
    """
    forecaster = Forecaster(sizes, machines, model, rates)
    found = [forecast for strategy in STRATEGIES.values() for forecast in strategy.forecasts(forecaster)]
    return sorted(found, key=lambda f: (not f.fits, f.seconds, f.name))
