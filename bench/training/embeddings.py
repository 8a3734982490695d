"""R-GCN on embeddings alone: typed graphs without features, by ``atta train`` and by plain PyG in one process.

    python -m bench.training.embeddings --data-root DIR [--work DIR] [--only acm_heco,dblp_hgb] [--seeds 0,1,2]

``--data-root`` holds the graphs in the neutral npz layout; their features are left out, and every relation gets its
reverse. Atta: 2 METIS parts, 2 trainers, sampled neighbourhoods; rows of all types lie in tables on the daemons. Plain
PyG: ``RGCNConv`` on the whole graph, one ``torch.nn.Embedding``, and as many optimiser steps. It reads the npz files
itself. Writes embeddings-alone.json and embeddings-alone.md.
"""

from __future__ import annotations

import copy
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
from torch_geometric.nn import RGCNConv

from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write

TOLERANCE = 1.0  # points
TRAINERS = 2


@dataclass(frozen=True)
class Settings:
    """The same for both. ``batch_size``: per trainer."""

    epochs: int
    batch_size: int
    hidden: int = 64
    dropout: float = 0.5
    lr: float = 0.01
    num_neighbors: str = "10,10"
    eval_every: int = 5


RUNS = {"acm_heco": Settings(60, 45), "dblp_hgb": Settings(40, 128)}


@dataclass(frozen=True)
class TypedGraph:
    """Structure, labels and splits of a graph in the npz layout: all that there is without features."""

    counts: dict[str, int]
    target: str
    edges: dict[tuple[str, str, str], np.ndarray]
    y: np.ndarray
    masks: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path) -> TypedGraph:
        """Every relation of the files, and its reverse."""
        meta, edges = json.loads((folder / "meta.json").read_text()), {}
        with np.load(folder / "graph.npz") as arrays:
            for name in arrays.files:
                source, relation, target = name.removeprefix("edge_index__").split("__")
                edges[source, relation, target] = arrays[name]
                edges[target, f"rev_{relation}", source] = arrays[name][::-1]
        masks = {split: np.load(folder / f"{split}_mask.npy") for split in ("train", "val", "test")}
        return cls(meta["node_types"], meta["target_type"], edges, np.load(folder / "y.npy"), masks)

    def write(self, folder: Path) -> Path:
        """The dataset of two METIS parts."""
        if not (folder / "data/manifest.json").exists():
            with GraphWriter(folder / "graph", overwrite=True) as out:
                for node_type, count in self.counts.items():
                    own = node_type == self.target
                    splits = {split: np.flatnonzero(mask) for split, mask in self.masks.items()} if own else {}
                    out.add_nodes(node_type, count, tables={"y": self.y} if own else {}, splits=splits)
                for name, (src, dst) in self.edges.items():
                    out.add_edges("__".join(name), src, dst)
            partition_graph(folder / "graph", folder / "data", parts=2, method="metis", overwrite=True)
        return folder / "data"


def on_atta(data: Path, graph: TypedGraph, run: Settings, seed: int, out: Path) -> dict[str, Any]:
    """One seed by ``atta train``."""
    started = time.time()
    words = [
        *("train", "--data", data, "--model", "rgcn", "--target", graph.target, "--trainers", TRAINERS),
        *("--epochs", run.epochs, "--lr", run.lr, "--num-neighbors", run.num_neighbors, "--hidden", run.hidden),
        *("--batch-size", run.batch_size, "--dropout", run.dropout, "--eval-every", run.eval_every, "--seed", seed),
        *("--eval-num-neighbors", "-1,-1", "--eval-batch-size", 4096, "--json", out, "--quiet"),
    ]
    subprocess.run([sys.executable, "-m", "atta.cli.main", *map(str, words)], check=True)
    best = json.loads(out.read_text())["best"]
    found = {"best_epoch": best["epoch"] + 1, "val": 100 * best["val_accuracy"], "test": 100 * best["test_accuracy"]}
    return {"seed": seed, **found, "seconds": round(time.time() - started, 1)}


