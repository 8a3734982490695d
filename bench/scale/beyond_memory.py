"""A daemon whose dataset is several times its memory: mapped files, and ``--memory SIZE``, beside what the disk allows.

    python -m bench.scale.beyond_memory --dataset DATASET [--limit 1GiB] [--batches 60] [--seconds 60] [--rounds 5]

DATASET has one partition. A daemon in a control group serves it, with a cold page cache; the consumer is outside. The disk's
own rates are measured in the same run: random reads of 4 KiB, 64 at a time, and reads of 1 MiB in order. The optimum reads
each row that is not in memory, where as many rows stay as with ``--memory SIZE`` and those go first that are asked for
latest (Belady); a batch reads each block once. Its time is that of so many bytes in random reads. Where blocks side by side
count as one read of the rate, it is shorter: the second figure. Needs root, and control groups.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta import _native
from atta.partition.dataset import Dataset
from atta.partition.disk.files import array_start
from atta.partition.graph.needs import node_file, plan_disk
from atta_bench.results import arguments_of, document, head, rows_of, write
from atta_bench.scale.one_machine import MemoryGroup, leave_cache, limits
from atta_bench.scale.one_machine_worker import digest

BLOCK, READS, BUFFER = 4096, 60_000, 128 << 20


def disk_rates(path: Path) -> dict[str, float]:
    """Random reads of 4 KiB a second, and bytes a second in order, past the page cache."""
    blocks = path.stat().st_size // BLOCK
    disk, some = _native.DiskRows(str(path), 0, blocks, BLOCK, 1, 1, True, True), np.arange(blocks // 8) * 8
    taken, out = list[float](), np.empty((READS, BLOCK), np.uint8)
    for seed in range(3):
        began, rows = time.monotonic(), np.random.default_rng(seed).permutation(some)[:READS]
        disk.gather(rows, out[: len(rows)], None, -1)
        taken.append((time.monotonic() - began) / len(rows))
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), np.empty((1 << 20) + BLOCK, np.uint8)
    aligned, began = buffer[-buffer.ctypes.data % BLOCK :][: 1 << 20].data, time.monotonic()
    read = sum(os.preadv(file, [aligned], at << 20) for at in range(min(512, blocks >> 8)))
    os.close(file)
    return {"random_reads_per_s": 1 / min(taken), "in_order_bytes_per_s": read / (time.monotonic() - began)}


def load(given: Namespace, limit: int, memory: str, address: str) -> dict[str, Any]:
    """Load batches from a daemon in a control group. Also gives the vertices and a hash of each batch."""
    how = f"serve --part 0 --no-verify --log-level warning --listen {address} --memory {memory} --buffer {BUFFER}"
    command = [sys.executable, "-m", "atta.cli.main", *how.split(), "--data", str(given.dataset)]
    found: dict[str, Any] = {"memory": memory, "asked": [], "hashes": []}
    with MemoryGroup(limit) as group, subprocess.Popen(group.command(command)) as daemon:
        try:
            with atta.connect([address], wait=True) as cluster:
                leave_cache(given.dataset)
                options = {"batch_size": given.batch_size, "shuffle": True, "seed": 1}
                loader = atta.NeighborLoader(cluster, [*map(int, given.fan_outs.split(","))], "train", **options)
                began = time.monotonic()
                for batch, _ in zip(loader, range(given.batches), strict=False):
                    found["asked"].append(np.array(batch.n_id()))
                    found["hashes"].append(digest(batch))
                    if time.monotonic() > began + given.seconds:
                        break
                found["batches_per_s"] = len(found["asked"]) / (time.monotonic() - began)
                found["disk"] = {name: value for name, value in cluster.stats()[0].items() if name.startswith("disk_")}
        finally:
            daemon.terminate()
    return {**found, "peak_bytes": group.peak, "killed": group.killed}


def optimum(asked: Sequence[np.ndarray], slots: int, row_bytes: int, start: int) -> tuple[int, int]:
    """Blocks of the file that the offline optimum reads, and runs of them. ``asked``: rows of each batch, each once."""
    coming, kept, latest = defaultdict[int, list[int]](list), dict[int, int](), list[tuple[int, int]]()
    blocks = runs = 0
    for turn in reversed(range(len(asked))):
        for row in asked[turn].tolist():
            coming[row].append(turn)  # the next one last
    for rows in asked:
        at = start + np.array([row for row in rows.tolist() if row not in kept], np.int64) * row_bytes
        read = np.unique(np.concatenate([at // BLOCK, (at + row_bytes - 1) // BLOCK]))
        blocks, runs = blocks + len(read), runs + int((np.diff(read, prepend=-9) > 1).sum())
        for row in rows.tolist():
            coming[row].pop()
            kept[row] = coming[row][-1] if coming[row] else len(asked)
            heapq.heappush(latest, (-kept[row], row))
        while len(kept) > slots:
            turn, row = heapq.heappop(latest)
            if kept.get(row) == -turn:
                del kept[row]
    return blocks, runs


def one_round(given: Namespace, limit: int, dataset: Dataset) -> dict[str, Any]:
    """The disk's rates, a run of each way to read, and the figures that compare them."""
    (node_type,), bound = dataset.schema.node_types, limit * 19 // 20
    file, row_bytes = node_file(0, node_type, "x"), dataset.schema.table(node_type, "x").row_bytes
    rates = disk_rates(given.dataset / file)
    runs = [load(given, limit, memory, f"127.0.0.1:{7391 + i}") for i, memory in enumerate(("map", "disk", str(bound)))]
    *_, asked = [[dataset.to_internal(node_type, ids) for ids in run.pop("asked")] for run in runs]
    same = all(len({*of}) == 1 for of in zip(*(run.pop("hashes") for run in runs), strict=False))
    slots = plan_disk(dataset, 0, bound, cache=None, buffer=BUFFER).slots[file]
    blocks, reads = optimum(asked, slots, row_bytes, array_start(given.dataset / file))
    mapped, paged, now = (run["batches_per_s"] for run in runs)
    best = {name: count / rates["random_reads_per_s"] for name, count in (("blocks", blocks), ("reads", reads))}
    figures = {
        "times map": now / mapped,
        "times disk": now / paged,
        **{f"of the optimum, by its {name}": now * seconds / len(asked) for name, seconds in best.items()},
        "random reads of 4 KiB per second": rates["random_reads_per_s"],
        "bytes per second in order": rates["in_order_bytes_per_s"],
        "blocks of the optimum": blocks,
        "reads of the optimum": reads,
        "rows kept": slots,
    }
    return {"runs": runs, "figures": figures, "same_bits": same}


