"""Repeats the claims of the papers that can be shown in minutes: `make claims`.

    python -m bench.claims --only D1,T4 --json claims.json

Each experiment is a small one of the kind that bench/results/claims.md names; the figures that count are those of its
records. The other claims take hours, and claims.md has their commands. With --strict the exit code is 1 if a bound was
missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import atta
from atta.observe.packages import machine, versions
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.train.exchange.codecs import PolylineCodec
from atta_bench.results import rows_of

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Claim:
    """One claim, and a short experiment.

    Attributes:
        id: as in bench/results/claims.md.
        says: the claim.
        paper: the paper's figure.
        asked: bound of the experiment's figure.
        least: whether the figure must be at least that; otherwise at most.
        measure: the experiment; it gets a folder to work in.
    """

    id: str
    says: str
    paper: str
    asked: float
    least: bool
    measure: Callable[[Path], float]


@dataclass(frozen=True)
class Shown:
    """A claim's figure here, and whether it is within the bound."""

    id: str
    says: str
    paper: str
    asked: str
    figure: float
    reached: bool


def shown(claim: Claim, figure: float) -> Shown:
    """Judge a figure."""
    reached = figure >= claim.asked if claim.least else figure <= claim.asked
    sign = "at least" if claim.least else "at most"
    return Shown(claim.id, claim.says, claim.paper, f"{sign} {claim.asked:g}", round(figure, 3), bool(reached))


# -- experiments -------------------------------------------------------------------------------------------------------


def cut(work: Path, kind: str, method: str, **options: Any) -> Path:
    """A generated graph in two parts; made once."""
    graph, parts = work / kind, work / f"{kind}-{method}"
    if not graph.exists():
        sizes: dict[str, Any] = {"nodes": 40_000, "edges": 480_000, "features": 32, "classes": 16}
        generate(kind, graph, GenerateOptions(**sizes, seed=1, train=0.1, val=0.05, test=0.1))
    if not parts.exists():
        partition_graph(graph, parts, parts=2, method=method, options=options or None)
    return parts


def remote_rows(data: Path) -> float:
    """Mean number of rows of the other part in a batch of one of two trainers, without a cache."""
    with atta.local(data, threads=1, options=("--cache", "0")) as cluster:
        batches = [  # far less than the graph
            batch
            for rank in range(2)
            for batch in atta.NeighborLoader(cluster, [5, 5], "train", batch_size=32, rank=rank, world_size=2)
        ]
        return float(statistics.mean(batch.stats["remote_rows"] for batch in batches))


def metis_beside_random(work: Path) -> float:
    """Remote rows of METIS' parts over those of random ones."""
    return remote_rows(cut(work, "powerlaw", "metis")) / remote_rows(cut(work, "powerlaw", "random"))


def balance(work: Path) -> float:
    """Training vertices of the larger part over the mean."""
    dataset = Dataset.open(cut(work, "powerlaw", "metis"))
    train = np.histogram(dataset.split("node", "train"), bins=dataset.book.offsets["node"])[0]
    return float(train.max() / train.mean())


def blocks_beside_random(work: Path) -> float:
    """Remote rows of ByteGNN's blocks over those of random parts, on communities."""
    return remote_rows(cut(work, "sbm", "block")) / remote_rows(cut(work, "sbm", "random"))


def policies(work: Path) -> Mapping[str, Mapping[str, float]]:
    """Seeds per second and times of batches under every launch policy, with round trips of 10 ms; measured once."""
    file = work / "policies.json"
    if not file.exists():
        data = cut(work, "powerlaw", "metis")
        words = ["--data", str(data), "--json", str(file), "--policies", "two-level,sequential,fifo", "--quiet"]
        words += ["--num-neighbors", "10,10", "--batch-size", "64", "--rtt", "10ms", "--netns", "off"]
        words += ["--cache-share", "0", "--runs", "1", "--seconds", "4s"]
        run(sys.executable, "-m", "atta.cli.main", "bench", "scheduler", *words)
    found = json.loads(file.read_text())["results"]
    return {name: {figure: value["median"] for figure, value in of.items()} for name, of in found.items()}


def two_level_beside_sequential(work: Path) -> float:
    """Seeds per second of the launch score over those of one batch at a time."""
    found = policies(work)
    return found["two-level"]["seeds_per_s"] / found["sequential"]["seeds_per_s"]


def order_beside_fifo(work: Path) -> float:
    """Time from launch to end of a batch under FIFO over that under the launch score."""
    found = policies(work)
    return found["fifo"]["completion_ms"] / found["two-level"]["completion_ms"]


