"""A process that takes the batches of one rank, as a trainer does, and lets them go.

    python -m atta.simulate.consumer '{"target": "cluster.toml", "loader": {"rank": 0, ...}}'

``consumers`` starts it and is the other side. A question is a line of JSON on standard input, its answer one on standard
output:

    consumer                                 consumers
                                      ←      {"epochs": 2, "most": null}
      {"batches": 18, "cpu_s": 0.12}  →
                                      ←      end of input

A failure is answered by {"error": "..."}, and the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import islice

import atta
from atta.errors import AttaError

__all__ = ["main"]


def main() -> None:
    """Answer until the questions end."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    given = json.loads(sys.argv[1])
    try:
        with atta.connect(given["target"], wait=True) as cluster:
            loader = atta.NeighborLoader(cluster, **given["loader"], epochs=0)
            for line in iter(sys.stdin.readline, ""):
                out.write(json.dumps(_take(loader, **json.loads(line))) + "\n")
    except AttaError as error:
        out.write(json.dumps({"error": str(error)}) + "\n")
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # Ctrl-C reaches the process that asks, too


def _take(loader: atta.NeighborLoader, epochs: int, most: int | None) -> dict[str, float]:
    """Run so many epochs as trainers do: while one ends, the daemon begins the next."""
    batches, cpu_s = 0, time.process_time()
    loader.epochs = (loader.epochs or 0) + epochs
    for _ in range(epochs):
        batches += sum(1 for _ in islice(iter(loader), most))
    return {"batches": batches, "cpu_s": time.process_time() - cpu_s}  # with the threads of connections


if __name__ == "__main__":
    main()
