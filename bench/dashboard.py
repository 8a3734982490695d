"""How soon a browser shows the page of ``atta dashboard`` with a hundred sessions: headless Chromium's own times.

    python -m bench.dashboard [--sessions 100] [--loads 20]

Needs chromium and chromedriver.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError
from atta.observe.machine.addresses import HeldAddresses
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta_bench.browser import Browser, missing
from atta_bench.record import command, document, head, parser_of, rows_of, write
from atta_bench.waiting import eventually

PAINT_S = 1.0
TIMES = """
const paint = performance.getEntriesByName('first-contentful-paint')[0];
const page = performance.getEntriesByType('navigation')[0];
return paint && {painted: paint.startTime, answered: page.responseEnd, bytes: page.transferSize};
"""


def loads(folder: Path, sessions: int, count: int) -> list[dict[str, Any]]:
    """The times of ``count`` loads, in milliseconds from the beginning of each."""
    with GraphWriter(folder / "graph") as writer:
        writer.add_nodes("node", 2000, tables={"x": np.zeros((2000, 8), np.float32)}, splits={"train": np.arange(2000)})
        writer.add_edges("node__to__node", *np.random.default_rng(1).integers(0, 2000, (2, 20_000)))
    partition_graph(folder / "graph", folder / "data", parts=1, method="random", seed=1)
    found = []
    with HeldAddresses() as held, atta.local(folder / "data", threads=1) as cluster:
        (page,) = held.addresses
        jobs = [iter(atta.NeighborLoader(cluster, [2], "train", batch_size=60, job=f"j{n}")) for n in range(sessions)]
        words = ["dashboard", "--cluster", str(cluster.cluster_file), "--listen", page]
        with subprocess.Popen([sys.executable, "-m", "atta.cli.main", *words], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with Browser.opened(folder) as browser:
                for _ in range(count):
                    browser.go(f"http://{page}")
                    found.append(eventually(lambda: browser.run(TIMES)))
            child.terminate()
        del jobs
    return found


def main() -> None:
    """Measure, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--loads", type=int, default=20)
    given = parser.parse_args()
    if lacks := missing():
        raise AttaError(lacks)
    with tempfile.TemporaryDirectory(prefix="atta-dashboard-") as folder:
        results = loads(Path(folder), given.sessions, given.loads)
    about = document("dashboard", results=results, sessions=given.sessions, command=command(parser, given))
    painted = [load["painted"] for load in results]
    rows = [
        ("loads", f"{len(results)}"),
        ("page, KiB", f"{statistics.median(load['bytes'] for load in results) / 1024:.0f}"),
        ("answered, ms (median, longest)", _ms([load["answered"] for load in results])),
        ("first paint with content, ms (median, longest)", _ms(painted)),
        ("all first paints within 1 s", "yes" if max(painted) <= 1e3 * PAINT_S else "**no**"),
    ]
    lines = head(f"The dashboard with {given.sessions} sessions in a browser", about)
    write(
        given.out / "dashboard.json",
        about,
        [*lines, *rows_of(("figure", "value")), *(f"| {a} | {b} |" for a, b in rows)],
    )


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times):.0f}, {max(times):.0f}"


if __name__ == "__main__":
    main()