class Model(torch.nn.Module):
    """Embeddings of all vertices, two layers of PyG's RGCNConv, and a linear decoder."""

    def __init__(self, vertices: int, relations: int, run: Settings, classes: int) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(vertices, run.hidden)
        self.layers = torch.nn.ModuleList(RGCNConv(run.hidden, run.hidden, relations) for _ in range(2))
        self.decoder, self.dropout = torch.nn.Linear(run.hidden, classes), run.dropout

    def forward(self, edges: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        """Scores of all vertices."""
        h = self.rows.weight
        for layer in self.layers:
            h = F.dropout(F.relu(layer(h, edges, relation)), self.dropout, self.training)
        scores: torch.Tensor = self.decoder(h)
        return scores


def on_pyg(graph: TypedGraph, run: Settings, seed: int) -> dict[str, Any]:
    """One seed on the whole graph; the best epoch is chosen as ``atta train`` does."""
    torch.manual_seed(seed)
    started, first, total = time.time(), {}, 0
    for node_type, count in graph.counts.items():
        first[node_type], total = total, total + count
    ends = [torch.from_numpy(e + np.array([[first[s]], [first[d]]])) for (s, _, d), e in graph.edges.items()]
    edges = torch.cat(ends, 1)
    relation = torch.cat([torch.full((e.shape[1],), number) for number, e in enumerate(ends)])
    rows = slice(first[graph.target], first[graph.target] + graph.counts[graph.target])
    y = torch.from_numpy(graph.y).long()
    masks = {split: torch.from_numpy(mask) for split, mask in graph.masks.items()}
    model = Model(total, len(ends), run, int(y.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.lr)
    steps = -(-int(masks["train"].sum()) // (run.batch_size * TRAINERS))
    best: dict[str, Any] = {}
    for epoch in range(1, run.epochs + 1):
        model.train()
        for _ in range(steps):
            optimiser.zero_grad()
            F.cross_entropy(model(edges, relation)[rows][masks["train"]], y[masks["train"]]).backward()
            optimiser.step()
        if epoch % run.eval_every == 0 or epoch == run.epochs:
            model.eval()
            with torch.no_grad():
                right = (model(edges, relation)[rows].argmax(dim=1) == y).float()
            found = {split: 100 * float(right[mask].mean()) for split, mask in masks.items()}
            if not best or found["val"] > best["val"]:
                best = {"best_epoch": epoch, "val": found["val"], "test": found["test"]}
    return {"seed": seed, **copy.deepcopy(best), "seconds": round(time.time() - started, 1)}


def main() -> None:
    """Train all graphs on both, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "embeddings")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for name in given.only.split(","):
        run, graph, work = RUNS[name], TypedGraph.read(given.data_root / name), given.work / name
        work.mkdir(parents=True, exist_ok=True)
        data, entry = graph.write(work), {"settings": asdict(run), "atta": [], "pyg": []}
        for seed in map(int, given.seeds.split(",")):
            entry["atta"].append(on_atta(data, graph, run, seed, work / "run.json"))
            entry["pyg"].append(on_pyg(graph, run, seed))
            print(name, *(f"{system}: {json.dumps(entry[system][-1])}" for system in ("atta", "pyg")), flush=True)
        results[name] = entry
    about = document("embeddings alone", results=results, command=command(parser, given))
    rows = []
    for name, entry in results.items():
        tests = {system: [r["test"] for r in entry[system]] for system in ("atta", "pyg")}
        mean = {system: statistics.mean(values) for system, values in tests.items()}
        sd = {system: statistics.stdev(values) if len(values) > 1 else 0.0 for system, values in tests.items()}
        difference, run = mean["atta"] - mean["pyg"], entry["settings"]
        rows.append((
            name, *(f"{mean[s]:.1f} ± {sd[s]:.1f}" for s in tests), f"{difference:+.1f}",
            "yes" if difference >= -TOLERANCE else "**no**",
            *(", ".join(f"{t:.1f}" for t in values) for values in tests.values()),
            f"{run['epochs']}, {run['num_neighbors']}, {run['batch_size']}",
        ))  # fmt: skip
    columns = (
        "graph",
        "Atta",
        "plain PyG",
        "difference",
        "reached",
        "Atta per seed",
        "PyG per seed",
        "epochs, fan-out, batch",
    )
    lines = [
        *head("R-GCN on embeddings alone, beside plain PyG", about),
        "Test accuracy in percent at the epoch that was best on the validation split, mean ± sample sd over the seeds. No vertex",
        "has features: all types have learnable rows. Atta: 2 METIS parts, 2 trainers, sampled neighbourhoods in training, all",
        "neighbours in validation and test. Plain PyG: the same layers, width, dropout and learning rate on the whole graph in one",
        f"process, as many optimiser steps. Reached: at most {TOLERANCE:g} point below.",
        "",
        *rows_of(columns, *rows),
    ]
    write(given.out / "embeddings-alone.json", about, lines)


if __name__ == "__main__":
    main()
