"""How busy every launch policy, and DistDGL, keeps the scarcest resource, and whether a fixed depth is faster.

    python -m bench.scheduling.roofline --data DATASET [--depths 2,4,8] [--vs dgl] [--work FOLDER]

A setting is a batch size, a link and a kind of consumer. Each runs ``atta bench scheduler`` in network namespaces, one
partition per namespace; nothing is tuned between settings. Slow consumers compute ``--slow-us`` microseconds per seed
on every batch, on another device. A resource is the cores of the machine (which the namespaces share), the link and
direction that carries most, or the consumers. Settings that roofline.json already has do not run again, unless
``--again`` is given. Writes roofline.json and roofline.md. Bounds: 0.9 for the busiest resource, and 0.95 of the
seeds/s of the best fixed depth.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from atta_bench.lab.workload import BenchWorkload, ints
from atta_bench.record import cell, command, head, parser_of, rows_of, write
from atta_bench.scheduler import OURS, SchedulerBench, run

BUSY, NEAR = 0.9, 0.95


def main() -> None:
    """Run all settings, and write the record after each of them."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-sizes", default="128,1024,4096")
    parser.add_argument("--links", default="unshaped,1gbit")
    parser.add_argument("--slow-us", type=float, default=200.0, help="per seed, of slow consumers")
    parser.add_argument("--depths", default="2,4,8")
    parser.add_argument("--vs", default="", help="dgl: also run DistDGL")
    parser.add_argument("--work", help="keeps graphs converted for DistDGL")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run the named settings even if there are results")
    arguments = parser.parse_args()
    target = arguments.out / "roofline.json"
    known = json.loads(target.read_text())["settings"] if target.exists() else {}
    for size, link, slow in product(ints(arguments.batch_sizes), arguments.links.split(","), (False, True)):
        name = f"{size} seeds, {link}, {'slow' if slow else 'instant'}"
        if arguments.again or name not in known:
            print(f"== {name}", file=sys.stderr)
            known[name] = measure(arguments, size, link, arguments.slow_us * size / 1e3 if slow else 0.0)
            record(known, target, command(parser, arguments))
    record(known, target, command(parser, arguments))


def measure(arguments: argparse.Namespace, size: int, link: str, think_ms: float) -> dict[str, Any]:
    """The report of one setting."""
    workload = BenchWorkload(
        num_neighbors=ints(arguments.num_neighbors),
        batch_size=size,
        warm_up=arguments.warm_up,
        seconds=arguments.seconds,
        threads=1,
        think_ms=think_ms,
    )
    bench = SchedulerBench(
        arguments.data,
        workload,
        vs=tuple(filter(None, arguments.vs.split(","))),
        runs=arguments.runs,
        netns="on",
        link=None if link == "unshaped" else link,
        depths=ints(arguments.depths),
        work=arguments.work,
    )
    return run(bench, lambda text: print(text, file=sys.stderr)).to_json()


def record(settings: dict[str, Any], target: Path, typed: str) -> None:
    """Write roofline.json and roofline.md."""
    first = next(iter(settings.values()))
    systems = list(dict.fromkeys(name for report in settings.values() for name in report["results"]))
    busy = ((name, *(busiest(r["results"].get(s)) for s in systems)) for name, r in settings.items())
    rates = (
        (
            *(name, *(seeds(r["results"].get(s)) for s in systems), f"{of_best(r['results']):.2f}"),
            f"{r['results'][OURS]['queue_bytes']['max'] / 1e6:,.0f}",
        )
        for name, r in settings.items()
    )
    lines = [
        *head(
            "The busiest resource under every launch policy",
            {**first, "command": typed},
            "All figures: [roofline.json](roofline.json). Untuned, default cache. Two network namespaces share the machine's cores.",
        ),
        f"Share of time in which the busiest resource worked (bound for {OURS}: {BUSY}), and which it was:",
        "",
        *rows_of(("setting", *systems), *busy),
        "",
        f"Seeds per second (bound for {OURS}: {NEAR} of the best fixed depth), and the most bytes that finished batches took:",
        "",
        *rows_of(("setting", *systems, f"{OURS} / best depth", f"queued by {OURS}, MB"), *rates),
    ]
    write(target, {"schema": 1, "bench": "roofline", "command": typed, "settings": settings}, lines)
    short = [name for name, r in settings.items() if r["results"][OURS]["busiest"]["median"] < BUSY]
    behind = [name for name, r in settings.items() if of_best(r["results"]) < NEAR]
    kept = len(settings) - len(short)
    print(f"{kept} of {len(settings)} settings keep a resource {BUSY:.0%} busy; short: {short or 'none'}")
    print(f"behind the best fixed depth: {behind or 'none'}")


def busiest(found: dict[str, Any] | None) -> str:
    """``0.95 cores``."""
    if not found or "error" in found:
        return "-"
    share, which = max((f["median"], name.partition("/")[2]) for name, f in found.items() if name.startswith("busy/"))
    return f"{share:.2f} {which}"


def seeds(found: dict[str, Any] | None) -> str:
    return "-" if not found or "error" in found else cell(found["seeds_per_s"]).partition(" ")[0]


def of_best(results: dict[str, Any]) -> float:
    """Our seeds per second against the best of the fixed depths (``prefetch-K``)."""
    best = max(found["seeds_per_s"]["median"] for name, found in results.items() if name.startswith("prefetch-"))
    return float(results[OURS]["seeds_per_s"]["median"] / best)


if __name__ == "__main__":
    main()
