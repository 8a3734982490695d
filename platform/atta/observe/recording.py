"""The entries that a daemon records of its work: their kinds, and their form on the wire.

In the daemon's ring an entry is a plain tuple ``(kind, *fields)``, which is cheap to append and which the garbage
collector does not track. On the wire it is one line of JSON. Readers get one of the types below. Only these types name
the fields. All times are seconds of the daemon's monotonic clock. ``at`` is when the entry was recorded, or when its
subject ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class TaskSpan(NamedTuple):
    """A task that has ended."""

    at: float  # when it ended
    ready: float  # when everything that it waits for was done
    started: float  # when it began on its thread, or its request was sent
    session: str
    batch: int
    dag: int
    kind: str
    op: str  # operator of the DAG's specification; empty: END
    lane: str  # "cpu", "net"
    owner: int  # partition that holds the rows; -1: several, see ``owners``
    chunk: int
    chunks: int
    cost: float  # the scheduler orders the tasks of a DAG by it
    remote_rows: int
    remote_bytes: int
    cached_rows: int
    shared_rows: int
    outcome: str  # "done", "failed", or "cancelled": the result was not wanted any more
    owners: str = ""  # of a task of several partitions: "1,2,5", or how many they are
    summed_rows: int = 0  # that came in sums, each of which is one of ``remote_rows``


class ServedSpan(NamedTuple):
    """A request of another daemon, from its arrival to the end of the answer."""

    at: float  # when it ended
    started: float
    request: str
    nbytes: int  # size of the answer; known if it is streamed or already serialised


class BatchMark(NamedTuple):
    """A step in the life of a batch."""

    at: float
    what: str  # "launched", "ready" (finished, and all before it), "taken" by the consumer, "sent" to it, "cancelled"
    session: str
    batch: int
    dag: int  # -1: not known


class SessionMark(NamedTuple):
    """A session is opened or closed."""

    at: float
    what: str  # "opened", "closed"
    session: str
    job: str
    epoch: int
    batches: int  # of the whole session
    batch_size: int = 0  # seeds; 0: not known
    fan_outs: str = ""  # hop by hop, "15,10,5"; the sum if a hop has several edge types


class SessionSample(NamedTuple):
    """The coarse level's view of a session; see ``atta.scheduler.SessionView``."""

    at: float
    session: str
    score: float
    sigma: float | None
    in_flight: int
    finished: int
    finished_bytes: int
    sample_ms: float | None
    train_ms: float | None


class MachineSample(NamedTuple):
    """The daemon as a whole."""

    at: float
    utilisation: float  # of the machine's CPU in percent, as the launch score uses it
    buffer_bytes: int  # memory of batch buffers
    ready_cpu: int
    ready_net: int
    running_cpu: int
    running_net: int
    disk_bytes: int = 0  # read so far, with --memory SIZE


Entry = TaskSpan | ServedSpan | BatchMark | SessionMark | SessionSample | MachineSample

_TYPES: dict[str, Any] = {
    "task": TaskSpan,
    "served": ServedSpan,
    "batch": BatchMark,
    "session": SessionMark,
    "sample": SessionSample,
    "machine": MachineSample,
}


@dataclass(frozen=True)
class Recording:
    """What one daemon has recorded."""

    part: int
    address: str
    now: float  # when it answered, seconds of its monotonic clock
    offset_ns: int  # wall clock minus monotonic clock
    capacity: int  # entries that its ring holds; 0: recording is switched off
    full: bool  # older entries have been dropped for newer ones
    entries: tuple[Entry, ...]


def to_lines(entries: Iterable[tuple[Any, ...]], limit: int) -> Iterator[str]:
    """Entries of a ring as lines of JSON, in texts of at most ``limit`` characters, or of one entry."""
    lines: list[str] = []
    size = 0
    for entry in entries:
        line = _encode(entry)
        if lines and size + len(line) + 1 > limit:
            yield "\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield "\n".join(lines)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def from_lines(text: str) -> Iterator[Entry]:
    """Read a text of ``to_lines``. Kinds that only a newer daemon knows are left out. Raises ValueError: the text does
    not come from ``to_lines``."""
    for line in text.splitlines():
        try:
            kind, *fields = json.loads(line)
            if kind in _TYPES:
                yield _TYPES[kind]._make(fields)
        except (RecursionError, TypeError) as error:  # nested too deeply; not a list, or with more or fewer fields
            raise ValueError(f"{line[:100]}: {error}") from error
