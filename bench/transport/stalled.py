"""How much slower daemons serve one client while another one has asked for much and never reads again.

    python -m bench.transport.stalled --data DATASET [--rounds 5] [--seconds 4]

Every round measures a client twice, with fresh daemons: beside an idle client, and beside a stalled one. Rounds take
    the two in turns
first. The stalled client has opened two sessions, one by shared memory and one over gRPC, has taken a batch of each,
and has begun ``--pulls`` answers of 100 MiB. Measuring begins when the daemons prepare nothing more for it. Writes
stalled.json and stalled.md. Bound: 20 % (a quotient of 0.8).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil

import atta
from atta.client.tables.cluster import RemoteTable
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from atta_bench.lab.workload import ints
from atta_bench.record import command, parser_of, write_report
from atta_bench.results import BenchReport

MODULE = "bench.transport.stalled"
TABLE = MutableSpec("rows", 100_000, row_shape=(100,))
ANSWER_BYTES = 100 << 20
PULLED = 20_000
"""Rows per pull of the measured client."""
SETTLE_S = 60.0
ABOUT = (
    "Both columns are rates of the same client on fresh daemons, beside a client that is connected and idle and beside one"
    " that has asked for two sessions and many large answers and never reads. Bound: a quotient of 0.8."
)


def from_elsewhere(cluster: atta.Cluster) -> atta.Cluster:
    """The cluster as a client on another machine sees it: batches come as bytes."""
    cluster._descriptions = [dataclasses.replace(d, machine="elsewhere") for d in cluster._descriptions]
    return cluster


def loader(cluster: atta.Cluster, arguments: argparse.Namespace) -> atta.NeighborLoader:
    fan_outs = ints(arguments.num_neighbors)
    return atta.NeighborLoader(
        cluster, fan_outs, "train", batch_size=arguments.batch_size, shuffle=True, rank=0, world_size=1, seed=3
    )


# -- the client beside -------------------------------------------------------------------------------------------------


def stall(arguments: argparse.Namespace) -> None:
    """Ask for much, read a little, report that, and do nothing until standard input closes."""
    with contextlib.ExitStack() as stack:
        # A deadline would end answers that are not read. This one outlasts the measurement.
        shared, remote = (stack.enter_context(atta.connect(arguments.beside, deadline_s=600)) for _ in range(2))
        kept: list[object] = []
        if arguments.role == "stalled":
            for cluster in (shared, from_elsewhere(remote)):
                batches = iter(loader(cluster, arguments))
                kept += [batches, next(batches)]
            calls = [begin(shared.tables.open(TABLE.name), number) for number in range(arguments.pulls)]
            for call in calls:
                next(call)
            kept += calls
        print("there", flush=True)
        sys.stdin.read()


def begin(table: RemoteTable, number: int) -> Iterator[object]:
    """Ask one of the owners for 100 MiB, which are the same rows again and again."""
    shard = table._shards[number % len(table._shards)]
    rows = shard.first_row + np.arange(ANSWER_BYTES // TABLE.row_bytes, dtype=np.int64) % shard.rows
    request = table_pb2.PullRowsRequest(name=TABLE.name, rows=rows.tobytes())
    answers: Iterator[object] = shard.connection.start("TableService.Pull", request)
    return answers


@contextlib.contextmanager
def beside(role: str, cluster: atta.LocalCluster, arguments: argparse.Namespace) -> Iterator[None]:
    """Let another client run during the block: an ``"idle"`` or a ``"stalled"`` one."""
    words = [sys.executable, "-m", MODULE, *sys.argv[1:], "--role", role, "--beside", ",".join(cluster.addresses)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        if child.stdout.readline() != b"there\n":
            raise SystemExit(f"the {role} client ended with {child.wait()}")
        settle(cluster)
        yield
        if child.poll() is not None:
            raise SystemExit(f"the {role} client ended with {child.returncode} while another was measured")
    finally:
        child.kill()
        child.wait()


def settle(cluster: atta.Cluster) -> None:
    """Wait until the daemons have finished and begun no batch for a second."""
    deadline, seen, since = time.monotonic() + SETTLE_S, [(-1.0, -1.0)], time.monotonic()
    while time.monotonic() - since < 1:
        if time.monotonic() > deadline:
            raise SystemExit("the daemons do not come to rest beside the stalled client")
        time.sleep(0.1)
        now = [(s.get("batches", 0.0), s["dags_in_flight"]) for s in cluster.stats()]
        if now != seen:
            seen, since = now, time.monotonic()


# -- the measured client -----------------------------------------------------------------------------------------------


def seeds_per_s(cluster: atta.Cluster, arguments: argparse.Namespace, seconds: float) -> float:
    count, started = 0, time.perf_counter()
    while True:
        for batch in loader(cluster, arguments):
            count += batch.batch_size
            if (passed := time.perf_counter() - started) >= seconds:
                return count / passed


def rows_per_s(cluster: atta.Cluster, seconds: float) -> float:
    table, rng = cluster.tables.open(TABLE.name), np.random.default_rng(1)
    count, started = 0, time.perf_counter()
    while True:
        table.pull(rng.integers(0, TABLE.rows, PULLED))
        count += PULLED
        if (passed := time.perf_counter() - started) >= seconds:
            return count / passed


def trial(role: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of all kinds of work beside an idle or a stalled client, and how much the memory of the daemons grew."""
    with atta.local(arguments.data, verify=False) as cluster, atta.connect(cluster.addresses) as connected:
        cluster.tables.create(TABLE)
        remote = from_elsewhere(connected)
        work: dict[str, Callable[[float], float]] = {
            "shared_memory_seeds_per_s": lambda seconds: seeds_per_s(cluster, arguments, seconds),
            "grpc_seeds_per_s": lambda seconds: seeds_per_s(remote, arguments, seconds),
            "table_rows_per_s": lambda seconds: rows_per_s(cluster, seconds),
        }
        for measure in work.values():
            measure(arguments.warm_up)
        before = resident_mib(cluster)
        with beside(role, cluster, arguments):
            settled = resident_mib(cluster)
            # The stalled sessions hold the buffers of before. New ones are made here, once.
            for measure in work.values():
                measure(arguments.warm_up)
            figures = {name: measure(arguments.seconds) for name, measure in work.items()}
            ended = resident_mib(cluster)
    # Shared memory that batches take counts as memory of the daemons.
    return figures | {"memory/beside_mib": settled - before, "memory/at_the_end_mib": ended - before}


