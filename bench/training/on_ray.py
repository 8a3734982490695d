"""Seconds per epoch of ``atta.ray.fit`` beside ``atta train``, which runs the same trainers under torch's launcher.

    python -m bench.training.on_ray [--rounds 5] [--epochs 5] [--nodes 100000] [--work data/ray]

Two daemons and two trainers, one thread each, on this machine; Ray believes that it is two nodes. Each round measures
both, and the next one begins with the other. A run's figure is the median of its epochs but the first. ``started``: from
the call until the first epoch begins, and from the last one's end until the figures are there. Writes ray.json, .md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import atta
import atta.ray
from atta.observe.machine.addresses import HeldAddresses
from atta.partition.generate import GenerateOptions
from atta.train import TrainConfig
from atta.wire.clusterfile import write_cluster
from atta_bench.record import ROOT, cell, command, document, head, parser_of, rows_of, write
from atta_bench.training.graphs import SPLITS, partitioned

PARTS, EDGES_PER_NODE = 2, 20
BATCH, FAN_OUTS, HIDDEN = 512, (10, 10), 128
MIB = 1 << 20
Figures = dict[str, Any]


@contextmanager
def daemons_of(parts: Path, folder: Path) -> Iterator[str]:
    """Start daemons with one thread each, as ``atta.ray.serve`` does. Yields their cluster file."""
    held, cluster = HeldAddresses(PARTS), folder / "cluster.toml"
    write_cluster(cluster, held.addresses)
    running = []
    try:
        for part, address in enumerate(held.addresses):
            place = ["--part", str(part), "--listen", address, "--peers", str(cluster), "--threads", "1"]
            words = ["serve", "--data", str(parts), "--cache", str(64 * MIB), "--buffer", str(256 * MIB), *place]
            running.append(subprocess.Popen([sys.executable, "-m", "atta.cli.main", *words], stderr=subprocess.DEVNULL))
        atta.connect(cluster, wait=True, deadline_s=60).close()
        yield str(cluster)
    finally:
        for daemon in running:
            daemon.terminate()
        for daemon in running:
            daemon.wait(60)
        held.close()


@contextmanager
def ray_nodes(count: int, cpus: int = 2) -> Iterator[Any]:
    """Ray as on ``count`` machines with so many cores each. Yields its ``Cluster``."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=cpus)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace="atta", log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def launched(parts: Path, folder: Path, given: Namespace) -> Figures:
    """``atta train`` with daemons started by hand."""
    found = folder / "report.json"
    with daemons_of(parts, folder) as cluster:
        words = ["train", "--cluster", cluster, "--trainers", str(PARTS), "--epochs", str(given.epochs)]
        words += ["--num-neighbors", ",".join(map(str, FAN_OUTS)), "--batch-size", str(BATCH), "--hidden", str(HIDDEN)]
        words += ["--device", "cpu", "--eval-every", str(given.epochs), "--json", str(found)]
        began = time.monotonic()
        command = [sys.executable, "-m", "atta.cli.main", *words]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return _figures(json.loads(found.read_text())["epochs"], time.monotonic() - began)


def on_ray(parts: Path, folder: Path, given: Namespace) -> Figures:
    """``atta.ray.fit`` with daemons of ``atta.ray.serve``."""
    about: Mapping[str, Any] = {"num_neighbors": FAN_OUTS, "batch_size": BATCH, "hidden": HIDDEN, "device": "cpu"}
    counts = {"trainers": PARTS, "epochs": given.epochs, "eval_every": given.epochs}
    config = TrainConfig(cluster="ray:bench", verbose=False, **counts, **about)
    memory = {"cache_bytes": 64 * MIB, "buffer_bytes": 256 * MIB}
    with ray_nodes(2), atta.ray.serve(parts, name="bench", insecure=True, **memory):
        began = time.monotonic()
        report = atta.ray.fit(config)
        took = time.monotonic() - began
    return _figures(
        [{"seconds": e.seconds, "eval_seconds": e.eval_seconds, "loss": e.loss} for e in report.epochs], took
    )


def _figures(epochs: list[Mapping[str, Any]], took: float) -> Figures:
    inside = sum(e["seconds"] + e["eval_seconds"] for e in epochs)
    return {
        "epoch_s": statistics.median(e["seconds"] for e in epochs[1:]),
        "started_s": took - inside,
        "losses": [e["loss"] for e in epochs],
    }


SYSTEMS: dict[str, Callable[[Path, Path, Namespace], Figures]] = {"atta train": launched, "atta.ray.fit": on_ray}


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds [5]")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of a run, the first of which does not count [5]")
    parser.add_argument("--nodes", type=int, default=100_000, help="vertices of the graph [100000]")
    parser.add_argument("--work", type=Path, default=ROOT / "data/ray", help="where the graph is kept [data/ray]")
    given = parser.parse_args()
    sizes = {"nodes": given.nodes, "edges": EDGES_PER_NODE * given.nodes, "features": 100, "classes": 16}
    options = GenerateOptions(**sizes, inter=0.3, seed=0, **SPLITS)
    parts = partitioned("sbm", options, None, given.work, PARTS)
    found: dict[str, list[Figures]] = {name: [] for name in SYSTEMS}
    for number in range(given.rounds):
        for name in list(SYSTEMS)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(SYSTEMS[name](parts, Path(folder), given))
            print(f"round {number + 1}: {name}: {found[name][-1]['epoch_s']:.3f} s per epoch", flush=True)
    record(found, given, command(parser, given))


def record(found: Mapping[str, list[Figures]], given: Namespace, typed: str) -> None:
    """Write the figures of all rounds, and the quotients of each round."""
    reference, ours = found["atta train"], found["atta.ray.fit"]
    quotients = [b["epoch_s"] / a["epoch_s"] for a, b in zip(reference, ours, strict=True)]
    pairs = [
        (x, y) for a, b in zip(reference, ours, strict=True) for x, y in zip(a["losses"], b["losses"], strict=True)
    ]
    contents = {
        "command": typed,
        "rounds": found,
        "quotients": quotients,
        "median_quotient": statistics.median(quotients),
        "largest_loss_difference": max(abs(x - y) for x, y in pairs),
    }
    about = document("ray", **contents)
    rows = [
        [name, *(cell(spread([run[figure] for run in runs])) for figure in ("epoch_s", "started_s"))]
        for name, runs in found.items()
    ]
    lines = head("atta.ray.fit beside atta train", about, f"Rounds: {given.rounds}, medians (minimum to maximum)")
    lines += rows_of(["trainers started by", "seconds per epoch", "seconds outside epochs"], *rows)
    lines += ["", f"Quotient of a round's seconds per epoch, Ray / atta train: {cell(spread(quotients))}.", ""]
    lines += [f"Largest difference between losses of the same epoch: {contents['largest_loss_difference']:.1e}."]
    write(given.out / "ray.json", about, lines)


def spread(figures: list[float]) -> dict[str, float]:
    """Median, least and greatest of some figures, as ``cell`` takes them."""
    return {"median": statistics.median(figures), "min": min(figures), "max": max(figures)}


if __name__ == "__main__":
    main()
