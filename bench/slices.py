"""Loading by two checkouts in slices of a second or two, so that both meet the same moments of the machine.

    python -m bench.slices BASE --data data/demo-2p [--slices 40] [--epochs 5] [--cache 0]

BASE is the folder of another checkout with its own .venv (``make setup``). Both have their daemons and one consumer per
partition running all the time. One loads some epochs while the other waits; then they change. Neighbouring slices make a
pair. A virtual machine may change its speed by a third within a minute, which `bench.paired` takes for a difference
between checkouts; here both have their share of it. Processes of the checkout that waits take no processor time to
speak of, but they hold memory.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from atta_bench.record import ROOT, commit_of, document, head, parser_of, rows_of, write

WORKER = Path(__file__).with_name("slices_worker.py")
DRAWS = 2000
"""Resamples of the pairs, for the interval of the median."""


class Slice(TypedDict):
    """What one checkout has loaded in one slice.

    ``cpu_s`` is of its daemons and consumers. All but one of 100 batches were there ``p99_s`` seconds after a consumer had
    asked for them.
    """

    seeds: int
    seconds: float
    cpu_s: float
    p99_s: float


FIGURES: dict[str, Callable[[Slice], float]] = {
    "seeds/s": lambda found: found["seeds"] / found["seconds"],
    "seeds/CPU s": lambda found: found["seeds"] / found["cpu_s"],
    "1 / p99 of waits, 1/s": lambda found: 1 / found["p99_s"],
}
"""Rates by name: the larger, the better."""


class Side:
    """The running daemons and consumers of one checkout."""

    def __init__(self, checkout: Path, options: list[str]) -> None:
        words = [str(checkout / ".venv/bin/python"), str(WORKER), *options]
        self._process = subprocess.Popen(
            words, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def load(self, epochs: int) -> Slice:
        """Load ``epochs`` epochs.

        Raises:
            RuntimeError: the worker has ended; its error is on stderr.
        """
        assert self._process.stdin
        assert self._process.stdout
        print(epochs, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        found: Slice = json.loads(answer)
        return found

    def close(self) -> None:
        """Stop the daemons and consumers."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=60)


def summary(pairs: list[dict[str, Slice]], figure: str, seed: int = 0) -> dict[str, float]:
    """Median rates of both sides, the median quotient this / base of the pairs, and its interval of 95 % (bootstrap)."""
    rates = [{side: FIGURES[figure](found) for side, found in pair.items()} for pair in pairs]
    quotients = [rate["this"] / rate["base"] for rate in rates]
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(quotients, k=len(quotients))) for _ in range(DRAWS))
    return {
        **{side: statistics.median(rate[side] for rate in rates) for side in ("base", "this")},
        "quotient": statistics.median(quotients),
        "low": medians[DRAWS // 40],
        "high": medians[-DRAWS // 40],
    }


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("base", type=Path, help="another checkout")
    parser.add_argument("--data", default="data/demo-2p", help="partitioned dataset")
    parser.add_argument("--slices", type=int, default=40, help="of each checkout")
    parser.add_argument("--epochs", type=int, default=5, help="in each slice")
    parser.add_argument("--warm-up", type=int, default=20, help="epochs of each checkout before measuring")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--caches", default="1GiB,0", help="memory per daemon for remote rows and edges; each in turn")
    parser.add_argument("--name", default="slices", help="name of the record")
    given = parser.parse_args()
    checkouts = {"base": given.base.resolve(), "this": ROOT}
    pairs: dict[str, list[dict[str, Slice]]] = {}
    for cache in given.caches.split(","):
        options = ["--data", str(Path(given.data).resolve()), "--cache", cache, "--batch-size", str(given.batch_size)]
        pairs[cache] = _measure(checkouts, options, given)
    results = {f"cache {cache}: {name}": summary(found, name) for cache, found in pairs.items() for name in FIGURES}
    commits = {which: commit_of(path) for which, path in checkouts.items()}
    sizes = f"--slices {given.slices} --epochs {given.epochs} --warm-up {given.warm_up} --batch-size {given.batch_size}"
    typed = f"{parser.prog} BASE --data DATA {sizes} --caches {given.caches}"
    made: dict[str, Any] = document("slices", command=typed, commits=commits, pairs=pairs, results=results)
    rows = (
        (name, *(f"{r[s]:,.4g}" for s in checkouts), f"{r['quotient']:.3f}", f"{r['low']:.3f} to {r['high']:.3f}")
        for name, r in results.items()
    )
    lines = [
        *head(
            "Loading beside an earlier checkout, in slices", made, f"Commits: {commits['this']} and {commits['base']}"
        ),
        f"Medians of {given.slices} slices of {given.epochs} epochs each, the two checkouts in turn; one consumer per"
        " partition.",
        "",
        *rows_of(("figure", "base", "this", "this / base", "95 % of medians"), *rows),
    ]
    write(given.out / f"{given.name}.json", made, lines)


def _measure(checkouts: dict[str, Path], options: list[str], given: Any) -> list[dict[str, Slice]]:
    sides: dict[str, Side] = {}
    try:
        for which, checkout in checkouts.items():
            sides[which] = Side(checkout, options)
            sides[which].load(given.warm_up)
        found = []
        for number in range(given.slices):
            order = list(sides)[:: -1 if number % 2 else 1]
            found.append({which: sides[which].load(given.epochs) for which in order})
        return found
    finally:
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    main()
