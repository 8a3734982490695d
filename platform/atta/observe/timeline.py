"""Turns recordings of daemons into one timeline: trace events in the JSON format that Perfetto and Chrome read.

Each daemon is a process. Its rows are, in this order: batches (being made, waiting in the queue, on their way to the
consumer), CPU tasks, waits for other daemons, and requests served to other daemons. A kind has as many rows as it had
members at the same time. There are also counters of each session and of the daemon. The arguments of a task name its
session, batch and DAG.

Pure: recordings go in, dictionaries come out. The format is the "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atta.observe.recording import (
    BatchMark,
    Entry,
    MachineSample,
    Recording,
    ServedSpan,
    SessionMark,
    SessionSample,
    TaskSpan,
)

Event = dict[str, Any]
ROWS = ("batches", "CPU", "network", "served")
_ROWS_PER_DAEMON = 10_000
"""Distance of the row numbers of two daemons. Viewers read a row's number as a thread id of the machine."""


@dataclass(slots=True)
class _Bar:
    """Something with a start and an end, in nanoseconds since the start of the timeline, in a row of ``group``."""

    group: str
    start: int
    end: int
    events: list[Event] = field(default_factory=list)


def rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Give each (start, end) the lowest row that is free at its start, so that spans in a row never overlap."""
    given = [0] * len(spans)
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # end, row
    used = 0
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[index]
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        given[index] = row
        heapq.heappush(busy, (end, row))
    return given


def covered_s(recording: Recording) -> float:
    """Seconds between the first and the last event of a recording."""
    if not recording.entries:
        return 0.0
    return max(entry.at for entry in recording.entries) - min(map(_start, recording.entries))


def trace_events(recordings: Sequence[Recording]) -> list[Event]:
    """What the daemons did, on one clock that starts with the first entry: metadata, then events by time."""
    origin = min((int(1e9 * _start(entry)) + r.offset_ns for r in recordings for entry in r.entries), default=0)
    metadata: list[Event] = []
    events: list[Event] = []
    for recording in recordings:
        daemon = _Daemon(recording, origin)
        events += daemon.events()
        metadata += daemon.metadata
    return metadata + sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0.0)))


def document(events: Iterable[Event], about: Mapping[str, Any]) -> str:
    """The events as the text of a JSON file, one per line."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(encode, events))
    return f'{{"traceEvents":[\n{lines}\n],"displayTimeUnit":"ms","otherData":{encode(about)}}}\n'


def _start(entry: Entry) -> float:
    return entry.started if isinstance(entry, TaskSpan | ServedSpan) else entry.at