def resident_mib(cluster: atta.LocalCluster) -> float:
    return float(sum(psutil.Process(pid).memory_info().rss for pid in cluster.pids) / 2**20)


def main() -> None:
    """Measure, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--pulls", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each rate")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds of each kind of work, alone and beside")
    parser.add_argument("--role", choices=["idle", "stalled"], help=argparse.SUPPRESS)
    parser.add_argument("--beside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.beside:
        stall(arguments)
        return
    shown = ("data", "num_neighbors", "batch_size", "pulls", "rounds", "seconds", "warm_up")
    report = BenchReport("stalled", {name: getattr(arguments, name) for name in shown}, ours="stalled")
    for number in range(arguments.rounds):
        order = ("idle", "stalled") if number % 2 == 0 else ("stalled", "idle")
        for role in order:
            report.add(role, trial(role, arguments))
    document = report.to_json() | {"title": "A client that stalls", "about": ABOUT, "ours": "stalled"}
    for name in [name for name in document["ratios"] if name.startswith("memory/")]:
        del document["ratios"][name]  # beside an idle client memory hardly grows, so the quotient means nothing
    write_report(arguments.out / "stalled.json", document, command(parser, arguments))
    worst = min((found["idle"], name) for name, found in document["ratios"].items())
    print(f"beside a stalled client: {worst[0]:.2f} of the rate beside an idle one ({worst[1]})")


if __name__ == "__main__":
    main()
