"""Training without barriers: under a straggler, with slow workers, and what it is worth.

    python -m bench.training.asynchronous --straggler --seeds 3 --keep DIR     # async-straggler
    python -m bench.training.asynchronous --dorylus --seeds 3 --keep DIR       # async-dorylus, async-value

Every figure comes from ``atta bench strategies``: hosts are network namespaces (root), each with a daemon, a launcher
and a trainer. ``--straggler`` compares digest and digest-async on 4 hosts while one trainer is stopped for 8 to 10 times
the time of an epoch in each of its epochs. ``--dorylus`` compares its modes on 2 hosts whose workers have links of 20
Mbit/s and messages that take 5 to 50 ms more. With ``--keep`` a comparison goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.bench.output import document
from atta.bench.strategies import StopPattern, StrategiesBench, run
from atta.cli.variants import VARIANT
from atta.partition.generate import GenerateOptions
from atta.train.planning.value import PriceList, value_of
from bench.record import ROOT, command, head, parser_of, rows_of, write
from bench.training.graphs import SPLITS, partitioned

SBM = GenerateOptions(nodes=10_000, edges=200_000, features=32, classes=20, inter=0.45, signal=0.6, **SPLITS)
HIDDEN, LAYERS = 64, 2
Figures = dict[str, float]
Round = dict[str, Figures]
"""Figures by variant."""

# -- the straggler -----------------------------------------------------------------------------------------------------
HOSTS, STRAGGLER, STOPPED, RUNNING = 4, 3, 9.0, 0.5
"""Stopped for so many epoch times (``JITTER`` makes that 8 to 10), then running for so many: about one epoch of its own,
as no other trainer computes then."""
EPOCHS, COPIES = 60, 30
MORE_UPDATES = 4
"""How many times as many updates as gradients of digest's trainers digest-async may make: each counts for less."""
CALM_EPOCHS = 20
TARGET = 0.8
LEARNING_RATES = (0.03, 0.1, 0.3)
"""Of which each side takes the one that reaches the target soonest without a straggler."""
TUNING_SEED = 100
SIDES = ("digest", "digest-async")
MOST_TIME, MOST_SLOWER, MOST_POINTS = 0.6, 1.1, 1.0

# -- dorylus -----------------------------------------------------------------------------------------------------------
FAULTS = "link=20e6,delay=0.005:0.05"
INTERVALS, WORKERS, DORYLUS_EPOCHS, WARM_UP = 16, 8, 25, 3
DORYLUS_TARGET, DORYLUS_LR = 0.75, 0.05
MODES = {
    "nopipe": "--mode nopipe",
    "pipe": "--mode pipe",
    "async": "--mode async --staleness 0",
    "async-s1": "--mode async --staleness 1",
}
PRICES = PriceList.parse(  # of Dorylus, section 7.2: c5n.2xlarge is four of the base instance
    {
        "instances": {"c5n.2xlarge": 4 * 0.108},
        "worker": {"per_ms": 0.01125 / 3.6e6, "per_request": 0.20 / 1e6},
    },
    "the paper",
)


def main() -> None:
    """Measure what is asked for, and write its records."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--straggler", action="store_true", help="digest and digest-async while one trainer is stopped")
    parser.add_argument(
        "--dorylus", action="store_true", help="the modes of dorylus with slow workers, and their value"
    )
    parser.add_argument("--only-tune", action="store_true", help="end when learning rates are chosen")
    parser.add_argument(
        "--random",
        action="store_true",
        help="with --straggler: random parts, not those of METIS; async-straggler-random",
    )
    parser.add_argument("--seeds", type=int, default=3, help="[3]")
    parser.add_argument("--target", type=float, help="test accuracy that times are measured to")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="graphs are kept here")
    parser.add_argument("--keep", type=Path, help="keep rounds here, and make only those that are missing")
    arguments = parser.parse_args()
    if arguments.straggler == arguments.dorylus:
        parser.error("give --straggler or --dorylus")
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        if arguments.straggler:
            measure_straggler(arguments, kept, command(parser, arguments))
        else:
            measure_dorylus(arguments, kept, command(parser, arguments))


def measured(file: Path, bench: StrategiesBench) -> Round:
    """The figures of one round, made unless ``file`` has them.

    Raises:
        SystemExit: a variant failed.
    """
    if file.exists():
        found: Round = json.loads(file.read_text())
        return found
    report = run(bench, lambda text: print(text, file=sys.stderr, flush=True))
    if report.errors:
        raise SystemExit(f"{file.stem}: {report.errors}")
    found = {name: dict(rounds[0]) for name, rounds in report.rounds.items()}
    file.write_text(json.dumps(found))
    print(f"{file.stem}: " + ", ".join(f"{n} {f['mean_epoch_seconds']:.3f} s" for n, f in found.items()), flush=True)
    return found


def median(rounds: Sequence[Round], variant: str, figure: str) -> str:
    """Median (minimum to maximum) of a figure over the rounds that have it; how many lack it."""
    values = [r[variant][figure] for r in rounds if figure in r[variant]]
    if not values:
        return "none"
    missing = len(rounds) - len(values)
    text = f"{statistics.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"
    return f"{text}, {missing} without" if missing else text


def quotients(rounds: Sequence[Round], figure: str, ours: str, theirs: str) -> list[float]:
    """``ours`` / ``theirs`` in each round that has both."""
    return [r[ours][figure] / r[theirs][figure] for r in rounds if figure in r[ours] and figure in r[theirs]]


def verdict(what: str, values: Sequence[float], bound: float, *, most: bool) -> dict[str, Any]:
    """A bound on the median of ``values``; one without values does not hold."""
    found = statistics.median(values) if values else None
    holds = found is not None and (found <= bound if most else found >= bound)
    return {"bound": what, "median": found, "values": list(values), "holds": holds}


def verdict_rows(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of all bounds."""
    rows = (
        (v["bound"], "none" if v["median"] is None else f"{v['median']:.3f}", "yes" if v["holds"] else "**no**")
        for v in verdicts
    )
    return rows_of(("bound", "median over seeds", "holds"), *rows)


