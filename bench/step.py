"""A consumer that becomes five times slower, then as fast as before: how soon daemons deliver at its new speed.

    python bench/step.py --data DATASET [--fast 20ms] [--factor 5] [--seconds 12]

One daemon per partition, one consumer beside the first; it computes on every batch for so long, on a device elsewhere. The best
possible rate of a phase is one batch per that time and the time to take a batch that is ready (the median of the slow phase), or
what the daemon delivers to a consumer that takes batches at once, if that is less. Writes step.json, step.md and step.png to bench/results. Bound: 90 % of the best rate, within 5 s of every change.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.cli.output import DURATION
from atta.observe.versions import machine, versions

RESULTS = Path(__file__).resolve().parent / "results"
WINDOW_S = 1.0
ENOUGH = 0.9


def deliver(batches: Iterator[Any], think_s: float, seconds: float) -> tuple[list[float], list[float]]:
    """When batches came, and for how long the consumer had waited for each, while it computes for ``think_s`` on every one."""
    arrived, waited = [], []
    end = time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        next(batches)
        arrived.append(time.perf_counter())
        waited.append(arrived[-1] - before)
        time.sleep(think_s)
    return arrived, waited


def recovery_s(arrived: Sequence[float], change: float, end: float, best: float) -> float:
    """Seconds after ``change`` from which every window holds ``ENOUGH`` of the best rate; inf: never."""
    times = np.asarray(arrived)
    starts = np.arange(change, end - WINDOW_S, 0.1)
    # A window that is shorter than some batches would count one more or less by chance.
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fast", default="40ms")
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    fast = float(DURATION.convert(arguments.fast, None, None))
    phases = [fast, arguments.factor * fast, fast]
    with atta.local(arguments.data, threads=1, verify=False) as cluster:
        loader = atta.NeighborLoader(
            cluster, [int(k) for k in arguments.num_neighbors.split(",")], "train", batch_size=arguments.batch_size,
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
    command = f"python bench/step.py --data {arguments.data} --fast {arguments.fast} --factor {arguments.factor:g}"
    write(measured, limit, command, arguments.out)
    for phase in measured:
        print(
            f"{phase['think_ms']:g} ms: {phase['batches_per_s']:.1f} of {phase['best_batches_per_s']:.1f} batches/s,",
            end=" ",
        )
        print(f"recovered after {phase['recovery_s']:.1f} s")


def write(measured: list[dict[str, Any]], limit: float, command: str, out: Path) -> None:
    """step.json, step.md and step.png."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    draw(measured, out / "step.png")
    figures = [{k: v for k, v in phase.items() if k not in {"arrived", "begun"}} for phase in measured]
    document = {"schema": 1, "bench": "step", "started": started, "command": command, "at_once_batches_per_s": limit}
    document |= {"machine": machine(), "versions": versions(), "results": figures}
    (out / "step.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# A consumer that changes its speed",
        "",
        f"Date: {started}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions().items())}  ",
        f"Command: `{command}`",
        "",
        f"Policy two-level, untuned. To a consumer that takes batches at once the daemon delivers {limit:.1f} of them per second. Recovered: from"
        f" then on every second holds {ENOUGH:.0%} of the best possible rate. Bound: 5 s.",
        "",
        "| consumer computes for | best possible | delivered | waits for data | recovered after |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {p['think_ms']:g} ms | {p['best_batches_per_s']:.1f}/s | {p['batches_per_s']:.1f}/s | {p['waited_share']:.1%} of the time |"
        f" {p['recovery_s']:.1f} s |"
        for p in figures
    ]
    (out / "step.md").write_text("\n".join([*lines, "", "![step](step.png)"]) + "\n")


def draw(measured: list[dict[str, Any]], path: Path) -> None:
    """Batches per second over time, and the best possible rate."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    origin = measured[0]["begun"]
    times = np.concatenate([phase["arrived"] for phase in measured]) - origin
    at = np.arange(WINDOW_S, times[-1], 0.1)
    rates = (np.searchsorted(times, at) - np.searchsorted(times, at - WINDOW_S)) / WINDOW_S
    canvas, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    axes.plot(at, rates, color="#4c78a8", label="delivered (over one second)")
    edges = [phase["begun"] - origin for phase in measured] + [times[-1]]
    for phase, start, stop in zip(measured, edges, edges[1:], strict=False):
        axes.hlines(phase["best_batches_per_s"], start, stop, color="#e45756", linestyles="dashed")
    axes.set_xlabel("seconds")
    axes.set_ylabel("batches per second")
    axes.set_ylim(bottom=0)
    axes.legend()
    canvas.savefig(path, dpi=150)
    plt.close(canvas)


if __name__ == "__main__":
    main()
