"""The modes of dorylus with slow workers, and what they are worth: ``bench.training.asynchronous --dorylus``."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions
from atta.train.planning.value import PriceList, value_of
from atta_bench.commands.variants import VARIANT
from atta_bench.record import document, head, rows_of, write
from atta_bench.strategies import StrategiesBench
from atta_bench.training.graphs import SPLITS, partitioned
from atta_bench.training.rounds import Figures, Round, measured, median, quotients, verdict, verdict_rows

__all__ = ["MODES", "add_value", "dorylus_bench", "measure_dorylus", "record_values"]

SBM = GenerateOptions(
    nodes=10_000, edges=6_000_000, features=32, classes=20, communities=40, inter=0.6, signal=1.2, **SPLITS
)
"""Two communities of each class, as large as their edges need."""
HIDDEN, LAYERS = 64, 2
LINK = "40mbit"
"""Between the two hosts. With few edges and without this limit gathers and scatters take no time, so there is nothing that
could overlap with workers' tasks."""
FAULTS = "link=20e6,delay=0.005:0.05"
INTERVALS, WORKERS, EPOCHS, WARM_UP = 16, 6, 22, 3
TARGET, LEARNING_RATE = 0.75, 0.01
MODES = {
    "nopipe": "mode=nopipe",
    "pipe": "mode=pipe",
    "async": "mode=async,staleness=0",
    "async-s1": "mode=async,staleness=1",
}
PRICES = PriceList.parse(  # of Dorylus, section 7.2: c5n.2xlarge is four of the base instance
    {
        "instances": {"c5n.2xlarge": 4 * 0.108},
        "worker": {"per_ms": 0.01125 / 3.6e6, "per_request": 0.20 / 1e6},
    },
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
        epochs=EPOCHS,
        seed=seed,
    )


def measure_dorylus(arguments: argparse.Namespace, kept: Path, typed: str) -> None:
    """Rounds of all modes, and their record; for the usual graph and depth that of their values, too."""
    target = arguments.target or TARGET
    graph, layers = arguments.graph, arguments.layers
    data = partitioned(graph, SBM, arguments.data_root, arguments.work, 2)
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
        f"of 20 Mbit/s, each message takes 5 to 50 ms more (`{FAULTS}`, waited for in the worker). {WARM_UP} + {EPOCHS} epochs,",
        f"seeds: {len(rounds)}, median (minimum to maximum). Target: {100 * target:g} % of test accuracy. exchange: exact, by the trainers alone.",
        "`steady_seconds_to_target`: epochs to the target times the mean epoch after the warm-up, so that starting the worker processes on",
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
    write(arguments.out / f"async-dorylus{more_than}.json", found, lines)
    if not more_than:
        record_values(rounds, about, typed, arguments.out)


def add_value(figures: Figures) -> None:
    """Add time, cost and value of ``EPOCHS`` epochs: starting workers, in the first ones, does not count."""
    each = figures["mean_epoch_seconds"]
    if "epochs_to_target" in figures:
        figures["steady_seconds_to_target"] = figures["epochs_to_target"] * each
    seconds = figures["seconds"] = EPOCHS * each
    did = {name: EPOCHS * figures.get(f"pipeline/{name}", 0.0) for name in ("worker_s", "tasks")}
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
        f"Time and cost are those of {EPOCHS} epochs after the warm-up: compare values of equal accuracies.",
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
