"""The part of `bench.slices` that runs in either checkout: loads as many epochs as each line of its input says.

It imports nothing but what all releases offer (`atta.local`, `atta.connect`, `atta.NeighborLoader`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import psutil

import atta

FAN_OUT = [15, 10, 5]
SPAWN = multiprocessing.get_context("spawn")


def consume(target: str, rank: int, ranks: int, batch_size: int, asked: Connection) -> None:
    """Load as many epochs as ``asked`` says, and answer with the number of seeds and the seconds waited for each batch."""
    with atta.connect(target) as cluster:
        loader = atta.NeighborLoader(
            cluster, FAN_OUT, "train", batch_size=batch_size, shuffle=True, seed=0, rank=rank, world_size=ranks
        )
        while epochs := asked.recv():
            seeds, waits = 0, []
            for _ in range(epochs):
                began = time.perf_counter()
                for batch in loader:
                    waits.append(time.perf_counter() - began)
                    seeds += batch.batch_size
                    began = time.perf_counter()
            asked.send((seeds, waits))


def main() -> None:
    """Serve the dataset, and answer each line with a line of JSON, a `Slice` of `bench.slices`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    given = parser.parse_args()
    with atta.local(given.data, threads=1, options=("--cache", given.cache)) as cluster:
        ranks = len(cluster.pids)
        links, consumers = [], []
        for rank in range(ranks):
            ours, theirs = SPAWN.Pipe()
            words = (str(cluster.cluster_file), rank, ranks, given.batch_size, theirs)
            consumers.append(SPAWN.Process(target=consume, args=words, daemon=True))
            consumers[-1].start()
            links.append(ours)
        watched = [psutil.Process(pid) for pid in (*cluster.pids, *(c.pid for c in consumers))]
        for line in sys.stdin:
            before, began = _cpu_s(watched), time.perf_counter()
            for link in links:
                link.send(int(line))
            found = [link.recv() for link in links]
            seconds, cpu_s = time.perf_counter() - began, _cpu_s(watched) - before
            seeds = sum(loaded for loaded, _ in found)
            p99_s = float(np.quantile([wait for _, waits in found for wait in waits], 0.99))
            print(json.dumps({"seeds": seeds, "seconds": seconds, "cpu_s": cpu_s, "p99_s": p99_s}), flush=True)
        for link in links:
            link.send(0)
        for consumer in consumers:
            consumer.join(timeout=30)


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in processes)


if __name__ == "__main__":
    main()
