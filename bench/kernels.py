"""Sampling kernels alone, one process: sampled edges per second with compaction, by phase.

    python bench/kernels.py DATASET [--num-neighbors 15,10,5] [--batch-size 1024] [--batches 20] [--threads 1]

DATASET is a partitioned dataset of one part.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.shard import Shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    kernels.retain_heap()
    dataset = Dataset.open(arguments.dataset, verify=False)
    shard = Shard(dataset, 0, threads=arguments.threads)
    node_type, edge_type = dataset.schema.node_types[0], dataset.schema.edge_types[0]
    total = dataset.schema.node_counts[node_type]
    fan_outs = [int(k) for k in arguments.num_neighbors.split(",")]
    rng = np.random.default_rng(0)
    room = arguments.batch_size * 2000
    row, col, e_id = (np.zeros(room, dtype=np.int32) for _ in range(3))
    compactor = kernels.Compactor(total)
    rates, phases = [], []
    for batch in range(arguments.batches):
        start = time.perf_counter()
        compactor.reset()
        compactor.insert(rng.integers(0, total, arguments.batch_size))
        low = edges = 0
        sampling = joining = 0.0
        for hop, fan_out in enumerate(fan_outs):
            high = compactor.size
            t0 = time.perf_counter()
            frontier = compactor.ids(low, high)
            answer = shard.sample(edge_type, frontier, fan_out=fan_out, replace=False, stream_key=100 * batch + hop)
            t1 = time.perf_counter()
            group = (np.arange(high - low), answer.counts, answer.neighbors, answer.edge_ids)
            stop = edges + len(answer.neighbors)
            local = np.arange(low, high, dtype=np.int32)
            compactor.stitch([group], local, row[edges:stop], col[edges:stop], e_id[edges:stop])
            joining += time.perf_counter() - t1
            sampling += t1 - t0
            low, edges = high, stop
        seconds = time.perf_counter() - start
        rates.append((edges / seconds, arguments.batch_size / seconds))
        phases.append((1e9 * sampling / edges, 1e9 * joining / edges, edges, compactor.size))
    per_s = [statistics.median(r[i] for r in rates) for i in (0, 1)]
    ns = [statistics.median(p[i] for p in phases) for i in (0, 1)]
    print(
        f"{per_s[0] / 1e6:.1f} M edges/s, {per_s[1]:,.0f} seeds/s; sampling {ns[0]:.1f} ns per edge, compaction {ns[1]:.1f} ns; "
        f"{phases[-1][2]:,} edges, {phases[-1][3]:,} vertices per batch; {arguments.threads} threads"
    )


if __name__ == "__main__":
    main()