# -- the straggler -----------------------------------------------------------------------------------------------------


def straggler_bench(
    data: Path,
    seed: int,
    rates: Mapping[str, float],
    *,
    target: float,
    epochs: int = EPOCHS,
    epoch_s: float = 0.05,
    stop: StopPattern | None = None,
) -> StrategiesBench:
    """Both strategies; ``rates``: of learning, ``epoch_s``: of digest without a straggler, about."""
    updates = epochs * HOSTS * MORE_UPDATES
    interval = max(0.05, updates * epoch_s / HOSTS / COPIES)
    variants = (
        f"digest=--strategy digest --lr {rates['digest']}",
        f"digest-async=--strategy digest-async --eval-interval {interval:.3f} --max-updates {updates} --lr {rates['digest-async']}",
    )
    return StrategiesBench(
        data=str(data),
        servers=HOSTS,
        trainers_per_server=1,
        strategies=(),
        variants=tuple(VARIANT.convert(text, None, None) for text in variants),
        model="gcn",
        layers=LAYERS,
        hidden=HIDDEN,
        eval_every=max(1, epochs // COPIES),
        target=target,
        stop=stop,
        runs=1,
        warm_up=1,
        epochs=epochs - 1,
        seed=seed,
    )


def soonest(tuned: Mapping[float, Round], side: str) -> float:
    """The learning rate with which a side reached the target soonest; if it never did, with the best accuracy."""

    def order(rate: float) -> tuple[float, float]:
        figures = tuned[rate][side]
        return figures.get("seconds_to_target", math.inf), -figures["test_accuracy"]

    return min(tuned, key=order)


def measure_straggler(arguments: argparse.Namespace, kept: Path, typed: str) -> None:
    """Rounds without and with a straggler, and their record."""
    target = arguments.target or TARGET
    name, method = ("async-straggler-random", "random") if arguments.random else ("async-straggler", "METIS")
    data = partitioned("sbm-random" if arguments.random else "sbm", SBM, None, arguments.work, HOSTS)
    tuned = {
        rate: measured(
            kept / f"tune-{rate}.json",
            straggler_bench(data, TUNING_SEED, dict.fromkeys(SIDES, rate), target=target),
        )
        for rate in LEARNING_RATES
    }
    rates = {side: soonest(tuned, side) for side in SIDES}
    print(f"learning rates: {rates}", flush=True)
    if arguments.only_tune:
        return
    calm = measured(kept / "calm.json", straggler_bench(data, 0, rates, epochs=CALM_EPOCHS, target=target))
    epoch_s = calm["digest"]["epoch_seconds"]
    stop = StopPattern(STRAGGLER, STOPPED * epoch_s, (STOPPED + RUNNING) * epoch_s)
    rounds = [
        measured(
            kept / f"straggler-{seed}.json",
            straggler_bench(data, seed, rates, stop=stop, epoch_s=epoch_s, target=target),
        )
        for seed in range(arguments.seeds)
    ]
    calm_s = HOSTS / calm["digest-async"]["steps_per_s"]
    running = HOSTS - 1 + RUNNING / (RUNNING + STOPPED)
    others = [running / r["digest-async"]["steps_per_s"] / calm_s for r in rounds]
    stops = [r["digest"]["mean_epoch_seconds"] / stop.every_s for r in rounds]
    points = [100 * (r["digest"]["test_accuracy"] - r["digest-async"]["test_accuracy"]) for r in rounds]
    verdicts = [
        verdict(
            f"time to {100 * target:g} %: digest-async / digest ≤ {MOST_TIME}",
            quotients(rounds, "seconds_to_target", "digest-async", "digest"),
            MOST_TIME,
            most=True,
        ),
        verdict(f"epoch of the others / without a straggler ≤ {MOST_SLOWER}", others, MOST_SLOWER, most=True),
        verdict(f"points of accuracy lost ≤ {MOST_POINTS}", points, MOST_POINTS, most=True),
    ]
    found = document(name, command=typed, calm=calm, rounds=rounds, bounds=verdicts)
    found |= {"stop": [stop.trainer, stop.stopped_s, stop.every_s], "target": target, "learning_rates": rates}
    found["tuning"] = {str(rate): figures for rate, figures in tuned.items()}
    names = ("seconds_to_target", "mean_epoch_seconds", "steps_per_s", "test_accuracy")
    lines = [
        *head("Digest and digest-async with a straggler", found),
        f"GCN {SBM.features}-{HIDDEN}-{SBM.classes} on an SBM of {SBM.nodes:,} vertices; {HOSTS} hosts (namespaces on one",
        f"machine), {HOSTS} trainers, one thread each, parts by {method}. Trainer {STRAGGLER} is stopped for {stop.stopped_s:.3f} s once in",
        f"{stop.every_s:.3f} s, a ninth more or less; without it an epoch of digest takes {epoch_s:.3f} s. {EPOCHS} epochs of",
        f"digest, {EPOCHS * HOSTS * MORE_UPDATES} updates of digest-async. Learning rates: {rates}. {len(rounds)} seeds, median (minimum to maximum).",
        "",
        *verdict_rows(verdicts),
        "",
        *rows_of(
            ("figure", "digest", "digest-async", "digest, no straggler", "digest-async, no straggler"),
            *(
                (name, *(median(rs, v, name) for rs in (rounds, [calm]) for v in ("digest", "digest-async")))
                for name in names
            ),
        ),
        "",
        f"An epoch of the others is {running:.2f} / updates per second, as the straggler runs for a part of the time only.",
        f"With digest the straggler was stopped {statistics.median(stops):.2f} times per epoch (median). Without a straggler:",
        f"{CALM_EPOCHS} epochs of one seed.",
    ]
    write(arguments.out / f"{name}.json", found, lines)


# -- dorylus -----------------------------------------------------------------------------------------------------------


def dorylus_bench(data: Path, seed: int, target: float) -> StrategiesBench:
    """All modes, and exact exchange by trainers alone (exchange)."""
    own = f"--strategy dorylus --intervals {INTERVALS} --workers {WORKERS}"
    variants = [*(f"{name}={own} {mode}" for name, mode in MODES.items()), "exchange=--strategy exchange"]
    return StrategiesBench(
        data=str(data),
        servers=2,
        trainers_per_server=1,
        strategies=(),
        variants=tuple(VARIANT.convert(text, None, None) for text in variants),
        model="gcn",
        layers=LAYERS,
        hidden=HIDDEN,
        lr=DORYLUS_LR,
        eval_every=1,
        target=target,
        worker_faults=FAULTS,
        runs=1,
        warm_up=WARM_UP,
        epochs=DORYLUS_EPOCHS,
        seed=seed,
    )


def measure_dorylus(arguments: argparse.Namespace, kept: Path, typed: str) -> None:
    """Rounds of all modes, and two records."""
    target = arguments.target or DORYLUS_TARGET
    data = partitioned("sbm", SBM, None, arguments.work, 2)
    rounds = [
        measured(kept / f"dorylus-{seed}.json", dorylus_bench(data, seed, target)) for seed in range(arguments.seeds)
    ]
    for found_round in rounds:
        for figures in found_round.values():
            add_value(figures)
    verdicts = [
        verdict("epoch: nopipe / pipe ≥ 1.5", quotients(rounds, "epoch_seconds", "nopipe", "pipe"), 1.5, most=False),
        verdict("epoch: async / pipe ≤ 0.9", quotients(rounds, "epoch_seconds", "async", "pipe"), 0.9, most=True),
        verdict(
            "epochs to target: async / pipe ≤ 1.25",
            quotients(rounds, "epochs_to_target", "async", "pipe"),
            1.25,
            most=True,
        ),
        verdict(
            "time to target: pipe / async ≥ 1.09",
            quotients(rounds, "steady_seconds_to_target", "pipe", "async"),
            1.09,
            most=False,
        ),
        verdict(
            "time to target: S=1 / S=0 ≥ 1",
            quotients(rounds, "steady_seconds_to_target", "async-s1", "async"),
            1.0,
            most=False,
        ),
    ]
    if not any("epochs_to_target" in r["pipe"] for r in rounds):
        verdicts = verdicts[:2]  # what nobody was asked for was not missed
    found = document("async-dorylus", command=typed, rounds=rounds, bounds=verdicts) | {"target": target}
    about = [
        f"GCN {SBM.features}-{HIDDEN}-{SBM.classes} on an SBM of {SBM.nodes:,} vertices; 2 hosts (namespaces on one machine), a trainer",
        f"each, {INTERVALS} intervals and at most {WORKERS} workers per trainer: {2 * WORKERS} worker processes. Each worker has a link",
        f"of 20 Mbit/s, each message takes 5 to 50 ms more (`{FAULTS}`, waited for in the worker). {WARM_UP} + {DORYLUS_EPOCHS} epochs,",
        f"seeds: {len(rounds)}, median (minimum to maximum). Target: {100 * target:g} % of test accuracy. exchange: exact, by the trainers alone.",
        "`steady_seconds_to_target`: epochs to the target times the mean epoch after the warm-up, so that starting 16 worker processes on",
        "two cores does not count.",
    ]
    systems = [*MODES, "exchange"]
    names = (
        "epoch_seconds",
        "mean_epoch_seconds",
        "seconds_to_target",
        "epochs_to_target",
        "steady_seconds_to_target",
        "test_accuracy",
    )
    names = tuple(n for n in names if any(n in figures for r in rounds for figures in r.values()))
    more = ("pipeline/tasks", "pipeline/relaunched", "pipeline/oldest_row", "pipeline/worker_s")
    lines = [
        *head("Modes of dorylus with slow workers", found),
        *about,
        "",
        *verdict_rows(verdicts),
        "",
        *rows_of(("figure", *systems), *((n, *(median(rounds, s, n) for s in systems)) for n in names)),
        "",
        *rows_of(("figure", *MODES), *((n, *(median(rounds, s, n) for s in MODES)) for n in more)),
    ]
    write(arguments.out / "async-dorylus.json", found, lines)
    record_values(rounds, about, typed, arguments.out)


def add_value(figures: Figures) -> None:
    """Add time, cost and value of ``DORYLUS_EPOCHS`` epochs: starting workers, in the first ones, does not count."""
    each = figures["mean_epoch_seconds"]
    if "epochs_to_target" in figures:
        figures["steady_seconds_to_target"] = figures["epochs_to_target"] * each
    seconds = figures["seconds"] = DORYLUS_EPOCHS * each
    did = {name: DORYLUS_EPOCHS * figures.get(f"pipeline/{name}", 0.0) for name in ("worker_s", "tasks")}
    figures["workers_cost"] = PRICES.worker.cost(did["worker_s"], did["tasks"])
    figures["cost"] = PRICES.cost(seconds, 2) + figures["workers_cost"]
    figures["value"] = value_of(seconds, figures["cost"])


def record_values(rounds: Sequence[Round], about: Sequence[str], typed: str, out: Path) -> None:
    """Write async-value.json and async-value.md."""
    systems = [*MODES, "exchange"]
    names = ("seconds", "cost", "workers_cost", "value", "test_accuracy")
    chosen = [{s: {n: f[n] for n in names if n in f} for s, f in r.items()} for r in rounds]
    ratios = {s: quotients(chosen, "value", "async", s) for s in systems if s != "async"}
    found = document("async-value", command=typed, rounds=chosen, ratios=ratios)
    lines = [
        *head("Value: 1 / (time x cost)", found),
        *about,
        f"Time and cost are those of {DORYLUS_EPOCHS} epochs after the warm-up: compare values of equal accuracies.",
        "Servers as c5n.2xlarge ($ 0.432 per hour), workers as Lambdas ($ 0.01125 per hour at a task, $ 0.20 per million).",
        "",
        *rows_of(("figure", *systems), *((n, *(median(chosen, s, n) for s in systems)) for n in names)),
        "",
        *rows_of(
            ("value of async divided by that of", "median over seeds"),
            *((s, f"{statistics.median(values):.3g}" if values else "none") for s, values in ratios.items()),
        ),
    ]
    write(out / "async-value.json", found, lines)


if __name__ == "__main__":
    main()
