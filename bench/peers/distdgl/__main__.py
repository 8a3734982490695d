"""Runs DistDGL alone and prints what every rank reports, one JSON object per rank and epoch.

python -m atta_bench.peers.distdgl GRAPH [--parts 2] [--num-neighbors 15,10,5] [--batch-size 1024] [--rate 1gbit]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from atta.errors import AttaError
from atta_bench.lab.netlab import NetLab
from atta_bench.lab.workload import BenchWorkload, ints
from atta_bench.peers.distdgl.launch import run_distdgl
from atta_bench.peers.distdgl.partition import prepare


def main() -> None:
    """Sample and fetch the graph with DistDGL."""
    parser = argparse.ArgumentParser("python -m atta_bench.peers.distdgl", description=__doc__)
    parser.add_argument("graph", type=Path, help="graph folder or partitioned dataset")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--num-neighbors", type=ints, default=(15, 10, 5))
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--rate", help="rate of the link of every host, e.g. 1gbit")
    parser.add_argument("--cache", type=Path, default=Path("data/peers"), help="keeps the converted graph")
    options = parser.parse_args()
    try:
        workload = BenchWorkload(
            options.num_neighbors, options.batch_size, epochs=options.epochs, seconds=options.seconds
        )
        partitions = prepare(options.graph, options.parts, workload.split, options.cache.resolve())
        with (
            NetLab(options.parts, rate=options.rate) as lab,
            tempfile.TemporaryDirectory(prefix="atta-distdgl-") as folder,
        ):
            measured = run_distdgl(partitions, workload, lab.hosts, Path(folder))
    except AttaError as error:
        print(json.dumps({"error": str(error)}))
        raise SystemExit(1) from None
    for epoch in measured.epochs:
        print(json.dumps(epoch))


if __name__ == "__main__":
    main()
