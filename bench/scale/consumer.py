"""A measured process of ``atta bench scale``: takes batches of the size that it is told, as many as it is told.

    PYTHON -P consumer.py '{"addresses": ["127.0.0.1:7070", ...], "rank": 0, ...}'

The Python of another checkout runs the very same file. So it imports nothing but Python's own library and what users of
Atta import. A question is a line of JSON on standard input, its answer one on standard output:

    consumer                                              benchmark
      {"event": "ready", "batches": {"1024": 9}, ...} →     batches of an epoch, by size
                                                     ←      {"do": "take", "batch_size": 1024, "epochs": 2}
      {"event": "taken", "times": [...], ...}        →
                                                     ←      {"do": "count"}
      {"event": "counted", "figures": {...}}         →      figures of the daemon of this rank
                                                     ←      end of input
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import atta

SETTINGS = ("num_neighbors", "split", "frontier", "deliver", "seeds", "seed", "batch_sizes", "threads", "filled")
"""What the benchmark tells every consumer at its start, besides addresses, rank, number of ranks and deadline."""


def main() -> None:
    """Answer the questions of the benchmark until they end."""
    given = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    deliver = _delivery(given["deliver"], given["threads"])
    with atta.connect(given["addresses"], wait=True, deadline_s=given["deadline_s"]) as cluster:
        loaders = {size: _loader(cluster, given, size) for size in given["batch_sizes"]}
        waited = _wait_filled(cluster, given["deadline_s"]) if given["filled"] else 0.0
        _emit(out, event="ready", batches={size: len(loader) for size, loader in loaders.items()}, filled_s=waited)
        for line in iter(sys.stdin.readline, ""):
            asked = json.loads(line)
            if asked["do"] == "count":
                _emit(out, event="counted", figures=cluster.stats()[given["rank"]])
            else:
                _emit(out, event="taken", **_take(loaders[asked["batch_size"]], asked["epochs"], deliver))


def _wait_filled(cluster: Any, deadline_s: float) -> float:
    """Seconds until the daemons' caches are filled; 0 in a checkout that cannot tell."""
    began = time.monotonic()
    if hasattr(cluster, "wait_filled") and not cluster.wait_filled(deadline_s):
        raise SystemExit(f"the caches are not filled after {deadline_s:g} s")
    return time.monotonic() - began


def _loader(cluster: Any, given: dict[str, Any], batch_size: int) -> Any:
    labels = [name for name in next(iter(cluster.schema.node_tables.values())) if name == "y"]
    return atta.NeighborLoader(
        cluster,
        given["num_neighbors"],
        given["split"],
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        rank=given["rank"],
        world_size=given["world_size"],
        seed_policy=given["seeds"],
        frontier=given["frontier"],
        seed=given["seed"],
        # Users of DGL fetch labels of the seeds.
        seed_tables=labels if given["deliver"] == "dgl" else (),
        job=f"scale-{batch_size}",
        epochs=0,
    )


def _take(loader: Any, epochs: int, deliver: Callable[[Any], Any]) -> dict[str, Any]:
    """Take whole epochs. Daemons make no batch beyond them."""
    found = dict.fromkeys(("seeds", "nodes", "edges", "remote_rows", "make_ms"), 0.0)
    times = []
    loader.epochs += epochs
    start = time.monotonic()
    for _ in range(epochs):
        for batch in loader:
            deliver(batch)
            times.append(time.monotonic())
            found["seeds"] += batch.batch_size
            found["nodes"] += batch.num_nodes
            found["edges"] += batch.num_edges
            for name in ("remote_rows", "make_ms"):
                found[name] += batch.stats.get(name, 0.0)
    return {"start": start, "times": times, **found}


def _delivery(form: str, threads: int) -> Callable[[Any], Any]:
    """The form in which batches are taken. What it needs is imported now: the first batch is measured, too."""
    if form == "arrays":
        return lambda batch: batch
    import torch

    torch.set_num_threads(threads)
    if form == "pyg":
        import_module("torch_geometric.data")
        return lambda batch: batch.to_pyg()
    if form == "dgl":
        import_module("dgl")
        return lambda batch: (
            batch.to_dgl(),
            [torch.from_numpy(rows) for tables in batch.tables.values() for rows in tables.values()],
        )
    raise SystemExit(f"unknown form of batches: {form}")


def _emit(out: Any, **answer: Any) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
