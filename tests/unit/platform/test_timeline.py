"""The daemon's ring of what happened, and the trace events that are made of it."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from typing import Any

import pytest

from atta.daemon.engine.recorder import Recorder
from atta.daemon.engine.tasks import TaskResult
from atta.observe.recording import (
    BatchMark,
    Entry,
    MachineSample,
    Recording,
    ServedSpan,
    SessionMark,
    SessionSample,
    TaskSpan,
    from_lines,
    to_lines,
)
from atta.observe.timeline import covered_s, document, rows, trace_events
from atta.samplers.dag.instance import OTHERS, Kind, Lane, OwnedVertices, Task
from atta.scheduler.coarse import SessionView

STATS = {"utilisation": 40.0, "ready_cpu": 1.0, "ready_net": 2.0, "running_cpu": 3.0, "running_net": 4.0}


def recorder_of(capacity: int) -> Recorder:
    """Its clock shows 1, 2, 3, ..."""
    return Recorder(capacity, itertools.count(1.0).__next__)


def entries(recorder: Recorder, last_s: float = 0.0) -> list[Entry]:
    return [entry for text in recorder.lines(last_s) for entry in from_lines(text)]


def fill(recorder: Recorder) -> None:
    """One entry of every kind."""
    recorder.session("opened", "s", "j", 1, 9, 40, "8,4")
    recorder.batch("launched", "s", 5, dag=2, at=1.5)
    result = TaskResult(remote_rows=1, remote_bytes=2, cached_rows=3, shared_rows=4)
    recorder.task(Task(Kind.FEATURE, "f", 1, 0, 2, Lane.NET, 8.0), ("s", 5, 2), (1.6, 1.7, 1.8), result)
    recorder.sample(2.0, [SessionView("s", 9, 1, 1, 0, 0, 1.0, None, None, 3.0)], STATS, buffer_bytes=64)


def test_every_kind_comes_back_as_its_type() -> None:
    recorder = recorder_of(100)
    fill(recorder)
    assert entries(recorder) == [
        SessionMark(1.0, "opened", "s", "j", 1, 9, 40, "8,4"),
        BatchMark(1.5, "launched", "s", 5, 2),
        TaskSpan(1.8, 1.6, 1.7, "s", 5, 2, "feature", "f", "net", 1, 0, 2, 8.0, 1, 2, 3, 4, "done"),
        MachineSample(2.0, 40.0, 64, 1, 2, 3, 4),
        SessionSample(2.0, "s", 1.0, None, 1, 0, 0, None, 3.0),
    ]
    for entry in recorder._ring:  # no arrays, lists of ids or objects of the scheduler
        assert {type(value) for value in entry} <= {str, int, float, type(None)}
        assert len(repr(entry)) < 300


def test_a_task_of_others_names_the_owners_or_how_many_they_are() -> None:
    recorder, task = recorder_of(100), Task(Kind.FEATURE, "f", OTHERS, 0, 1, Lane.NET, 8.0)
    for owners in ([3], [1, 2, 5], [*range(1, 128)]):
        shares = [OwnedVertices(owner, 10) for owner in owners]
        recorder.task(task, ("s", 5, 2), (1.0, 1.0, 1.0), owners=shares)
    assert [(e.owner, e.owners) for e in entries(recorder)] == [(-1, "3"), (-1, "1,2,5"), (-1, "127 owners")]


@pytest.mark.parametrize("capacity", [0, 1, 3, 50])
def test_the_ring_is_bounded_and_keeps_the_newest(capacity: int) -> None:
    recorders = recorder_of(capacity), recorder_of(10_000)
    for recorder in recorders:
        for batch in range(200):
            recorder.batch("ready", "s", batch)
            fill(recorder)
    found, everything = map(entries, recorders)
    assert [recorder.full for recorder in recorders] == [True, False]
    assert len(found) == capacity
    assert found == everything[len(everything) - capacity :]


def test_what_links_have_served_is_told_too() -> None:
    recorder = recorder_of(10)
    recorder.batch("ready", "s", 0)  # at 1
    spans = [
        ServedSpan(0.5, 0.25, "Pull by link, asked by 3", 7),
        ServedSpan(1.5, 1.0, "Sample by link, asked by 2", 9),
    ]
    recorder.elsewhere = lambda: spans
    assert entries(recorder)[1:] == spans
    assert [e.at for e in entries(recorder, 2.5)] == [1.0, 0.5, 1.5]  # the time is 3 now
    assert [e.at for e in entries(recorder, 2.5)] == [1.5]  # and now 4


async def test_served_requests_are_recorded_also_when_they_fail() -> None:
    recorder = recorder_of(10)

    async def pull(request: Any, context: Any) -> bytes:
        return bytes(request)

    async def pair(request: Any, context: Any) -> None:
        raise KeyError(request)

    with pytest.raises(KeyError):
        await recorder.served("GraphService", {"Pair": pair})["Pair"]("x", None)
    assert await recorder.served("KvService", {"Pull": pull})["Pull"](12, None) == bytes(12)
    assert entries(recorder) == [
        ServedSpan(2.0, 1.0, "GraphService.Pair", 0),
        ServedSpan(4.0, 3.0, "KvService.Pull", 12),
    ]
    assert Recorder(0).served("KvService", {"Pull": pull}) == {"Pull": pull}


SESSION = "0123456789abcdef"


def task(started: float, ended: float, *, batch: int = 3, lane: str = "cpu", owner: int = 0) -> TaskSpan:
    about = SESSION, batch, batch + 10, "feature", "feature0", lane, owner, 0, 1, 12.0, 1, 2, 3, 4, "done"
    return TaskSpan(ended, started - 0.5, started, *about)


def recording(*entries: Entry, part: int = 0, offset_s: float = 1e9, now: float = 100.0) -> Recording:
    return Recording(part, f"host:{part}", now, int(1e9 * offset_s), 1000, False, entries)


def slices(events: list[dict[str, Any]], category: str | None = None) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and category in {None, e["cat"]}]


@pytest.mark.parametrize("seed", range(20))
def test_rows_never_overlap_and_are_as_few_as_possible(seed: int) -> None:
    draw = random.Random(seed)
    spans = []
    for _ in range(draw.randint(0, 120)):
        start = draw.randint(0, 60)
        spans.append((float(start), float(start + draw.choice([0, 0, 1, 3, 20]))))
    given = rows(spans)
    for i, (a, b) in enumerate(spans):
        for j, (c, d) in enumerate(spans[:i]):
            assert given[i] != given[j] or b <= c or d <= a
    most = max((sum(a <= t < b for a, b in spans) for t, _ in spans), default=0)
    long = [row for row, (a, b) in zip(given, spans, strict=True) if a < b]
    assert len(set(long)) >= most
    assert set(given) == set(range(len(set(given))))
    if all(a < b for a, b in spans):
        assert len(set(given)) == most


def test_one_clock_for_daemons_that_started_at_different_times() -> None:
    late = recording(task(905.5, 906.0, batch=4), part=1, offset_s=100.0)
    first, second = slices(trace_events([recording(task(5.0, 6.0), offset_s=1000.0), late]))
    assert (first["ts"], first["dur"]) == (0.0, 1e6)
    assert (second["ts"], second["dur"]) == (0.5e6, 0.5e6)
    assert first["pid"] != second["pid"]
    assert first["tid"] != second["tid"]


@pytest.mark.parametrize(
    ("owners", "name", "owner"),
    [("", "part 2", 2), ("2", "part 2", "2"), ("1,3", "parts 1,3", "1,3"), ("40 owners", "40 owners", "40 owners")],
)
def test_a_task_tells_what_it_belongs_to(owners: str, name: str, owner: object) -> None:
    span = task(5.0, 6.0, lane="net", owner=-1 if owners else 2)._replace(owners=owners)
    (event,) = slices(trace_events([recording(span)]))
    assert event["name"] == f"feature feature0 from {name}"
    args = [event["args"][key] for key in ("session", "batch", "dag", "owner", "waited_ms")]
    assert args == [SESSION[:6], 3, 13, owner, 500]


def test_names_of_daemons_and_rows() -> None:
    entries = [task(1, 3), task(2, 4), task(1, 2, lane="net"), ServedSpan(3, 2, "A.B", 0)]
    events = trace_events([recording(*entries, part=4)])
    names = {e["args"]["name"] for e in events if e["name"] in {"process_name", "thread_name"}}
    assert names == {"part 4 at host:4", "CPU 1", "CPU 2", "network 1", "served 1"}
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert {e["tid"] for e in slices(events)} == named


def test_metadata_first_then_events_by_time() -> None:
    marks = [SessionMark(9.0, "closed", SESSION, "job", 2, 7), BatchMark(3.0, "launched", SESSION, 1, 1)]
    entries = [task(7, 8), *marks, task(4, 5), SessionSample(6.0, SESSION, 1.5, None, 1, 2, 300, None, 4.0)]
    events = trace_events([recording(*entries)])
    first = next(i for i, e in enumerate(events) if e["ph"] != "M")
    assert all(e["ph"] != "M" for e in events[first:])
    times = [e["ts"] for e in events[first:]]
    assert times == sorted(times)
    assert times[0] == 0


def test_counters() -> None:
    opened, closed = (SessionMark(at, what, SESSION, "job", 2, 7) for at, what in ((1.0, "opened"), (3.0, "closed")))
    sample = SessionSample(2.0, SESSION, 1.5, 4.0, 1, 2, 300, 20.0, 5.0)
    events = trace_events([recording(opened, sample, MachineSample(2.0, 50.0, 1024, 3, 4, 1, 2), closed)])
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append((event["ts"], event["args"]))
    label = f"{SESSION[:6]} epoch 2"
    assert counters[f"launch score, {label}"] == [(1e6, {"score": 1.5, "sigma": 4.0}), (2e6, {"score": 0})]
    assert counters[f"batches, {label}"] == [(1e6, {"in flight": 1, "queue": 2}), (2e6, {"in flight": 0, "queue": 0})]
    assert counters[f"ms per batch, {label}"] == [(1e6, {"sample": 20.0, "train": 5.0})]
    assert counters["CPU utilisation"] == [(1e6, {"percent": 50.0})]
    assert counters["running tasks"] == [(1e6, {"cpu": 1, "network": 2})]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (
            {"launched": 1, "ready": 3, "taken": 4, "sent": 6},
            [("", 1, 3, "done"), (" waits", 3, 4, "done"), (" is sent", 4, 6, "done")],
        ),
        ({"launched": 1, "cancelled": 2}, [("", 1, 2, "cancelled")]),
        ({"launched": 1}, [("", 1, 50, "unfinished")]),
        ({"launched": 1, "ready": 3}, [("", 1, 3, "done"), (" waits", 3, 50, "unfinished")]),
        ({"ready": 3, "taken": 4, "sent": 4}, [(" waits", 3, 4, "done"), (" is sent", 4, 4, "done")]),
        ({"sent": 4}, []),
    ],
)  # fmt: skip
def test_the_life_of_a_batch(marks: dict[str, int], expected: list[tuple[str, int, int, str]]) -> None:
    entries = [BatchMark(float(at), what, SESSION, 8, -1) for what, at in marks.items()]
    origin = min(marks.values())
    found = [
        (e["name"], e["ts"] / 1e6 + origin, (e["ts"] + e["dur"]) / 1e6 + origin, e["args"]["outcome"])
        for e in slices(trace_events([recording(*entries, now=50.0)]))
    ]
    assert found == [(f"batch 8{suffix}", a, b, outcome) for suffix, a, b, outcome in expected]


def test_a_closed_session_ends_its_batches() -> None:
    entries = [BatchMark(1.0, "launched", SESSION, 8, 0), SessionMark(3.0, "closed", SESSION, "", 0, 9)]
    (event,) = slices(trace_events([recording(*entries, now=50.0)]))
    assert event["dur"] == 2e6


def test_valid_json_also_of_nothing() -> None:
    assert json.loads(document(trace_events([]), {}))["traceEvents"] == []
    assert json.loads(document(trace_events([recording()]), {"a": 'b"'}))["otherData"] == {"a": 'b"'}
    assert covered_s(recording()) == 0
    assert covered_s(recording(task(2, 3), ServedSpan(9, 1, "x", 0))) == 8
    text = document(trace_events([recording(task(2, 3))]), {})
    assert [e["ph"] for e in json.loads(text)["traceEvents"]].count("X") == 1


def test_entries_survive_the_wire_in_bounded_pieces() -> None:
    entries = [
        task(1.5, 2.5),
        BatchMark(1.0, "ready", "é\u2028\n", 2, -1),
        SessionSample(1, "s", 0.5, None, 0, 0, 0, None, None),
    ]
    kinds = {TaskSpan: "task", BatchMark: "batch", SessionSample: "sample"}
    ring = [(kinds[type(e)], *e) for e in entries] * 50
    pieces = list(to_lines(ring, 1000))
    assert len(pieces) > 5
    assert all(len(piece) <= 1000 for piece in pieces)
    assert [e for piece in pieces for e in from_lines(piece)] == entries * 50
    assert list(to_lines([], 10)) == []
    assert len(list(to_lines(ring[:2], 1))) == 2  # an entry is never cut


@pytest.mark.parametrize("text", ["{", '["task",1]', "7", "[]", '["batch",1,2,3,4,5,6]', "[" * 9999])
def test_what_is_no_recording_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(from_lines(text))
    unknown = '["hiccup",1,2]\n["served",2.0,1.0,"A.B",5]'
    assert list(from_lines(unknown)) == [ServedSpan(2.0, 1.0, "A.B", 5)], "kinds of a later release are left out"