def compression(work: Path) -> float:
    """Bytes of trained hidden rows over those of their polylines with two digits."""
    graph = Dataset.open(cut(work, "sbm", "random"))
    with atta.local(graph.path, threads=1) as cluster:
        everything = atta.NeighborLoader(cluster, [-1, -1], None, batch_size=40_000, world_size=1, rank=0)
        data = next(iter(everything)).to_pyg()
    torch.manual_seed(0)
    first, last = torch.nn.Linear(32, 64), torch.nn.Linear(64, 16)
    ends, n = data.edge_index, data.num_nodes
    degrees = torch.bincount(ends[1], minlength=n).clamp(min=1).sqrt()
    weights = 1 / (degrees[ends[0]] * degrees[ends[1]])
    adjacency = torch.sparse_coo_tensor(ends.flip(0), weights, (n, n)).coalesce()
    optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        hidden = torch.relu(adjacency @ first(data.x))
        loss = torch.nn.functional.cross_entropy(adjacency @ last(hidden), data.y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    rows = hidden.detach().numpy()
    return float(np.float32(rows.nbytes)) / PolylineCodec(2).nbytes(rows)


def passing(*tests: str) -> Callable[[Path], float]:
    """1 if these tests pass, else 0."""

    def measure(work: Path) -> float:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not peer", *tests]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout[-2000:], file=sys.stderr)
        return float(done.returncode == 0)

    return measure


def run(*words: str) -> None:
    """Run a command; SystemExit if it fails."""
    if subprocess.run(words, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(words)}")


CLAIMS = (
    Claim("D1", "METIS' parts need fewer remote rows than random ones", "time 2.14 x", 0.8, False, metis_beside_random),
    Claim("D2", "parts balance training vertices", "4 %", 1.03, False, balance),
    Claim("B1", "the launch score beats one batch at a time", "2.1 to 3.5 x", 2.1, True, two_level_beside_sequential),
    Claim("B2", "order by (DAG, cost) shortens DAGs beside FIFO", "-", 1.2, True, order_beside_fifo),
    Claim("B3", "blocks around labelled vertices need less traffic", "0.5 of hash", 0.5, False, blocks_beside_random),
    Claim("S1", "SANCUS sends the bytes of its formula", "35 to 74 % less", 1, True,
          passing("tests/system/test_stale.py::test_payload_and_copies_are_what_the_formulas_say")),
    Claim("S3", "SANCUS keeps the rows of its formula", "formula", 1, True,
          passing("tests/system/test_stale.py::test_payload_and_copies_are_what_the_formulas_say")),
    Claim("T4", "past rows compress", "3.5 x", 2.5, True, compression),
    Claim("O3", "workers may die: the same bits", "yes", 1, True,
          passing("tests/system/test_dorylus.py::test_workers_that_are_killed_or_slow_change_no_bit")),
    Claim("O5", "value = 1 / (time x cost)", "Tables 4, 5", 1, True, passing("tests/unit/bench/test_value.py")),
)  # fmt: skip
"""In the order of bench/results/claims.md."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen experiments; 1: a bound was missed, and that matters."""
    parser = argparse.ArgumentParser("python -m bench.claims", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="ID,ID,...", help="these alone")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a bound was missed")
    parser.add_argument("--list", action="store_true", help="name them, and run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, with machine and versions")
    given = parser.parse_args(arguments)
    wanted = [word for word in given.only.split(",") if word]
    if unknown := sorted(set(wanted) - {claim.id for claim in CLAIMS}):
        parser.error(f"no short experiment for {', '.join(unknown)}: there are {', '.join(c.id for c in CLAIMS)}")
    chosen = [claim for claim in CLAIMS if not wanted or claim.id in wanted]
    if given.list:
        print("\n".join(f"{claim.id}  {claim.says}" for claim in chosen))
        return 0
    found = []
    with tempfile.TemporaryDirectory(prefix="atta-claims-") as work:
        for claim in chosen:
            print(f"== {claim.id}: {claim.says}", file=sys.stderr, flush=True)
            found.append(shown(claim, claim.measure(Path(work))))
    table = [(one.id, one.says, one.paper, one.asked, one.figure, "yes" if one.reached else "NO") for one in found]
    print("\n".join(rows_of(["id", "claim", "paper", "asked", "here", "reached"], *table)))
    if given.json:
        document = {"schema": 1, "claims": [asdict(one) for one in found], "machine": machine(), "versions": versions()}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(given.strict and not all(one.reached for one in found))


if __name__ == "__main__":
    sys.exit(main())
