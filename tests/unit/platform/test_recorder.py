"""The daemon's ring: bounded, in order, limited to the last seconds on request, and silent when it is off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atta.daemon.engine.recorder import Recorder
from atta.daemon.engine.tasks import TaskResult
from atta.observe.recording import (
    BatchMark,
    Entry,
    MachineSample,
    ServedSpan,
    SessionMark,
    SessionSample,
    TaskSpan,
    from_lines,
)
from atta.samplers.dag.instance import OTHERS, Kind, Lane, OwnedVertices, Task
from atta.scheduler import SessionView

STATS = {"utilisation": 40.0, "ready_cpu": 1.0, "ready_net": 2.0, "running_cpu": 3.0, "running_net": 4.0}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def entries(recorder: Recorder, last_s: float = 0.0) -> list[Entry]:
    return [entry for text in recorder.lines(last_s) for entry in from_lines(text)]


def fill(recorder: Recorder) -> None:
    """One entry of every kind."""
    recorder.session("opened", "s", "j", 1, 9, 40, "8,4")
    recorder.batch("launched", "s", 5, dag=2, at=1.5)
    recorder.task(
        Task(Kind.FEATURE, "f", 1, 0, 2, Lane.NET, 8.0),
        ("s", 5, 2),
        (1.6, 1.7, 1.8),
        TaskResult(remote_rows=1, remote_bytes=2, cached_rows=3, shared_rows=4),
    )
    recorder.sample(2.0, [SessionView("s", 9, 1, 1, 0, 0, 1.0, None, None, 3.0)], STATS, buffer_bytes=64)


def test_every_kind_comes_back_as_its_type() -> None:
    recorder = Recorder(100, Clock())
    fill(recorder)
    assert entries(recorder) == [
        SessionMark(1.0, "opened", "s", "j", 1, 9, 40, "8,4"),
        BatchMark(1.5, "launched", "s", 5, 2),
        TaskSpan(1.8, 1.6, 1.7, "s", 5, 2, "feature", "f", "net", 1, 0, 2, 8.0, 1, 2, 3, 4, "done"),
        MachineSample(2.0, 40.0, 64, 1, 2, 3, 4),
        SessionSample(2.0, "s", 1.0, None, 1, 0, 0, None, 3.0),
    ]


def test_a_task_of_others_names_the_owners_or_how_many_they_are() -> None:
    recorder, task = Recorder(100, Clock()), Task(Kind.FEATURE, "f", OTHERS, 0, 1, Lane.NET, 8.0)
    for owners in ([3], [1, 2, 5], [*range(1, 128)]):
        shares = [OwnedVertices(owner, 10) for owner in owners]
        recorder.task(task, ("s", 5, 2), (1.0, 1.0, 1.0), owners=shares)
    assert [(e.owner, e.owners) for e in entries(recorder) if isinstance(e, TaskSpan)] == [
        (-1, "3"),
        (-1, "1,2,5"),
        (-1, "127 owners"),
    ]


def test_entries_are_flat_and_short() -> None:
    """The ring never holds arrays, lists of ids or objects of the scheduler."""
    recorder = Recorder(100, Clock())
    fill(recorder)
    for entry in recorder._ring:
        assert {type(value) for value in entry} <= {str, int, float, type(None)}
        assert len(repr(entry)) < 300


@pytest.mark.parametrize("capacity", [0, 1, 3, 50])
def test_the_ring_is_bounded_and_keeps_the_newest(capacity: int) -> None:
    recorder = Recorder(capacity, Clock())
    for batch in range(200):
        recorder.batch("ready", "s", batch)
        fill(recorder)
    found = entries(recorder)
    assert len(found) == capacity
    assert recorder.full
    everything = Recorder(10_000, Clock())
    for batch in range(200):
        everything.batch("ready", "s", batch)
        fill(everything)
    assert not everything.full
    assert found == entries(everything)[len(entries(everything)) - capacity :]


def test_only_the_last_seconds() -> None:
    recorder = Recorder(100, Clock())
    for batch in range(10):
        recorder.batch("ready", "s", batch)  # recorded at 1, 2, ..., 10
    assert [e.at for e in entries(recorder, 3.0)] == [8.0, 9.0, 10.0]  # the time is 11 now


def test_what_links_have_served_is_told_too() -> None:
    recorder = Recorder(10, Clock())
    recorder.batch("ready", "s", 0)  # at 1
    spans = [
        ServedSpan(0.5, 0.25, "Pull by link, asked by 3", 7),
        ServedSpan(1.5, 1.0, "Sample by link, asked by 2", 9),
    ]
    recorder.elsewhere = lambda: spans
    assert entries(recorder)[1:] == spans
    assert [e.at for e in entries(recorder, 2.5)] == [1.0, 0.5, 1.5]  # the time is 3 now
    assert [e.at for e in entries(recorder, 2.5)] == [1.5]  # and now 4


def test_served_requests_are_recorded_also_when_they_fail() -> None:
    recorder = Recorder(10, Clock())

    async def pull(request: Any, context: Any) -> bytes:
        return bytes(request)

    async def pair(request: Any, context: Any) -> None:
        raise KeyError(request)

    async def talk() -> bytes:
        kv = recorder.served("KvService", {"Pull": pull})
        graph = recorder.served("GraphService", {"Pair": pair})
        with pytest.raises(KeyError):
            await graph["Pair"]("x", None)
        return await kv["Pull"](12, None)

    assert asyncio.run(talk()) == bytes(12)
    assert entries(recorder) == [
        ServedSpan(2.0, 1.0, "GraphService.Pair", 0),
        ServedSpan(4.0, 3.0, "KvService.Pull", 12),
    ]
    off = Recorder(0)
    assert off.served("KvService", {"Pull": pull}) == {"Pull": pull}
