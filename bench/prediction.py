"""What `atta inspect --num-neighbors` predicts of batches beside what daemons count while they make them.

    python bench/prediction.py --data DATASET... [--num-neighbors 15,10,5]

One daemon per partition without a cache, one trainer per partition in turn. Writes bench/results/prediction.json and prediction.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.observe.versions import machine, versions
from atta.partition.dataset import Dataset
from atta.samplers.local.predict import predict

RESULTS = Path(__file__).resolve().parent / "results"
COUNTED = ("remote_rows", "remote_frontier")


def measure(path: str, num_neighbors: list[int], batches: int) -> list[dict[str, Any]]:
    """One entry per partition: the predicted mean and error, the counted mean, and their ratio."""
    dataset = Dataset.open(path)
    entries = []
    with atta.local(path, verify=False, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        for prediction in predict(dataset, num_neighbors):
            loader = atta.NeighborLoader(
                cluster, num_neighbors, "train", batch_size=int(prediction.seeds), shuffle=True, drop_last=True,
                rank=prediction.part, world_size=dataset.num_parts, seed=7,
            )  # fmt: skip
            seen: dict[str, list[float]] = {name: [] for name in COUNTED}
            while len(seen[COUNTED[0]]) < batches:
                for batch in loader:
                    for name in COUNTED:
                        seen[name].append(float(batch.stats[name]))
            for name, values in seen.items():
                mean, error = getattr(prediction, name)
                counted = float(np.mean(values))
                entries.append(
                    {
                        "dataset": Path(path).as_posix(),
                        "part": prediction.part,
                        "what": name,
                        "predicted": mean,
                        "error": error,
                        "counted": counted,
                        "batches": len(values),
                        "ratio": mean / counted,
                    }
                )
    return entries


def main() -> None:
    """Measure all datasets and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batches", type=int, default=20)
    arguments = parser.parse_args()
    fan_outs = [int(k) for k in arguments.num_neighbors.split(",")]
    entries = [e for path in arguments.data for e in measure(path, fan_outs, arguments.batches)]
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    command = f"python bench/prediction.py --data {' '.join(arguments.data)} --num-neighbors {arguments.num_neighbors}"
    document = {"schema": 1, "bench": "prediction", "started": started, "command": command}
    document |= {"machine": machine(), "versions": versions(), "results": entries}
    (RESULTS / "prediction.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Predicted and counted remote rows",
        "",
        f"Date: {started}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions().items())}  ",
        f"Command: `{command}`",
        "",
        "Per batch of 1,024 seeds (or all of a partition's, where it has fewer). Predicted from 8 sampled batches per partition, mean and"
        " standard error; counted by the daemons over as many batches of other draws as the last column says. Bound: 10 %.",
        "",
        "| dataset | part | what | predicted | counted | ratio | batches |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {e['dataset']} | {e['part']} | {e['what'].replace('_', ' ')} | {e['predicted']:,.0f} ± {e['error']:,.0f} |"
        f" {e['counted']:,.0f} | {e['ratio']:.3f} | {e['batches']} |"
        for e in entries
    ]
    (RESULTS / "prediction.md").write_text("\n".join(lines) + "\n")
    worst = max(abs(e["ratio"] - 1) for e in entries)
    print(f"largest deviation {worst:.1%}")


if __name__ == "__main__":
    main()
