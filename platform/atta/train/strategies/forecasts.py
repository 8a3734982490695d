"""What ``atta plan`` predicts of the strategies in which trainers read rows of others, one function each.

Bytes follow from counted HALO rows and from how often rows and gradients travel. See ``Forecaster.reading``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atta.train.settings.stale import SancusOptions, SatOptions

if TYPE_CHECKING:
    from atta.train.planning.forecast import Forecast, Forecaster

__all__ = ["digest_forecasts", "exchange_forecasts", "pipegcn_forecasts", "sancus_forecasts", "sat_forecasts"]

_CUT = "gradients end at the cut, which costs more accuracy the more edges are cut and the deeper the model is"


def exchange_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel in every epoch."""
    if forecaster.machines.servers > 1:
        yield forecaster.reading("exchange", "exchange", forward=1, backward=1)


def sancus_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows travel every eps + 1 epochs after the warm-up, gradients in every epoch."""
    if forecaster.machines.servers > 1:
        eps = 1
        yield forecaster.reading(
            "sancus",
            f"sancus, epoch bound {eps}",
            options=("--eps", str(eps)),
            forward=1 / (eps + 1),
            backward=1,
            ages=(0, eps),
            copies=1,
            risk=f"the first {SancusOptions.warmup} epochs are exact; deeper models and larger bounds lose more accuracy",
        )


def pipegcn_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel in every epoch, while trainers compute. Two versions of each are kept."""
    if forecaster.machines.servers > 1:
        yield forecaster.reading(
            "pipegcn",
            "pipegcn",
            forward=1,
            backward=1,
            ages=(1, 1),
            copies=4,
            overlaps=True,
            risk="rows and gradients are always one epoch old, which slows down convergence a little",
        )


def digest_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows travel every N epochs, gradients never. Two versions are kept."""
    if forecaster.machines.servers > 1:
        every = SatOptions.sync_every
        yield forecaster.reading(
            "digest",
            f"digest, every {every} epochs",
            options=("--sync-every", str(every)),
            forward=1 / every,
            backward=0,
            ages=(1, every),
            copies=2,
            risk=_CUT,
        )


def sat_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """As digest, with a window of versions from which HALO rows are predicted after each synchronisation."""
    if forecaster.machines.servers > 1:
        every, window = SatOptions.sync_every, SatOptions.window
        yield forecaster.reading(
            "sat",
            f"sat, every {every} epochs",
            options=("--sync-every", str(every)),
            forward=1 / every,
            backward=0,
            ages=(1, every),
            copies=2 + window,
            predicted=window / every,
            risk=f"{_CUT}; predictions replace stale rows only where they are better",
        )
