"""Training without barriers: under a straggler, with slow workers, and what it is worth.

    python -m bench.train.asynchronous --straggler --seeds 5 --keep DIR     # async-straggler
    python -m bench.train.asynchronous --dorylus --seeds 3 --keep DIR       # async-dorylus, async-value

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

from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions
from atta_bench.graphs import SPLITS, partitioned
from atta_bench.results import ROOT, Maybe, arguments_of, document, head, rows_of, spread, write, yes_or_no
from atta_bench.train.run import StopPattern
from atta_bench.train.settings import VARIANT, StrategiesBench
from atta_bench.train.strategies import run
from atta_bench.train.value import PriceList, value_of

Figures = dict[str, float]
Round = dict[str, Figures]
"""Figures by variant."""


def measured(file: Path, bench: StrategiesBench) -> Round:
    """The figures of one round, made unless ``file`` has them. Raises SystemExit: a variant failed."""
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
    return spread(values) + (f", {missing} without" if missing else "")


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
        (v["bound"], "none" if v["median"] is None else f"{v['median']:.3f}", yes_or_no(v["holds"])) for v in verdicts
    )
    return rows_of(("bound", "median over seeds", "holds"), *rows)


DENSE_SBM = GenerateOptions(
    nodes=10_000, edges=6_000_000, features=32, classes=20, communities=40, inter=0.6, signal=1.2, **SPLITS
)
"""Two communities of each class, as large as their edges need."""
HIDDEN, LAYERS = 64, 2
LINK = "40mbit"
"""Between the two hosts. With few edges and without this limit gathers and scatters take no time, so there is nothing that
could overlap with workers' tasks."""
FAULTS = "link=20e6,delay=0.005:0.05"
INTERVALS, WORKERS, DORYLUS_EPOCHS, WARM_UP = 16, 6, 22, 3
DORYLUS_TARGET, LEARNING_RATE = 0.75, 0.01
MODES = {
    "nopipe": "mode=nopipe",
    "pipe": "mode=pipe",
    "async": "mode=async,staleness=0",
    "async-s1": "mode=async,staleness=1",
}
PRICES = PriceList.parse(  # of Dorylus, section 7.2: c5n.2xlarge is four of the base instance
    {"instances": {"c5n.2xlarge": 4 * 0.108}, "worker": {"per_ms": 0.01125 / 3.6e6, "per_request": 0.20 / 1e6}},
    "the paper",
)


def dorylus_bench(data: Path, seed: int, target: float, layers: int = LAYERS) -> StrategiesBench:
    """All modes, and exact exchange by trainers alone (exchange)."""
    own = f"--strategy dorylus:intervals={INTERVALS},workers={WORKERS}"
    variants = [*(f"{name}={own},{mode}" for name, mode in MODES.items()), "exchange=--strategy exchange"]
    return StrategiesBench(
        data=str(data),
        servers=2,
        trainers_per_server=1,
        strategies=(),
        variants=tuple(VARIANT.convert(text, None, None) for text in variants),
        model="gcn",
        layers=layers,
        hidden=HIDDEN,
        lr=LEARNING_RATE,
        eval_every=1,
        target=target,
        link=LINK,
        worker_faults=FAULTS,
        runs=1,
        warm_up=WARM_UP,
        epochs=DORYLUS_EPOCHS,
        seed=seed,
    )


