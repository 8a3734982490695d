"""How busy every launch policy keeps the scarcest resource, over batch sizes, links and consumers, and whether a fixed depth does better.

    python bench/roofline.py --data DATASET [--depths 2,4,8] [--vs dgl] [--work FOLDER] [--out bench/results]

Each setting runs ``atta bench scheduler`` in network namespaces, one partition per namespace; nothing is tuned between settings. Slow
consumers compute ``--slow-us`` microseconds per seed on every batch, on a device elsewhere. A resource is the cores of the machine
(which both namespaces share), the link and direction that carries most, or the consumers. Settings that OUT/roofline.json already
has are not run again (``--again``: those named by --batch-sizes and --links are). Writes OUT/roofline.json and OUT/roofline.md. Bounds: the busiest resource 0.9,
seeds/s 0.95 of the best fixed depth.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from record import cell

from atta.bench.lab.workload import BenchWorkload
from atta.bench.scheduler import OURS, SchedulerBench, run

RESULTS = Path(__file__).resolve().parent / "results"
BUSY, NEAR = 0.9, 0.95


def main() -> None:
    """Run all settings, and write the record after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-sizes", default="128,1024,4096")
    parser.add_argument("--links", default="unshaped,1gbit")
    parser.add_argument("--slow-us", type=float, default=200.0, help="per seed, of slow consumers")
    parser.add_argument("--depths", default="2,4,8")
    parser.add_argument("--vs", default="", help="dgl: DistDGL beside it")
    parser.add_argument("--work", help="keeps graphs converted for DistDGL")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    target = arguments.out / "roofline.json"
    known = json.loads(target.read_text())["settings"] if target.exists() else {}
    sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    for size, link, slow in product(sizes, arguments.links.split(","), (False, True)):
        name = f"{size} seeds, {link}, {'slow' if slow else 'instant'}"
        if arguments.again or name not in known:
            print(f"== {name}", file=sys.stderr)
            known[name] = measure(arguments, size, link, arguments.slow_us * size / 1e3 if slow else 0.0)
            write(known, target, f"python bench/roofline.py {' '.join(sys.argv[1:])}")
    write(known, target, f"python bench/roofline.py {' '.join(sys.argv[1:])}")


def measure(arguments: argparse.Namespace, size: int, link: str, think_ms: float) -> dict[str, Any]:
    """The report of one setting."""
    workload = BenchWorkload(
        num_neighbors=tuple(int(k) for k in arguments.num_neighbors.split(",")),
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
        depths=tuple(int(k) for k in arguments.depths.split(",")),
        work=arguments.work,
    )
    return run(bench, lambda text: print(text, file=sys.stderr)).to_json()


def write(settings: dict[str, Any], target: Path, command: str) -> None:
    """roofline.json and roofline.md."""
    first = next(iter(settings.values()))
    target.write_text(json.dumps({"schema": 1, "bench": "roofline", "command": command, "settings": settings}) + "\n")
    systems = list(dict.fromkeys(name for report in settings.values() for name in report["results"]))
    lines = [
        "# The busiest resource under every launch policy",
        "",
        f"Date: {first['started']}  ",
        f"Machine: {first['machine']['cores']} cores, {first['machine']['cpu']}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in first['versions'].items())}  ",
        f"Command: `{command}`  ",
        "All figures: [roofline.json](roofline.json). Untuned, default cache. Two network namespaces share the machine's cores.",
        "",
        f"Share of time in which the busiest resource worked (bound for {OURS}: {BUSY}), and which it was:",
        "",
        f"| setting | {' | '.join(systems)} |",
        "|---" * (1 + len(systems)) + "|",
        *(f"| {name} | {' | '.join(busiest(r['results'].get(s)) for s in systems)} |" for name, r in settings.items()),
        "",
        f"Seeds per second (bound for {OURS}: {NEAR} of the best fixed depth), and the most bytes that finished batches took:",
        "",
        f"| setting | {' | '.join(systems)} | {OURS} / best depth | queued by {OURS}, MB |",
        "|---" * (3 + len(systems)) + "|",
        *(
            f"| {name} | {' | '.join(seeds(report['results'].get(s)) for s in systems)} | {of_best(report['results']):.2f}"
            f" | {report['results'][OURS]['queue_bytes']['max'] / 1e6:,.0f} |"
            for name, report in settings.items()
        ),
    ]
    meaning = target.with_suffix(".md")
    kept = meaning.read_text().partition("## What it means")[2].strip() if meaning.exists() else ""
    meaning.write_text("\n".join(lines) + f"\n\n## What it means\n\n{kept or '(to be written)'}\n")
    short = [name for name, r in settings.items() if r["results"][OURS]["busiest"]["median"] < BUSY]
    behind = [name for name, r in settings.items() if of_best(r["results"]) < NEAR]
    print(
        f"{len(settings) - len(short)} of {len(settings)} settings keep a resource {BUSY:.0%} busy; short: {short or 'none'}"
    )
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
