"""GraphSAGE on batches that resemble each other beside one on batches that are drawn anew.

    python -m bench.train.dependent --data-root DIR [--work DIR] [--seeds 15] [--only facebook_pagepage,...]

PyG's GraphSAGE learns on batches of ``NeighborLoader`` in this process, with and without ``dependency``, and is judged
at the epoch with the best validation accuracy by one pass over the whole graph. Every run has the same settings. Two
runs of a seed begin with the same weights and have the same seeds in every batch, so they are paired. Runs that
dependent.json already has do not run again.
"""

from __future__ import annotations

import json
import math
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn import GraphSAGE

import atta
from atta_bench.graphs import partitioned
from atta_bench.results import ROOT, arguments_of, document, head, rows_of, write
from bench.train.degrees import SBM, Whole, accuracy_of

GRAPHS = ("facebook_pagepage", "coauthor_cs", "amazon_computers")
METHODS, DEPENDENCIES = ("uniform", "labor"), (1, 64)
FAN_OUTS, EPOCHS, BATCH, HIDDEN = [10, 5], 10, 64, 64


def run(cluster: atta.Cluster, whole: Whole, method: str, dependency: int, seed: int) -> dict[str, Any]:
    """A run and its accuracies."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape = whole.x.shape[1], HIDDEN, len(FAN_OUTS), int(whole.y.max()) + 1, 0.5
    model, judged = GraphSAGE(*shape), GraphSAGE(*shape).eval()
    loader = atta.NeighborLoader(
        cluster, FAN_OUTS, "train", batch_size=BATCH, shuffle=True, seed=seed, method=method, dependency=dependency
    )
    about = {"method": method, "dependency": dependency, "seed": seed, "batches": len(loader)}
    return {**about, **accuracy_of(loader, whole, model, judged, EPOCHS)}


def main() -> None:
    """Run all, and write the record after each graph."""
    work = ROOT / "data" / "degrees"
    given = arguments_of(__file__, __doc__, data_root=Path, work=work, seeds=15, only=",".join(GRAPHS))
    target = given.out / "dependent.json"
    runs = dict(json.loads(target.read_text())["runs"]) if target.exists() else {}
    for name in given.only.split(","):
        path = partitioned(name, SBM, given.data_root, given.work, 2)
        before = {(r["method"], r["dependency"], r["seed"]) for r in runs.get(name, ())}
        with atta.local(path) as cluster:
            whole = Whole.of(path)
            for one in product(METHODS, DEPENDENCIES, range(given.seeds)):
                if one not in before:
                    runs.setdefault(name, []).append(run(cluster, whole, *one))
        about = document("dependent", runs=runs, command=given.typed)
        write(target, about, _lines(about))


def _lines(about: dict[str, Any]) -> list[str]:
    rows = []
    for name, method in product(about["runs"], METHODS):
        runs = about["runs"][name]
        tests = [
            {r["seed"]: r["test"] for r in runs if (r["method"], r["dependency"]) == (method, k)} for k in DEPENDENCIES
        ]
        means = [f"{statistics.mean(t.values()):.2f} ± {statistics.stdev(t.values()):.2f}" for t in tests]
        pairs = [tests[1][seed] - test for seed, test in tests[0].items()]
        difference = f"{statistics.mean(pairs):+.2f} ± {statistics.stdev(pairs) / math.sqrt(len(pairs)):.2f}"
        rows.append((name, runs[0]["batches"], len(pairs), method, *means, difference))
    columns = (
        "graph",
        "batches of an epoch",
        "seeds",
        "method",
        *(f"dependency {k}" for k in DEPENDENCIES),
        "difference",
    )
    return [
        *head("Batches that resemble each other: accuracy", about),
        "Test accuracy in percent, mean ± sample sd over seeds; the difference of paired runs: mean ± standard error.",
        f"PyG's GraphSAGE, {HIDDEN} hidden, {EPOCHS} epochs, batches of {BATCH}, fan-outs {','.join(map(str, FAN_OUTS))},",
        "judged on the whole graph.",
        "",
        *rows_of(columns, *rows),
    ]


if __name__ == "__main__":
    main()
