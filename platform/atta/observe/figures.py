"""What a daemon tells of itself: figures of its process and of each session, the same for ``atta top`` and Prometheus."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import Any

import psutil

from atta.protos.v1 import control_pb2

__all__ = ["ProcessFigures", "SessionFigures"]


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """One session on a daemon at one moment. Times are running means in milliseconds, None until measured."""

    session: str
    job: str
    epoch: int
    rank: int
    world_size: int
    batches: int
    """Of the session in all."""
    taken: int
    """Of these, by the consumer."""
    seeds: int
    """Of the batches taken."""
    queued: int
    """Batches finished and not taken."""
    in_flight: int
    """Batches launched and not finished."""
    queued_bytes: int
    lent_bytes: int
    """Of batches that the consumer has taken and still looks at."""
    score: float | None
    """The launch score; the next batch is launched when it reaches ``sigma``. None where no batch is left to launch."""
    sigma: float | None
    sample_ms: float | None
    train_ms: float | None
    error: str
    """Why no further batch comes; empty: all is well."""

    def to_message(self) -> Any:
        """The same as a ``SessionInfo``."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return control_pb2.SessionInfo(**{name: value for name, value in known.items() if value is not None})

    @classmethod
    def of_message(cls, message: Any) -> SessionFigures:
        """The figures in a ``SessionInfo``."""
        absent = {f.name for f in message.DESCRIPTOR.fields if f.has_presence and not message.HasField(f.name)}
        known: dict[str, Any] = {f.name: None if f.name in absent else getattr(message, f.name) for f in fields(cls)}
        return cls(**known)


class ProcessFigures:
    """Age and memory of this process, and the processor time of the machine that it runs on."""

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
