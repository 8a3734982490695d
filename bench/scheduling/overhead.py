"""Processor time of the scheduler's decisions: answers all events of many batches at once, with nothing else around.

    python -m bench.scheduling.overhead [--batches 5000] [--rate 200]

Both levels and the DAG instances run as in a daemon. Tasks are not executed, and there are no threads and messages.
There are three DAGs of two partitions: two hops as for small batches, three hops, and the three branches of ByteGNN.
    Writes overhead.json and
overhead.md. Bound: 5 % of the machine at 200 batches per second.
"""

from __future__ import annotations

import os
import time
from collections import deque

from atta.bench.output import document
from atta.partition.schema import Schema, TableSpec
from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import Kind, OwnedVertices
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from atta.scheduler import BatchReady, BatchTaken, Event, RunTask, Scheduler, SchedulerConfig, SessionOpened, TaskDone
from bench.record import command, head, parser_of, rows_of, write

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


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--batches", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=200.0)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    results = []
    for name, plan in plans().items():
        readings = [replay(plan, arguments.batches) for _ in range(3)]
        seconds, events = sorted(readings)[1]
        share = seconds * arguments.rate / cores
        results.append({"dag": name, "events": events, "us_per_batch": 1e6 * seconds, "share_of_machine": share})
        print(f"{name}: {1e6 * seconds:.0f} us per batch, {share:.1%} of {cores} cores at {arguments.rate:g} batches/s")
    found = document("overhead", command=command(parser, arguments), results=results)
    rows = ((r["dag"], r["events"], f"{r['us_per_batch']:.0f} µs", f"{r['share_of_machine']:.1%}") for r in results)
    lines = [
        *head("Processor time of scheduling", found),
        f"Both levels and the DAG instances, medians of three; the share is of {cores} cores at {arguments.rate:g} batches"
        " per second. Bound: 5 %.",
        "",
        *rows_of(("DAG", "events per batch", "per batch", "share of the machine"), *rows),
    ]
    write(arguments.out / "overhead.json", found, lines)


if __name__ == "__main__":
    main()
