"""The door of the scheduler: ``Scheduler.on(event, now) -> actions``."""

from __future__ import annotations

from dataclasses import dataclass

from atta.scheduler.events import Action, Event

__all__ = ["Scheduler", "SchedulerConfig"]


@dataclass(frozen=True)
class SchedulerConfig:
    """Settings of the two levels; the defaults are explained in docs/scheduler.md."""

    workers: int = 2  # CPU tasks running at once
    net_in_flight: int = 16  # tasks waiting for other daemons at once
    chunk_rows: int = 65_536  # largest number of rows in one task
    queue_bytes: int = 1 << 30  # per session: finished batches plus estimated batches in flight
    max_dags: int = 0  # per session: in flight + finished; 0 = max(16, 2 x workers)
    policy: str = "two-level"  # or "sequential", "prefetch", "fifo"
    prefetch: int = 4  # policy "prefetch": DAGs in flight + finished
    log_events: int = 1024  # length of the decision log, 0 = none


class Scheduler:
    """Decides when DAGs are launched and which of their ready tasks run next. Pure: state changes only through ``on``.

    ``home`` is the partition of this daemon.
    """

    def __init__(self, config: SchedulerConfig, home: int) -> None:
        raise NotImplementedError

    def on(self, event: Event, now: float) -> list[Action]:
        """Take in one event at time ``now`` (seconds of any monotonic clock) and return what to do, in order."""
        raise NotImplementedError

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics: in flight, finished, ready tasks, launched, utilisation, ..."""
        raise NotImplementedError
