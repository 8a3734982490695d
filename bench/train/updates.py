"""How soon an update of edges is visible in the rows of all layers.

    python -m bench.train.updates --data DIR [--per-s 100] [--seconds 60] [--edges 1]

On two daemons ``atta update edges --watch`` takes updates that are put into a folder at a constant rate, and an
``InferenceFollower`` of two layers of GraphSAGE, 64 wide, follows. An update's time is from its renaming until its version counts in the tables of all
layers, which have its rows from then on. Versions lie beside the dataset, and are removed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import SAGEConv

import atta
from atta.errors import ConfigError
from atta_bench.results import ROOT, arguments_of


def put(folder: Path, vertices: int, edges: int, moments: np.ndarray) -> dict[str, float]:
    """Put an update into ``folder`` at each of ``moments``, seconds from now; returns by name when it was there."""
    rng, began, there = np.random.default_rng(0), time.monotonic(), {}
    for number, moment in enumerate(moments):
        name = f"{number:08}"
        (made := folder / f".{name}").mkdir()
        for end in ("src", "dst"):
            np.save(made / f"{end}.npy", rng.integers(0, vertices, edges))
        time.sleep(max(0.0, began + moment - time.monotonic()))
        there[name] = time.monotonic()
        made.rename(folder / name)
    return there


def visible(follower: atta.InferenceFollower, seen: dict[int, tuple[float, float]]) -> None:
    """Note when the follower has come to a version, and how long that took."""
    with contextlib.suppress(ConfigError, ValueError):  # at the end the cluster is closed
        seen.update((done.version, (time.monotonic(), done.seconds)) for done in follower.follow())


def main() -> None:
    """Measure, and print the figures."""
    options: dict[str, Any] = {"seconds": 60, "per_s": (100, "updates per second"), "edges": (1, "of an update")}
    arguments = arguments_of(__file__, __doc__, data=ROOT / "data/powerlaw-245k-2p", **options)
    with (
        tempfile.TemporaryDirectory(prefix="atta-updates-") as folder,
        atta.local(arguments.data, threads=1, verify=False) as cluster,
    ):
        lines, arriving = Path(folder) / "lines", Path(folder) / "arriving"
        torch.manual_seed(0)
        layers = [SAGEConv(cluster.schema.node_tables["node"]["x"].row_shape[0], 64), SAGEConv(64, 64)]
        follower, seen = atta.InferenceFollower(cluster, layers, table="rows"), dict[int, tuple[float, float]]()
        print("first pass:", follower.catch_up(), flush=True)
        words = ["update", "edges", "--cluster", str(cluster.cluster_file), "--data", str(arguments.data)]
        words += ["--watch", str(arriving), "--json", str(lines), "--quiet"]
        with subprocess.Popen([sys.executable, "-m", "atta.cli.main", *words]) as updater:
            threading.Thread(target=visible, args=(follower, seen), daemon=True).start()
            while not arriving.exists():  # it is about to look
                time.sleep(0.1)
            moments = np.arange(1, 1 + arguments.per_s * arguments.seconds) / arguments.per_s
            there = put(arriving, cluster.schema.node_counts["node"], arguments.edges, moments)
            time.sleep(10)  # the last ones
            updater.send_signal(signal.SIGINT)
        found = [json.loads(line) for line in lines.read_text().splitlines()]
        version = {name: told["version"] for told in found for name in told["updates"]}
        at = {number: moment for number, (moment, _) in sorted(seen.items())}
        waited = [next(at[n] for n in at if n >= version[name]) - moment for name, moment in there.items()]
        print(
            f"{len(waited):,} updates in {len(found) / arguments.seconds:.1f} versions/s, of which "
            f"{len(seen) / arguments.seconds:.1f} were followed, in a median of {np.median([s for _, s in seen.values()]):.3f} s; "
            f"visible after {np.median(waited):.3f} s in the median, p99 {np.quantile(waited, 0.99):.3f} s, at most "
            f"{max(waited):.3f} s"
        )
    shutil.rmtree(arguments.data.absolute().with_name(f"{arguments.data.name}.versions"))


if __name__ == "__main__":
    main()
