"""Processor time that the scheduler's decisions take: all events of many batches, answered at once, with nothing else around.

    python bench/overhead.py [--batches 5000] [--rate 200]

Both levels and the DAG instances are in it, as a daemon runs them; executing tasks, threads and messages are not. Three DAGs of two
partitions: two hops as for small batches, three hops, and ByteGNN's three branches. Writes overhead.json and overhead.md to
bench/results. Bound: 5 % of the machine at 200 batches per second.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from collections import deque
from pathlib import Path

from atta.observe.versions import machine, versions
from atta.partition.schema import Schema, TableSpec
from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import Kind, OwnedVertices
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from atta.scheduler import BatchReady, BatchTaken, Event, RunTask, Scheduler, SchedulerConfig, SessionOpened, TaskDone

RESULTS = Path(__file__).resolve().parent / "results"
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    results = []
    for name, plan in plans().items():
        readings = [replay(plan, arguments.batches) for _ in range(3)]
        seconds, events = sorted(readings)[1]
        share = seconds * arguments.rate / cores
        results.append({"dag": name, "events": events, "us_per_batch": 1e6 * seconds, "share_of_machine": share})
        print(f"{name}: {1e6 * seconds:.0f} us per batch, {share:.1%} of {cores} cores at {arguments.rate:g} batches/s")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    command = f"python bench/overhead.py --batches {arguments.batches} --rate {arguments.rate:g}"
    document = {"schema": 1, "bench": "overhead", "started": started, "command": command}
    document |= {"machine": machine(), "versions": versions(), "results": results}
    (arguments.out / "overhead.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Processor time of scheduling",
        "",
        f"Date: {started}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions().items())}  ",
        f"Command: `{command}`",
        "",
        f"Both levels and the DAG instances, medians of three; the share is of {cores} cores at {arguments.rate:g} batches per second. Bound: 5 %.",
        "",
        "| DAG | events per batch | per batch | share of the machine |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {r['dag']} | {r['events']} | {r['us_per_batch']:.0f} µs | {r['share_of_machine']:.1%} |" for r in results
    ]
    (arguments.out / "overhead.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
