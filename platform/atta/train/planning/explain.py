"""Explains the choice in sentences: the strategy, its largest term, and what would change the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.planning.forecast import Forecast

__all__ = ["Advice", "advise"]

_CAUSES = {
    "compute": "computing",
    "internal": "rows between trainers of a server",
    "external": "the link between servers",
    "sampling": "sampling",
}
_WORTH_SAYING = 1000.0
"""Most times by which a link is said to be faster or slower: beyond that the advice is useless."""


@dataclass(frozen=True)
class Advice:
    """The chosen strategy, and two to six sentences that say why."""

    chosen: Forecast
    sentences: tuple[str, ...]


def advise(ranked: Sequence[Forecast]) -> Advice:
    """Choose the first of ``ranked`` (see ``forecasts``).

    Raises:
        ConfigError: nothing fits into memory; the message names the strategy that needs least.
    """
    if not ranked:
        raise ConfigError("there is no strategy to choose from")
    chosen = ranked[0]
    if not chosen.fits:
        least = min(ranked, key=lambda f: f.memory)
        raise ConfigError(
            f"nothing fits into the memory of a trainer: {least.name}, the smallest, takes {_bytes(least.memory)}; "
            "take more servers or trainers, fewer layers or a smaller hidden width"
        )
    term = max(chosen.terms, key=lambda name: chosen.terms[name])
    share = chosen.terms[term] / chosen.seconds if chosen.seconds else 0.0
    said = [f"{chosen.name} takes about {_seconds(chosen.seconds)} per epoch, {share:.0%} of it for {_CAUSES[term]}."]
    said += _staleness(chosen)
    said += _next_best(chosen, ranked)
    said += _other_link(chosen, ranked)
    said += _more_memory(chosen, ranked)
    return Advice(chosen, tuple(said))


def _staleness(chosen: Forecast) -> list[str]:
    if not chosen.risk:
        return []
    said = f"It receives {_bytes(chosen.row_bytes)} of rows per epoch and server; rows of other servers are "
    reason = [f"{_first_upper(chosen.reason)}."] if chosen.reason else []
    return [f"{said}{_ages(*chosen.ages)}.", *reason, f"What may cost accuracy: {chosen.risk}."]


def _ages(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} epochs old or older, without a bound"
    if low == high:
        return f"{low} epoch{'s' if low != 1 else ''} old"
    return f"{low} to {high} epochs old"


def _next_best(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    """The fastest strategy of another kind, or of exact ones: another fan-out of the same kind tells little."""
    others = [f for f in ranked if f.fits and (f.exact if not chosen.exact else f.kind != chosen.kind)]
    if not others:
        return []
    other = others[0]
    role = "the fastest with exact gradients" if not chosen.exact else "the next other kind"
    worst = max(other.terms, key=lambda name: other.terms[name])
    return [
        f"{_first_upper(role)}, {other.name}, takes {_time(other.seconds, chosen.seconds)}, "
        f"most of it for {_CAUSES[worst]}."
    ]


def _other_link(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    """The nearest link speed at which another kind would be chosen.

    A strategy takes a + e x seconds: e is its time on the link, and the link gets faster by the factor 1 / x. So times
    are lines in x. Those that hide a part of the link's time are not, so they are left out.
    """
    if chosen.hidden:
        return []
    crossings: list[tuple[float, Forecast]] = []
    for other in ranked:
        if not other.fits or other.kind == chosen.kind or other.external == chosen.external or other.hidden:
            continue
        fixed = (other.seconds - other.external) - (chosen.seconds - chosen.external)
        x = fixed / (chosen.external - other.external)
        if x > 0 and 1 / _WORTH_SAYING <= x <= _WORTH_SAYING:
            crossings.append((1 / x, other))
    if not crossings:
        return ["No other kind of strategy would win with a faster or slower link alone."]
    factor, other = min(crossings, key=lambda c: abs(math.log(c[0])))
    speed = f"{factor:.3g} times as fast" if factor > 1 else f"{1 / factor:.3g} times slower"
    return [f"With a link {speed}, {other.name} would overtake it."]


def _more_memory(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    faster = [f for f in ranked if not f.fits and f.seconds < chosen.seconds]
    if not faster:
        return []
    least = min(faster, key=lambda f: f.memory)
    return [f"{least.name} would be faster, but needs {_bytes(least.memory)} per trainer."]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _time(of: float, to: float) -> str:
    if not to:
        return "more than the time"
    ratio = f"{of / to:.2g}"
    return "about the same time" if ratio == "1" else f"{ratio} times the time"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def _bytes(count: float) -> str:
    power = min(4, max(0, int(math.log2(max(1.0, count)) // 10)))
    return f"{count / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
