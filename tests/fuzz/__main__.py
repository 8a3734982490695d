"""Runs all targets for a time, in turns.

    python -m tests.fuzz --minutes 120 --out /tmp/fuzz

writes ``fuzz.json`` with counts for each target, and the inputs of findings as files that belong in ``tests/fuzz/corpus``.
Exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import atta
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from tests.fuzz.files import Files
from tests.fuzz.lies import OPTIONS as SERVING
from tests.fuzz.lies import Lies
from tests.fuzz.methods import OPTIONS, Backups, Methods
from tests.fuzz.targets import Counts, run_for

TURN_S = 20.0
"""How long a target runs before the next one is run."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=10, help="all targets together [10]")
    parser.add_argument("--seed", type=int, help="repeats a run, as far as daemons let it [drawn]")
    parser.add_argument("--only", nargs="+", help="names of targets: methods, backups, replies, files [all]")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder [build/fuzz]")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}", "seed": seed}
    with contextlib.ExitStack() as stack:
        counts = run(stack, given.minutes * 60, random.Random(seed), given.out, given.only, about)
    for name, found in counts.items():
        print(f"{name}: {found.tried:,} inputs in {found.seconds:,.0f} s, {len(found.findings)} findings")
        for text in found.findings:
            print(f"  {text}")
    sys.exit(any(found.findings for found in counts.values()))


def run(stack, seconds, rng, out, only, about):
    """The counts of each target. ``out``: they are written there after each turn."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atta-fuzz-")))
    generate("powerlaw", folder / "g", GenerateOptions(nodes=300, edges=3000, features=16, classes=4))
    partition_graph(folder / "g", folder / "d", parts=2, method="random")
    small = (*OPTIONS, "--snapshots", str(folder / "s"), "--tables-dir", str(folder / "t"))
    quiet: dict[str, Any] = {"threads": 1, "log_level": "error"}

    def served(data: str, *options: str) -> Any:
        return stack.enter_context(atta.local(folder / data, options=options, **quiet))

    def keeping(tables: str) -> Any:
        partition_graph(folder / "g", folder / "one", parts=1, method="random", overwrite=True)
        return atta.local(folder / "one", options=("--keep-backup", "--tables-dir", tables), **quiet)

    makers: dict[str, Any] = {
        "methods": lambda: Methods(served("d", *small)),
        "backups": lambda: Backups(keeping, folder / "b"),
        "replies": lambda: Lies(served("d", *SERVING, "--snapshots", str(folder / "s2")), folder / "d"),
        "files": lambda: Files(folder / "f"),
    }
    targets = [make() for name, make in makers.items() if only is None or name in only]
    counts = {target.name: Counts() for target in targets}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for target in targets:
            counts[target.name].add(run_for(target, min(TURN_S, left / len(targets)), rng, out))
        write(out, counts, about)
    for target in targets:
        target.close()
    return counts


def write(out: Path, counts: dict[str, Counts], about: dict[str, Any]) -> None:
    seconds = sum(found.seconds for found in counts.values())
    document = {**about, "seconds": seconds, "targets": {name: found.to_json() for name, found in counts.items()}}
    (out / "fuzz.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
