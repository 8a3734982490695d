"""Runs the tasks of launched DAGs: on worker threads, or as conversations with other daemons on the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.access import ClusterAccess
from atta.daemon.engine.pulls import RemoteContext
from atta.daemon.engine.session import Session
from atta.daemon.engine.slots import Slot
from atta.daemon.engine.task_costs import TaskCosts
from atta.daemon.engine.tasks import TaskResult, is_program, run_local, run_program, run_remote
from atta.daemon.links.links import DaemonLinks
from atta.daemon.peers.answers import AskedOwners
from atta.daemon.peers.chunks import moved_at_once
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.peers import Peers
from atta.daemon.peers.underway import PullsUnderWay
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.store import Store
from atta.observe.machine.threads import named_threads
from atta.samplers.batch.state import BatchState
from atta.samplers.dag.instance import OTHERS, Kind, Lane, OwnedVertices, Task
from atta.samplers.shard import Shard
from atta.scheduler import policy_named

__all__ = ["RunningDag", "TaskRunner", "TaskTimes"]

TaskTimes = tuple[float, float, float]
"""Ready, started, ended; seconds of the monotonic clock. A plain tuple, as it is made for every task."""

_PHASE = {
    Kind.SEED: "sample_ms",
    Kind.POSITIVE: "sample_ms",
    Kind.NEGATIVE: "sample_ms",
    Kind.NEIGHBORHOOD: "sample_ms",
    Kind.BATCH: "sample_ms",
    Kind.JOIN: "join_ms",
    Kind.FEATURE: "fetch_ms",
    Kind.END: "join_ms",
}
"""The figure of a batch to which the time of a task at home is added."""


@dataclass(eq=False)
class RunningDag:
    """A launched DAG: its arrays, its slot and the number of its tasks that run right now."""

    session: Session
    batch: int
    state: BatchState = field(repr=False)
    slot: Slot
    launched: float
    running: int = 0
    cancelled: bool = False
    stats: dict[str, float] = field(default_factory=dict)
    owners: dict[str, tuple[OwnedVertices, ...]] = field(default_factory=dict)
    """By operator: each owner's part of its running task of OTHERS."""

    def count(self, task: Task, result: TaskResult, seconds: float) -> None:
        """Add a task that has ended to the batch's figures."""
        self._add("network_ms" if task.lane is Lane.NET else _PHASE[task.kind], 1e3 * seconds)
        self._add("remote_rows" if task.kind is Kind.FEATURE else "remote_frontier", result.remote_rows)
        self._add("remote_bytes", result.remote_bytes)
        self._add("cached_rows" if task.kind is Kind.FEATURE else "cached_frontier", result.cached_rows)
        self._add("shared_rows", result.shared_rows)

    def owners_of(self, task: Task) -> tuple[OwnedVertices, ...]:
        """The owners of a task that has ended."""
        return self.owners.pop(task.op) if task.owner == OTHERS else ()

    def _add(self, name: str, value: float) -> None:
        self.stats[name] = self.stats.get(name, 0.0) + value


class TaskRunner:
    """The threads of a daemon's own DAGs. Every task ends with one call of ``done`` on the event loop."""

    def __init__(
        self,
        config: DaemonConfig,
        shard: Shard,
        store: Store,
        peers: Peers,
        *,
        cache: RowCache,
        edges: EdgeCache,
        links: DaemonLinks | None = None,
        done: Callable[[int, RunningDag, Task, TaskResult | BaseException, TaskTimes], None],
    ) -> None:
        self._shard, self._store, self._peers, self._cache, self._done = shard, store, peers, cache, done
        self._edges = edges
        self.costs = TaskCosts()
        self._oldest_first = policy_named(config.policy).oldest_first
        self._workers = named_threads(config.threads, "atta-worker")
        self._copiers = named_threads(max(1, config.threads // 2), "atta-copy")
        self._at_once = moved_at_once(config.threads)
        messages = Owners(peers, shard.dataset, self._copiers, at_once=self._at_once)
        self._owners: AskedOwners = messages if links is None else links.owners(messages)
        self._underway = PullsUnderWay(self._copiers) if config.share_pulls else None
        self._access = ClusterAccess(shard, peers, self._workers)
        self._talks: set[asyncio.Task[None]] = set()

    def run(self, dag: int, running: RunningDag, task: Task, ready: float) -> None:
        """Start a task that is ready since ``ready``."""
        loop = asyncio.get_running_loop()
        if task.lane is Lane.NET:
            talk = loop.create_task(self._converse(dag, running, task, ready))
            self._talks.add(talk)
            talk.add_done_callback(self._talks.discard)
            return

        def work() -> None:
            started, cpu = time.monotonic(), time.thread_time()
            result: TaskResult | BaseException
            try:
                result = run_local(running.state, task, self._shard, self._store, self._edges)
                self.costs.ran(task, time.thread_time() - cpu)
            except BaseException as error:
                result = error
            times = ready, started, time.monotonic()
            loop.call_soon_threadsafe(self._done, dag, running, task, result, times)

        self._workers.submit(work)

    async def _converse(self, dag: int, running: RunningDag, task: Task, ready: float) -> None:
        started = time.monotonic()
        result: TaskResult | BaseException
        try:
            if is_program(task, self._shard.part):
                result = await run_program(running.state, task, self._access, self._workers)
            else:
                age_ms = math.ceil(1e3 * (started - running.launched)) if self._oldest_first else 0
                context = RemoteContext(
                    self._peers,
                    self._owners,
                    self._cache,
                    self._copiers,
                    self._underway,
                    running.session.request.codec,
                    age_ms,
                    self._at_once,
                )
                result = await run_remote(running.state, task, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            result = error
        self._done(dag, running, task, result, (ready, started, time.monotonic()))

    async def close(self) -> None:
        """Give up conversations, wait for running tasks, and end the threads."""
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        self._workers.shutdown(wait=True)
        self._copiers.shutdown(wait=True)
