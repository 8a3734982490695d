"""The two-level scheduler (ByteGNN §4.2), a pure state machine."""

from atta.scheduler.events import (
    Action,
    BatchReady,
    BatchTaken,
    CancelDag,
    Event,
    FailSession,
    LaunchDag,
    RunTask,
    SessionClosed,
    SessionOpened,
    TaskDone,
    TaskFailed,
    Tick,
    Utilisation,
    WakeAt,
)
from atta.scheduler.scheduler import Scheduler, SchedulerConfig

__all__ = [
    "Action",
    "BatchReady",
    "BatchTaken",
    "CancelDag",
    "Event",
    "FailSession",
    "LaunchDag",
    "RunTask",
    "Scheduler",
    "SchedulerConfig",
    "SessionClosed",
    "SessionOpened",
    "TaskDone",
    "TaskFailed",
    "Tick",
    "Utilisation",
    "WakeAt",
]
