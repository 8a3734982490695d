"""What the choice of partitions is worth: seconds of a training epoch with METIS, without its balance, and with random parts.

    python -m bench.partitioning.epochs [--runs 3] [--link 1gbit]

Trains GraphSAGE, fan-outs 15 and 10, with a daemon and a trainer per partition (network namespaces; root), on two
graphs of 100,000 vertices and 5,000,000 edges: a power law, and 200 communities whose training vertices lie in a third
of them. The partitionings alternate within a round. Claims of DistDGL: METIS beside random parts (section 6.1 of the
paper), and balancing training vertices beside vertices and edges (section 6.2). Writes epochs.json and epochs.md; with
``--link 500mbit`` epochs-500mbit.json and .md.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from atta.partition import Graph, partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import GraphWriter
from atta_bench.lab.workload import BenchWorkload
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write
from atta_bench.train.benchmark import TrainBench, run

SIZES: dict[str, Any] = {"nodes": 100_000, "edges": 5_000_000, "features": 100, "classes": 20, "seed": 0}
COMMUNITIES = 200
GRAPHS = ("powerlaw", "communities")
WAYS: dict[str, dict[str, Any]] = {
    "metis": {"method": "metis"},
    "metis-unbalanced": {"method": "metis", "balance": ("nodes", "edges")},
    "random": {"method": "random"},
}
PARTS, TRAINED = 4, 1 / 3
FIGURES = ("epoch_s", "steps", "remote_rows_per_seed", "link_bytes_per_seed", "accuracy")
BOUND = 1.8
"""Of METIS beside random parts."""


def made(name: str, work: Path) -> Path:
    """A graph folder, generated unless it is there."""
    folder = work / f"epochs-{name}"
    if (folder / "graph.json").exists():
        return folder
    if name == "powerlaw":
        generate("powerlaw", folder, GenerateOptions(**SIZES, train=0.1), overwrite=True)
        return folder
    whole = work / "epochs-communities-whole"
    generate("sbm", whole, GenerateOptions(**SIZES, communities=COMMUNITIES, inter=0.2, train=0.3), overwrite=True)
    graph = Graph.open(whole, verify=False)
    train = np.asarray(graph.split("node", "train"))
    # Vertices of a community are next to each other: training vertices are those of the first third.
    train = train[train < TRAINED * SIZES["nodes"]]
    edges = graph.edges(graph.schema.edge_types[0])
    with GraphWriter(folder, overwrite=True) as writer:
        tables = {column: np.asarray(graph.table("node", column)) for column in ("x", "y")}
        writer.add_nodes("node", SIZES["nodes"], tables=tables, splits={"train": train})
        writer.add_edges(graph.schema.edge_types[0], np.asarray(edges.src), np.asarray(edges.dst))
    return folder


def datasets(name: str, work: Path) -> dict[str, Path]:
    """The same graph in parts, by the way they were made."""
    graph, found = made(name, work), {}
    for way, options in WAYS.items():
        found[way] = work / f"epochs-{name}-{PARTS}p-{way}"
        if not (found[way] / "manifest.json").exists():
            partition_graph(graph, found[way], parts=PARTS, seed=0, overwrite=True, **options)
    return found


def main() -> None:
    """Measure, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--link", default="1gbit", help="rate of the links between the hosts [1gbit]")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    workload = BenchWorkload((15, 10), 500, warm_up=3, epochs=2, seconds=8.0)
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in GRAPHS:
        folders = datasets(name, given.work)
        results[name] = {way: [] for way in WAYS}
        for number in range(given.runs):
            for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                bench = TrainBench(str(folders[way]), workload, runs=1, link=given.link, cache_share=0.0)
                found = run(bench).rounds["atta"][0]
                results[name][way].append({figure: found[figure] for figure in FIGURES})
                print(f"{name}, {way}: {found['epoch_s']:.3f} s", flush=True)
    about = document("epochs", command=command(parser, given), results=results)
    name = "epochs" if given.link == parser.get_default("link") else f"epochs-{given.link}"
    write(given.out / f"{name}.json", about, _lines(about, results, given.link))


def _lines(about: dict[str, Any], results: dict[str, dict[str, list[dict[str, float]]]], link: str) -> list[str]:
    rows, said = [], []
    for name, by_way in results.items():
        for way, rounds in by_way.items():
            cells = [_median(rounds, figure) for figure in FIGURES]
            worth = _quotient(rounds, by_way["metis"])
            rows.append((name, way, *cells, "" if way == "metis" else f"{worth:.2f}"))
        worth = _quotient(by_way["random"], by_way["metis"])
        said.append(f"- {name}: random / METIS ≥ {BOUND}: {worth:.2f}, {'yes' if worth >= BOUND else '**no**'}.")
    return [
        *head("An epoch by the way its partitions were made", about),
        f"GraphSAGE 100-32-20 on {SIZES['nodes']:,} vertices and {SIZES['edges']:,} edges, {PARTS} parts; fan-outs 15 and 10, batches of 500.",
        f"{PARTS} hosts (namespaces on one machine) with links of {link}, on each a daemon and a trainer with one thread. No cache.",
        "`metis` balances vertices, edges and training vertices; `metis-unbalanced` only vertices and edges. In `communities`",
        "all training vertices lie in a third of the communities. Medians of the rounds (minimum to maximum).",
        "",
        *rows_of(("graph", "parts by", *FIGURES, "epoch / that of metis"), *rows),
        "",
        *said,
    ]


def _median(rounds: list[dict[str, float]], figure: str) -> str:
    values = [found[figure] for found in rounds]
    return f"{statistics.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def _quotient(rounds: list[dict[str, float]], metis: list[dict[str, float]]) -> float:
    return statistics.median(a["epoch_s"] / b["epoch_s"] for a, b in zip(rounds, metis, strict=True))


if __name__ == "__main__":
    main()
