"""How soon daemons follow a consumer that becomes five times slower, and then as fast as before.

    python -m bench.loader.step --data DATASET [--fast 20ms] [--factor 5] [--seconds 12]

There is one daemon per partition, and one consumer beside the first. In each phase the consumer computes for another
time on every batch, on another device. The best possible rate of a phase is one batch per that time plus the time to
take a batch that is ready (the median of the slow phase). It is never above the rate at which the daemon delivers to a
consumer that does not compute. Writes step.json, step.md and step.png. Bound: 90 % of the best rate, within 5 s of
every change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.cli.figures import BAR_COLOUR, figure
from atta.cli.output import DURATION
from atta_bench.lab.workload import ints
from atta_bench.results import command, document, head, parser_of, rows_of, write

WINDOW_S = 1.0
ENOUGH = 0.9


def deliver(batches: Iterator[Any], think_s: float, seconds: float) -> tuple[list[float], list[float]]:
    """When each batch came, and how long the consumer had waited for it; the consumer computes ``think_s`` on each."""
    arrived, waited = [], []
    end = time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        next(batches)
        arrived.append(time.perf_counter())
        waited.append(arrived[-1] - before)
        time.sleep(think_s)
    return arrived, waited


def recovery_s(arrived: Sequence[float], change: float, end: float, best: float) -> float:
    """Seconds from ``change`` until every window holds ``ENOUGH`` of the best rate; inf: never."""
    times = np.asarray(arrived)
    starts = np.arange(change, end - WINDOW_S, 0.1)
    # In a short window, one batch more or less would decide.
    window = max(WINDOW_S, 10 / best)
    rates = [
        (np.searchsorted(times, s + window) - np.searchsorted(times, s)) / window for s in starts if s + window <= end
    ]
    low = [s for s, rate in zip(starts, rates, strict=False) if rate < ENOUGH * best]
    if not low:
        return 0.0
    return float(low[-1] + 0.1 - change) if low[-1] < starts[len(rates) - 1] - 1e-9 else float("inf")


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fast", default="40ms")
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    arguments = parser.parse_args()
    fast = float(DURATION.convert(arguments.fast, None, None))
    phases = [fast, arguments.factor * fast, fast]
    with atta.local(arguments.data, threads=1, verify=False) as cluster:
        loader = atta.NeighborLoader(
            cluster, ints(arguments.num_neighbors), "train", batch_size=arguments.batch_size,
            shuffle=True, rank=0, world_size=len(cluster.addresses), epochs=1 << 30,
        )  # fmt: skip
        batches = chain.from_iterable(repeat(loader))
        deliver(batches, 0.0, 5.0)  # caches and slots
        at_once, _ = deliver(batches, 0.0, arguments.seconds / 2)
        limit = (len(at_once) - 1) / (at_once[-1] - at_once[0])
        measured = []
        for think in phases:
            begun = time.perf_counter()
            arrived, waited = deliver(batches, think, arguments.seconds)
            ended = time.perf_counter()
            measured.append(
                {
                    "think_ms": 1e3 * think,
                    "batches_per_s": len(arrived) / (ended - begun),
                    "begun": begun,
                    "arrived": arrived,
                    "taking_ms": 1e3 * float(np.median(waited)),
                    "waited_share": sum(waited) / (ended - begun),
                }
            )
    for phase in measured:
        best = min(limit, 1e3 / (phase["think_ms"] + measured[1]["taking_ms"]))
        phase["best_batches_per_s"] = best
        phase["recovery_s"] = recovery_s(phase["arrived"], phase["begun"], phase["begun"] + arguments.seconds, best)
    record(measured, limit, command(parser, arguments), arguments.out)
    for phase in measured:
        print(
            f"{phase['think_ms']:g} ms: {phase['batches_per_s']:.1f} of {phase['best_batches_per_s']:.1f} batches/s,",
            end=" ",
        )
        print(f"recovered after {phase['recovery_s']:.1f} s")


def record(measured: list[dict[str, Any]], limit: float, typed: str, out: Path) -> None:
    """Write step.json, step.md and step.png."""
    draw(measured, out / "step.png")
    figures = [{k: v for k, v in phase.items() if k not in {"arrived", "begun"}} for phase in measured]
    found = document("step", command=typed, at_once_batches_per_s=limit, results=figures)
    columns = ("consumer computes for", "best possible", "delivered", "waits for data", "recovered after")
    lines = [
        *head("A consumer that changes its speed", found),
        f"Policy two-level, untuned. To a consumer that takes batches at once the daemon delivers {limit:.1f} of them per second.",
        f"Recovered: from then on every second holds {ENOUGH:.0%} of the best possible rate. Bound: 5 s.",
        "",
        *rows_of(columns, *map(row, figures)),
        "",
        "![step](step.png)",
    ]
    write(out / "step.json", found, lines)


def row(phase: dict[str, Any]) -> list[str]:
    rates = [f"{phase[name]:.1f}/s" for name in ("best_batches_per_s", "batches_per_s")]
    waited = f"{phase['waited_share']:.1%} of the time"
    return [f"{phase['think_ms']:g} ms", *rates, waited, f"{phase['recovery_s']:.1f} s"]


def draw(measured: list[dict[str, Any]], path: Path) -> None:
    """Draw batches per second over time, and the best possible rate."""
    origin = measured[0]["begun"]
    times = np.concatenate([phase["arrived"] for phase in measured]) - origin
    at = np.arange(WINDOW_S, times[-1], 0.1)
    rates = (np.searchsorted(times, at) - np.searchsorted(times, at - WINDOW_S)) / WINDOW_S
    edges = [phase["begun"] - origin for phase in measured] + [times[-1]]
    with figure(path, (7, 3)) as axes:
        axes.plot(at, rates, color=BAR_COLOUR, label="delivered (over one second)")
        for phase, start, stop in zip(measured, edges, edges[1:], strict=False):
            axes.hlines(phase["best_batches_per_s"], start, stop, color="#e45756", linestyles="dashed")
        axes.set_xlabel("seconds")
        axes.set_ylabel("batches per second")
        axes.set_ylim(bottom=0)
        axes.legend()


if __name__ == "__main__":
    main()
