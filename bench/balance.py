"""How evenly METIS shares out vertices, edges and training vertices of real graphs.

    python bench/balance.py --data-root DIR [--parts 2,4,8]

``--data-root`` holds graphs in the neutral npz layout; each is imported undirected. Writes bench/results/balance.json and balance.md.
A split passes when the largest partition has at most 2 % more than its share, or no more than its share rounded up.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.progress import Silent
from atta.observe.versions import machine, versions
from atta.partition import Graph
from atta.partition.cutting.balance import constraints, known_balance
from atta.partition.importers import import_graph
from atta.partition.methods import make_method

RESULTS = Path(__file__).resolve().parent / "results"
BOUNDS = {"nodes": 1.04, "edges": 1.10, "train": 1.02}


def measure(graph: Graph, parts: int) -> dict[str, dict[str, float]]:
    """Maximum / mean, the largest load and the even share rounded up, by what is balanced."""
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


def main() -> None:
    """Measure all graphs and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--parts", default="2,4,8")
    arguments = parser.parse_args()
    counts = [int(n) for n in arguments.parts.split(",")]
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        for folder in sorted(p for p in arguments.data_root.iterdir() if (p / "graph.npz").exists()):
            import_graph("npz", folder, Path(work, folder.name), undirected=True)
            graph = Graph.open(Path(work, folder.name), verify=False)
            results[folder.name] = {str(parts): measure(graph, parts) for parts in counts}
            print(folder.name, flush=True)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    command = f"python bench/balance.py --data-root DIR --parts {arguments.parts}"
    document = {"schema": 1, "bench": "balance", "started": started, "command": command, "bounds": BOUNDS}
    document |= {"machine": machine(), "versions": versions(), "results": results}
    (RESULTS / "balance.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Balance of METIS partitions",
        "",
        f"Date: {started}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions().items())}  ",
        f"Command: `{command}`",
        "",
        "Maximum / mean over the partitions, seed 0. Bounds: "
        + ", ".join(f"{name} {bound:.2f}" for name, bound in BOUNDS.items())
        + "; or the even share rounded up to whole vertices. *: beyond the bound.",
        "",
        "| graph | parts | vertices | in-edges | training vertices (most, even share) |",
        "|---|---|---|---|---|",
    ]
    for name, by_parts in results.items():
        for parts, found in by_parts.items():
            cells = [f"{f['balance']:.3f}{'' if passes(what, f) else '*'}" for what, f in found.items()]
            if "train" in found:
                cells[-1] += f" ({found['train']['most']}, {found['train']['even']})"
            lines.append(f"| {name} | {parts} | {' | '.join(cells + [''] * (3 - len(cells)))} |")
    (RESULTS / "balance.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
