"""How much faster DAGs of one branch (supervised) and three (unsupervised) are when they ask for all at once.

    python -m bench.scheduling.branches --data DATASET [--rtt 10ms] [--rounds 5]

Only one DAG is in flight (policy ``sequential``), so that only the order within a DAG counts. Daemons inject a round
trip into every request to another daemon. With ``--requests 1`` a daemon sends one request after another. Writes
branches.json and branches.md. Bound: the gain of unsupervised DAGs is larger than that of supervised ones.
"""

from __future__ import annotations

import argparse
import itertools
import time

import atta
from atta.client.loaders.dag import DagLoader
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from atta_bench.lab.workload import ints
from atta_bench.record import command, parser_of, write_report
from atta_bench.results import BenchReport

ABOUT = (
    "Seeds per second of one consumer, one DAG at a time. `at once`: all requests of a DAG that are ready; `one by one`: a"
    " request is sent when the one before has been answered. `gain` is their quotient within a round."
)


def seeds_per_s(data: str, kind: str, requests: int, arguments: argparse.Namespace) -> float:
    """Seeds per second of fresh daemons."""
    options = ("--policy", "sequential", "--peer-delay", arguments.rtt, "--requests", str(requests))
    hops = Hops(ints(arguments.num_neighbors))
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
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="10,10")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rtt", default="10ms")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    shown = ("data", "num_neighbors", "batch_size", "batches", "rtt", "rounds")
    report = BenchReport("branches", {name: getattr(arguments, name) for name in shown}, ours="unsupervised")
    for number in range(arguments.rounds):
        for kind in ("supervised", "unsupervised")[:: 1 if number % 2 == 0 else -1]:
            rates = {requests: seeds_per_s(arguments.data, kind, requests, arguments) for requests in (1, 16)}
            report.add(kind, {"one by one": rates[1], "at once": rates[16], "gain": rates[16] / rates[1]})
    document = report.to_json() | {"title": "Branches of a DAG at once", "about": ABOUT}
    write_report(arguments.out / "branches.json", document, command(parser, arguments))
    gains = {kind: found["gain"]["median"] for kind, found in document["results"].items()}
    print(f"gain of asking at once: supervised {gains['supervised']:.2f}, unsupervised {gains['unsupervised']:.2f}")


if __name__ == "__main__":
    main()
