"""How soon a daemon has its mutable tables back after SIGKILL: from its start to its first answer.

    python -m bench.recovery [--table 1GiB] [--log 256MiB] [--rounds 3]

Each round starts a daemon that keeps a log, fills a table until a checkpoint has been written, pushes until the log has
its size, kills the daemon and starts it again. What is pulled then is compared with what was pushed. The same again
without the files in the system's cache, where that may be emptied (root). Bound: 5 s. Writes recovery.json and
recovery.md.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.cli.output import SIZE
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.durable import Durable, durable
from atta_bench.record import command, document, head, parser_of, rows_of, write

BOUND_S = 5.0
COLUMNS = 100
PUSH_ROWS = 10_000  # 4 MB
MODES = ("process", "disk")
Figures = dict[str, float]


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--table", default="1GiB", help="bytes of the table [1GiB]")
    parser.add_argument("--log", default="256MiB", help="bytes of the log [256MiB]")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    table, log = (int(SIZE.convert(text, None, None)) for text in (given.table, given.log))
    found: dict[str, list[Figures]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="atta-recovery-") as name:
        folder = Path(name)
        generate("powerlaw", folder / "g", GenerateOptions(nodes=1000, edges=5000, features=4, classes=2))
        partition_graph(folder / "g", folder / "d", parts=1, method="random")
        for number in range(given.rounds):
            for mode in MODES:
                with tempfile.TemporaryDirectory(dir=folder) as kept:
                    found[mode].append(measured(folder / "d", Path(kept), mode, table=table, log=log, seed=number))
                print(mode, found[mode][-1], file=sys.stderr, flush=True)
    record(found, command(parser, given), given.out)


def measured(data: Path, kept: Path, mode: str, *, table: int, log: int, seed: int) -> Figures:
    """One round: seconds until the daemon answers, with files in the system's cache and without."""
    rows, rng = table // (4 * COLUMNS), np.random.default_rng(seed)
    # The log is longer than asked for, so that no checkpoint comes while it grows for the last time.
    options = ("--durability", mode, "--tables", str(4 * table), "--log-size", str(2 * log))
    expected = np.zeros((rows, COLUMNS), np.float32)
    with durable(data, kept, *options) as daemon:
        with daemon.connect() as cluster:
            tensor = atta.DistTensor(cluster, (rows, COLUMNS), name="state")

            def push(first: int) -> None:
                ids = np.arange(first, min(rows, first + PUSH_ROWS))
                expected[ids] = rng.random((len(ids), COLUMNS), dtype=np.float32)
                tensor[ids] = expected[ids]

            def log_bytes() -> float:
                return float(cluster.stats()[0]["table_log_bytes"])

            for first in range(0, rows, PUSH_ROWS):
                push(first)
            while log_bytes() >= log:  # until the next checkpoint has begun the log anew
                push(int(rng.integers(rows)))
                time.sleep(0.2)
            while log_bytes() < log:
                push(int(rng.integers(rows)))
            figures = {"log_bytes": log_bytes(), "table_bytes": float(expected.nbytes)}
        figures["warm_s"] = again(daemon, expected)
        caches = Path("/proc/sys/vm/drop_caches")
        daemon.kill()
        try:
            caches.write_text("3")
        except OSError:  # not root
            return figures
        figures["cold_s"] = again(daemon, expected)
    return figures


def again(daemon: Durable, expected: np.ndarray) -> float:
    """Kill the daemon and start it: seconds until it answers. SystemExit if rows are not what they were."""
    daemon.kill()
    began = time.monotonic()
    daemon.start()
    with daemon.connect() as cluster:
        seconds = time.monotonic() - began
        tensor = atta.DistTensor(cluster, expected.shape, name="state")
        for first in range(0, len(expected), 1 << 18):
            ids = np.arange(first, min(len(expected), first + (1 << 18)))
            if not np.array_equal(tensor[ids], expected[ids]):
                raise SystemExit("rows are not those that were pushed")
    return seconds


def record(found: dict[str, list[Figures]], typed: str, out: Path) -> None:
    """Write the record."""
    about: dict[str, Any] = document("recovery", bound_s=BOUND_S, rounds=found, command=typed)
    lines, rows = [*head("Tables back after SIGKILL", about), ""], []
    for mode, rounds in found.items():
        for name, text in (("warm_s", "in the system's cache"), ("cold_s", "read from the disk")):
            times = [figures[name] for figures in rounds if name in figures]
            if times:
                spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
                rows.append([f"`{mode}`", text, spread, "yes" if max(times) <= BOUND_S else "no"])
    sizes = [figures for rounds in found.values() for figures in rounds]
    table, log = (max(figures[name] for figures in sizes) / 2**20 for name in ("table_bytes", "log_bytes"))
    lines += [
        f"A table of {table:,.0f} MiB, a log of {log:,.0f} MiB. Seconds from the start of the process to its first "
        f"answer, medians (minimum to maximum); bound: {BOUND_S:g} s. All rows were what they had been.",
        "",
        *rows_of(["durability", "files", "s", f"within {BOUND_S:g} s"], *rows),
    ]
    write(out / "recovery.json", about, lines)


if __name__ == "__main__":
    main()
