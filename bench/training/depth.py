"""Preloading beside the full graph as models get deeper.

    python -m bench.training.depth --data-root DIR [--layers 1,2,3,5] [--runs 3]

A server that preloads holds all that its vertices need, HALO vertices of HALO vertices too, and computes them itself.
So it sends no rows, and repeats what other servers compute. The deeper the model, the more it repeats; with the full
graph every row is computed once and sent once per layer. GraNNDis, section 7, says that preloading loses once the
model is deep. Hosts are network namespaces (root). Writes depth.json and depth.md.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

from atta.partition.generate import GenerateOptions
from atta_bench.lab.workload import ints
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write
from atta_bench.strategies import StrategiesBench
from atta_bench.training.graphs import halo_rows, partitioned
from atta_bench.training.rounds import Round, measured, median, quotients

GRAPH, SERVERS, HIDDEN, EPOCHS = "facebook_pagepage", 4, 64, 5
NOT_GENERATED = GenerateOptions(nodes=100, edges=100)
"""Of no use for a real graph."""
STRATEGIES = ("preload", "cooperative", "full")
FIGURES = ("epoch_seconds", "phases/compute_s", "phases/exchange_s", "exchanged_bytes", "peak_memory_bytes")


def depth_bench(data: Path, layers: int, link: str, seed: int) -> StrategiesBench:
    """All strategies at one depth."""
    return StrategiesBench(
        data=str(data),
        servers=SERVERS,
        trainers_per_server=1,
        strategies=STRATEGIES,
        layers=layers,
        hidden=HIDDEN,
        link=link,
        runs=1,
        warm_up=2,
        epochs=EPOCHS,
        seed=seed,
    )


def main() -> None:
    """Measure, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of real graphs in the neutral npz layout")
    parser.add_argument("--layers", default="1,2,3,5")
    parser.add_argument("--link", default="200mbit", help="rate of the links between servers [200mbit]")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    kept = given.work / "depth"
    kept.mkdir(parents=True, exist_ok=True)
    data = partitioned(GRAPH, NOT_GENERATED, given.data_root, given.work, SERVERS)
    results: dict[str, list[Round]] = {}
    for layers in ints(given.layers):
        results[str(layers)] = [
            measured(kept / f"{layers}-{given.link}-{seed}.json", depth_bench(data, layers, given.link, seed))
            for seed in range(given.runs)
        ]
    about = document("depth", command=command(parser, given), results=results)
    vertices, halo = halo_rows(data)
    rows = [
        (
            layers,
            system,
            *(median(rounds, system, figure) for figure in FIGURES),
            "" if system == "full" else f"{statistics.median(quotients(rounds, 'epoch_seconds', 'full', system)):.2f}",
        )
        for layers, rounds in results.items()
        for system in STRATEGIES
    ]
    speeds = [statistics.median(quotients(rounds, "epoch_seconds", "full", "preload")) for rounds in results.values()]
    falling = all(later < before for before, later in itertools.pairwise(speeds))
    lines = [
        *head("Preloading and the full graph by depth", about),
        f"GraphSAGE, hidden {HIDDEN}, on {GRAPH} ({vertices:,} vertices, {SERVERS} METIS parts, {halo:,} HALO rows). {SERVERS} servers (namespaces",
        f"on one machine) with links of {given.link}, one trainer each, one thread. {EPOCHS} epochs after 2; rounds: {given.runs}, medians.",
        "",
        *rows_of(("layers", "strategy", *FIGURES, "times as fast as full"), *rows),
        "",
        f"- How many times as fast preloading is falls with every layer: {'yes' if falling else '**no**'}.",
    ]
    write(given.out / "depth.json", about, lines)


if __name__ == "__main__":
    main()
