"""``atta simulate --trace``: a profile from the recordings of running daemons (a file of ``atta trace``).

The trace has every task with its cost and its time, and the bytes of all answers, so sizes of batches are exact. Times
are those of the wall clock: if all cores were busy, they are too long. Work outside tasks (transport, event loop) is
not in them. Typical figures stand in for it, those of daemons with links on two and eight partitions, fitted to
processor time by thread (bench/results/scale.md). ``atta simulate --measure`` measures both.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atta.errors import DataError
from atta.scheduler.costs import Line
from atta.simulate.profile import LOCAL_KINDS, REMOTE_KINDS, HopSize, Linear, LoopCosts, Profile, Remote

ID_BYTES = 4.0
"""Bytes of a vertex in a request."""
TRANSPORT = Linear(6.0, 0.0005)
"""CPU microseconds per request and per byte of the answer, at either end, of the threads of links."""
LOOP = LoopCosts(batch_us=3000.0, answer_us=43.0, us_per_byte=0.00017)
"""CPU microseconds of the event loop that asks."""
BATCH_US = 1900.0
"""CPU microseconds per batch outside tasks and event loops: the consumer takes it over."""
_Table = defaultdict[tuple[str, str], float]


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
    """Read a trace of daemons that made batches of ``NeighborLoader``.

    ``batch_size``, ``fan_outs``: needed if the trace begins after the session was opened. Of several kinds of sessions,
    the one with the most batches is taken.

    Raises:
        DataError: the file is not a trace, or has no whole batch of such a loader.
    """
    events, cores = _read(path)
    given = (batch_size, ",".join(map(str, fan_outs))) if batch_size and fan_outs else None
    shapes = {e["args"]["session"]: _shape(e["args"]) for e in events if e.get("cat") == "session"}
    by_shape: dict[tuple[int, str] | None, list[_Dag]] = defaultdict(list)
    for dag in _dags(events).values():
        if dag.whole():
            by_shape[given or shapes.get(dag.session)].append(dag)
    if not by_shape:
        raise DataError(
            path, "no batch was begun and finished within the trace: record for longer (atta trace --seconds)"
        )
    shape, dags = max(by_shape.items(), key=lambda entry: len(entry[1]))
    if shape is None:
        raise DataError(path, "begins after the sessions were opened: say --batch-size and --fan-out as they were")
    hops = tuple(int(word) for word in shape[1].split(",") if word)
    parts = len({e["pid"] for e in events if e.get("name") == "process_name"})
    return _profile(path, dags, shape[0], hops, parts=parts, cores=cores)


def _shape(opened: dict[str, Any]) -> tuple[int, str]:
    """Seeds of a batch and fan-outs, from the mark of a session."""
    return int(opened["batch size"]), str(opened["fan-outs"])


def _read(path: str | Path) -> tuple[list[dict[str, Any]], int]:
    """Events, and the cores of a machine."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return list(document["traceEvents"]), int(document.get("otherData", {}).get("cores", 1))
    except OSError as error:
        raise DataError(path, f"cannot read the trace: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(path, "is no trace: write one with `atta trace`") from error


def _dags(events: Iterable[dict[str, Any]]) -> dict[tuple[int, int], _Dag]:
    found: dict[tuple[int, int], _Dag] = defaultdict(_Dag)
    for event in events:
        args = event.get("args", {})
        if event.get("ph") == "X" and "cost" in args:
            dag = found[event["pid"], args["dag"]]
            dag.tasks.append(event)
            dag.session = args["session"]
    return found


class _Sums:
    """Tasks of whole batches, added up by (kind, operator)."""

    def __init__(self, dags: Sequence[_Dag]) -> None:
        self.home: _Table = defaultdict(float)  # cost
        self.away: _Table = defaultdict(float)
        self.asked: _Table = defaultdict(float)  # rows that requests asked other owners for
        self.cached: _Table = defaultdict(float)  # rows of other owners that were at hand, or came for another batch
        self.kept: _Table = defaultdict(float)  # those of them that are part of the cost at home
        self.nbytes: _Table = defaultdict(float)  # of the answers
        self.lines = {kind: Line() for kind in LOCAL_KINDS}
        for task in (task for dag in dags for task in dag.tasks):
            args, key = task["args"], (task["cat"], task["args"]["operator"])
            if "rows" in args:
                self.away[key] += args["cost"]
                self.asked[key] += args["rows"]
                self.cached[key] += args.get("shared rows", 0)
                self.nbytes[key] += args["bytes"]
            else:
                self.home[key] += args["cost"]
                if task["cat"] == "feature":
                    self.cached[key] += args.get("cached rows", 0)
                    self.kept[key] += args.get("cached rows", 0)
                if task["cat"] in self.lines:
                    self.lines[task["cat"]].add(args["cost"], task["dur"])


def _of(table: _Table, kind: str) -> float:
    """The sum over a kind of tasks."""
    return sum(value for (found, _), value in table.items() if found == kind)


def _profile(
    path: str | Path, dags: Sequence[_Dag], batch_size: int, fan_outs: tuple[int, ...], *, parts: int, cores: int
) -> Profile:
    sums, count = _Sums(dags), len(dags)
    features = [("feature", f"feature{hop}") for hop in range(len(fan_outs) + 1)]
    first = sums.home[features[0]] + sums.away[features[0]]
    if not fan_outs or not first:
        raise DataError(path, "has no batches of NeighborLoader with table rows")
    touched = _of(sums.asked, "feature") + _of(sums.cached, "feature")
    pulled = touched - _of(sums.kept, "feature")
    row_bytes = _of(sums.away, "feature") / pulled if pulled else first / (count * batch_size)
    for key, rows in sums.kept.items():
        sums.home[key] -= rows * row_bytes
        sums.away[key] += rows * row_bytes
    hops = []
    for key in features:
        nbytes = sums.home[key] + sums.away[key]
        hops.append(HopSize(nbytes / row_bytes / count, sums.home[key] / nbytes if nbytes else 1.0))
    hops[0] = HopSize(float(batch_size), hops[0].home)  # seeds may have tables of their own
    expanded = count * sum(hop.new * hop.home for hop in hops[:-1])
    degree = _of(sums.home, "neighborhood") / expanded if expanded else 1.0
    asked = _of(sums.asked, "neighborhood")
    local = {kind: Linear(*line.fit()) for kind, line in sums.lines.items() if line.n}
    return Profile(
        batch_size=batch_size,
        fan_outs=fan_outs,
        hops=tuple(hops),
        local=local,
        remote={kind: _remote(sums, kind, local.get(kind, Linear())) for kind in REMOTE_KINDS} if parts > 1 else {},
        loop=LOOP,
        parts=parts,
        spread=_spread(dags),
        degree=degree,
        mean_degree=_of(sums.away, "neighborhood") / asked if asked else degree,
        row_bytes=row_bytes,
        batch_bytes=sum(hop.new for hop in hops) * (row_bytes + 8) + 24 * _of(sums.home, "join") / count,
        batch_us=BATCH_US,
        cache_hit=_of(sums.cached, "feature") / touched if touched else 0.0,
        cores=cores,
        measured={"trace": Path(path).name, "batches": count},
    )


def _remote(sums: _Sums, kind: str, home: Linear) -> Remote:
    """The costs of requests. Answering one costs as much as the same task at home, plus its transport."""
    asked, cached = _of(sums.asked, kind), _of(sums.cached, kind)
    units = _of(sums.away, kind) * asked / (asked + cached) if asked else 0.0
    answer = _of(sums.nbytes, kind) / units if units else 0.0
    each = Linear(TRANSPORT.fixed_us, TRANSPORT.us_per_unit * answer)
    serve = Linear(home.fixed_us + each.fixed_us, home.us_per_unit + each.us_per_unit)
    return Remote(ID_BYTES * asked / units if units else 0.0, answer, serve, each)


def _spread(dags: Sequence[_Dag]) -> float:
    """Standard deviation of the logarithm of batch sizes."""
    sizes = [sum(t["args"]["cost"] for t in dag.tasks if t["cat"] == "feature") for dag in dags]
    logs = [math.log(size) for size in sizes if size > 0]
    return statistics.pstdev(logs) if len(logs) > 1 else 0.0
