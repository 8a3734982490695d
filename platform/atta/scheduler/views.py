"""What the scheduler shows of its sessions: read-only copies for ``atta trace``, ``atta top`` and tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.scheduler.coarse import Load, ScheduledSession
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.score import launch_score

__all__ = ["SessionView", "view"]


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session as the coarse level sees it."""

    name: str
    batches: int  # of the session in all
    launched: int  # of these so far
    in_flight: int  # launched and not finished
    finished: int  # Q: finished and not taken
    finished_bytes: int  # of these
    score: float  # launch score; 0 before the first launch
    sigma: float | None  # what the score has to reach; None until the first batch is finished
    sample_ms: float | None  # running mean: launch to end of a DAG; None until known
    train_ms: float | None  # running mean: consumers' time per batch; None until known


def view(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> SessionView:
    """``session`` at time ``now`` (seconds of the scheduler's clock)."""
    pace, score = session.pace, 0.0
    if session.last_launch > -math.inf:
        score = launch_score(
            1e3 * max(now - session.last_launch, 0.0),
            utilisation=load.percent,
            queued=session.line[0],
            sample_ms=pace.sample_ms,
            train_ms=pace.train_ms,
            config=config,
        )
    return SessionView(
        session.name,
        len(session.batches),
        session.launched,
        session.in_flight,
        session.finished,
        session.finished_bytes,
        score,
        pace.sigma,
        pace.sample_ms,
        pace.train_ms,
    )
