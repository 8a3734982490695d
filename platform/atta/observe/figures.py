"""Figures of a daemon's process and of each session, for ``atta top`` and Prometheus alike."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import psutil

from atta.protos.v1 import control_pb2

DIRECTIONS = ("forward", "backward")
"""Of rows between trainers: rows travel forward, their gradients backward."""
_SUMS = ("sent_bytes", "crossed_bytes", "rows", "broadcasts", "skipped")
MAX_ENTRIES = 512
"""Layers and directions of a job that are shown at most."""
MAX_REPORT_S = 24 * 3600.0
"""How long a daemon shows a report of a job at most."""


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """One session on a daemon at one moment. Times are running means in milliseconds; None until measured."""

    session: str
    job: str
    epoch: int
    rank: int
    world_size: int
    batches: int
    """Number of batches of the whole session."""
    taken: int
    """Number of batches that the consumer has taken."""
    seeds: int
    """Number of seeds of the batches taken."""
    queued: int
    """Number of batches finished and not taken."""
    in_flight: int
    """Number of batches launched and not finished."""
    queued_bytes: int
    lent_bytes: int
    """Bytes of batches that the consumer has taken and still reads."""
    score: float | None
    """The launch score; the next batch is launched when it reaches ``sigma``. None if no batch is left to launch."""
    sigma: float | None
    sample_ms: float | None
    train_ms: float | None
    error: str
    """Why no further batch comes; empty if there is no error."""

    def to_message(self) -> Any:
        """The same as a ``SessionInfo``."""
        return control_pb2.SessionInfo(**_known(self))

    @classmethod
    def of_message(cls, message: Any) -> SessionFigures:
        """The figures in a ``SessionInfo``."""
        return cls(**_sent(message))


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What the trainers of a job have sent each other, and read, in its latest epoch, of one layer in one direction."""

    job: str
    epoch: int
    """From 0."""
    direction: str
    """One of ``DIRECTIONS``."""
    sent_bytes: int
    crossed_bytes: int
    """Of these, the bytes that went to other servers."""
    rows: int
    """Number of rows of other trainers that were read."""
    age_min: float | None
    """Of the rows that were read, in epochs; None if none was read."""
    age_mean: float | None
    age_max: float | None
    broadcasts: int
    """How often trainers sent their rows to those who read them."""
    skipped: int
    """How often they did not, because theirs were still good enough."""
    layer: int = 0
    """That reads the rows, from 0."""
    predicted_error: float | None = None
    """Distance of predicted rows to those that were pulled; None where it was not measured."""
    stale_error: float | None = None
    """The same of stale rows."""

    def to_message(self) -> Any:
        """The same as a ``JobInfo``."""
        return control_pb2.JobInfo(**_known(self))

    @classmethod
    def of_message(cls, message: Any) -> JobFigures:
        """The figures in a ``JobInfo``."""
        return cls(**_sent(message))


def of_all_layers(jobs: Sequence[JobFigures]) -> list[JobFigures]:
    """One for each job and direction, in the order of their first layers. Distances are roots of sums of squares."""
    found: dict[tuple[str, str], list[JobFigures]] = {}
    for one in jobs:
        found.setdefault((one.job, one.direction), []).append(one)
    return [_together(layers) for layers in found.values()]


def _together(layers: Sequence[JobFigures]) -> JobFigures:
    read = sum(one.rows for one in layers)
    ages = [one.age_mean * one.rows for one in layers if one.age_mean is not None]
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in layers) for name in _SUMS}
    return replace(
        layers[0],
        **sums,
        layer=0,
        age_min=min((one.age_min for one in layers if one.age_min is not None), default=None),
        age_mean=sum(ages) / read if read and ages else None,
        age_max=max((one.age_max for one in layers if one.age_max is not None), default=None),
        predicted_error=_distance([one.predicted_error for one in layers]),
        stale_error=_distance([one.stale_error for one in layers]),
    )


def _distance(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if known else None


def _known(figures: SessionFigures | JobFigures) -> dict[str, Any]:
    """The fields of a message: those that are not None."""
    known = {f.name: getattr(figures, f.name) for f in fields(figures)}
    return {name: value for name, value in known.items() if value is not None}


def _sent(message: Any) -> dict[str, Any]:
    """The fields of a message, by name; None where one is absent."""
    absent = {f.name for f in message.DESCRIPTOR.fields if f.has_presence and not message.HasField(f.name)}
    return {f.name: None if f.name in absent else getattr(message, f.name) for f in message.DESCRIPTOR.fields}


class ProcessFigures:
    """Age and memory of this process, and the processor time of its machine."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._process = psutil.Process()

    @property
    def uptime_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    def stats(self) -> dict[str, float]:
        """Counters (seconds) and gauges."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # part of user and nice time
        return {
            "uptime_seconds": self.uptime_s,
            "process_resident_bytes": float(self._process.memory_info().rss),
            "machine_busy_seconds": sum(times) - guests - idle,
            "machine_cores": float(os.cpu_count() or 1),
        }
