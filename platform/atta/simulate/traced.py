"""``atta simulate --trace``: a profile from the recordings of running daemons (a file of ``atta trace``).

The trace has every task with its cost and its time, and the bytes of all answers, so sizes of batches are exact. Times
are those of the wall clock: if all cores were busy, they are too long. Work outside tasks (transport, event loop) is
not in them. Typical figures stand in for it, those of daemons with links on two and eight partitions, fitted to
processor time by thread (bench/results/scale.md). ``atta simulate --measure`` measures both.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.simulate.fitting import Measurements, Overheads, ServedDataset, profile_of
from atta.simulate.profile import LoopCosts, Profile

TYPICAL = Overheads(
    batch_s=1.9e-3, request_s=12e-6, byte_s=1e-9, loop=LoopCosts(batch_us=3000.0, answer_us=43.0, us_per_byte=0.00017)
)
"""CPU of consumers, of the threads of links and of the event loop that asks."""


@dataclass
class _Dag:
    """The tasks of one batch, by the name of their operator."""

    tasks: list[dict[str, Any]] = field(default_factory=list)
    session: str = ""

    def whole(self) -> bool:
        """Whether its first and its last task are in the trace, and no task failed."""
        kinds = {task["cat"] for task in self.tasks}
        return {"seed", "end"} <= kinds and all(task["args"]["outcome"] == "done" for task in self.tasks)


def profile_of_trace(path: str | Path, *, batch_size: int | None = None, fan_outs: Sequence[int] = ()) -> Profile:
    """Read a trace of daemons that made batches of ``NeighborLoader``. ``batch_size``, ``fan_outs``: needed if the
    trace begins after the session was opened. Of several kinds of sessions, the one with the most batches is taken.
    Raises DataError: the file is not a trace, or has no whole batch of such a loader."""
    events, cores = _read(path)
    given = (batch_size, ",".join(map(str, fan_outs))) if batch_size and fan_outs else None
    opened = (e["args"] for e in events if e.get("cat") == "session")
    shapes = {told["session"]: (int(told["batch size"]), str(told["fan-outs"])) for told in opened}
    by_shape: dict[tuple[int, str] | None, list[_Dag]] = defaultdict(list)
    for dag in _dags(events).values():
        if dag.whole():
            by_shape[given or shapes.get(dag.session)].append(dag)
    if not by_shape:
        raise DataError(path, "no batch was begun and finished within the trace: record longer (atta trace --seconds)")
    shape, dags = max(by_shape.items(), key=lambda entry: len(entry[1]))
    if shape is None:
        raise DataError(path, "begins after the sessions were opened: say --batch-size and --fan-out as they were")
    hops = tuple(int(word) for word in shape[1].split(",") if word)
    parts = len({e["pid"] for e in events if e.get("name") == "process_name"})
    return _profile(path, dags, shape[0], hops, parts=parts, cores=cores)


def _read(path: str | Path) -> tuple[list[dict[str, Any]], int]:
    """Events, and the cores of a machine."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return list(document["traceEvents"]), int(document.get("otherData", {}).get("cores", 1))
    except OSError as error:
        raise DataError(path, f"cannot read the trace: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(path, "is not a trace; `atta trace` writes one") from error


def _dags(events: Iterable[dict[str, Any]]) -> dict[tuple[int, int], _Dag]:
    found: dict[tuple[int, int], _Dag] = defaultdict(_Dag)
    for event in events:
        args = event.get("args", {})
        if event.get("ph") == "X" and "cost" in args:
            dag = found[event["pid"], args["dag"]]
            dag.tasks.append(event)
            dag.session = args["session"]
    return found


def _profile(
    path: str | Path, dags: Sequence[_Dag], batch_size: int, fan_outs: tuple[int, ...], *, parts: int, cores: int
) -> Profile:
    seen = Measurements(len(dags), totals=_totals(dags))
    home, away, cached, late = _features(dags, len(fan_outs))
    if any("rows in sums" in task["args"] for dag in dags for task in dag.tasks):
        raise DataError(path, "has batches of an aggregating loader, which --measure DATASET --aggregate understands")
    if not fan_outs or not home[0] + away[0]:
        raise DataError(path, "has no batches of NeighborLoader with table rows")
    seen.totals["late_rows"] = float(late)
    pulled = seen.totals["remote_rows"] + seen.totals["shared_rows"] + late
    row_bytes = away.sum() / pulled if pulled else (home[0] + away[0]) / (len(dags) * batch_size)
    seen.totals["cached_rows"] = float(cached.sum() + late)
    fresh = (home + away) / row_bytes
    at_home = (home / row_bytes - cached) / np.maximum(fresh, 1e-9)
    fresh[0] = len(dags) * batch_size  # seeds may have tables of their own
    seen.fresh, seen.home = fresh.tolist(), (fresh * at_home).tolist()
    seen.sizes = [sum(t["args"]["cost"] for t in dag.tasks if t["cat"] == "feature") or 1.0 for dag in dags]
    seen.nbytes = fresh.sum() * (row_bytes + 8) + 24 * seen.of("join", "cpu", "x")
    described = ServedDataset("", parts, _mean_degree(seen))
    notes = {"trace": Path(path).name, "batches": len(dags)}
    return profile_of([seen], described, batch_size, fan_outs, overheads=TYPICAL, cores=cores, measured=notes)


def _totals(dags: Iterable[_Dag]) -> dict[str, float]:
    """What daemons count of tasks (``Measurements.totals``)."""
    totals: dict[str, float] = defaultdict(float)
    for task in (task for dag in dags for task in dag.tasks):
        args, kind, x = task["args"], task["cat"], float(task["args"]["cost"])
        asks = "rows" in args
        lane, y = ("net", float(args["bytes"])) if asks else ("cpu", 1e-6 * task["dur"])
        for name, value in {"n": 1.0, "x": x, "xx": x * x, "y": y, "xy": x * y}.items():
            totals[f"cost_{kind}_{lane}_{name}"] += value
        if asks:
            totals["remote_rows" if kind == "feature" else "remote_vertices"] += args["rows"]
            totals["shared_rows"] += args.get("shared rows", 0) if kind == "feature" else 0
    return totals


def _features(dags: Iterable[_Dag], hops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """By hop [hops + 1]: bytes of rows that tasks at home gathered, and that others sent; and rows in a cache, which
    count as home. Last: number of rows in a cache that count as sent, as they were looked up late (``--window``)."""
    home, away, cached = (np.zeros(hops + 1) for _ in range(3))
    late = 0
    at = {f"feature{hop}": hop for hop in range(hops + 1)}
    for task in (task for dag in dags for task in dag.tasks if task["args"]["operator"] in at):
        args, hop = task["args"], at[task["args"]["operator"]]
        (away if "rows" in args else home)[hop] += args["cost"]
        found = args.get("cached rows", 0)
        cached[hop] += 0 if "rows" in args else found
        late += found if "rows" in args else 0
    return home, away, cached, late


def _mean_degree(seen: Measurements) -> float:
    """Of the vertices that other daemons expanded; if there are none, of those at home."""
    asked, expanded = seen.totals.get("remote_vertices", 0.0), sum(seen.home[:-1])
    if asked:
        return seen.of("neighborhood", "net", "x") / asked
    return seen.of("neighborhood", "cpu", "x") / expanded if expanded else 1.0
