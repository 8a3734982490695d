"""Remote rows of batches: those that `atta inspect --num-neighbors` predicts, and those that daemons count.

    python -m bench.partitioning.prediction --data DATASET... [--num-neighbors 15,10,5]

There is one daemon per partition, without a cache, and one trainer per partition in turn. Writes prediction.json and
prediction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.partition.dataset import Dataset
from atta.samplers.local.predict import predict
from atta_bench.lab.workload import ints
from atta_bench.record import command, document, head, parser_of, rows_of, write

COUNTED = ("remote_rows", "remote_frontier")


def measure(path: str, num_neighbors: Sequence[int], batches: int) -> list[dict[str, Any]]:
    """One entry per partition and count: the predicted mean and error, the counted mean, and their ratio."""
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


def row(entry: dict[str, Any]) -> list[object]:
    predicted = f"{entry['predicted']:,.0f} ± {entry['error']:,.0f}"
    figures = [predicted, f"{entry['counted']:,.0f}", f"{entry['ratio']:.3f}"]
    return [entry["dataset"], entry["part"], entry["what"].replace("_", " "), *figures, entry["batches"]]


def main() -> None:
    """Measure all datasets and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batches", type=int, default=20)
    arguments = parser.parse_args()
    fan_outs = ints(arguments.num_neighbors)
    entries = [e for path in arguments.data for e in measure(path, fan_outs, arguments.batches)]
    found = document("prediction", command=command(parser, arguments), results=entries)
    lines = [
        *head("Predicted and counted remote rows", found),
        "Per batch of 1,024 seeds (or all of a partition's, where it has fewer). Predicted from 8 sampled batches per partition,",
        "mean and standard error; counted by the daemons over as many batches of other draws as the last column says. Bound: 10 %.",
        "",
        *rows_of(("dataset", "part", "what", "predicted", "counted", "ratio", "batches"), *map(row, entries)),
    ]
    write(arguments.out / "prediction.json", found, lines)
    print(f"largest deviation {max(abs(e['ratio'] - 1) for e in entries):.1%}")


if __name__ == "__main__":
    main()
