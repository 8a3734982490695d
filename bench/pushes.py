"""What keeping pushes costs: pushes per second to a table in memory, with a log (process), and with a forced log (disk).

    python -m bench.pushes [--rounds 5] [--seconds 4]

Each round starts a daemon for each mode, in an order that turns, and one client pushes rows of 100 floats, at random
positions, with so many pushes under way. In the mode ``messages`` tables are in memory, and the client lends none, as
before there were logs and lent memory. Beside it: how often the disk forces a block of one push. Bound: with
``process`` 85 % of the pushes of ``messages``. Writes pushes.json and pushes.md.
"""

from __future__ import annotations

import collections
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from atta.kvstore.spec import MutableSpec
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.durable import durable
from atta_bench.record import command, document, head, parser_of, rows_of, write

BOUND = 0.85
MODES = ("messages", "memory", "process", "disk")
COLUMNS, TABLE_ROWS = 100, 200_000
CASES = ((100, 1), (100, 4), (5_000, 1), (5_000, 4))
"""Rows of a push, and pushes under way."""
WARM_UP_S, FORCES = 0.5, 200
Figures = dict[str, float]


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of pushes in each case [4]")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Figures]]] = {mode: [] for mode in MODES}
    forces: dict[str, list[float]] = {str(rows): [] for rows, _ in CASES}
    with tempfile.TemporaryDirectory(prefix="atta-pushes-") as name:
        folder = Path(name)
        generate("powerlaw", folder / "g", GenerateOptions(nodes=1000, edges=5000, features=4, classes=2))
        partition_graph(folder / "g", folder / "d", parts=1, method="random")
        for number in range(given.rounds):
            for rows, per_s in forces.items():
                per_s.append(forced_per_s(folder / "forced", int(rows) * COLUMNS * 4))
            turn = number % len(MODES)
            for mode in MODES[turn:] + MODES[:turn]:
                found[mode].append(measured(folder, mode, given.seconds))
                print(mode, {case: round(f["per_s"]) for case, f in found[mode][-1].items()}, file=sys.stderr)
    record(found, forces, command(parser, given), given.out)


def measured(folder: Path, mode: str, seconds: float) -> dict[str, Figures]:
    """All cases on one daemon."""
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        log = Path(kept) if mode in ("process", "disk") else None
        options = () if log is None else ("--durability", mode)
        with durable(folder / "d", log, *options) as daemon, daemon.connect() as cluster:
            cluster._connections[0].reads_lent &= mode != "messages"
            table = cluster.tables.create(MutableSpec("state", TABLE_ROWS, row_shape=(COLUMNS,)))
            process = psutil.Process(daemon.pid)
            return {
                case_name(rows, under_way): pushed(table, process, rows, under_way, seconds)
                for rows, under_way in CASES
            }


def case_name(rows: int, under_way: int) -> str:
    """Such as "100 rows, 4 under way"."""
    return f"{rows} rows, {under_way} under way"


def pushed(table: Any, process: psutil.Process, rows: int, under_way: int, seconds: float) -> Figures:
    """Pushes per second, and the daemon's processor time of each in seconds."""
    rng = np.random.default_rng(0)
    values = rng.random((rows, COLUMNS), dtype=np.float32)
    positions = [rng.choice(TABLE_ROWS, rows, replace=False) for _ in range(16)]
    handles = collections.deque[Any]()

    def run(until: float) -> int:
        count = 0
        while time.monotonic() < until:
            handles.append(table.push(positions[count % 16], values, "write"))
            if len(handles) >= under_way:
                handles.popleft().wait()
            count += 1
        while handles:
            handles.popleft().wait()
        return count

    run(time.monotonic() + WARM_UP_S)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    count = run(began + seconds)
    return {
        "per_s": count / (time.monotonic() - began),
        "daemon_s": (sum(process.cpu_times()[:2]) - before) / count,
    }


def forced_per_s(path: Path, nbytes: int) -> float:
    """How often the disk forces that many bytes behind those before."""
    block = os.urandom(nbytes)
    with path.open("wb", buffering=0) as file:
        began = time.monotonic()
        for _ in range(FORCES):
            file.write(block)
            os.fdatasync(file.fileno())
        seconds = time.monotonic() - began
    path.unlink()
    return FORCES / seconds


def record(found: dict[str, list[dict[str, Figures]]], forces: dict[str, list[float]], typed: str, out: Path) -> None:
    """Write the record."""
    about: dict[str, Any] = document("pushes", bound=BOUND, rounds=found, forces=forces, command=typed)
    lines = [
        *head("What keeping pushes costs", about),
        f"One daemon, one client, a table of {TABLE_ROWS:,} rows of {COLUMNS} floats, pushes of the kind `write`. Rounds: "
        f"{len(found['memory'])}, medians (minimum to maximum). `messages`: tables in memory, pushes in messages, as before "
        f"there were logs and lent memory; bound: {BOUND:.2f} of it with `process`.",
        "",
        *rows_of(
            ("pushes", "mode", "pushes/s", "of `messages` in the same round", "of `memory`", "daemon, µs per push"),
            *table_rows(found),
        ),
        "",
        *rows_of(
            ("rows of a push", "forced writes of that size per second, by the disk alone"),
            *((rows, spread(values, ",.0f")) for rows, values in forces.items()),
        ),
    ]
    write(out / "pushes.json", about, lines)


def table_rows(found: dict[str, list[dict[str, Figures]]]) -> Iterator[list[str]]:
    """A row for each case and mode."""
    for case in found["memory"][0]:
        for mode, rounds in found.items():
            shares = {
                other: [a[case]["per_s"] / b[case]["per_s"] for a, b in zip(rounds, found[other], strict=True)]
                for other in ("messages", "memory")
            }
            yield [
                case,
                mode,
                spread([figures[case]["per_s"] for figures in rounds], ",.0f"),
                *("" if mode == other else spread(values, ".2f") for other, values in shares.items()),
                spread([1e6 * figures[case]["daemon_s"] for figures in rounds], ",.0f"),
            ]


def spread(values: list[float], form: str) -> str:
    """Median (minimum to maximum)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
