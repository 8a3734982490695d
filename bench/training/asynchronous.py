"""Training without barriers: under a straggler, with slow workers, and what it is worth.

    python -m bench.training.asynchronous --straggler --seeds 5 --keep DIR     # async-straggler
    python -m bench.training.asynchronous --dorylus --seeds 3 --keep DIR       # async-dorylus, async-value

Every figure comes from ``atta bench strategies``: hosts are network namespaces (root), each with a daemon, a launcher
and a trainer. ``--straggler`` compares digest and digest-async on 4 hosts while one trainer is stopped for 8 to 10 times
the time of an epoch in each of its epochs. ``--dorylus`` compares its modes on 2 hosts whose workers have links of 20
Mbit/s and messages that take 5 to 50 ms more. With ``--keep`` a comparison goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from atta.partition.generate import GenerateOptions
from atta_bench.commands.variants import VARIANT
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write
from atta_bench.strategies import StopPattern, StrategiesBench
from atta_bench.training.dorylus import measure_dorylus
from atta_bench.training.graphs import SPLITS, partitioned
from atta_bench.training.rounds import Round, measured, median, quotients, verdict, verdict_rows

SBM = GenerateOptions(
    nodes=10_000, edges=200_000, features=32, classes=20, communities=200, inter=0.45, signal=0.6, **SPLITS
)
"""Ten communities of each class: METIS cuts between communities, and each part has vertices of all classes."""
SKEWED = dataclasses.replace(SBM, communities=None)
"""One community of each class: METIS gives whole classes to a part."""
HIDDEN, LAYERS = 64, 2

# -- the straggler -----------------------------------------------------------------------------------------------------
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
    parser.add_argument(
        "--skewed",
        action="store_true",
        help="with --straggler: a community per class, so METIS gives classes to hosts; async-straggler-skewed",
    )
    parser.add_argument("--graph", default="sbm", help="with --dorylus: a folder of --data-root instead of the SBM")
    parser.add_argument("--layers", type=int, default=LAYERS, help="with --dorylus [2]")
    parser.add_argument("--data-root", type=Path, help="folder of real graphs in the neutral npz layout")
    parser.add_argument("--seeds", type=int, default=3, help="[3]")
    parser.add_argument("--target", type=float, help="test accuracy that times are measured to")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="graphs are kept here")
    parser.add_argument("--keep", type=Path, help="keep rounds here, and make only those that are missing")
    arguments = parser.parse_args()
    if arguments.straggler == arguments.dorylus:
        parser.error("give --straggler or --dorylus")
    if arguments.random and arguments.skewed:
        parser.error("give --random or --skewed: random parts have all classes")
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        if arguments.straggler:
            measure_straggler(arguments, kept, command(parser, arguments))
        else:
            measure_dorylus(arguments, kept, command(parser, arguments))


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
        f"digest-async=--strategy digest-async:eval-interval={interval:.3f},max-updates={updates} --lr {rates['digest-async']}",
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
    graph = SKEWED if arguments.skewed else SBM
    name += "-skewed" * arguments.skewed
    data = partitioned("sbm-random" if arguments.random else "sbm", graph, None, arguments.work, HOSTS)
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
    if arguments.only_tune:
        return
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
    found = document(name, command=typed, calm=calm, rounds=rounds, bounds=verdicts)
    found |= {"stop": [stop.trainer, stop.stopped_s, stop.every_s], "target": target, "learning_rates": rates}
    found["tuning"] = {str(rate): figures for rate, figures in tuned.items()}
    names = ("seconds_to_target", "mean_epoch_seconds", "steps_per_s", "test_accuracy")
    lines = [
        *head("Digest and digest-async with a straggler", found),
        f"GCN {graph.features}-{HIDDEN}-{graph.classes} on an SBM of {graph.nodes:,} vertices, {graph.communities or graph.classes} communities;",
        f"{HOSTS} hosts (namespaces on one machine), {HOSTS} trainers, one thread each, parts by {method}. Trainer {STRAGGLER} is stopped for {stop.stopped_s:.3f} s once in",
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
    write(arguments.out / f"{name}.json", found, lines)


if __name__ == "__main__":
    main()
