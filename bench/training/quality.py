"""Quality of the examples, and of the same models in plain PyG, full batch, in one process.

    python -m bench.training.quality --data-root DIR [--work DIR] [--only hetero/acm_heco,...] [--seeds 0,1,2]

``--data-root`` holds the graphs in the neutral npz layout. Atta runs with 2 METIS parts, one daemon each, and 2 trainers,
which average their gradients and each have half of a batch. Plain PyG has
the model, splits, learning rate and dropout of the example, and makes as many optimiser steps. It reads the npz files
itself, so that a mistake in importing or sampling shows as a difference. Writes quality.json and quality.md; the
results of other graphs in them are kept. With ``--keep-pyg`` those of plain PyG are, too, if the settings are the same:
training a whole graph takes long, and Atta has no part in it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import load_npz
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import negative_sampling

import atta
from atta.observe.machine.addresses import HeldAddresses
from atta.observe.versions import machine, versions
from atta_bench.record import ROOT, command, head, now, parser_of, rows_of, write

sys.path.insert(0, str(ROOT / "examples"))

import hetero_nodes
import link_prediction

TOLERANCE = 1.0  # points
TRAINERS = 2

# Options of the example that differ from its defaults, and the metric.
RUNS: dict[str, tuple[list[str], str]] = {
    "hetero/acm_heco": ([], "accuracy"),
    "hetero/dblp_hgb": (["--epochs", "10", "--eval-every", "2", "--batch-size", "128"], "accuracy"),
    "links/cora": ([], "AUC"),
    "links/facebook_pagepage": (
        ["--dimensions", "128", "--epochs", "5", "--eval-every", "1", "--batch-size", "4096"],
        "AUC",
    ),
}


def run(name: str, data: Path, work: Path, seeds: list[int], known: dict[str, Any] | None) -> dict[str, Any]:
    """All seeds of a row, Atta and plain PyG in turn. ``known``: an earlier result, of which plain PyG's is taken."""
    task, _ = name.split("/")
    options, metric = RUNS[name]
    example = hetero_nodes if task == "hetero" else link_prediction
    arguments = example.parser().parse_args(["--data", str(data), "--work", str(work), *options])
    entry: dict[str, Any] = {"metric": metric, "atta": [], "pyg": []}
    entry["settings"] = {
        k: v for k, v in vars(arguments).items() if not isinstance(v, Path) and k not in ("seeds", "json")
    } | {"trainers": TRAINERS}
    kept = [] if known is None else known["pyg"]
    if known is not None and ({r["seed"] for r in kept}, of_pyg(known)) != (set(seeds), of_pyg(entry)):
        raise SystemExit(f"{name}: the record of plain PyG has other seeds or settings: measure it again")
    with Pair(task, arguments, [*options, "--batch-size", str(arguments.batch_size // TRAINERS)]) as pair:
        for seed in seeds:
            for system, measure in (("atta", pair.atta), ("pyg", pair.pyg)):
                earlier = [r for r in kept if r["seed"] == seed] if system == "pyg" else []
                found = earlier[0] if earlier else measure(seed)
                print(f"{name} {system} seed {seed}: {found['test']:.2f} in {found['seconds']} s", flush=True)
                entry[system].append(found)
    if known is not None:
        entry["pyg_date"] = known.get("pyg_date", known["date"])
    return entry | {"machine": machine(), "versions": versions(), "date": now(), "load": os.getloadavg()[2]}


def of_pyg(entry: dict[str, Any]) -> dict[str, Any]:
    """The settings that plain PyG has, too."""
    return {name: value for name, value in entry["settings"].items() if name != "trainers"}


class Pair:
    """One task: ``atta`` and ``pyg`` solve it with a seed."""

    def __init__(self, task: str, arguments: argparse.Namespace, options: list[str]) -> None:
        """``options``: of each trainer, besides those that name the graph."""
        self.arguments, self._task = arguments, task
        self._options = ["--data", str(arguments.data.absolute()), *options]
        if task == "hetero":
            dataset = hetero_nodes.prepare(arguments.data, arguments.work, arguments.parts)
            self.cluster = atta.local(dataset)
            graph = whole_graph(arguments.data)
            self.pyg: Callable[[int], dict[str, Any]] = lambda seed: classify(graph, self.cluster, arguments, seed)
        else:
            links, x = link_prediction.read(arguments.data, arguments.dimensions)
            dataset = link_prediction.prepare(links, x, arguments.data.name, arguments.work, arguments.parts)
            self.cluster = atta.local(dataset)
            self.pyg = lambda seed: predict_links(torch.from_numpy(x), links, arguments, seed)

    def atta(self, seed: int) -> dict[str, Any]:
        """Train with all trainers; returns what the first one has found."""
        with (
            tempfile.TemporaryDirectory(prefix="atta-quality-") as folder,
            HeldAddresses() as held,
        ):
            port, out = held.ports[0], Path(folder) / "found.json"
            words = [sys.executable, "-m", "bench.training.quality_worker", self._task, str(self.cluster.cluster_file)]
            words += [str(seed), str(out), "--", *self._options]
            common = {**os.environ, "WORLD_SIZE": str(TRAINERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            trainers = [
                subprocess.Popen(words, env={**common, "RANK": str(rank)}, cwd=ROOT) for rank in range(TRAINERS)
            ]
            try:
                if any(trainer.wait() for trainer in trainers):
                    raise SystemExit(f"{self._task}: a trainer has failed")
            finally:
                for trainer in trainers:
                    trainer.kill()
                    trainer.wait()
            found: dict[str, Any] = json.loads(out.read_text())
        return found

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()


# -- plain PyG ---------------------------------------------------------------------------------------------------------


def whole_graph(folder: Path) -> HeteroData:
    """The npz layout as a HeteroData with reverse relations, labels and masks on its target type."""
    meta, data = json.loads((folder / "meta.json").read_text()), HeteroData()
    for node_type, count in meta["node_types"].items():
        dense, sparse = folder / f"x__{node_type}.npy", folder / f"x_sparse__{node_type}.npz"
        if dense.exists() or sparse.exists():
            x = np.load(dense) if dense.exists() else load_npz(sparse).toarray()
            data[node_type].x = torch.from_numpy(np.asarray(x, dtype=np.float32))
        data[node_type].n_id = torch.arange(count)
        data[node_type].num_nodes = count
    with np.load(folder / "graph.npz") as arrays:
        for name in arrays.files:
            source, relation, target = name.removeprefix("edge_index__").split("__")
            index = torch.from_numpy(arrays[name])
            data[source, relation, target].edge_index = index
            data[target, f"rev_{relation}", source].edge_index = index.flip(0)
    store = data[meta["target_type"]]
    store.y = torch.from_numpy(np.load(folder / "y.npy"))
    for split in ("train", "val", "test"):
        store[split] = torch.from_numpy(np.load(folder / f"{split}_mask.npy"))
    return data


def classify(data: HeteroData, cluster: atta.Cluster, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Full-batch training of the example's model. The cluster gives only sizes, so that it is the same model."""
    torch.manual_seed(seed)
    model = hetero_nodes.model_for(cluster.schema, arguments.hidden, len(arguments.num_neighbors), arguments.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    store = data[model.target]
    per_epoch = -(-int(store.train.sum()) // arguments.batch_size)

    def step(_: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data)[store.train], store.y[store.train]).backward()
        optimizer.step()

    def right(split: str) -> float:
        return 100 * float((model(data).argmax(dim=-1) == store.y)[store[split]].float().mean())

    return fit(model, step, right, per_epoch=per_epoch, arguments=arguments, seed=seed)


def predict_links(
    x: torch.Tensor, links: link_prediction.Links, arguments: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Full-graph training of the example's model. Edges that a step predicts carry no messages in it."""
    torch.manual_seed(seed)
    model = link_prediction.LinkSage(x.shape[1], arguments.hidden, len(arguments.num_neighbors), arguments.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    train = torch.from_numpy(links.train)
    both = torch.cat([train, train.flip(0)], dim=1)
    per_epoch = -(-train.shape[1] // arguments.batch_size)
    chunks: list[torch.Tensor] = []

    def step(number: int) -> None:
        if number % per_epoch == 0:
            chunks[:] = torch.randperm(train.shape[1]).split(arguments.batch_size)
        asked = chunks[number % per_epoch]
        kept = torch.ones(train.shape[1], dtype=torch.bool)
        kept[asked] = False
        negative = negative_sampling(both, links.nodes, num_neg_samples=len(asked))
        label = torch.cat([torch.ones(len(asked)), torch.zeros(negative.shape[1])])
        batch = Data(x=x, edge_index=both[:, kept.repeat(2)], edge_label=label)
        batch.edge_label_index = torch.cat([train[:, asked], negative], dim=1)
        link_prediction.step(model, optimizer, batch)

    def area(split: str) -> float:
        z = model(x, both)
        return link_prediction.auc(z, getattr(links, split), getattr(links, f"{split}_non"))

    return fit(model, step, area, per_epoch=per_epoch, arguments=arguments, seed=seed)


def fit(
    model: torch.nn.Module,
    step: Callable[[int], None],
    measure: Callable[[str], float],
    *,
    per_epoch: int,
    arguments: argparse.Namespace,
    seed: int,
) -> dict[str, Any]:
    """Train with as many steps and evaluations as the example, and choose the best epoch in the same way."""
    started = time.time()
    curve: list[dict[str, float]] = []
    best: dict[str, Any] = {}

    def measured(split: str) -> float:
        model.eval()
        with torch.no_grad():
            return measure(split)

    for epoch in range(1, arguments.epochs + 1):
        model.train()
        for number in range((epoch - 1) * per_epoch, epoch * per_epoch):
            step(number)
        if epoch % arguments.eval_every and epoch != arguments.epochs:
            continue
        curve.append({"epoch": epoch, "val": measured("val")})
        if not best or curve[-1]["val"] > best["val"]:
            best = {"epoch": epoch, "val": curve[-1]["val"], "state": copy.deepcopy(model.state_dict())}
    model.load_state_dict(best["state"])
    found = {"seed": seed, "best_epoch": best["epoch"], "val": best["val"], "test": measured("test")}
    return found | {"seconds": round(time.time() - started, 1), "curve": curve}


# -- the record --------------------------------------------------------------------------------------------------------


def row(name: str, entry: dict[str, Any]) -> list[str]:
    task, graph = name.split("/")
    settings = entry["settings"]
    tests = {system: [r["test"] for r in entry[system]] for system in ("atta", "pyg")}
    mean = {system: statistics.mean(values) for system, values in tests.items()}
    sd = {system: statistics.stdev(values) if len(values) > 1 else 0.0 for system, values in tests.items()}
    difference = mean["atta"] - mean["pyg"]
    return [
        *(f"{'node classes' if task == 'hetero' else 'links'}, {entry['metric']}", graph),
        *(f"{mean[system]:.1f} ± {sd[system]:.1f}" for system in tests),
        *(f"{difference:+.1f}", "yes" if difference >= -TOLERANCE else "**no**"),
        *(", ".join(f"{t:.1f}" for t in values) for values in tests.values()),
        f"{settings['epochs']}, {','.join(map(str, settings['num_neighbors']))}, {settings['batch_size']}",
        str(settings.get("trainers", 1)),
        " / ".join(f"{statistics.median(r['seconds'] for r in entry[system]):.0f}" for system in tests),
    ]


def record(results: dict[str, Any], typed: str, target: Path) -> None:
    last = max(results.values(), key=lambda entry: entry["date"])
    seeds = sorted({r["seed"] for entry in results.values() for r in entry["atta"]})
    load = ", ".join(format(e["load"], ".1f") for e in results.values())
    columns = (
        *("task, metric", "graph", "Atta", "plain PyG", "difference", "reached", "Atta per seed", "PyG per seed"),
        *("epochs, fan-out, batch of all trainers", "trainers", "s per run, Atta / PyG"),
    )
    lines = [
        *head(
            "Quality of the examples beside plain PyG",
            {**last, "started": last["date"], "command": typed},
            f"Load: {load} (15 minutes' average after each row)",
            f"Seeds: {', '.join(map(str, seeds))}; all figures and curves: [quality.json](quality.json)",
        ),
        "Percent on the test split at the epoch that was best on the validation split, mean ± sample sd over the seeds. Atta: the",
        "examples, 2 METIS parts, the trainers of the last column but one, sampled neighbourhoods in training, all neighbours in",
        "validation and test. Plain PyG: the same model, splits, learning rate, dropout and number of optimiser steps in one",
        f"process without sampling. Reached: at most {TOLERANCE:g} point below. The seconds are those of one run, daemons already",
        "started.",
        "",
        *rows_of(columns, *(row(name, entry) for name, entry in results.items())),
    ]
    write(target, {"schema": 1, "bench": "quality", "command": typed, "results": results}, lines)


def main() -> None:
    """Train all examples, and write the record after each of them."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "examples")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--keep-pyg", action="store_true", help="take plain PyG's results from the record")
    parser.add_argument("--seeds", type=hetero_nodes.numbers, default=[0, 1, 2])
    arguments = parser.parse_args()
    target = arguments.out / "quality.json"
    results: dict[str, Any] = json.loads(target.read_text())["results"] if target.exists() else {}
    for name in arguments.only.split(","):
        known = results.get(name) if arguments.keep_pyg else None
        results[name] = run(name, arguments.data_root / name.split("/")[1], arguments.work, arguments.seeds, known)
        record({n: results[n] for n in RUNS if n in results}, command(parser, arguments), target)


if __name__ == "__main__":
    main()
