"""Two checkouts of the project in turn: whether a change has made loading, sampling, tables, scheduling or starting slower.

    python -m bench.scale.paired BASE --pair data/demo-2p --single data/demo-1p [--rounds 5] [--only loader,sampling]

BASE is the folder of another checkout with its own .venv (``make setup``). Every round measures each benchmark in both
checkouts, one after the other, and the next round begins with the other one. The record has the median of the quotients
this / base of all rounds: above 1 where this checkout is faster. Single rounds differ by a tenth on a busy machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from atta_bench.results import ROOT, commit_of, document, head, parser_of, rows_of, write

Figures = dict[str, float]
"""Rates by name: the larger, the better."""
STARTS = 10
"""Number of processes that are started one after the other for a figure of starting."""


def loader(checkout: Path, given: Namespace) -> Figures:
    """Seeds per second, and per second of processor time."""
    words = ["loader", "--data", given.pair, "--warm-up", "12", "--seconds", f"{given.seconds}s"]
    found = _bench(checkout, *words, "--work", given.work)
    return {
        **{f"{system}, seeds/s": figures["seeds_per_s"]["median"] for system, figures in found.items()},
        **{f"{system}, seeds/CPU s": 1e6 / figures["cpu_us_per_seed"]["median"] for system, figures in found.items()},
    }


def training(checkout: Path, given: Namespace) -> Figures:
    """Epochs per second of GraphSAGE."""
    found = _bench(checkout, "train", "--data", given.pair, "--warm-up", "1", "--epochs", "3", "--work", given.work)
    return {f"{system}, epochs/s": 1 / figures["epoch_s"]["median"] for system, figures in found.items()}


def sampling(checkout: Path, given: Namespace) -> Figures:
    """Sampled edges per second in one process."""
    found = _bench(checkout, "sampling", "--dataset", given.single)
    return {f"{system}, edges/s": figures["edges_per_s"]["median"] for system, figures in found.items()}


def kv(checkout: Path, given: Namespace) -> Figures:
    """Rates of table rows, each way that daemons move them."""
    (found,) = (f for s, f in _bench(checkout, "kv", "--rows", "500000", "--work", given.work).items() if s == "atta")
    return {name: figure["median"] for name, figure in found.items() if name.endswith("_per_s")}


def scheduling(checkout: Path, given: Namespace) -> Figures:
    """Batches per second of processor time that scheduling alone takes."""
    here = (checkout / "bench/loader/overhead.py").exists()  # older checkouts have it elsewhere
    script = ["-m", "bench.loader.overhead" if here else "bench.scheduling.overhead"]
    with tempfile.TemporaryDirectory() as folder:
        _run(checkout, "python", *script, "--batches", "2000", "--out", folder)
        results = json.loads((Path(folder) / "overhead.json").read_text())["results"]
    return {f"{r['dag']}, batches/CPU s": 1e6 / r["us_per_batch"] for r in results}


def starting(checkout: Path, given: Namespace) -> Figures:
    """Starts per second of ``import atta`` and ``atta --help``."""
    commands = {"import atta": ("python", "-c", "import atta"), "atta --help": ("atta", "--help")}
    return {f"{name}, starts/s": 1 / _median_seconds(checkout, words) for name, words in commands.items()}


BENCHMARKS: dict[str, Callable[[Path, Namespace], Figures]] = {
    "loader": loader,
    "training": training,
    "sampling": sampling,
    "kv": kv,
    "scheduling": scheduling,
    "starting": starting,
}


def _bench(checkout: Path, name: str, *words: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    said = _run(checkout, "atta", "bench", name, *words, "--runs", "1", "--quiet", "--json", "-")
    results: Mapping[str, Mapping[str, Mapping[str, float]]] = json.loads(said)["results"]
    return results


def _run(checkout: Path, program: str, *words: str) -> str:
    words = (str(checkout / ".venv/bin" / program), *words)
    return subprocess.run(words, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True).stdout


def _median_seconds(checkout: Path, words: tuple[str, ...]) -> float:
    seconds = []
    for _ in range(STARTS):
        begun = time.perf_counter()
        _run(checkout, *words)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("base", type=Path, help="another checkout")
    parser.add_argument("--pair", default="data/demo-2p", help="dataset of two partitions, for the loader")
    parser.add_argument("--single", default="data/demo-1p", help="dataset of one partition, for sampling")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6, help="measured by the loader in each round")
    parser.add_argument("--work", default="data/paired", help="folder for generated tables")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(BENCHMARKS))
    parser.add_argument("--name", default="paired", help="name of the record")
    given = parser.parse_args()
    given.pair, given.single, given.work = (str(Path(p).resolve()) for p in (given.pair, given.single, given.work))
    checkouts = {"base": given.base.resolve(), "this": ROOT}
    rounds: dict[str, list[dict[str, float]]] = {}
    for number in range(given.rounds):
        for name in given.only:
            order = list(checkouts)[:: -1 if number % 2 else 1]
            found = {which: BENCHMARKS[name](checkouts[which], given) for which in order}
            for figure in found["this"].keys() & found["base"].keys():
                rounds.setdefault(f"{name}: {figure}", []).append({w: found[w][figure] for w in checkouts})
            print(f"round {number + 1} of {given.rounds}: {name}", flush=True)
    results = {name: _summary(pairs) for name, pairs in sorted(rounds.items())}
    commits = {which: commit_of(path) for which, path in checkouts.items()}
    typed = f"{parser.prog} BASE --pair PAIR --single SINGLE --rounds {given.rounds} --only {','.join(given.only)}"
    made = document("paired", command=typed, commits=commits, rounds=rounds, results=results)
    rows = (
        (
            name,
            *(f"{r[which]:,.4g}" for which in checkouts),
            f"{r['quotient']:.3f}",
            f"{r['low']:.3f} to {r['high']:.3f}",
        )
        for name, r in results.items()
    )
    lines = [
        *head("This checkout beside an earlier one", made, f"Commits: this {commits['this']}, base {commits['base']}"),
        f"Medians of {given.rounds} rounds; this / base is the median of the quotients within rounds.",
        "",
        *rows_of(("figure", "base", "this", "this / base", "single rounds"), *rows),
    ]
    write(given.out / f"{given.name}.json", made, lines)


def _summary(pairs: list[dict[str, float]]) -> Figures:
    quotients = [pair["this"] / pair["base"] for pair in pairs]
    medians = {which: statistics.median(pair[which] for pair in pairs) for which in ("base", "this")}
    return {**medians, "quotient": statistics.median(quotients), "low": min(quotients), "high": max(quotients)}


if __name__ == "__main__":
    main()