def main() -> None:
    """Measure and write the record."""
    options = {"limit": "1GiB", "batches": 60, "seconds": 60.0, "batch_size": 512, "fan_outs": "10,5", "rounds": 1}
    given = arguments_of(__file__, __doc__, dataset=Path, **options)
    (limit,), dataset = limits(given.limit), Dataset.open(given.dataset, verify=False)
    size = sum(record.size for record in dataset.files.values())
    rounds = [one_round(given, limit, dataset) for _ in range(given.rounds)]
    about = document("beyond-memory", command=given.typed, bytes=size, limit=limit, rounds=rounds)
    lines = head(f"Beyond memory: {size / limit:.1f} times a control group of {given.limit}", about)
    columns = "disk_reads", "disk_read_bytes", "disk_rows_asked", "disk_rows_hit"
    rows = [
        [number, r["memory"], f"{r['batches_per_s']:.3g}", r["peak_bytes"] >> 20]
        + [f"{r['disk'].get(name, 0):,.0f}" for name in columns]
        for number, found in enumerate(rounds, 1)
        for r in found["runs"]
    ]
    lines += [*rows_of(["round", "--memory", "batches/s", "peak without files, MiB", *columns], *rows), ""]
    medians = []
    for name in rounds[0]["figures"]:
        values = [found["figures"][name] for found in rounds]
        medians.append((name, f"{np.median(values):.4g}", f"{min(values):.4g} to {max(values):.4g}"))
    same = all(found["same_bits"] for found in rounds)
    lines += rows_of(["figure", "median", "rounds"], *medians, ["same bits", same, ""])
    write(given.out / "beyond-memory.json", about, lines)


if __name__ == "__main__":
    main()