def measure_dorylus(arguments: argparse.Namespace, kept: Path, typed: str) -> None:
    """Rounds of all modes, and their record; for the usual graph and depth that of their values, too."""
    target = arguments.target or DORYLUS_TARGET
    graph, layers = arguments.graph, arguments.layers
    data = partitioned(graph, DENSE_SBM, arguments.data_root, arguments.work, 2)
    more_than = ("" if graph == "sbm" else f"-{graph}") + ("" if layers == LAYERS else f"-{layers}-layers")
    rounds = [
        measured(kept / f"dorylus{more_than}-{seed}.json", dorylus_bench(data, seed, target, layers))
        for seed in range(arguments.seeds)
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
            [
                r["async-s1"].get("steady_seconds_to_target", math.inf) / r["async"]["steady_seconds_to_target"]
                for r in rounds
                if "steady_seconds_to_target" in r["async"]
            ],  # a run that never gets there is not better
            1.0,
            most=False,
        ),
    ]
    if not any("epochs_to_target" in r["pipe"] for r in rounds):
        verdicts = verdicts[:2]  # what nobody was asked for was not missed
    found = document(f"async-dorylus{more_than}", command=typed, rounds=rounds, bounds=verdicts) | {"target": target}
    schema = Dataset.open(data, verify=False).schema
    vertices, edges = sum(schema.node_counts.values()), sum(schema.edge_counts.values())
    about = [
        f"GCN of {layers} layers, hidden size {HIDDEN}, on {'an SBM' if graph == 'sbm' else graph} of {vertices:,} vertices and {edges:,} edges;",
        f"2 hosts (namespaces on one machine) with links of {LINK}, a trainer each, {INTERVALS} intervals and at most {WORKERS} workers per trainer: {2 * WORKERS} worker processes. Each worker has a link",
        f"of 20 Mbit/s, each message takes 5 to 50 ms more (`{FAULTS}`, waited for in the worker). {WARM_UP} + {DORYLUS_EPOCHS} epochs,",
        f"seeds: {len(rounds)}, median (minimum to maximum). Target: {100 * target:g} % of test accuracy. exchange: exact, by the trainers alone.",
        "`steady_seconds_to_target`: epochs to the target times the mean epoch after the warm-up, so that starting the worker processes on",
        "two cores does not count.",
    ]
    systems = [*MODES, "exchange"]
    names: tuple[str, ...] = (
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
    write(arguments.out / f"async-dorylus{more_than}.json", found, lines)
    if not more_than:
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


SBM = GenerateOptions(
    nodes=10_000, edges=200_000, features=32, classes=20, communities=200, inter=0.45, signal=0.6, **SPLITS
)
"""Ten communities of each class: METIS cuts between communities, and each part has vertices of all classes."""
HOSTS, STRAGGLER, STOPPED, RUNNING = 4, 3, 9.0, 0.5
"""Stopped for so many epoch times (``JITTER`` makes that 8 to 10), then running for so many: about one epoch of its own,
as no other trainer computes then."""
EPOCHS, COPIES = 40, 30
MORE_UPDATES = 6
"""How many times as many updates as gradients of digest's trainers digest-async may make: each counts for less."""
CALM_EPOCHS, CALM_RATE = 25, 0.1
TARGET = 0.8
LEARNING_RATES = (0.1, 0.3, 1.0)
"""Of which each side takes the one that reaches the target soonest with a straggler."""
TUNING_SEED = 100
SIDES = ("digest", "digest-async")
MOST_TIME, MOST_SLOWER, MOST_POINTS = 0.6, 1.1, 1.0


def main() -> None:
    """Measure what is asked for, and write its records."""
    arguments = arguments_of(
        __file__,
        __doc__,
        straggler=(False, "digest and digest-async while one trainer is stopped"),
        dorylus=(False, "the modes of dorylus with slow workers, and their value"),
        graph=("sbm", "with --dorylus: a folder of --data-root instead of the SBM"),
        layers=(LAYERS, "with --dorylus"),
        data_root=Maybe(Path, "folder of real graphs in the neutral npz layout"),
        seeds=3,
        target=Maybe(float, "test accuracy that times are measured to"),
        work=(ROOT / "build" / "bench", "graphs are kept here"),
        keep=Maybe(Path, "keep rounds here, and make only those that are missing"),
    )
    if arguments.straggler == arguments.dorylus:
        raise SystemExit("give --straggler or --dorylus")
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        if arguments.straggler:
            measure_straggler(arguments, kept, arguments.typed)
        else:
            measure_dorylus(arguments, kept, arguments.typed)


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
        f"digest=--strategy digest:sync-every=10 --lr {rates['digest']}",
        "digest-async=--strategy digest-async:sync-every=10,"
        f"eval-interval={interval:.3f},max-updates={updates} --lr {rates['digest-async']}",
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
    data = partitioned("sbm", SBM, None, arguments.work, HOSTS)
    same = dict.fromkeys(SIDES, CALM_RATE)  # times do not depend on the rate
    calm = measured(kept / "calm.json", straggler_bench(data, 0, same, epochs=CALM_EPOCHS, target=target))
    epoch_s = calm["digest"]["epoch_seconds"]
    stop = StopPattern(STRAGGLER, STOPPED * epoch_s, (STOPPED + RUNNING) * epoch_s)

    def with_straggler(file: Path, seed: int, rates: Mapping[str, float]) -> Round:
        return measured(file, straggler_bench(data, seed, rates, stop=stop, epoch_s=epoch_s, target=target))

    tuned = {
        rate: with_straggler(kept / f"tune-{rate}.json", TUNING_SEED, dict.fromkeys(SIDES, rate))
        for rate in LEARNING_RATES
    }
    rates = {side: soonest(tuned, side) for side in SIDES}
    print(f"learning rates: {rates}", flush=True)
    rounds = [with_straggler(kept / f"straggler-{seed}.json", seed, rates) for seed in range(arguments.seeds)]
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
    found = document("async-straggler", command=typed, calm=calm, rounds=rounds, bounds=verdicts)
    found |= {"stop": [stop.trainer, stop.stopped_s, stop.every_s], "target": target, "learning_rates": rates}
    found["tuning"] = {str(rate): figures for rate, figures in tuned.items()}
    names = ("seconds_to_target", "mean_epoch_seconds", "steps_per_s", "test_accuracy")
    lines = [
        *head("Digest and digest-async with a straggler", found),
        f"GCN {SBM.features}-{HIDDEN}-{SBM.classes} on an SBM of {SBM.nodes:,} vertices, {SBM.communities} communities;",
        f"{HOSTS} hosts (namespaces on one machine), {HOSTS} trainers, one thread each, parts by METIS. Trainer {STRAGGLER} is stopped for {stop.stopped_s:.3f} s once in",
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
        f"{CALM_EPOCHS} epochs of one seed, at a learning rate of {CALM_RATE}.",
        "",
        "Tuning, with the straggler, another seed:",
        "",
        *rows_of(
            ("learning rate", *(f"{side}: {figure}" for side in SIDES for figure in ("seconds to target", "accuracy"))),
            *(
                (rate, *(median([figures], side, n) for side in SIDES for n in ("seconds_to_target", "test_accuracy")))
                for rate, figures in tuned.items()
            ),
        ),
    ]
    write(arguments.out / "async-straggler.json", found, lines)


if __name__ == "__main__":
    main()
