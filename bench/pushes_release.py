"""Pushes per second with a log (``process``), beside those of an earlier release that kept tables in memory alone.

    python -m bench.pushes_release BASE [--rounds 4]

BASE is a checkout of that release with its own ``.venv``. The two alternate. Each starts a daemon and a client of its own,
and pushes as ``bench.pushes`` does. The release runs this very file, so what it runs calls nothing else of ``bench``.
Bound: 85 % of the release's pushes. Writes pushes-release.json and pushes-release.md.
"""

from __future__ import annotations

import collections
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.kvstore.spec import MutableSpec
from atta.observe.machine.addresses import HeldAddresses
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate

BOUND = 0.85
ROWS, COLUMNS = 200_000, 100
CASES = ((100, 1), (100, 4), (5_000, 1), (5_000, 4))
"""Rows of a push, and pushes under way."""
WARM_UP_S, SECONDS = 0.5, 4.0
WORKER = "--worker"


def main() -> None:
    """Measure both, and write the record."""
    from bench.record import commit_of, parser_of

    parser = parser_of(__file__, __doc__)
    parser.add_argument("base", type=Path, help="checkout of the release")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    here = Path(__file__).parents[1]
    places = {"release": given.base.absolute(), "process": here}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    for number in range(given.rounds):
        for name in list(places)[:: 1 if number % 2 == 0 else -1]:
            command = [str(places[name] / ".venv/bin/python"), __file__, WORKER, name]
            told = subprocess.run(command, cwd=places[name], stdout=subprocess.PIPE, check=True, timeout=300)
            found[name].append(json.loads(told.stdout))
            print(name, found[name][-1], file=sys.stderr)
    record(found, {name: commit_of(place) for name, place in places.items()}, given.rounds, given.out)


def record(found: dict[str, list[dict[str, float]]], commits: dict[str, str], rounds: int, out: Path) -> None:
    """Write the record."""
    from atta.bench.output import document
    from bench.record import head, rows_of, write

    command = f"python -m bench.pushes_release BASE --rounds {rounds}"
    about: dict[str, Any] = document("pushes-release", bound=BOUND, commits=commits, rounds=found, command=command)
    lines = []
    for case in found["process"][0]:
        old, new = ([run[case] for run in found[name]] for name in ("release", "process"))
        shares = [after / before for after, before in zip(new, old, strict=True)]
        share = statistics.median(shares)
        rates = (f"{statistics.median(rate):,.0f}" for rate in (old, new))
        spread = f"{share:.2f} ({min(shares):.2f} to {max(shares):.2f})"
        lines.append((case, *rates, spread, "yes" if share >= BOUND else "**no**"))
    titles = ("pushes", "release, pushes/s", "now with `process`, pushes/s", "share", f"≥ {BOUND}")
    text = f"Release: {commits['release']}; now: {commits['process']}. {rounds} rounds, medians (minimum to maximum)."
    rows = [*head("Pushes with a log, beside a release without", about), text, "", *rows_of(titles, *lines)]
    write(out / "pushes-release.json", about, rows)


def work(mode: str) -> dict[str, float]:
    """Pushes per second of the checkout that runs this, by case. Both releases know what is called here."""
    with tempfile.TemporaryDirectory(prefix="atta-pushes-") as name, HeldAddresses() as held:
        folder, (address,) = Path(name), held.addresses
        generate("powerlaw", folder / "g", GenerateOptions(nodes=1000, edges=5000, features=4, classes=2))
        partition_graph(folder / "g", folder / "d", parts=1, method="random")
        command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(folder / "d"), "--part", "0"]
        command += ["--listen", address, "--no-verify", "--buffer", "64MiB", "--cache", "0", "--threads", "1"]
        if mode == "process":
            command += ["--tables-dir", str(folder / "t"), "--durability", "process"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
            try:
                with atta.connect([address], deadline_s=60, wait=True) as cluster:
                    table = cluster.tables.create(MutableSpec("state", ROWS, row_shape=(COLUMNS,)))
                    return {f"{rows} rows, {n} under way": pushes_per_s(table, rows, n) for rows, n in CASES}
            finally:
                daemon.kill()


def pushes_per_s(table: Any, rows: int, under_way: int) -> float:
    """Pushes of ``rows`` random rows, ``under_way`` at a time."""
    rng = np.random.default_rng(0)
    values = rng.random((rows, COLUMNS), dtype=np.float32)
    positions = [rng.choice(ROWS, rows, replace=False) for _ in range(16)]
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
    began = time.monotonic()
    return run(began + SECONDS) / (time.monotonic() - began)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        print(json.dumps(work(sys.argv[2])))
    else:
        main()
