"""How long ``atta import edges`` takes beside ``pyarrow.csv.read_csv`` on the same file, and the most memory of each.

    python -m bench.partitioning.import_edges [--lines 100000000] [--vertices 2000000] [--rounds 3]

The file has two random ids a line, apart by a tab. Each round reads it by both in turn, each in a process of its own
with as many threads, once the file is in the page cache. Time is that of the call, for Atta until all is forced to disk.
Bound: 4 times the time of Arrow, and 4 GiB. Writes import-edges.json and import-edges.md.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write

BOUND, BOUND_BYTES = 4.0, 4 << 30
SYSTEMS = ("arrow", "atta")
PIECE = 5_000_000
Figures = dict[str, float]


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--lines", type=int, default=100_000_000)
    parser.add_argument("--vertices", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs=2, metavar=("SYSTEM", "FILE"), help="read FILE once and print the figures")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measured(given.only[0], Path(given.only[1]))))
        return
    with tempfile.TemporaryDirectory(prefix="atta-import-") as folder:
        path = Path(folder) / "edges.tsv"
        generate(path, given.lines, given.vertices)
        rounds = [{system: in_a_process(system, path) for system in SYSTEMS} for _ in range(given.rounds)]
        size = path.stat().st_size
    record(rounds, given.lines, size, command(parser, given), given.out)


def generate(path: Path, lines: int, vertices: int) -> None:
    """Write the edge list."""
    import pyarrow as pa
    from pyarrow import csv

    rng = np.random.default_rng(0)
    with pa.OSFile(str(path), "wb") as file:
        for start in range(0, lines, PIECE):
            count = min(PIECE, lines - start)
            table = pa.table({side: rng.integers(0, vertices, count) for side in ("src", "dst")})
            csv.write_csv(table, file, csv.WriteOptions(include_header=False, delimiter="\t"))


def in_a_process(system: str, path: Path) -> Figures:
    """The figures of one system in a new process."""
    typed = [sys.executable, "-m", "bench.partitioning.import_edges", "--only", system, str(path)]
    found: Figures = json.loads(subprocess.check_output(typed, cwd=ROOT, text=True))
    print(system, found, file=sys.stderr)
    return found


def measured(system: str, path: Path) -> Figures:
    """Read the file by one system: seconds, and the most memory that the process has taken."""
    took = by_arrow(path) if system == "arrow" else by_atta(path)
    return {"seconds": took, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def by_arrow(path: Path) -> float:
    """Seconds that Arrow takes."""
    from pyarrow import csv

    began = time.perf_counter()
    csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=["src", "dst"]),
        parse_options=csv.ParseOptions(delimiter="\t"),
    )
    return time.perf_counter() - began


def by_atta(path: Path) -> float:
    """Seconds that the import takes."""
    import pyarrow.compute  # Arrow's time has no imports of packages in it either
    import pyarrow.csv  # noqa: F401

    from atta.partition.importers import import_graph

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        import_graph("edges", path, Path(folder) / "graph")
        return time.perf_counter() - began


def record(rounds: list[dict[str, Figures]], lines: int, size: int, typed: str, out: Path) -> None:
    """Write the record."""
    about = document("import-edges", bound=BOUND, rounds=rounds, lines=lines, bytes=size, command=typed)
    ratios = [found["atta"]["seconds"] / found["arrow"]["seconds"] for found in rounds]
    text = [
        *head("What importing an edge list costs", about),
        f"A file of {lines:,} lines, {size / 2**20:,.0f} MiB. Rounds: {len(rounds)}, medians (minimum to maximum). "
        f"Bound: {BOUND:g} times Arrow's time, {BOUND_BYTES / 2**30:g} GiB.",
        "",
        *rows_of(
            ("system", "seconds", "most memory, GiB", "of Arrow's time in the same round"),
            *(
                [
                    system,
                    spread([found[system]["seconds"] for found in rounds]),
                    spread([found[system]["bytes"] / 2**30 for found in rounds]),
                    spread(ratios) if system == "atta" else "",
                ]
                for system in SYSTEMS
            ),
        ),
    ]
    write(out / "import-edges.json", about, text)


def spread(values: list[float]) -> str:
    """Median (minimum to maximum)."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
