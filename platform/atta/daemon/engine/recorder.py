"""An always-on memory of what the daemon did and decided: a ring of the last entries, flat tuples whose fields
``atta.observe.recording`` names. It is used on the event loop only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atta.daemon.engine.tasks import TaskResult
from atta.observe.recording import ServedSpan, to_lines
from atta.samplers.dag.instance import Kind, Lane, OwnedVertices, Task
from atta.scheduler.coarse import SessionView

CHUNK_CHARS = 256 << 10
"""About how many characters of entries one message holds. Making it takes the event loop a few milliseconds."""
_KINDS = {kind: kind.value for kind in Kind}
_LANES = {lane: lane.value for lane in Lane}
_NOTHING = TaskResult()
_MOST_NAMED = 16
"""Most owners of a task that its entry names, so that entries stay short."""


class Recorder:
    """The last ``capacity`` entries (0: none). ``clock`` counts seconds. Owners are named by their first partitions, as
    people know them: those are ``firsts``. Empty: every owner has one."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic, firsts: Sequence[int] = ()) -> None:
        self.capacity, self.clock, self._firsts = capacity, clock, firsts
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self.elsewhere: Callable[[], Sequence[ServedSpan]] = tuple
        """What links have served. Their threads note it, not the event loop."""

    @property
    def full(self) -> bool:
        """Whether the next entry takes the place of the oldest one."""
        return len(self._ring) == self.capacity

    def task(
        self,
        task: Task,
        of: tuple[str, int, int],
        times: tuple[float, float, float],
        result: TaskResult = _NOTHING,
        *,
        outcome: str = "done",
        owners: Sequence[OwnedVertices] = (),
    ) -> None:
        """A task has ended; ``of``: session, batch, DAG; ``times``: ready, started, ended; ``owners``: of RunTask."""
        if self.capacity:
            ready, started, ended = times
            kind, lane = _KINDS[task.kind], _LANES[task.lane]
            owner = self._firsts[task.owner] if self._firsts and task.owner >= 0 else task.owner
            rest = (kind, task.op, lane, owner, task.chunk, task.chunks, task.cost)
            moved = (result.remote_rows, result.remote_bytes, result.cached_rows, result.shared_rows)
            self._ring.append(
                ("task", ended, ready, started, *of, *rest, *moved, outcome, self._names(owners), result.summed_rows)
            )

    def batch(self, what: str, session: str, batch: int, *, dag: int = -1, at: float | None = None) -> None:
        """A step in the life of a batch, just now or at ``at``."""
        self._ring.append(("batch", self.clock() if at is None else at, what, session, batch, dag))

    def session(self, what: str, session: str, *of: Any) -> None:
        """A session is opened or closed; ``of``: the fields of a ``SessionMark`` from ``job`` on."""
        self._ring.append(("session", self.clock(), what, session, *of))

    def sample(
        self,
        at: float,
        sessions: Iterable[SessionView],
        scheduler: Mapping[str, float],
        *,
        buffer_bytes: int,
        disk_bytes: int = 0,
    ) -> None:
        """Gauges at time ``at``; ``scheduler``: those of ``Scheduler.stats``."""
        if not self.capacity:
            return
        lanes = (int(scheduler[name]) for name in ("ready_cpu", "ready_net", "running_cpu", "running_net"))
        self._ring.append(("machine", at, scheduler["utilisation"], buffer_bytes, *lanes, disk_bytes))
        for view in sessions:
            held = (view.in_flight, view.finished, view.finished_bytes)
            self._ring.append(("sample", at, view.name, view.score, view.sigma, *held, view.sample_ms, view.train_ms))

    def served(self, service: str, methods: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """The same handlers, which also record their requests. Each answers with one message."""
        return {name: self._recorded(f"{service}.{name}", handler) for name, handler in methods.items()}

    def _recorded(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        if not self.capacity:
            return handler

        async def wrapper(request: Any, context: Any) -> Any:
            started, nbytes = self.clock(), 0
            try:
                reply = await handler(request, context)
                nbytes = len(reply) if isinstance(reply, bytes) else 0
                return reply
            finally:
                self._ring.append(("served", self.clock(), started, name, nbytes))

        return wrapper

    def lines(self, last_s: float) -> Iterator[str]:
        """The entries of the last ``last_s`` seconds (0: all) as text, in pieces: the oldest first, then
        those of links."""
        since = self.clock() - last_s
        entries = (*self._ring, *(("served", *served) for served in self.elsewhere()))
        return to_lines((entry for entry in entries if not last_s or entry[1] >= since), CHUNK_CHARS)

    def _names(self, owners: Sequence[OwnedVertices]) -> str:
        if len(owners) > _MOST_NAMED:
            return f"{len(owners)} owners"
        return ",".join([str(self._firsts[share.owner] if self._firsts else share.owner) for share in owners])
