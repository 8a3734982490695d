"""Linear evaluation of unsupervised GraphSAGE: by ``atta train``, and by plain PyG in one process.

    python -m bench.training.unlabelled --data-root DIR [--work DIR] [--only cora,...] [--seeds 0,1,2]

``--data-root`` holds the graphs in the neutral npz layout. Atta: 2 METIS parts, 2 trainers, sampled neighbourhoods; a
seed's positive sample is an in-neighbour, its negative ones are none. Plain PyG: the same model, loss (GraphSAGE,
equation 1) and number of optimiser steps, each on the whole graph. It reads the npz files itself, draws its own samples
and fits its own logistic regression, so that a mistake in sampling or in judging shows as a difference. Writes
unlabelled.json and unlabelled.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import load_npz
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import to_undirected

from atta.partition import partition_graph
from atta.partition.importers import import_graph
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write

TOLERANCE = 1.0  # points
TRAINERS = 2


@dataclass(frozen=True)
class Settings:
    """The same for both. ``batch_size``: per trainer."""

    epochs: int
    batch_size: int
    hidden: int = 64
    dropout: float = 0.2
    lr: float = 0.003
    negatives: int = 5
    num_neighbors: str = "10,10"
    eval_every: int = 5


RUNS = {"cora": Settings(30, 128), "amazon_computers": Settings(10, 512), "coauthor_cs": Settings(10, 512)}


@dataclass(frozen=True)
class LabelledGraph:
    """A graph in the npz layout, with every edge in both directions."""

    x: torch.Tensor
    edges: torch.Tensor
    y: torch.Tensor
    masks: dict[str, torch.Tensor]

    @classmethod
    def read(cls, folder: Path) -> LabelledGraph:
        """Rows of features are divided by their sums."""
        sparse = folder / "x_sparse.npz"
        x = np.asarray(load_npz(sparse).toarray() if sparse.exists() else np.load(folder / "x.npy"), np.float32)
        x /= np.maximum(np.abs(x).sum(1, keepdims=True), 1e-12)
        with np.load(folder / "graph.npz") as arrays:
            edges = to_undirected(torch.from_numpy(arrays["edge_index"]))
        masks = {s: torch.from_numpy(np.load(folder / f"{s}_mask.npy")) for s in ("train", "val", "test")}
        return cls(torch.from_numpy(x), edges, torch.from_numpy(np.load(folder / "y.npy")).long(), masks)


def dataset(source: Path, work: Path) -> Path:
    """The dataset of two METIS parts."""
    if not (work / "data/manifest.json").exists():
        import_graph("npz", source, work / "graph", undirected=True, normalize_features=True, overwrite=True)
        partition_graph(work / "graph", work / "data", parts=2, method="metis", overwrite=True)
    return work / "data"


def on_atta(data: Path, run: Settings, seed: int, out: Path) -> dict[str, Any]:
    """One seed by ``atta train``."""
    started = time.time()
    words = [
        *("train", "--data", data, "--task", "unsupervised", "--model", "sage", "--trainers", TRAINERS),
        *("--epochs", run.epochs, "--lr", run.lr, "--num-neighbors", run.num_neighbors, "--hidden", run.hidden),
        *("--batch-size", run.batch_size, "--dropout", run.dropout, "--eval-every", run.eval_every, "--seed", seed),
        *("--negatives-per-edge", run.negatives, "--evaluate-by", "classes", "--eval-num-neighbors", "-1,-1"),
        *("--eval-batch-size", 4096, "--json", out, "--quiet"),
    ]
    subprocess.run([sys.executable, "-m", "atta.cli.main", *map(str, words)], check=True)
    best = json.loads(out.read_text())["best"]
    found = {"best_epoch": best["epoch"] + 1, "val": 100 * best["val_accuracy"], "test": 100 * best["test_accuracy"]}
    return {"seed": seed, **found, "seconds": round(time.time() - started, 1)}


class Samples:
    """Draws an in-neighbour of each vertex, and vertices that are none."""

    def __init__(self, edges: torch.Tensor, vertices: int) -> None:
        source, target = edges.numpy()
        order = np.lexsort((source, target))
        self._sources, self._vertices = source[order], vertices
        self._starts = np.searchsorted(target[order], np.arange(vertices + 1))
        self._edges = np.sort(target * vertices + source)
        self.able = torch.from_numpy(np.flatnonzero(np.diff(self._starts)))

    def draw(self, seeds: torch.Tensor, negatives: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [n] and [n, negatives]."""
        ids = seeds.numpy()
        low, high = self._starts[ids], self._starts[ids + 1]
        positives = self._sources[low + (torch.rand(len(ids)).numpy() * (high - low)).astype(np.int64)]
        strangers = torch.randint(self._vertices, (len(ids), negatives)).numpy()
        while (known := self._known(ids, strangers)).any():
            strangers[known] = torch.randint(self._vertices, (int(known.sum()),)).numpy()
        return torch.from_numpy(positives), torch.from_numpy(strangers)

    def _known(self, ids: np.ndarray, others: np.ndarray) -> np.ndarray:
        keys = ids[:, None] * self._vertices + others
        at = np.minimum(np.searchsorted(self._edges, keys), len(self._edges) - 1)
        known: np.ndarray = (self._edges[at] == keys) | (others == ids[:, None])
        return known


