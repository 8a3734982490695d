"""`atta train` on a GPU beside the CPU of the same machine: accuracy and phases.

    python -m bench.gpu.accuracy --work DIR --data-root DIR

facebook_pagepage (in the neutral npz layout below ``--data-root``), one trainer, five epochs, three seeds. Test accuracy in
percent at the epoch that was best on the validation split, mean and sample sd. Phases are those of the last epoch of the
first seed, in seconds; fourteen runs share the machine, so they say where time goes and not how fast it is.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from atta_bench.gpu.common import Record, gpu_arguments

GRAPH = "facebook_pagepage"
MODELS = {
    "sage": ["--model", "sage"],
    "gcn": ["--model", "gcn"],
    "gat": ["--model", "gat"],
    "resgcn+": ["--model", "resgcn+", "--layers", "3"],
    "sage, bf16": ["--model", "sage", "--precision", "bf16"],
    "sage, compiled": ["--model", "sage", "--compile"],
}
SEEDS = (0, 1, 2)
ON_GPU_ONLY = ("sage, bf16", "sage, compiled")
AT_ONCE = 14


def atta(*words: object) -> str:
    """What a command of Atta prints."""
    said = subprocess.run(
        [sys.executable, "-m", "atta.cli.main", *map(str, words)], capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise SystemExit(f"atta {' '.join(map(str, words))}: {said.stderr[-500:]}")
    return said.stdout


def trained(data: Path, model: str, device: str, seed: int) -> dict[str, Any]:
    """The report of a run."""
    fan_outs = "5,5" if model != "resgcn+" else "5"
    words = ["train", "--data", data, *MODELS[model], "--device", device, "--seed", seed]
    words += ["--epochs", 5, "--hidden", 64, "--batch-size", 256, "--num-neighbors", fan_outs, "--dropout", 0.3]
    found: dict[str, Any] = json.loads(atta(*words, "--threads", 2, "--quiet", "--json", "-"))
    return found


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__, data_root=Path, devices="cuda,cpu")
    data = arguments.work / f"{GRAPH}-1p"
    if not data.exists():
        arguments.work.mkdir(parents=True, exist_ok=True)
        atta("import", "npz", arguments.data_root / GRAPH, arguments.work / GRAPH, "--undirected", "--quiet")
        atta("partition", arguments.work / GRAPH, data, "--parts", 1, "--method", "random", "--quiet")
    devices = arguments.devices.split(",")
    pairs = [(m, d) for m, d in product(MODELS, devices) if d != "cpu" or m not in ON_GPU_ONLY]
    record = Record("gpu-accuracy", "Training on a GPU and on the CPU", __doc__, arguments)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {(*pair, seed): pool.submit(trained, data, *pair, seed) for pair, seed in product(pairs, SEEDS)}
        for model, device in pairs:
            reports = [runs[model, device, seed].result() for seed in SEEDS]
            found = [100 * report["best"]["test_accuracy"] for report in reports]
            phases = reports[0]["epochs"][-1]["breakdown"]
            seconds = statistics.median(epoch["seconds"] for epoch in reports[0]["epochs"][1:])
            accuracy = f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"
            record.add("rows", {"model": model, "device": device, "accuracy": accuracy, "epoch": seconds, **phases})


if __name__ == "__main__":
    main()
