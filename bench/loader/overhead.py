"""Processor time that a batch costs the event loop of its daemon: for the scheduler's decisions, and on its whole path.

    python -m bench.loader.overhead [--batches 5000] [--rate 200] [--path-batches 1000]

Decisions: all events of many batches are answered at once, with nothing else around. Both levels and the DAG instances
run as in a daemon. Tasks are not executed, and there are no threads and messages. There are three DAGs of two
partitions: two hops as for small batches, three hops, and the three branches of ByteGNN. Bound: 5 % of the machine at
200 batches per second.

Whole path: two real daemons launch, join, finish and deliver batches of so few seeds that there is next to nothing to
sample and to move, without a cache and with one that holds all rows.

Writes overhead.json and overhead.md.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np

import atta
from atta.partition import GraphWriter, partition_graph
from atta.partition.schema import Schema, TableSpec
from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import Kind, OwnedVertices
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.events import BatchReady, BatchTaken, Event, RunTask, SessionOpened, TaskDone
from atta.scheduler.scheduler import Scheduler
from atta_bench.results import arguments_of, document, head, rows_of, write

NODES = 20_000
"""Vertices of the graph of the whole path; ten times as many edges."""
SEEDS = 16
"""Seeds of its batches."""
CACHES = {"without cache": ("--cache", "0"), "all rows cached": ("--cache", "1GiB")}
LOOPS = {"loop_us": "loop_cpu_s", "daemons_us": "cpu_s"}
GROWTH = (OwnedVertices(0, 500, 5000.0, 200_000.0), OwnedVertices(1, 500, 5000.0, 200_000.0))


def plans() -> dict[str, Plan]:
    """The DAGs by name."""
    tables = {"node": {"x": TableSpec("<f4", (100,)), "y": TableSpec("<i8")}}
    edge = "node__to__node"
    schema = Schema(("node",), (edge,), {"node": 10**6}, {edge: 10**7}, tables)
    specs = {
        "two hops": neighbor_spec(schema, Hops([10, 10]), seed_type="node"),
        "three hops": neighbor_spec(schema, Hops([15, 10, 5]), seed_type="node"),
        "three branches": pair_spec(schema, Hops([10, 10]), edge_type=edge),
    }
    return {name: check_spec(spec, schema) for name, spec in specs.items()}


def replay(plan: Plan, batches: int) -> tuple[float, int]:
    """Processor seconds per batch, and events per batch."""
    scheduler = Scheduler(SchedulerConfig(workers=2, buffer_bytes=4 << 30), 0)
    events: deque[Event] = deque([SessionOpened("s", plan, range(batches), batch_bytes=1e6)])
    count, now, begun = 0, 0.0, time.process_time()
    while events:
        now += 1e-4
        count += 1
        for action in scheduler.on(events.popleft(), now):
            if isinstance(action, RunTask):
                task = action.task
                growth = GROWTH if task.kind in {Kind.SEED, Kind.JOIN} else ()
                nbytes = 10**6 if task.kind is Kind.END else 0
                events.append(TaskDone(action.dag, task, growth, None, nbytes, 1e-4))
            elif isinstance(action, BatchReady):
                events.append(BatchTaken(action.session, action.batch, 5.0))
    return (time.process_time() - begun) / batches, count // batches


def whole_path(options: tuple[str, ...], batches: int) -> dict[str, float]:
    """Microseconds of processor time per batch: of the event loops, of both daemons, and of the consumer."""
    rng, edge = np.random.default_rng(0), "node__to__node"
    with tempfile.TemporaryDirectory() as folder:
        with GraphWriter(Path(folder) / "graph") as out:
            out.add_nodes("node", NODES, tables={"x": rng.random((NODES, 16), dtype=np.float32)})
            out.add_edges(edge, *rng.integers(0, NODES, (2, 10 * NODES)))
        partition_graph(Path(folder) / "graph", Path(folder) / "parts", parts=2, method="random")
        with atta.local(Path(folder) / "parts", threads=1, options=options) as cluster:
            seeds = rng.integers(0, NODES, SEEDS * batches)
            loader = atta.NeighborLoader(cluster, [2, 2, 2], seeds, batch_size=SEEDS, frontier="all")
            for _ in loader:  # buffers and caches are there after this
                pass
            before, consumer = cluster.stats()[0], time.process_time()
            for _ in loader:
                pass
            after, consumer = cluster.stats()[0], time.process_time() - consumer
    made = after["batches"] - before["batches"]
    found = {name: 1e6 * (after[key] - before[key]) / made for name, key in LOOPS.items()}
    return {**found, "consumer_us": 1e6 * consumer / made}


def main() -> None:
    """Measure and write the record."""
    arguments = arguments_of(__file__, __doc__, path_batches=1000, batches=5000, rate=200.0)
    cores = len(os.sched_getaffinity(0))
    results = []
    for name, plan in plans().items():
        readings = [replay(plan, arguments.batches) for _ in range(3)]
        seconds, events = sorted(readings)[1]
        share = seconds * arguments.rate / cores
        results.append({"dag": name, "events": events, "us_per_batch": 1e6 * seconds, "share_of_machine": share})
        print(f"{name}: {1e6 * seconds:.0f} us per batch, {share:.1%} of {cores} cores at {arguments.rate:g} batches/s")
    paths = []
    for name, options in CACHES.items():
        path = whole_path(options, arguments.path_batches)
        paths.append({"daemons": name, **path})
        print(f"whole path, {name}: " + ", ".join(f"{key} {us:.0f}" for key, us in path.items()))
    found = document("overhead", command=arguments.typed, results=results, whole_path=paths)
    rows = ((r["dag"], r["events"], f"{r['us_per_batch']:.0f} µs", f"{r['share_of_machine']:.1%}") for r in results)
    lines = [
        *head("Processor time of scheduling", found),
        f"Both levels and the DAG instances, medians of three; the share is of {cores} cores at {arguments.rate:g} batches"
        " per second. Bound: 5 %.",
        "",
        *rows_of(("DAG", "events per batch", "per batch", "share of the machine"), *rows),
        "",
        f"The whole path of a batch of {SEEDS} seeds, three hops of two neighbours, two daemons of one worker thread:",
        "",
        *rows_of(
            ("daemons", "event loops per batch", "daemons per batch", "consumer per batch"),
            *((p["daemons"], *(f"{p[key]:.0f} µs" for key in (*LOOPS, "consumer_us"))) for p in paths),
        ),
    ]
    write(arguments.out / "overhead.json", found, lines)


if __name__ == "__main__":
    main()