def on_pyg(graph: LabelledGraph, run: Settings, seed: int) -> dict[str, Any]:
    """One seed on the whole graph; the best epoch is chosen as ``atta train`` does."""
    torch.manual_seed(seed)
    started, vertices = time.time(), len(graph.x)
    samples = Samples(graph.edges, vertices)
    model = GraphSAGE(graph.x.shape[1], run.hidden, 2, run.hidden, dropout=run.dropout)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.lr)
    best: dict[str, Any] = {}
    for epoch in range(1, run.epochs + 1):
        model.train()
        for seeds in samples.able[torch.randperm(len(samples.able))].split(run.batch_size * TRAINERS):
            optimiser.zero_grad()
            z = model(graph.x, graph.edges)
            positives, negatives = samples.draw(seeds, run.negatives)
            near = (z[seeds] * z[positives]).sum(-1)
            far = (z[seeds][:, None] * z[negatives]).sum(-1)
            (F.softplus(-near) + F.softplus(far).sum(1)).mean().backward()
            optimiser.step()
        if epoch % run.eval_every == 0 or epoch == run.epochs:
            model.eval()
            with torch.no_grad():
                z = model(graph.x, graph.edges)
            found = judged(z, graph)
            if not best or found["val"] > best["val"]:
                best = {"best_epoch": epoch, **found}
    return {"seed": seed, **best, "seconds": round(time.time() - started, 1)}


def judged(z: torch.Tensor, graph: LabelledGraph) -> dict[str, float]:
    """Percent of validation and test that logistic regression on the training vertices gets right: cross entropy plus
    half the squared norm of the weights, on columns of mean 0 and variance 1."""
    train = z[graph.masks["train"]].double()
    z = (z.double() - train.mean(0)) / train.std(0, correction=0).clamp(min=1e-12)
    rows, y = z[graph.masks["train"]], graph.y[graph.masks["train"]]
    layer = torch.nn.Linear(z.shape[1], int(graph.y.max()) + 1, dtype=torch.float64)
    solver = torch.optim.LBFGS(layer.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(layer(rows), y, reduction="sum") + layer.weight.square().sum() / 2
        loss.backward()
        return loss

    solver.step(closure)
    with torch.no_grad():
        right = (layer(z).argmax(1) == graph.y).double()
    return {split: 100 * float(right[graph.masks[split]].mean()) for split in ("val", "test")}


def main() -> None:
    """Train all graphs on both, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "unlabelled")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for name in given.only.split(","):
        run, graph, work = RUNS[name], LabelledGraph.read(given.data_root / name), given.work / name
        work.mkdir(parents=True, exist_ok=True)
        data = dataset(given.data_root / name, work)
        entry: dict[str, Any] = {"settings": asdict(run), "atta": [], "pyg": []}
        for seed in map(int, given.seeds.split(",")):
            entry["atta"].append(on_atta(data, run, seed, work / "run.json"))
            entry["pyg"].append(on_pyg(graph, run, seed))
            print(name, *(f"{system}: {json.dumps(entry[system][-1])}" for system in ("atta", "pyg")), flush=True)
        results[name] = entry
    about = document("unlabelled", results=results, command=command(parser, given))
    lines = [
        *head("Unsupervised GraphSAGE, judged by logistic regression, beside plain PyG", about),
        "Test accuracy in percent at the epoch that was best on the validation split, mean ± sample sd over the seeds. Atta: 2",
        "METIS parts, 2 trainers, sampled neighbourhoods in training, all neighbours in the embeddings that are judged. Plain PyG:",
        "the same model, width, dropout, learning rate and number of negative samples on the whole graph in one process, as many",
        f"optimiser steps, a logistic regression of its own. Reached: at most {TOLERANCE:g} point below.",
        "",
        *rows_of(
            ("graph", "Atta", "plain PyG", "difference", "reached", "Atta per seed", "PyG per seed", "epochs, fan-out, batch"),
            *(_row(name, entry) for name, entry in results.items()),
        ),
    ]  # fmt: skip
    write(given.out / "unlabelled.json", about, lines)


def _row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    tests = {system: [r["test"] for r in entry[system]] for system in ("atta", "pyg")}
    mean = {system: statistics.mean(values) for system, values in tests.items()}
    sd = {system: statistics.stdev(values) if len(values) > 1 else 0.0 for system, values in tests.items()}
    difference, run = mean["atta"] - mean["pyg"], entry["settings"]
    return (
        name,
        *(f"{mean[system]:.1f} ± {sd[system]:.1f}" for system in tests),
        f"{difference:+.1f}",
        "yes" if difference >= -TOLERANCE else "**no**",
        *(", ".join(f"{t:.1f}" for t in values) for values in tests.values()),
        f"{run['epochs']}, {run['num_neighbors']}, {run['batch_size']}",
    )


if __name__ == "__main__":
    main()
