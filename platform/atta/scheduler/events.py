"""What the scheduler is told (events) and what it answers (actions): plain frozen data, the whole interface of the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atta.samplers.dag.instance import Share, Task
from atta.samplers.dag.spec import Plan

__all__ = [
    "Action",
    "BatchReady",
    "BatchTaken",
    "CancelDag",
    "ConsumersHold",
    "Event",
    "FailSession",
    "LaunchDag",
    "RunTask",
    "SessionClosed",
    "SessionOpened",
    "TaskDone",
    "TaskFailed",
    "Tick",
    "Utilisation",
    "WakeAt",
]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A consumer wants ``batches``, in this order, made by ``plan``."""

    session: str
    plan: Plan
    batches: Sequence[int]  # global batch ids, each once; a range will do
    trainers: int = 1  # consumers that drain this one session
    batch_bytes: float = 0.0  # upper bound or estimate of a batch's size; 0 = unknown: one DAG at a time until measured
    weight: float = 1.0  # share of the workers beside other sessions that could use them as well
    profile: str = ""
    """Sessions of equal profile are one consumer's, one after another (epochs of a loader): they inherit what has been measured,
    and until batches of the later one are taken those of the one before count as being in its queue."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The consumer is gone. Unknown sessions are ignored, so closing twice is harmless."""

    session: str


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A task handed out by RunTask has been executed; ``growth`` and ``expand`` as in ``DagInstance.done``."""

    dag: int
    task: Task
    growth: Sequence[Share] = ()
    expand: Sequence[Share] | None = None
    nbytes: int = 0  # END tasks: bytes that the finished batch occupies until it is taken
    seconds: float = 0.0  # from its start to its end; 0 = not measured


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task could not be executed; its whole session fails."""

    dag: int
    task: Task


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """The consumer took a batch out of the output queue.

    ``train_ms``: how long it computes on one batch, without its waiting for data; 0 = unknown.
    """

    session: str
    batch: int
    train_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumersHold:
    """Bytes of all batches, of any sessions, that consumers have taken and still look at."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Utilisation:
    """A sample of the machine-wide CPU utilisation, all cores together."""

    percent: float


@dataclass(frozen=True, slots=True)
class Tick:
    """The time asked for by WakeAt has come. Extra ticks do no harm."""


@dataclass(frozen=True, slots=True)
class LaunchDag:
    """A new DAG: the shell creates its buffers. DAG ids ascend in launch order over all sessions."""

    dag: int
    session: str
    batch: int


@dataclass(frozen=True, slots=True)
class RunTask:
    """Execute this task now; answer with TaskDone or TaskFailed."""

    dag: int
    task: Task
    ready: float = field(default=0.0, compare=False)  # since when it could have run, seconds


@dataclass(frozen=True, slots=True)
class BatchReady:
    """The session's next batch in order is finished. From here on its buffers belong to the shell."""

    session: str
    batch: int
    dag: int


@dataclass(frozen=True, slots=True)
class CancelDag:
    """Forget this DAG and free its buffers once its running tasks have answered. Never follows BatchReady."""

    dag: int


@dataclass(frozen=True, slots=True)
class FailSession:
    """The session has failed in this task and is closed; its DAGs are cancelled by the actions that follow."""

    session: str
    dag: int
    task: Task


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Tick at this time (same clock as ``now``, seconds). Replaces the wake-up asked for before."""

    when: float


Event = SessionOpened | SessionClosed | TaskDone | TaskFailed | BatchTaken | ConsumersHold | Utilisation | Tick
Action = LaunchDag | RunTask | BatchReady | CancelDag | FailSession | WakeAt
