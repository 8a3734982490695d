"""What a DAG gains by asking for its branches at once: DAGs of one branch (supervised) and of three (unsupervised).

    python bench/branches.py --data DATASET [--rtt 10ms] [--rounds 5] [--out bench/results]

One DAG at a time (policy ``sequential``), so that only what happens within a DAG counts; every request to another daemon takes a round
trip, which the daemons inject. With ``--requests 1`` a daemon asks one thing after another. Writes OUT/branches.json and
OUT/branches.md. Bound: the gain of unsupervised DAGs is the larger one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from record import record

import atta
from atta.bench.results import BenchReport
from atta.client.loaders.dag import DagLoader
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec

RESULTS = Path(__file__).resolve().parent / "results"
ABOUT = (
    "Seeds per second of one consumer, one DAG at a time. `at once`: all requests of a DAG that are ready; `one by one`: a request is"
    " sent when the one before has been answered. `gain` is their quotient within a round."
)


def seeds_per_s(data: str, kind: str, requests: int, arguments: argparse.Namespace) -> float:
    """Seeds per second of fresh daemons."""
    options = ("--policy", "sequential", "--peer-delay", arguments.rtt, "--requests", str(requests))
    hops = Hops(tuple(int(k) for k in arguments.num_neighbors.split(",")))
    with atta.local(data, threads=1, verify=False, options=options) as cluster:
        schema = cluster.schema
        if kind == "supervised":
            spec = neighbor_spec(schema, hops, seed_type=schema.node_types[0])
        else:
            spec = pair_spec(schema, hops, edge_type=schema.edge_types[0])
        loader = DagLoader(cluster, spec, batch_size=arguments.batch_size, shuffle=True, rank=0, world_size=2)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(arguments.batches // 2):
            next(batches)
        started = time.perf_counter()
        seeds = sum(next(batches).batch_size for _ in range(arguments.batches))
        return seeds / (time.perf_counter() - started)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="10,10")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rtt", default="10ms")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    shown = ("data", "num_neighbors", "batch_size", "batches", "rtt", "rounds")
    report = BenchReport("branches", {name: getattr(arguments, name) for name in shown}, ours="unsupervised")
    for number in range(arguments.rounds):
        for kind in ("supervised", "unsupervised")[:: 1 if number % 2 == 0 else -1]:
            rates = {requests: seeds_per_s(arguments.data, kind, requests, arguments) for requests in (1, 16)}
            report.add(kind, {"one by one": rates[1], "at once": rates[16], "gain": rates[16] / rates[1]})
    document = report.to_json() | {"title": "Branches of a DAG at once", "about": ABOUT}
    target = arguments.out / "branches.json"
    target.write_text(json.dumps(document, indent=1) + "\n")
    record(target, f"python bench/branches.py {' '.join(sys.argv[1:])}")
    gains = {kind: found["gain"]["median"] for kind, found in document["results"].items()}
    print(f"gain of asking at once: supervised {gains['supervised']:.2f}, unsupervised {gains['unsupervised']:.2f}")


if __name__ == "__main__":
    main()
