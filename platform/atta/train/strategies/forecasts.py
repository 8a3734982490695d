"""What ``atta plan`` predicts of the strategies in which trainers read rows of others, one function each.

Bytes follow from counted HALO rows and from how often rows and gradients travel. See ``Forecaster.reading``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atta.train.settings.servers import DORYLUS_MODELS, SancusOptions, SatOptions

if TYPE_CHECKING:
    from atta.train.planning.forecast import Forecast, Forecaster

__all__ = [
    "GAP_SENDS", "async_forecasts", "digest_forecasts", "dorylus_forecasts", "exchange_forecasts", "pipegcn_forecasts",
    "sancus_forecasts", "sat_forecasts",
]  # fmt: skip

_CUT = "gradients end at the cut, which costs more accuracy the more edges are cut and the deeper the model is"
_TURNS = "owners take turns, so links carry as much in each epoch"
GAP_SENDS = 0.5
"""Share of epochs in which ``bound=gap`` sends. It depends on the rows: with the default bound ``_GAP_RANGE``."""
_GAP_RANGE = "0.3 to 0.75"


def exchange_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel in every epoch."""
    if forecaster.machines.servers > 1:
        yield forecaster.reading("exchange", "exchange", forward=1, backward=1)


def sancus_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """After the warm-up rows travel every eps + 1 epochs, or when they have changed; gradients in every epoch."""
    if forecaster.machines.servers < 2:
        return
    eps, warm = (
        1,
        f"the first {SancusOptions.warmup} epochs are exact; deeper models and larger bounds lose more accuracy",
    )
    for bound, reason in (("epoch", ""), ("adaptive", _TURNS)):
        yield forecaster.reading(
            "sancus",
            f"sancus, {bound} bound {eps}",
            settings=f"bound={bound},eps={eps}" if bound != SancusOptions.bound else f"eps={eps}",
            forward=1 / (eps + 1),
            backward=1,
            ages=(0, eps),
            copies=1,
            risk=warm,
            measured="sancus-e1",
            reason=reason,
        )
    yield forecaster.reading(
        "sancus",
        "sancus, gap bound",
        settings="bound=gap",
        forward=GAP_SENDS,
        backward=1,
        ages=(0, None),
        copies=2,  # the second is of own rows as they were sent: of each at most one for each of its readers
        risk=f"the first {SancusOptions.warmup} epochs are exact; then the change of rows is bounded, not their age",
        measured="sancus-gap",
        reason=f"rows travel when they have changed: half of the epochs is assumed, {_GAP_RANGE} were found; owners "
        "keep a second copy of their rows",
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
            measured="pipegcn",
        )


def digest_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows travel every N epochs, gradients never. Two versions are kept."""
    if forecaster.machines.servers > 1:
        every = SatOptions.sync_every
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
        every, window = SatOptions.sync_every, SatOptions.window
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
        every = SatOptions.sync_every
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


def dorylus_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Rows and gradients travel while other intervals compute. Workers get sums and give rows, in both directions, and
    compute a layer again for backward.
    """
    from atta.train.planning.sizes import AGAIN, HANDED

    machines = forecaster.machines
    if machines.servers > 1 and machines.trainers == 1 and machines.device == "cpu":
        if forecaster.model.model not in DORYLUS_MODELS:
            return
        yield forecaster.reading(
            "dorylus",
            "dorylus, staleness 0",
            forward=1,
            backward=1,
            ages=(0, 1),
            copies=4,
            overlaps=True,
            again=AGAIN,
            handed=HANDED,
            risk="rows and gradients may be of the epoch before, and which depends on speed",
            measured="dorylus",
            reason="intervals overlap, and workers that fail are replaced; sums and rows go to workers and back",
        )
