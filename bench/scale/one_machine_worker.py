"""Loads batches with ``atta.local`` and says what it saw, as lines of JSON; `one_machine` starts it.

It also runs with an earlier checkout, so it takes only what both have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.partition.dataset import Dataset

HASHED = 4
"""So many batches are hashed: those of all runs must be the same."""
CHECKED = 200
"""So many seeds of the first batch are compared with the files of their partitions."""


def main() -> None:
    """Load for some seconds, and look at the first batches. With ``--kill`` a daemon is killed in the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--options", default="", help="of atta serve")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--fan-outs", required=True)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    fan_outs, began = [int(k) for k in given.fan_outs.split(",")], time.monotonic()
    with atta.local(given.data, options=tuple(given.options.split())) as cluster:
        say(serving_s=time.monotonic() - began, daemons=len(cluster.pids))
        loader = atta.NeighborLoader(
            cluster, fan_outs, "train", batch_size=given.batch_size, rank=0, world_size=1, seed=1
        )
        batches = iter(loader)
        first = next(batches)
        say(first_s=time.monotonic() - began)
        hashes = [digest(first), *(digest(next(batches)) for _ in range(HASHED - 1))]
        say(hashes=hashes, wrong=wrong_seeds(Dataset.open(given.data, verify=False), first, fan_outs[0]))
        say(**loaded(batches, given.seconds))
        say(private_bytes=[private_bytes(pid) for pid in cluster.pids])
        if given.kill:
            say(**killed(batches, cluster.pids[-1]))


def say(**found: Any) -> None:
    """Report figures."""
    print(json.dumps(found), flush=True)


def loaded(batches: Iterator[Any], seconds: float) -> dict[str, Any]:
    """Seeds per second, and the longest wait for a batch, over about ``seconds``."""
    seeds, longest, began = 0, 0.0, time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        batch = next(batches, None)
        if batch is None:
            break
        seeds, longest = seeds + batch.batch_size, max(longest, time.monotonic() - now)
    return {"seeds_per_s": seeds / (time.monotonic() - began), "longest_s": longest}


def killed(batches: Iterator[Any], pid: int) -> dict[str, Any]:
    """Kill a daemon: what the consumer reads, and after how long."""
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        for _ in batches:
            pass
    except atta.AttaError as error:
        return {"told_s": time.monotonic() - began, "told": f"{type(error).__name__}: {error}"}
    return {"told_s": None, "told": "nothing: no batch needed that daemon"}


def digest(batch: Any) -> str:
    """A hash of all arrays of a batch."""
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(batch.arrays):
        found.update(np.ascontiguousarray(batch.arrays[name]).tobytes())
    return found.hexdigest()


def wrong_seeds(dataset: Dataset, batch: Any, fan_out: int) -> int:
    """Seeds of a graph of one type whose first-hop edges or rows differ from what the files of their partition allow."""
    (node_type,), (edge_type,) = dataset.schema.node_types, dataset.schema.edge_types
    ids, (source, target) = dataset.ids(node_type), batch.edge_index()
    internal = dataset.to_internal(node_type, batch.n_id())
    wrong = 0
    for seed in range(min(CHECKED, batch.batch_size)):
        part = int(np.searchsorted(dataset.book.offsets[node_type], internal[seed], side="right")) - 1
        row = int(internal[seed] - dataset.book.range(node_type, part)[0])
        csc, opened = dataset.part(part).csc(edge_type), dataset.part(part)
        bounds = slice(int(csc.indptr[row]), int(csc.indptr[row + 1]))
        mine = np.flatnonzero(target == seed)
        pairs = {*zip(ids[csc.indices[bounds]].tolist(), np.asarray(csc.edge_ids[bounds]).tolist(), strict=True)}
        drawn = [*zip(batch.n_id()[source[mine]].tolist(), batch.e_id()[mine].tolist(), strict=True)]
        right = len({*drawn}) == len(drawn) == min(fan_out, len(pairs)) and pairs.issuperset(drawn)
        rows = all(
            np.array_equal(batch.table(name)[seed], opened.table(node_type, name)[row])
            for name in dataset.schema.node_tables[node_type]
        )
        wrong += not (right and rows)
    return wrong


def private_bytes(pid: int) -> int:
    """Memory of a process that no file holds and nobody shares."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(words[words.index("Anonymous:") + 1]) << 10


if __name__ == "__main__":
    main()
