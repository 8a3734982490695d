"""Measures what ``bench/results`` records, on the graphs of one table: ``make bench``.

    python -m bench.runs [NAME ...] [--rounds 5] [--data-root DIR]
    python -m bench.runs --list

The machine must be quiet: rounds pair the systems, but nothing corrects for other programs that take the cores. Graphs
are made once, in ``data``. Network namespaces and DistDGL as a peer need root; real graphs need ``--data-root``, a folder
of graphs in the npz layout. What this machine cannot measure is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from atta_bench.graphs import atta_command
from atta_bench.results import RESULTS, ROOT, report_lines, write_text

GENERATED = {
    "powerlaw-245k": "--nodes 245000 --edges 12000000 --features 100 --classes 47 --seed 0",
    "powerlaw-2m": "--nodes 2450000 --edges 123000000 --features 4 --classes 47 --seed 0",
    "powerlaw-1m": "--nodes 1000000 --edges 40000000 --features 100 --classes 47 --seed 7",
    "powerlaw-2449k": "--nodes 2449029 --edges 123600000 --features 100 --classes 47 --seed 7",
}
"""Options of ``atta generate powerlaw``, by name of the graph."""
CUT_BY = {"powerlaw-1m": "ldg", "powerlaw-2449k": "ldg"}
"""Partitioning method by graph, if not METIS."""
IMPORTED = {"amazon_computers": "--undirected --normalize-features", "tolokers": "--undirected"}
"""Options of ``atta import npz``, by folder of ``--data-root``."""
_GRAPH = re.compile(r"\bdata/([\w-]+?)(?:-([0-9]+)p)?(?=[\s,]|$)")
_SUMS = "--data data/powerlaw-1m-2p --batch-size 1024 --aggregate mean --vs dgl"
_METHODS = "metis,metis:tame=no,ldg,fennel,block,random"
_LOADING = "--data data/powerlaw-245k-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl"
_VARIANTS = "weighted,temporal,last,labor,disjoint,untyped,hetero,hetero-16"
_STRATEGIES = (
    "--strategies cooperative,full,preload,minibatch --vs dgl --layers 3 --hidden 64 --eas 1,15 "
    "--external-share 0.65 --warm-up 2 --epochs 100 --eval-every 5 --runs 3"
)


@dataclass(frozen=True)
class Run:
    """How a record is made.

    Attributes:
        command: what to type; ``ROUNDS`` and ``DIR`` stand for what the options say, and graphs that it names are made.
        root, real: it needs network namespaces, real graphs.
        drawn: a picture belongs to it.
    """

    command: str
    root: bool = False
    real: bool = False
    drawn: bool = False


RUNS = {
    "loader": Run(f"atta bench loader {_LOADING} --warm-up 30 --runs ROUNDS", drawn=True),
    "loader-1gbit": Run(f"atta bench loader {_LOADING} --link 1gbit --runs ROUNDS", root=True),
    "aggregate": Run(
        f"atta bench loader {_SUMS} --num-neighbors 25,10 --seconds 3 --warm-up 1 --runs ROUNDS", root=True
    ),
    "train": Run(f"atta bench train {_LOADING} --warm-up 10 --runs ROUNDS", drawn=True),
    "train-8-parts": Run(f"atta bench train {_LOADING.replace('2p', '8p')} --warm-up 4 --runs ROUNDS"),
    "scale": Run("atta bench scale --parts 1,2,4,8,16 --graph data/powerlaw-245k --vs dgl --rounds ROUNDS", drawn=True),
    "roofline": Run(
        "python -m bench.loader.scheduler --data data/powerlaw-245k-2p --depths 2,4,8 --vs dgl --work data/peers",
        root=True,
    ),
    "simulated": Run(
        "python -m bench.loader.simulated --data data/powerlaw-245k-2p --data4 data/powerlaw-245k-4p "
        "--data8 data/powerlaw-245k-8p",
        root=True,
    ),
    "overhead": Run("python -m bench.loader.overhead"),
    "memory": Run("python -m bench.train.memory"),
    "inference": Run("python -m bench.train.inference --rounds ROUNDS"),
    "queries": Run("python -m bench.train.queries --rounds ROUNDS"),
    "accuracy": Run("python -m bench.train.accuracy --data-root DIR", real=True),
    "dependent": Run("python -m bench.train.dependent --data-root DIR", real=True),
    "degrees": Run("python -m bench.train.degrees --data-root DIR", real=True),
    "stale-accuracy": Run("python -m bench.train.stale --data-root DIR", real=True),
    "stale-sat": Run("python -m bench.train.stale --data-root DIR --sat", real=True),
    "async-straggler": Run(
        "python -m bench.train.asynchronous --straggler --seeds 5 --keep data/asynchronous", root=True
    ),
    "async-dorylus": Run("python -m bench.train.asynchronous --dorylus --keep data/asynchronous", root=True),
    "trainer-killed": Run("python -m bench.train.killed"),
    "strategies-amazon": Run(
        f"atta bench strategies --data data/amazon_computers-2p {_STRATEGIES} --dropout 0.5 --target 0.65",
        root=True,
        real=True,
        drawn=True,
    ),
    "strategies-tolokers": Run(
        f"atta bench strategies --data data/tolokers-2p {_STRATEGIES} --dropout 0.3", root=True, real=True, drawn=True
    ),
    "sampling-15-10-5": Run(
        "atta bench sampling --dataset data/powerlaw-2m-1p --num-neighbors 15,10,5 --batches 120 --vs dgl --runs ROUNDS"
    ),
    "sampling-methods": Run(
        f"atta bench sampling --dataset data/powerlaw-2m-1p --num-neighbors 15,10,5 --batches 60 --threads 1 "
        f"--variants {_VARIANTS} --runs ROUNDS"
    ),
    "partition-245k": Run(
        f"atta bench partition --graph data/powerlaw-245k --parts 4 --methods {_METHODS} --vs dgl --runs 3"
    ),
    "partition-2m": Run(f"atta bench partition --graph data/powerlaw-2m --parts 4 --methods {_METHODS} --runs 1"),
    "partition-ray": Run("python -m bench.pieces.partition"),
    "remote-rows": Run("python -m bench.pieces.remote_rows --data data/powerlaw-2449k-8p"),
    "kv": Run("atta bench kv --vs dgl --link 1gbit --runs ROUNDS", root=True, drawn=True),
    "real-files": Run("python -m bench.real_files"),
    "exact-layers": Run("python -m bench.exact_layers"),
    "claims": Run("python -m bench.claims"),
}
"""By name of the record. Those of a GPU are in ``bench/gpu/README.md``; those that compare checkouts name another one."""


def dataset(graph: str, parts: str | None, data_root: Path | None) -> None:
    """Make ``data/GRAPH`` and, with ``parts``, ``data/GRAPH-PARTSp``, unless they are there.

    Raises SystemExit: the graph is a real one, and there is no ``data_root``.
    """
    source = ROOT / "data" / graph
    if not (source / "graph.json").exists():
        print(f"== making {source}", flush=True)
        if graph in GENERATED:
            atta_command("generate", "powerlaw", source, *GENERATED[graph].split(), "--overwrite")
        elif data_root is None:
            raise SystemExit(f"{graph}: give --data-root, the folder of real graphs")
        else:
            atta_command("import", "npz", data_root / graph, source, *IMPORTED[graph].split(), "--overwrite")
    target = ROOT / "data" / f"{graph}-{parts}p"
    if parts and not (target / "manifest.json").exists():
        method = "random" if parts == "1" else CUT_BY.get(graph, "metis")
        atta_command("partition", source, target, "--parts", parts, "--method", method)


def measure(name: str, run: Run, given: argparse.Namespace) -> None:
    """Make the graphs that a run names, measure, and write its record.

    Raises CalledProcessError: the command failed.
    """
    typed = run.command.replace("ROUNDS", str(given.rounds))
    for graph, parts in _GRAPH.findall(typed):
        if graph in GENERATED or graph in IMPORTED:
            dataset(graph, parts, given.data_root)
    print(f"== {name}: {typed}", flush=True)
    words = [str(given.data_root) if word == "DIR" else word for word in shlex.split(typed)]
    target = RESULTS / f"{name}.json"
    if words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True)
        return
    keeps = () if words[2] in ("sampling", "partition") else ("--work", ROOT / "data/peers")
    drawn = ("--plot", target.with_suffix(".png")) if run.drawn else ()
    atta_command(*words[1:], *keeps, "--json", target, *drawn)
    write_text(target.with_suffix(".md"), report_lines(json.loads(target.read_text()), typed, target))


def main() -> None:
    """Measure what was named, or all that this machine can."""
    parser = argparse.ArgumentParser("python -m bench.runs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="records [all that this machine can make]")
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--data-root", type=Path, help="folder of real graphs in the npz layout")
    parser.add_argument("--list", action="store_true", help="print the names and their commands")
    given = parser.parse_args()
    if unknown := set(given.names) - set(RUNS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(RUNS)}")
    for name, run in RUNS.items():
        if given.list:
            print(f"{name}: {run.command}")
        elif name in given.names:
            measure(name, run, given)
        elif not given.names:
            why = (
                "needs root" if run.root and os.geteuid() else "needs --data-root" * (run.real and not given.data_root)
            )
            print(f"== {name}: left out, {why}", flush=True) if why else measure(name, run, given)


if __name__ == "__main__":
    main()
