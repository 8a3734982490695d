"""The forecasts of all strategies, ranked, and the choice in sentences: its largest term, and what would change it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, blaming
from atta.train.exchange.policies import Cut, doubt
from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.sizes import Machines, PlannedModel, Rates, Sizes
from atta.train.strategies import STRATEGIES, TrainingStrategy


def forecasts(
    sizes: Sizes, machines: Machines, model: PlannedModel, rates: Rates, losses: Mapping[str, str] | None = None
) -> list[Forecast]:
    """Forecasts of all strategies: those that fit into memory first, of these those without a doubt, then those that
    reach an accuracy first, and of equally fast ones those with exact gradients. ``losses``: see ``Forecaster``. The
    same arguments give the same result."""
    forecaster = Forecaster(sizes, machines, model, rates, losses or {})
    found = [_judged(f, s, forecaster) for s in STRATEGIES.values() for f in s.forecasts(forecaster)]
    return sorted(found, key=lambda f: (not f.fits, bool(f.doubt), f.to_accuracy, not f.exact, f.name))


_EPOCHS = 1000
"""Number of epochs that a strategy is judged by: plans do not know it, and mean long runs."""


def _judged(forecast: Forecast, strategy: TrainingStrategy, by: Forecaster) -> Forecast:
    net = {"model": by.model.model, "layers": by.model.layers}
    run: Any = strategy.settings(**{"strategy": strategy.name, "epochs": _EPOCHS, **net, **forecast.settings})
    return replace(forecast, doubt=doubt(run, Cut(by.sizes.exchanged.cut or math.nan)))


_CAUSES = {
    "compute": "computing",
    "internal": "rows between trainers of a server",
    "external": "the link between servers",
    "sampling": "sampling",
    "disk": "reading rows from the disk",
}
_WORTH_SAYING = 1000.0
"""Most times by which a link is said to be faster or slower: beyond that the advice is useless."""


@dataclass(frozen=True)
class Advice:
    """The chosen strategy, and two to six sentences that say why."""

    chosen: Forecast
    sentences: tuple[str, ...]


def advise(ranked: Sequence[Forecast]) -> Advice:
    """Choose the first of ``ranked`` (see ``forecasts``). Raises ConfigError: nothing fits into memory; the message
    names the strategy that needs least."""
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
    said = [
        f"{chosen.name} takes about {_seconds(chosen.seconds)} per epoch, {share:.0%} of it for {_CAUSES[term]}"
        f"{_epochs(chosen)}."
    ]
    said += _staleness(chosen)
    said += _next_best(chosen, ranked)
    said += _other_link(chosen, ranked)
    said += _more_memory(chosen, ranked)
    said += _doubted(chosen, ranked)
    return Advice(chosen, tuple(said))


def _epochs(chosen: Forecast) -> str:
    if chosen.epochs == 1:
        return ""
    return f"; {chosen.epochs:.2g} epochs come about as far as one of exact training on the whole graph"


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
        f"{_first_upper(role)}, {other.name}, takes {_time(other.to_accuracy, chosen.to_accuracy)}, "
        f"most of it for {_CAUSES[worst]}."
    ]


def _other_link(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    """The nearest link speed at which another kind would be chosen. Times are lines in the link's slowness, but for those
    that hide a part of it, which are left out."""
    if chosen.hidden:
        return []
    crossings: list[tuple[float, Forecast]] = []
    for other in ranked:
        if (
            not other.fits
            or other.doubt
            or other.kind == chosen.kind
            or other.epochs * other.external == chosen.epochs * chosen.external
            or other.hidden
        ):
            continue
        fixed = other.to_accuracy - other.epochs * other.external - chosen.to_accuracy + chosen.epochs * chosen.external
        x = fixed / (chosen.epochs * chosen.external - other.epochs * other.external)
        if x > 0 and 1 / _WORTH_SAYING <= x <= _WORTH_SAYING:
            crossings.append((1 / x, other))
    if not crossings:
        return ["No other kind of strategy would win with a faster or slower link alone."]
    factor, other = min(crossings, key=lambda c: abs(math.log(c[0])))
    speed = f"{factor:.3g} times as fast" if factor > 1 else f"{1 / factor:.3g} times slower"
    return [f"With a link {speed}, {other.name} would overtake it."]


def _more_memory(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    faster = [f for f in ranked if not f.fits and not f.doubt and f.to_accuracy < chosen.to_accuracy]
    if not faster:
        return []
    least = min(faster, key=lambda f: f.memory)
    return [f"{least.name} would be faster, but needs {_bytes(least.memory)} per trainer."]


def _doubted(chosen: Forecast, ranked: Sequence[Forecast]) -> list[str]:
    faster = [f for f in ranked if f.fits and f.doubt and f.to_accuracy < chosen.to_accuracy]
    said = dict.fromkeys(f.doubt for f in faster)
    return [f"Faster, but not taken: {'; '.join(said)}."] if said else []


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


RECORD = Path(__file__).resolve().parents[4] / "bench" / "results" / "stale-accuracy.json"
"""Written by ``bench.train.stale``. An installed package has none."""
_BESIDE = "exchange"


def recorded_losses(file: Path = RECORD) -> dict[str, str]:
    """A clause for each variant of the record: the most points that it lost beside exact training; {} without a file.
    Points are medians over paired seeds; the worst graph and number of layers counts. Raises DataError: it is no
    record."""
    if not file.is_file():
        return {}
    with blaming(DataError, file, "no record of accuracies", of=(KeyError, TypeError, ValueError)):
        return _clauses(json.loads(file.read_text())["results"], file.name)


def _clauses(runs: list[dict[str, Any]], name: str) -> dict[str, str]:
    tests = {(run["variant"], run["graph"], run["layers"], run["seed"]): float(run["test"]) for run in runs}
    lost: dict[tuple[str, str, int], list[float]] = {}
    for (variant, graph, layers, seed), test in tests.items():
        exact = tests.get((_BESIDE, graph, layers, seed))
        if variant != _BESIDE and exact is not None:
            lost.setdefault((variant, graph, layers), []).append(exact - test)
    worst: dict[str, tuple[float, str, int]] = {}
    for (variant, graph, layers), points in lost.items():
        found = (statistics.median(points), graph, layers)
        worst[variant] = max(found, worst.get(variant, found))
    return {variant: _clause(*found, name) for variant, found in worst.items()}


def _clause(points: float, graph: str, layers: int, name: str) -> str:
    if points <= 0:
        return f"in {name} it lost nothing beside exact training"
    return f"in {name} it lost at most {points:.1f} points beside exact training, on {graph} with {layers} layers"
