"""Accuracy on real graphs, against full-batch PyG in one process.

    python bench/accuracy.py --data-root DIR [--work DIR] [--only cora/sage,...] [--seeds 0,1,2]

``--data-root`` holds the graphs in the neutral npz layout. Every run is ``atta train`` with 2 partitions and 2 trainers. Writes
bench/results/accuracy.json and .md; what is there of other graphs is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

# Reference: mean of full-batch PyG in one process, same hidden size, layers, learning rate, weight decay and dropout.
RUNS: dict[str, dict[str, object]] = {
    "cora/sage": {
        "reference": 79.7,
        "hidden": 16,
        "wd": 5e-4,
        "dropout": 0.5,
        "epochs": 200,
        "fan": "-1,-1",
        "batch": 128,
    },
    "cora/gcn": {
        "reference": 81.2,
        "hidden": 16,
        "wd": 5e-4,
        "dropout": 0.5,
        "epochs": 200,
        "fan": "-1,-1",
        "batch": 128,
    },
    "amazon_computers/sage": {
        "reference": 82.7,
        "hidden": 64,
        "wd": 0,
        "dropout": 0.5,
        "epochs": 400,
        "fan": "15,10",
        "batch": 128,
    },
    "coauthor_cs/sage": {
        "reference": 92.3,
        "hidden": 64,
        "wd": 5e-4,
        "dropout": 0.5,
        "epochs": 100,
        "fan": "10,10",
        "batch": 256,
    },
    "facebook_pagepage/sage": {
        "reference": 93.9,
        "hidden": 64,
        "wd": 0,
        "dropout": 0.3,
        "epochs": 40,
        "fan": "10,10",
        "batch": 4096,
    },
    "musae_github/sage": {
        "reference": 87.0,
        "hidden": 64,
        "wd": 0,
        "dropout": 0.3,
        "epochs": 24,
        "fan": "10,10",
        "batch": 4096,
    },
}
TOLERANCE = 1.5  # points


def atta(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "atta.cli.main", *map(str, arguments)], check=True)


def prepare(graph: str, data_root: Path, work: Path) -> Path:
    parted = work / f"{graph}-2p"
    if not (parted / "manifest.json").exists():
        meta = json.loads((data_root / graph / "meta.json").read_text())
        symmetric = [] if meta["both_directions_stored"] else ["--undirected"]
        atta("import", "npz", data_root / graph, work / graph, "--overwrite", "--quiet", *symmetric)
        atta("partition", work / graph, parted, "--parts", 2, "--method", "metis", "--overwrite", "--quiet")
    return parted


def train(name: str, options: dict[str, object], data: Path, seed: int, work: Path) -> dict[str, object]:
    out = work / "run.json"
    every = max(1, int(str(options["epochs"])) // 10)
    start = time.time()
    atta(
        *("train", "--data", data, "--model", name.split("/")[1], "--trainers", 2, "--epochs", options["epochs"]),
        *("--num-neighbors", options["fan"], "--batch-size", options["batch"], "--hidden", options["hidden"]),
        *("--lr", 0.01, "--weight-decay", options["wd"], "--dropout", options["dropout"], "--seed", seed),
        *("--eval-every", every, "--eval-num-neighbors", "-1,-1", "--eval-batch-size", 16384, "--json", out, "--quiet"),
    )
    report = json.loads(out.read_text())
    best = report["best"]
    return {
        "seed": seed,
        "best_epoch": best["epoch"] + 1,
        "val": 100 * best["val_accuracy"],
        "test": 100 * best["test_accuracy"],
        "seconds": round(time.time() - start, 1),
        "machine": report["machine"],
        "versions": report["versions"],
    }


def write(results: dict[str, dict[str, object]], command: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "accuracy.json").write_text(
        json.dumps({"schema": 1, "command": command, "results": results}, indent=1) + "\n"
    )
    lines = [
        "# Accuracy with 2 partitions and 2 trainers",
        "",
        f"Command: `{command}`",
        "",
        "Test accuracy in percent at the epoch with the best validation accuracy; reference: full-batch PyG in one process with",
        "the same hidden size, layers, learning rate, weight decay and dropout. Evaluation uses all in-neighbours. Within",
        f"{TOLERANCE} points of the reference, or above it, counts as reached. METIS parts, seeds from near each trainer.",
        "",
        "| graph / model | reference | Atta mean ± sd | seeds | difference | reached | epochs, fan-out, batch per trainer | s per run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in results.items():
        o, runs = RUNS[name], entry["runs"]
        assert isinstance(runs, list)
        tests = [r["test"] for r in runs]
        mean, sd = statistics.mean(tests), statistics.stdev(tests) if len(tests) > 1 else 0.0
        difference = mean - float(str(o["reference"]))
        reached = "yes" if difference >= -TOLERANCE else "**no**"
        each = ", ".join(f"{t:.1f}" for t in tests)
        seconds = statistics.median(r["seconds"] for r in runs)
        lines.append(
            f"| {name} | {o['reference']} | {mean:.1f} ± {sd:.1f} | {each} | {difference:+.1f} | {reached} "
            f"| {o['epochs']}, {o['fan']}, {o['batch']} | {seconds:.0f} |"
        )
    (RESULTS / "accuracy.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=HERE.parent / "data" / "accuracy")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "accuracy.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in arguments.only.split(","):
        data = prepare(name.split("/")[0], arguments.data_root, arguments.work)
        runs = [train(name, RUNS[name], data, int(s), arguments.work) for s in arguments.seeds.split(",")]
        results[name] = {"settings": RUNS[name], "runs": runs}
        print(name, [f"{r['test']:.1f}" for r in runs], flush=True)
        write({n: results[n] for n in RUNS if n in results}, "python bench/accuracy.py --data-root DIR")


if __name__ == "__main__":
    main()
