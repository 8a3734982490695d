"""A GCN on degrees of the whole graph beside one on those of its batches: accuracy, and the rate of the loader.

    python -m bench.train.degrees --data-root DIR [--work DIR] [--only cora,...]

PyG's GCN of one layer per fan-out learns on batches of ``NeighborLoader`` in this process, and is judged at the epoch
with the best validation accuracy by one pass over the whole graph. ``batch``: degrees as PyG finds them in a batch.
``graph``: ``edge_norm="gcn"``; ``unbiased``: this and ``unbiased=True``. Every run has the same settings. The rate is
that of whole epochs, without a model, each in turn.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import atta
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions
from atta_bench.graphs import SPLITS, partitioned
from atta_bench.results import ROOT, arguments_of, document, head, rows_of, write

GRAPHS = ("cora", "amazon_computers", "coauthor_cs", "facebook_pagepage", "citeseer")
FAN_OUTS = ([15, 10, 5], [5, 5])
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "graph": {"edge_norm": "gcn"},
    "unbiased": {"edge_norm": "gcn", "unbiased": True},
}
SEEDS, EPOCHS, BATCH, HIDDEN, RATE_ROUNDS = 5, 30, 512, 64, 21
SBM = GenerateOptions(nodes=100_000, edges=2_000_000, features=64, classes=8)


@dataclass(frozen=True)
class Whole:
    """All vertices of a dataset by internal id: ``x``, ``y``, edges, and the members of splits."""

    x: torch.Tensor
    y: torch.Tensor
    edges: torch.Tensor
    splits: dict[str, torch.Tensor]

    @classmethod
    def of(cls, path: Path) -> Whole:
        """The graph of a dataset at ``path``."""
        dataset = Dataset.open(path)
        parts = [dataset.part(part) for part in range(dataset.num_parts)]
        ends = [(part.csc("node__to__node"), dataset.book.range("node", part.index)) for part in parts]
        sources = np.concatenate([csc.indices for csc, _ in ends]).astype(np.int64)
        targets = np.concatenate([np.repeat(np.arange(lo, hi), np.diff(csc.indptr)) for csc, (lo, hi) in ends])
        x, y = (torch.from_numpy(np.concatenate([part.table("node", name) for part in parts])) for name in ("x", "y"))
        members = {name: torch.from_numpy(dataset.split("node", name).copy()) for name in SPLITS}
        splits = {name: ids[y[ids] >= 0] for name, ids in members.items()}  # some graphs have vertices without labels
        return cls(x.float(), y, torch.from_numpy(np.stack([sources, targets])), splits)


def accuracy_of(
    loader: atta.NeighborLoader, whole: Whole, model: torch.nn.Module, judged: torch.nn.Module, epochs: int
) -> dict[str, float]:
    """Train ``model``, and judge its weights by ``judged`` on the whole graph: percent at the epoch of the best
    validation."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    curve = []
    for _ in range(epochs):
        for batch in loader:
            data = batch.to_pyg()
            scores = model(data.x.float(), data.edge_index, data.get("edge_weight"))[: data.batch_size]
            loss = cross_entropy(scores, data.y[: data.batch_size], ignore_index=-1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        judged.load_state_dict(model.state_dict())
        with torch.no_grad():
            right = judged(whole.x, whole.edges).argmax(1) == whole.y
        curve.append([100 * float(right[whole.splits[name]].float().mean()) for name in ("val", "test")])
    best = max(range(epochs), key=lambda epoch: curve[epoch][0])
    return {"val": curve[best][0], "test": curve[best][1], "epoch": best + 1}


def run(cluster: atta.Cluster, whole: Whole, fan_outs: list[int], way: str, seed: int) -> dict[str, Any]:
    """A run of a GCN and its accuracies."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape = whole.x.shape[1], HIDDEN, len(fan_outs), int(whole.y.max()) + 1, 0.5
    model, judged = GCN(*shape, normalize=way == "batch"), GCN(*shape).eval()
    loader = atta.NeighborLoader(cluster, fan_outs, "train", batch_size=BATCH, shuffle=True, seed=seed, **WAYS[way])
    return {"way": way, "fan_outs": fan_outs, "seed": seed, **accuracy_of(loader, whole, model, judged, EPOCHS)}


def rates(cluster: atta.Cluster, fan_outs: list[int]) -> dict[str, list[float]]:
    """Seeds per second of whole epochs, of each way in turn."""
    loaders = {
        way: atta.NeighborLoader(cluster, fan_outs, "train", batch_size=1024, **how) for way, how in WAYS.items()
    }
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1 + RATE_ROUNDS):
        for way, loader in loaders.items():
            start, seeds = time.perf_counter(), 0
            for batch in loader:
                seeds += batch.to_pyg().batch_size
            if number:
                found[way].append(seeds / (time.perf_counter() - start))
    return found


def main() -> None:
    """Run all, and write the record after each graph."""
    given = arguments_of(
        __file__, __doc__, data_root=Path, work=ROOT / "data" / "degrees", only=",".join((*GRAPHS, "rate"))
    )
    target = given.out / "degrees.json"
    before = json.loads(target.read_text()) if target.exists() else {}
    runs, rate = dict(before.get("runs", {})), dict(before.get("rate", {}))
    for name in given.only.split(","):
        path = partitioned("sbm" if name == "rate" else name, SBM, given.data_root, given.work, 2)
        with atta.local(path) as cluster:
            if name == "rate":
                rate = {",".join(map(str, fan_outs)): rates(cluster, fan_outs) for fan_outs in FAN_OUTS}
            else:
                whole = Whole.of(path)
                asked = [(fan_outs, way, seed) for fan_outs in FAN_OUTS for way in WAYS for seed in range(SEEDS)]
                runs[name] = [run(cluster, whole, *one) for one in asked]
        about = document("degrees", runs=runs, rate=rate, command=given.typed)
        write(target, about, _lines(about))


def _lines(about: dict[str, Any]) -> list[str]:
    rows = []
    for name, runs in about["runs"].items():
        for fan_outs in FAN_OUTS:
            tests = {w: [r["test"] for r in runs if (r["way"], r["fan_outs"]) == (w, fan_outs)] for w in WAYS}
            means = [f"{statistics.mean(t):.2f} ± {statistics.stdev(t):.2f}" for t in tests.values()]
            rows.append((name, ",".join(map(str, fan_outs)), *means))
    of_rate = []
    for fan_outs, found in about["rate"].items():
        medians = {way: statistics.median(each) for way, each in found.items()}
        shares = [medians[way] / medians["batch"] for way in WAYS if way != "batch"]
        of_rate.append((fan_outs, f"{medians['batch']:,.0f}", *(f"{share:.3f}" for share in shares)))
    return [
        *head("A GCN on degrees of the whole graph", about),
        f"Test accuracy in percent, mean ± sample sd over the seeds: PyG's GCN, {HIDDEN} hidden, {EPOCHS} epochs, batches of {BATCH},",
        "judged on the whole graph. Columns: degrees of the batch; of the graph; of the graph and unbiased.",
        "",
        *rows_of(("graph", "fan-outs", *WAYS), *rows),
        "",
        f"The loader: seeds per second of a generated graph ({SBM.nodes:,} vertices, {SBM.edges:,} edges), and the share of it with",
        f"weights; medians of {RATE_ROUNDS} epochs each.",
        "",
        *rows_of(("fan-outs", "seeds/s", "graph", "unbiased"), *of_rate),
    ]


if __name__ == "__main__":
    main()
