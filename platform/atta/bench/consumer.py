"""One consumer of the loader benchmark: iterate a loader and do nothing else. Settings come as JSON in ATTA_BENCH.

Prints "ready", waits for a line on standard input, then prints one JSON line per epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import atta


def main() -> None:
    """Run the epochs."""
    settings = json.loads(os.environ["ATTA_BENCH"])
    with atta.connect(settings["addresses"], wait=True) as cluster:
        loader = atta.NeighborLoader(
            cluster,
            settings["num_neighbors"],
            "train",
            batch_size=settings["batch_size"],
            shuffle=True,
            rank=settings["rank"],
            world_size=settings["world"],
            frontier=settings["frontier"],
            job="bench",
        )
        print("ready", flush=True)
        sys.stdin.readline()
        for epoch in range(settings["epochs"]):
            totals: Counter[str] = Counter()
            start = time.perf_counter()
            for batch in loader:
                totals["seeds"] += batch.batch_size
                totals["edges"] += batch.num_edges
                totals["nodes"] += batch.num_nodes
                totals["feature_bytes"] += sum(a.nbytes for tables in batch.tables.values() for a in tables.values())
                for name in ("remote_rows", "remote_bytes", "wait_ms"):
                    totals[name] += batch.stats.get(name, 0.0)  # type: ignore[assignment]
            print(json.dumps({"epoch": epoch, "seconds": time.perf_counter() - start, **totals}), flush=True)


if __name__ == "__main__":
    main()
