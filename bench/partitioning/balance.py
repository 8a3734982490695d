"""How evenly METIS divides vertices, edges and training vertices of real graphs.

    python -m bench.partitioning.balance --data-root DIR [--parts 2,4,8]

``--data-root`` holds graphs in the neutral npz layout; each is imported undirected. Writes balance.json and balance.md.
A split passes if the largest partition has at most 2 % more than its even share, or no more than that share rounded up.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.progress import Silent
from atta.partition import Graph
from atta.partition.cutting.balance import constraints, known_balance
from atta.partition.importers import import_graph
from atta.partition.methods import make_method
from atta_bench.lab.workload import ints
from atta_bench.record import command, document, head, parser_of, rows_of, write

BOUNDS = {"nodes": 1.04, "edges": 1.10, "train": 1.02}


def measure(graph: Graph, parts: int) -> dict[str, dict[str, float]]:
    """By what is balanced: the balance (maximum / mean), the largest load, and the even share rounded up."""
    by_type = make_method("metis").assign(graph, parts, seed=0, progress=Silent())
    owners = np.concatenate(list(by_type.values()))
    found = {}
    for name in known_balance(graph, None):
        weights = constraints(graph, [name])[:, 0]
        loads = np.bincount(owners, weights=weights, minlength=parts)
        total = int(weights.sum())
        found[name] = {
            "balance": float(loads.max() * parts / total),
            "most": int(loads.max()),
            "even": -(-total // parts),
        }
    return found


def passes(name: str, figures: dict[str, float]) -> bool:
    """Whether a balance is within its bound, or as even as whole vertices allow."""
    return figures["balance"] <= BOUNDS[name] + 5e-4 or figures["most"] <= figures["even"]


def row(graph: str, parts: str, found: dict[str, dict[str, float]]) -> list[str]:
    """Balances that are beyond their bound have a star."""
    cells = [f"{f['balance']:.3f}{'' if passes(what, f) else '*'}" for what, f in found.items()]
    if "train" in found:
        cells[-1] += f" ({found['train']['most']}, {found['train']['even']})"
    return [graph, parts, *cells, *[""] * (3 - len(cells))]


def main() -> None:
    """Measure all graphs and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--parts", default="2,4,8")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        for folder in sorted(p for p in arguments.data_root.iterdir() if (p / "graph.npz").exists()):
            import_graph("npz", folder, Path(work, folder.name), undirected=True)
            graph = Graph.open(Path(work, folder.name), verify=False)
            results[folder.name] = {str(parts): measure(graph, parts) for parts in ints(arguments.parts)}
            print(folder.name, flush=True)
    found = document("balance", command=command(parser, arguments), bounds=BOUNDS, results=results)
    bounds = ", ".join(f"{name} {bound:.2f}" for name, bound in BOUNDS.items())
    lines = [
        *head("Balance of METIS partitions", found),
        f"Maximum / mean over the partitions, seed 0. Bounds: {bounds}; or the even share rounded up to whole vertices."
        " *: beyond the bound.",
        "",
        *rows_of(
            ("graph", "parts", "vertices", "in-edges", "training vertices (most, even share)"),
            *(row(name, parts, f) for name, by_parts in results.items() for parts, f in by_parts.items()),
        ),
    ]
    write(arguments.out / "balance.json", found, lines)


if __name__ == "__main__":
    main()
