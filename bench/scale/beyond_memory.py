"""A daemon whose dataset is several times its memory: mapped files, and ``--memory SIZE``, beside what the disk allows.

    python -m bench.scale.beyond_memory DATASET [--limit 1GiB] [--batches 60] [--seconds 60] [--batch-size 512] [--fan-outs 10,5]

DATASET has one partition. A daemon in a control group serves it, with a cold page cache; the consumer is outside. The disk's
own rates are measured in the same run: random reads of 4 KiB, 64 at a time, and reads of 1 MiB in order. The optimum reads
each row that is not in memory, where as many rows stay as with ``--memory SIZE`` and those go first that are asked for
latest (Belady); a batch reads each block once. Its time is that of so many bytes in random reads. Where blocks side by side
count as one read of the rate, it is shorter: the second figure. Needs root, and control groups.
Writes beyond-memory.json and beyond-memory.md.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import subprocess
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta import _native
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import node_file, plan_disk
from atta_bench.results import arguments_of, document, head, rows_of, write
from atta_bench.scale.one_machine import MemoryGroup, leave_cache, limits

BLOCK, READS, BUFFER = 4096, 60_000, 128 << 20


def disk_rates(path: Path) -> dict[str, float]:
    """Random reads of 4 KiB a second, and bytes a second in order, past the page cache."""
    blocks = path.stat().st_size // BLOCK
    disk = _native.DiskRows(str(path), 0, blocks, BLOCK, 1, 1, True, True)
    some, out = np.random.default_rng(0).permutation(blocks // 8)[:READS] * 8, np.empty((READS, BLOCK), np.uint8)
    taken = []
    for _ in range(3):
        began = time.monotonic()
        disk.gather(some, out[: len(some)], None, -1)
        taken.append(time.monotonic() - began)
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), np.empty((1 << 20) + BLOCK, np.uint8)
    aligned = buffer[-buffer.ctypes.data % BLOCK :][: 1 << 20].data
    began = time.monotonic()
    read = sum(os.preadv(file, [aligned], at << 20) for at in range(min(512, blocks >> 8)))
    os.close(file)
    return {"random_reads_per_s": len(some) / min(taken), "in_order_bytes_per_s": read / (time.monotonic() - began)}


def load(given: Namespace, limit: int, memory: str, address: str) -> dict[str, Any]:
    """Load all batches from a daemon in a control group. Also gives the vertices of each batch."""
    leave_cache(given.dataset)
    command = [
        *atta_command(),
        "serve",
        "--data",
        str(given.dataset),
        "--part",
        "0",
        "--listen",
        address,
        "--no-verify",
    ]
    command += ["--memory", memory, "--buffer", str(BUFFER), "--log-level", "warning"]
    fan_outs, hashes, asked = [int(k) for k in given.fan_outs.split(",")], list[str](), []
    with MemoryGroup(limit) as group, subprocess.Popen(group.command(command)) as daemon:
        try:
            with atta.connect([address], wait=True) as cluster:
                leave_cache(given.dataset)
                loader = atta.NeighborLoader(
                    cluster, fan_outs, "train", batch_size=given.batch_size, shuffle=True, seed=1
                )
                began = time.monotonic()
                for batch, _ in zip(loader, range(given.batches), strict=False):
                    asked.append(np.array(batch.n_id()))
                    rows = np.ascontiguousarray(batch.table("x")[::97]).tobytes()
                    hashes.append(hashlib.blake2b(rows, digest_size=8).hexdigest())
                    if time.monotonic() > began + given.seconds:
                        break
                spent = time.monotonic() - began
                stats = cluster.stats()[0]
        finally:
            daemon.terminate()
    disk = {name: value for name, value in stats.items() if name.startswith("disk_")}
    found = {"memory": memory, "batches_per_s": len(asked) / spent, "rows": sum(map(len, asked)), "disk": disk}
    return {**found, "peak_bytes": group.peak, "killed": group.killed, "hashes": hashes, "asked": asked}


def atta_command() -> list[str]:
    """How the command line of this checkout is run."""
    return [os.sys.executable, "-m", "atta.cli.main"]  # type: ignore[attr-defined]


def optimum(asked: Sequence[np.ndarray], slots: int, row_bytes: int, start: int) -> tuple[int, int]:
    """Blocks of the file that the offline optimum reads, and runs of them. ``asked``: rows of each batch, each once."""
    coming: dict[int, list[int]] = {}
    for turn in reversed(range(len(asked))):
        for row in asked[turn].tolist():
            coming.setdefault(row, []).append(turn)  # the next one last
    kept: dict[int, int] = {}
    latest: list[tuple[int, int]] = []  # a heap: (- turn of the next use, row)
    blocks = runs = 0
    for rows in asked:
        missing = [row for row in rows.tolist() if row not in kept]
        at = start + np.array(missing, np.int64) * row_bytes
        read = np.concatenate([at // BLOCK, (at + row_bytes - 1) // BLOCK]) if missing else at
        found = np.unique(read)
        blocks, runs = blocks + len(found), runs + int((np.diff(found, prepend=-9) > 1).sum())
        for row in rows.tolist():
            coming[row].pop()
            if coming[row]:
                kept[row] = coming[row][-1]
                heapq.heappush(latest, (-kept[row], row))
            else:
                kept.pop(row, None)
        while len(kept) > slots:
            turn, row = heapq.heappop(latest)
            if kept.get(row) == -turn:
                del kept[row]
    return blocks, runs


def main() -> None:
    """Measure and write the record."""
    options = {"limit": "1GiB", "batches": 60, "seconds": 60.0, "batch_size": 512, "fan_outs": "10,5"}
    given = arguments_of(__file__, __doc__, dataset=Path, **options)
    (limit,), dataset = limits(given.limit), Dataset.open(given.dataset, verify=False)
    (node_type,), name = dataset.schema.node_types, "x"
    file, spec = node_file(0, node_type, name), dataset.schema.table(node_type, name)
    bound = limit * 19 // 20
    rates = disk_rates(given.dataset / file)
    runs = [load(given, limit, memory, f"127.0.0.1:{7391 + i}") for i, memory in enumerate(("map", "disk", str(bound)))]
    *_, asked = [[dataset.to_internal(node_type, ids) for ids in run.pop("asked")] for run in runs]
    slots = plan_disk(dataset, 0, bound, cache=None, buffer=BUFFER).slots[file]
    blocks, reads = optimum(
        asked, slots, spec.row_bytes, dataset.files[file].size - len(dataset.ids(node_type)) * spec.row_bytes
    )
    mapped, paged, now = (run["batches_per_s"] for run in runs)
    of_disk = {"blocks": blocks, "reads": reads, "slots": slots}
    by_bytes, by_reads = (len(asked) * rates["random_reads_per_s"] / max(1, count) for count in (blocks, reads))
    checks = {
        "times_map": now / mapped,
        "times_disk": now / paged,
        "of_bytes": now / by_bytes,
        "of_reads": now / by_reads,
    }
    checks["same"] = all(len({*of}) == 1 for of in zip(*(run.pop("hashes") for run in runs), strict=False))
    size = sum(record.size for record in dataset.files.values())
    about = document(
        "beyond-memory",
        command=given.typed,
        bytes=size,
        limit=limit,
        rates=rates,
        runs=runs,
        optimum=of_disk,
        checks=checks,
    )
    lines = head(f"Beyond memory: {size / limit:.1f} times a control group of {given.limit}", about)
    rows = [
        (r["memory"], f"{r['batches_per_s']:.2f}", f"{r['peak_bytes'] / 2**20:,.0f}", r["killed"], r["disk"])
        for r in runs
    ]
    lines += rows_of(["--memory", "batches/s", "peak without files, MiB", "killed", "disk"], *rows)
    lines += ["", f"- the disk: {rates}", f"- the optimum: {of_disk}", f"- checks: {checks}"]
    write(given.out / "beyond-memory.json", about, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