class _Daemon:
    def __init__(self, recording: Recording, origin: int) -> None:
        self._recording, self._shift = recording, recording.offset_ns - origin
        self._pid = recording.part + 1  # viewers hide process 0
        self._labels: dict[str, str] = {}
        self._jobs: dict[str, str] = {}
        self._closed: dict[str, float] = {}
        for entry in recording.entries:
            if isinstance(entry, SessionMark):
                self._labels[entry.session] = f"{entry.session[:6]} epoch {entry.epoch}"
                self._jobs[entry.session] = entry.job
                if entry.what == "closed":
                    self._closed[entry.session] = entry.at
        self.metadata = [
            self._meta("process_name", name=f"part {recording.part} at {recording.address}"),
            self._meta("process_sort_index", sort_index=recording.part),
        ]

    def events(self) -> Iterator[Event]:
        """All events of this daemon. Afterwards ``metadata`` has the names of the rows."""
        bars = list(_batches(self, self._of(BatchMark), self._closed, self._recording.now))
        bars += [self._task(span) for span in self._of(TaskSpan)]
        bars += [self._served(span) for span in self._of(ServedSpan)]
        base = _ROWS_PER_DAEMON * self._pid
        for group in ROWS:
            mine = [bar for bar in bars if bar.group == group]
            given = rows([(bar.start, bar.end) for bar in mine])
            for bar, row in zip(mine, given, strict=True):
                for event in bar.events:
                    event["tid"] = base + row
                    yield event
            for row in range(max(given, default=-1) + 1):
                self.metadata.append(self._meta("thread_name", base + row, name=f"{group} {row + 1}"))
                self.metadata.append(self._meta("thread_sort_index", base + row, sort_index=base + row))
            base += max(given, default=-1) + 1
        for entry in self._recording.entries:
            match entry:
                case SessionSample():
                    yield from self._session_counters(entry)
                case MachineSample():
                    yield from self._machine_counters(entry)
                case SessionMark():
                    yield from self._session_mark(entry)

    def ns(self, at: float) -> int:
        """A time of this daemon's clock as nanoseconds since the start of the timeline."""
        return int(1e9 * at) + self._shift

    def slice(self, name: str, category: str, start: int, end: int, args: Event) -> Event:
        """A slice whose row is not chosen yet."""
        times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
        return {"ph": "X", "name": name, "cat": category, "pid": self._pid, **times, "args": args}

    def label(self, session: str) -> str:
        """The name of a session for people."""
        return self._labels.get(session, session[:6])

    def job(self, session: str) -> str:
        """The job of a session; empty if it is not recorded any more."""
        return self._jobs.get(session, "")

    def _of(self, kind: type[Any]) -> list[Any]:
        return [entry for entry in self._recording.entries if isinstance(entry, kind)]

    def _task(self, span: TaskSpan) -> _Bar:
        bar = _Bar("CPU" if span.lane == "cpu" else "network", self.ns(span.started), self.ns(span.at))
        bar.end = max(bar.end, bar.start)
        where = "" if span.owner == self._recording.part else f" from {_owners(span)}"
        args: Event = {
            "session": self.label(span.session),
            "batch": span.batch,
            "dag": span.dag,
            "operator": span.op,
            "owner": span.owners or span.owner,
            "chunk": f"{span.chunk + 1}/{span.chunks}",
            "cost": span.cost,
            "waited_ms": max(0.0, round(1e3 * (span.started - span.ready), 4)),
            "outcome": span.outcome,
        }
        if span.lane == "net":
            args |= {"rows": span.remote_rows, "bytes": span.remote_bytes, "shared rows": span.shared_rows}
        if span.summed_rows:
            args["rows in sums"] = span.summed_rows
        if span.cached_rows:
            args["cached rows"] = span.cached_rows
        name = " ".join(dict.fromkeys(word for word in (span.kind, span.op) if word))
        bar.events.append(self.slice(name + where, span.kind, bar.start, bar.end, args))
        return bar

    def _served(self, span: ServedSpan) -> _Bar:
        bar = _Bar("served", self.ns(span.started), self.ns(span.at))
        bar.end = max(bar.end, bar.start)
        bar.events.append(self.slice(span.request, "served", bar.start, bar.end, {"bytes": span.nbytes}))
        return bar

    def _session_counters(self, sample: SessionSample) -> Iterator[Event]:
        label = self.label(sample.session)
        score = {"score": sample.score} | ({} if sample.sigma is None else {"sigma": sample.sigma})
        known = {"sample": sample.sample_ms, "train": sample.train_ms}
        yield self._counter(f"launch score, {label}", sample.at, score)
        yield self._counter(f"batches, {label}", sample.at, {"in flight": sample.in_flight, "queue": sample.finished})
        yield self._counter(f"queue bytes, {label}", sample.at, {"bytes": sample.finished_bytes})
        if times := {name: ms for name, ms in known.items() if ms is not None}:
            yield self._counter(f"ms per batch, {label}", sample.at, times)

    def _machine_counters(self, sample: MachineSample) -> Iterator[Event]:
        yield self._counter("CPU utilisation", sample.at, {"percent": sample.utilisation})
        yield self._counter("batch buffers", sample.at, {"bytes": sample.buffer_bytes})
        if sample.disk_bytes:
            yield self._counter("read from the disk", sample.at, {"bytes": sample.disk_bytes})
        yield self._counter("ready tasks", sample.at, {"cpu": sample.ready_cpu, "network": sample.ready_net})
        yield self._counter("running tasks", sample.at, {"cpu": sample.running_cpu, "network": sample.running_net})

    def _session_mark(self, mark: SessionMark) -> Iterator[Event]:
        label = self.label(mark.session)
        args = {"session": label, "job": mark.job, "epoch": mark.epoch, "batches": mark.batches}
        args |= {"batch size": mark.batch_size, "fan-outs": mark.fan_outs}
        at = {"pid": self._pid, "tid": 0, "ts": self.ns(mark.at) / 1e3}
        yield {"ph": "i", "s": "p", "name": f"session {label} {mark.what}", "cat": "session", **at, "args": args}
        if mark.what == "closed":  # otherwise its last figures would stay until the end of the timeline
            yield self._counter(f"launch score, {label}", mark.at, {"score": 0})
            yield self._counter(f"batches, {label}", mark.at, {"in flight": 0, "queue": 0})
            yield self._counter(f"queue bytes, {label}", mark.at, {"bytes": 0})

    def _counter(self, name: str, at: float, values: Event) -> Event:
        return {"ph": "C", "name": name, "pid": self._pid, "ts": self.ns(at) / 1e3, "args": values}

    def _meta(self, what: str, tid: int = 0, **args: Any) -> Event:
        return {"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": args}


def _owners(span: TaskSpan) -> str:
    """Whose rows a remote task is about, for people."""
    if not span.owners:
        return f"part {span.owner}"
    if not span.owners.replace(",", "").isdigit():
        return span.owners
    return f"parts {span.owners}" if "," in span.owners else f"part {span.owners}"


STAGES = (("", "launched", "ready"), (" waits", "ready", "taken"), (" is sent", "taken", "sent"))


def _batches(daemon: _Daemon, marks: Iterable[BatchMark], closed: dict[str, float], now: float) -> Iterator[_Bar]:
    """The stages of each batch: made, waiting, on its way. An unfinished one lasts until its session ends, or now."""
    lives: dict[tuple[str, int], dict[str, BatchMark]] = {}
    for mark in marks:
        lives.setdefault((mark.session, mark.batch), {})[mark.what] = mark
    for (session, batch), life in lives.items():
        dag = max(mark.dag for mark in life.values())
        args = {"session": daemon.label(session), "job": daemon.job(session), "batch": batch, "dag": dag}
        bars = []
        for suffix, first, then in STAGES:
            if first not in life:
                continue
            ended = life.get(then) or life.get("cancelled")
            start = daemon.ns(life[first].at)
            end = max(start, daemon.ns(ended.at if ended else closed.get(session, now)))
            outcome = "done" if then in life else "cancelled" if ended else "unfinished"
            event = daemon.slice(f"batch {batch}{suffix}", "batch", start, end, {**args, "outcome": outcome})
            bars.append(_Bar("batches", start, end, [event]))
            if outcome != "done":
                break
        if bars:
            yield _Bar("batches", bars[0].start, bars[-1].end, [event for bar in bars for event in bar.events])
