"""Runs the tasks of launched DAGs, and notes what they cost: on worker threads; brief ones, and conversations with
other daemons, on the event loop."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.access import ClusterAccess
from atta.daemon.engine.session import Session
from atta.daemon.engine.slots import Slot
from atta.daemon.engine.tasks import RemoteContext, TaskResult, is_program, run_local, run_program, run_remote
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.owners import Owners, PullsUnderWay
from atta.daemon.peers.peers import Peers, moved_at_once
from atta.daemon.versions import VersionView
from atta.kvstore.cache import RowsAhead
from atta.observe.machine.threads import fulfil, name_thread, named_threads
from atta.samplers.batch.state import BatchState
from atta.samplers.dag.instance import OTHERS, DagError, DagInstance, Kind, Lane, OwnedVertices, Task
from atta.samplers.shard import Shard
from atta.scheduler.fine import brief_us, is_brief
from atta.scheduler.policies import policy_named

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Executor):
    """``count`` threads that take work in the order of its arrival."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"{name}_{i}", daemon=True) for i in range(count)
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work`` on a thread. It must not raise. Raises RuntimeError after ``shutdown``."""
        if self._closed:
            raise RuntimeError("the workers have ended")
        self._work.put(work)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As ``Executor.submit``."""
        future: Future[T] = Future()
        self.do(partial(_fulfil, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what was handed over, then end the threads. Nothing is cancelled."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _run(self, name: str) -> None:
        name_thread(name)
        while (work := self._work.get()) is not None:
            work()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        fulfil(future, function)


_NAMES = ("n", "x", "xx", "y", "xy", "r")


class TaskCosts:
    """Per task kind and lane, with x = ``Task.cost``: n, the sums of x, x², y and x·y. y is the CPU time (seconds) of
    tasks at home, and the bytes that the answers brought for tasks of other owners. For the latter there is also r, the
    number of requests: one to each owner that was asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several workers add at once
        self._sums: dict[tuple[Kind, Lane], list[float]] = {}

    def ran(self, task: Task, cpu_s: float) -> None:
        """A worker has spent ``cpu_s`` on a task. Tasks of the network lane do not count."""
        if task.lane is Lane.CPU:
            self._add(task, cpu_s)

    def answered(self, task: Task, nbytes: int, requests: int) -> None:
        """Other daemons have answered ``requests`` requests with ``nbytes``. Tasks at home do not count."""
        if task.lane is Lane.NET:
            self._add(task, float(nbytes), requests)

    def _add(self, task: Task, y: float, requests: int = 0) -> None:
        x, key = task.cost, (task.kind, task.lane)
        with self._lock:
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * len(_NAMES)
            sums[0] += 1.0
            sums[1] += x
            sums[2] += x * x
            sums[3] += y
            sums[4] += x * y
            sums[5] += requests

    def stats(self) -> dict[str, float]:
        with self._lock:
            return {
                f"cost_{kind.value}_{lane.value}_{name}": value
                for (kind, lane), sums in self._sums.items()
                for name, value in zip(_NAMES, sums, strict=True)
            }


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
_PHASES = tuple(dict.fromkeys(_PHASE.values()))
_FIGURES = (
    *_PHASES,
    "network_ms",
    "remote_rows",
    "remote_frontier",
    "remote_bytes",
    "cached_rows",
    "cached_frontier",
    "shared_rows",
    "summed_rows",
)


def _run_by_loop(running: RunningDag, task: Task, most_us: float) -> bool:
    """Whether the event loop runs a task at home itself."""
    if task.kind is Kind.END and running.state.plan.summed is not None:  # it makes the sums
        return False
    if not is_brief(task, most_us, seeds=running.session.request.seeds.batch_size, vertices=running.state.vertices):
        return False
    plan = running.state.plan
    in_python = task.kind is Kind.NEIGHBORHOOD or task.kind is Kind.JOIN
    return not in_python or not (plan.edge_tables or plan.op(task.op).method.rules.draw)


@dataclass(eq=False)
class RunningDag:
    """A launched DAG: its arrays, its slot and the number of its tasks that run right now."""

    session: Session
    batch: int
    state: BatchState = field(repr=False)
    slot: Slot
    launched: float
    view: VersionView = field(repr=False)
    ahead: RowsAhead | None = field(default=None, repr=False)  # None: cached rows are looked up as vertices are found
    running: int = 0
    cancelled: bool = False
    stats: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_FIGURES, 0.0))
    owners: dict[str, tuple[OwnedVertices, ...]] = field(default_factory=dict)
    """By operator: each owner's part of its running task of OTHERS."""
    alone: bool = False  # whether a worker is to carry it on, see ``TaskRunner``
    asks: bool = False  # whether it has asked other daemons

    def count(self, task: Task, result: TaskResult, seconds: float) -> None:
        """Add a task that has ended to the batch's figures."""
        if task.lane is Lane.CPU:
            self.stats[_PHASE[task.kind]] += 1e3 * seconds
            self.stats["cached_rows" if task.kind is Kind.FEATURE else "cached_frontier"] += result.cached_rows
            return
        self.stats["network_ms"] += 1e3 * seconds
        self.stats["remote_rows" if task.kind is Kind.FEATURE else "remote_frontier"] += result.remote_rows
        for name in ("remote_bytes", "shared_rows", "summed_rows", "cached_rows"):
            self.stats[name] += getattr(result, name)

    def end(self) -> None:
        """No task will run any more."""
        if self.ahead is not None:
            self.ahead.close()

    @property
    def work_ms(self) -> float:
        """How long its tasks at home have taken."""
        return sum(self.stats[phase] for phase in _PHASES)

    def owners_of(self, task: Task) -> tuple[OwnedVertices, ...]:
        """The owners of a task that has ended."""
        return self.owners.pop(task.op) if task.owner == OTHERS else ()


class Ended(NamedTuple):
    """A task that has been run."""

    task: Task
    result: TaskResult | BaseException
    times: TaskTimes


Done = Callable[[int, RunningDag, Sequence[Ended]], None]
"""(DAG, its state, a task that ``run`` was called with and those that followed it on its worker)."""
CARRIED_S = 0.02
"""How long a worker carries a batch on, in seconds. Older batches may wait for the worker."""


class TaskRunner:
    """The threads of a daemon's own DAGs. Every task ends with one call of ``done`` on the event loop. Each task takes
    the event loop as long as a small task takes a worker, and wakes it up. A batch that probably asks nobody
    (``RunningDag.alone``) is therefore carried on by the worker that has its first task, while all tasks that become
    ready are at home."""

    def __init__(
        self,
        config: DaemonConfig,
        shard: Shard,
        peers: Peers,
        *,
        links: DaemonLinks | None = None,
        chunk_rows: int,
        done: Done,
        waits: bool = False,
    ) -> None:
        """``chunk_rows``: of the scheduler. ``waits``: tasks at home may wait for the disk, as the event loop must not."""
        self._part, self._peers, self._done = shard.part, peers, done
        self.costs = TaskCosts()
        self.brief_cpu_s = 0.0  # that the event loop has spent on tasks at home; ``costs`` has it, too
        self._oldest_first = policy_named(config.policy).oldest_first
        self._workers = Workers(config.threads, "atta-worker")
        self._copiers = named_threads(max(1, config.threads // 2), "atta-copy")
        at_once = moved_at_once(config.threads)
        self._brief_us, self._chunk_rows = -1.0 if waits else brief_us(config.threads), chunk_rows
        dataset, pool = shard.dataset, self._copiers
        messages = Owners(peers, dataset, pool, at_once=at_once)
        self._context = partial(
            RemoteContext,
            peers=peers,
            owners=messages if links is None else links.owners(pool, at_once),
            pool=pool,
            underway=PullsUnderWay(pool, dataset.schema.node_counts) if config.share_pulls else None,
            at_once=at_once,
        )
        self._accesses: WeakKeyDictionary[Shard, ClusterAccess] = WeakKeyDictionary()  # of the edges that sessions read
        self._brief: list[tuple[int, RunningDag, Task, float]] = []  # for the event loop: arguments of ``run``
        self._talks: dict[tuple[int, Task], asyncio.Task[None]] = {}
        self._ended: deque[tuple[int, RunningDag, list[Ended]]] = deque()  # by workers; the event loop will take them
        self._told = False  # whether the event loop knows that there are some

    def run(self, dag: int, running: RunningDag, task: Task, ready: float) -> None:
        """Start a task that is ready since ``ready``."""
        loop = asyncio.get_running_loop()
        if task.lane is Lane.NET:
            running.asks = True
            self._talks[dag, task] = loop.create_task(self._converse(dag, running, task, ready))
        elif task.kind is Kind.SEED and running.alone:
            self._workers.do(partial(self._carry, loop, dag, running, task, ready))
        elif _run_by_loop(running, task, self._brief_us):
            if not self._brief:
                loop.call_soon(self._run_brief)
            self._brief.append((dag, running, task, ready))
        else:
            self._workers.do(lambda: self._tell(loop, dag, running, [self._work(running, task, ready)]))

    def _run_brief(self) -> None:
        """Run the brief tasks at hand. Those that they make ready are for the next turn: what came in goes first."""
        brief, self._brief = self._brief, []
        for dag, running, task, ready in brief:
            if running.cancelled:  # nobody wants its result
                now = time.monotonic()
                self._done(dag, running, [Ended(task, TaskResult(), (ready, now, now))])
            else:
                begun = time.thread_time()
                ended = self._work(running, task, ready)
                self.brief_cpu_s += time.thread_time() - begun
                self._done(dag, running, [ended])

    def _work(self, running: RunningDag, task: Task, ready: float) -> Ended:
        started, cpu = time.monotonic(), time.thread_time()
        result: TaskResult | BaseException
        try:
            turn = -1 if running.ahead is None else running.ahead.turn
            result = run_local(running.state, task, running.view, turn)
            self.costs.ran(task, time.thread_time() - cpu)
        except BaseException as error:
            result = error
        return Ended(task, result, (ready, started, time.monotonic()))

    def _carry(self, loop: asyncio.AbstractEventLoop, dag: int, running: RunningDag, task: Task, ready: float) -> None:
        """Do a batch's first task, and those that it makes ready, until one is not at home."""
        instance = DagInstance(running.state.plan, self._part, self._chunk_rows)
        instance.start()
        at_home: deque[Task] = deque()
        ended = [self._work(running, task, ready)]
        until = ended[0].times[1] + CARRIED_S
        while not running.cancelled and (now := ended[-1].times[2]) < until:
            last, result, _ = ended[-1]
            if isinstance(result, BaseException):
                break
            try:
                at_home += instance.done(last, result.growth, result.expand)
            except DagError:  # the scheduler will find the same; a worker must not die of it
                break
            if not at_home or any(task.lane is Lane.NET for task in at_home):
                break
            ended.append(self._work(running, at_home.popleft(), now))
        self._tell(loop, dag, running, ended)

    def _tell(self, loop: asyncio.AbstractEventLoop, dag: int, running: RunningDag, ended: list[Ended]) -> None:
        """Hand what has ended to the event loop. To wake it up costs more than a small task, so once suffices for
        several."""
        self._ended.append((dag, running, ended))
        if not self._told:
            self._told = True
            loop.call_soon_threadsafe(self._take_ended)

    def _take_ended(self) -> None:
        self._told = False  # first: what is added from now on may be missed below
        while self._ended:
            self._done(*self._ended.popleft())

    async def _converse(self, dag: int, running: RunningDag, task: Task, ready: float) -> None:
        started = time.monotonic()
        result: TaskResult | BaseException
        try:
            if is_program(task, self._part):
                result = await run_program(running.state, task, self._access(running), self._workers)
            else:
                age_ms = math.ceil(1e3 * (started - running.launched)) if self._oldest_first else 0
                rows, ahead, codec = running.view.rows, running.ahead, running.session.request.codec
                context = self._context(cache=rows, ahead=ahead, codec=codec, age_ms=age_ms)
                result = await run_remote(running.state, task, context)
        except (asyncio.CancelledError, GeneratorExit):  # nobody waits for it, and there may be no loop any more
            raise
        except BaseException as error:
            result = error
        finally:
            del self._talks[dag, task]
        self._done(dag, running, [Ended(task, result, (ready, started, time.monotonic()))])

    def _access(self, running: RunningDag) -> ClusterAccess:
        shard = running.view.shard
        if shard not in self._accesses:
            self._accesses[shard] = ClusterAccess(shard, self._peers, self._workers, running.state.sources)
        return self._accesses[shard]

    async def close(self) -> None:
        """Give up conversations, wait for running tasks, and end the threads. All DAGs have been cancelled."""
        self._run_brief()
        talks = [*self._talks.values()]
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        self._workers.shutdown(wait=True)
        self._copiers.shutdown(wait=True)
