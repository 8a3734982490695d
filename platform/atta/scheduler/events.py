"""What the scheduler is told (events) and what it answers (actions): plain frozen data, the whole interface of the
core. Their reprs are for logs, so they count what is long instead of listing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from atta.samplers.dag.instance import OwnedVertices, Task
from atta.samplers.dag.spec import Plan

MOST_SHOWN = 8
"""Largest number of entries of a sequence that a repr lists."""


class _Brief:
    """A dataclass whose repr leaves out bulk."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (f"{f.name}={_brief(getattr(self, f.name))}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _brief(value: object) -> str:
    if isinstance(value, Plan):
        return f"<plan of {len(value.ops)} operators>"
    if isinstance(value, Sequence) and not isinstance(value, str | Task) and len(value) > MOST_SHOWN:
        return f"<{len(value)} from {value[0]!r} to {value[-1]!r}>"
    return repr(value)


@dataclass(frozen=True, slots=True, repr=False)
class SessionOpened(_Brief):
    """A consumer wants ``batches``, in this order, made by ``plan``."""

    session: str
    plan: Plan
    batches: Sequence[int]  # global batch ids, each once, e.g. a range
    trainers: int = 1  # number of consumers that drain this one session
    batch_bytes: float = 0.0  # upper bound or estimate of a batch's size; 0 = unknown: one DAG at a time until measured
    share: float = 1.0  # of the workers, relative to other sessions that could use them as well
    loader: str = ""
    """Sessions of one loader follow each other, as its epochs do; empty: a session of its own. A later one inherits
    what has been measured. Until its own batches are taken, those of the session before count in its queue."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The consumer is gone. The scheduler ignores unknown sessions, so closing twice is harmless."""

    session: str


@dataclass(frozen=True, slots=True, repr=False)
class TaskDone(_Brief):
    """A task of a RunTask has been executed; ``growth`` and ``expand`` as in ``DagInstance.done``. ``then``: tasks of
    the DAG that no RunTask has named, and that have been executed meanwhile, in this order: each was made ready by one
    before it. Their own ``then`` is empty."""

    dag: int
    task: Task
    growth: Sequence[OwnedVertices] = ()
    expand: Sequence[OwnedVertices] | None = None
    nbytes: int = 0  # END tasks: bytes that the finished batch occupies until it is taken
    seconds: float = 0.0  # from its start to its end; 0 = not measured
    then: Sequence[TaskDone] = ()


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task could not be executed; its whole session fails."""

    dag: int
    task: Task


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """The consumer took a batch out of the output queue. ``train_ms``: how long it computes on one batch, without
    waiting for data; 0 = unknown."""

    session: str
    batch: int
    train_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumersHold:
    """Bytes of all batches, of any session, that consumers have taken and still read."""

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
    owners: tuple[OwnedVertices, ...] = field(default=(), repr=False, compare=False)
    """Each owner's part of a task of OTHERS, in ascending order of owners; empty for other tasks."""


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
