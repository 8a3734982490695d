"""The shell around the scheduler, which decides: it carries out its actions and reports what happened. Every change enters
through ``post(event)`` on the event loop, so there is no lock."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.access import LargestNumbers
from atta.daemon.engine.recorder import Recorder
from atta.daemon.engine.runner import Ended, RunningDag, TaskRunner, TaskTimes
from atta.daemon.engine.session import Delivery, Session
from atta.daemon.engine.slots import SlotPool
from atta.daemon.engine.tasks import TaskResult
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.peers import Peers
from atta.daemon.versions import VersionView
from atta.errors import AttaError, RemoteError
from atta.kvstore.cache import RowsAhead
from atta.kvstore.disk import DiskData
from atta.observe.figures import SessionFigures
from atta.observe.machine.processor import ProcessorLoad
from atta.observe.machine.threads import named_threads
from atta.partition.disk.watching import WatchedFiles
from atta.samplers.batch.layout import BatchArrays
from atta.samplers.batch.state import BatchState
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler import events as sched
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import policy_named
from atta.scheduler.scheduler import Scheduler

log = structlog.get_logger("atta.engine")
UTILISATION_PERIOD_S = 0.1
"""How often the CPU utilisation is sampled, in seconds."""
WORKERS_PER_SPARE = 4
"""For so many workers one more task is handed over than they can run. A task takes a millisecond, and to hear of its end
and hand over the next one takes the event loop a tenth or more of that."""
CARRIED_MS = 1.0
"""Least time at home of batches that workers carry on. Most tasks of smaller ones are for the event loop itself."""
_COUNTERS = {(kind, lane): f"tasks_{kind.value}_{lane.value}_total" for kind in Kind for lane in Lane}


class Engine:
    """Runs the DAGs of all sessions of a daemon."""

    def __init__(
        self,
        config: DaemonConfig,
        view: VersionView,
        peers: Peers,
        *,
        links: DaemonLinks | None = None,
        files: WatchedFiles | None = None,
        disk: DiskData | None = None,
    ) -> None:
        """``view``: of the dataset itself. ``files``: those that tasks read; None: nobody writes to them. ``disk``: what
        tasks wait for."""
        self.dataset, self._view, self._files, self._disk = view.dataset, view, files, disk
        dataset, shard = view.dataset, view.shard
        self.largest = LargestNumbers(peers, view.store, dataset.num_parts)
        self._pages = named_threads(1, "atta-pages")
        self.slots = SlotPool(config.most_buffer_bytes, self._report_lent, self._pages.submit)
        self.counters: defaultdict[str, float] = defaultdict(float)
        firsts = [group.start for group in dataset.groups] if dataset.num_parts < dataset.partitions.num_parts else []
        self.recorder = Recorder(config.trace_events, firsts=firsts)
        of_scheduler = SchedulerConfig(
            workers=config.threads, at_hand=-(-config.threads // WORKERS_PER_SPARE), net_in_flight=config.requests,
            queue_bytes=config.most_queue_bytes, buffer_bytes=config.most_buffer_bytes, policy=config.policy,
            prefetch=config.prefetch, window=config.window if config.cache_rank == "recent" or disk is not None else 0,
            own_rows=disk is not None,
        )  # fmt: skip
        self._window = of_scheduler.window
        self._scheduler = Scheduler(of_scheduler, shard.part)
        self._runner = TaskRunner(
            config, shard, peers, links=links, chunk_rows=of_scheduler.chunk_rows, done=self._done,
            waits=disk is not None,
        )  # fmt: skip
        self._threads = config.threads
        self._may_carry = disk is None and policy_named(config.policy).oldest_first
        self._alone = False  # whether the last batch asked no other daemon, and took workers some time
        self._compactors = CompactorPool(dataset.schema.node_counts)
        self._dags: dict[int, RunningDag] = {}
        self._sessions: dict[str, Session] = {}
        self._events: deque[sched.Event] = deque()
        self._posting = False
        self._wake: asyncio.TimerHandle | None = None

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """Start making the session's batches."""
        self._sessions[session.id] = session
        request = session.request
        self.slots.opened(request.layout.capacity)
        self._record("opened", session)
        batches = request.seeds.batch_ids(request.first_batch)
        loader = f"{request.job}/{request.seeds.rank}/{hash(request.plan)}/{request.seeds.batch_size}"
        self.post(sched.SessionOpened(session.id, request.plan, batches, loader=loader, share=request.share))

    def close(self, session: Session) -> None:
        """Stop making batches and free what is queued. The consumer keeps the slots that it still reads."""
        if self._sessions.pop(session.id, None) is not None:
            self.post(sched.SessionClosed(session.id))
            session.close()
            self.slots.closed(session.request.layout.capacity, time.monotonic())
            self._record("closed", session)

    def _record(self, what: str, session: Session) -> None:
        request = session.request
        hops = [sum(count for _, count in op.fan_outs) for op in request.plan.neighborhoods]
        of = request.job, request.epoch, session.batches, request.seeds.batch_size, ",".join(map(str, hops))
        self.recorder.session(what, session.id, *of)

    def taken(self, session: Session, batch: int, train_ms: float) -> None:
        """The consumer has taken a batch out of the queue."""
        self.recorder.batch("taken", session.id, batch)
        self._report_lent()
        self.post(sched.BatchTaken(session.id, batch, train_ms))

    def waits_for_room(self, session: Session) -> bool:
        """Whether the session has no batch, because others leave it no memory to make one."""
        return self._scheduler.waits_for_room(session.id)

    def unlaunched(self, session: Session) -> int:
        """Number of the session's batches that have not been launched."""
        return self._scheduler.unlaunched(session.id)

    def fail(self, session: Session, error: AttaError) -> None:
        """Make no further batches. The consumer learns why at its next request."""
        session.fail(error)
        self.post(sched.SessionClosed(session.id))

    def fail_all(self, error: AttaError) -> None:
        """The same for all sessions."""
        for session in [*self._sessions.values()]:
            self.fail(session, error)

    def _report_lent(self) -> None:
        self.post(sched.ConsumersHold(self.slots.lent_bytes))

    # -- events in, actions out ----------------------------------------------------------------------------------------

    def post(self, event: sched.Event) -> None:
        """Hand one event to the scheduler and carry out its actions. Events that these cause queue up behind."""
        self._events.append(event)
        if self._posting:
            return
        self._posting = True
        try:
            while self._events:
                now = time.monotonic()
                for action in self._scheduler.on(self._events.popleft(), now):
                    self._perform(action, now)
        finally:
            self._posting = False

    def _perform(self, action: sched.Action, now: float) -> None:
        match action:
            case sched.RunTask():
                self._run(action)
            case sched.LaunchDag(dag, session_id, batch):
                self.recorder.batch("launched", session_id, batch, dag=dag, at=now)
                self._launch(dag, self._sessions[session_id], batch)
            case sched.BatchReady(session_id, batch, dag):
                self.recorder.batch("ready", session_id, batch, dag=dag)
                self._deliver(self._sessions[session_id], batch, self._dags.pop(dag))
            case sched.CancelDag(dag):
                self._cancel(dag)
            case sched.FailSession():
                pass  # the session got its error where it happened
            case sched.WakeAt(when):
                if self._wake is not None:
                    self._wake.cancel()
                delay = max(0.0, when - time.monotonic())
                self._wake = asyncio.get_running_loop().call_later(delay, self.post, sched.Tick())

    def _launch(self, dag: int, session: Session, batch: int) -> None:
        try:
            self._dags[dag] = self._begin(dag, session, batch)
        except Exception as error:  # after any error, the consumer must not wait for ever
            self.counters["launch_errors"] += 1
            if not isinstance(error, AttaError):
                log.error("batch not begun", batch=batch, session=session.id, exc_info=error)
                error = AttaError(f"batch {batch} cannot be begun: {type(error).__name__}: {error}")
            self.fail(session, error)

    def _begin(self, dag: int, session: Session, batch: int) -> RunningDag:
        request, view = session.request, session.view or self._view
        ahead = RowsAhead(view.rows, dag, self._disk) if self._window and request.plan.summed is None else None
        slot = self.slots.acquire(request.layout.capacity)
        try:
            state = BatchState(
                request.plan, view.dataset, home=view.shard.part, at=request.position(batch),
                seeds=request.batch_seeds(batch), out=BatchArrays.over(request.layout, slot.buffer),
                compactors=self._compactors, degree=view.shard.degree, kept=view.edges, rows=ahead or view.rows,
                sources=view.sources, shifts=request.shifts,
            )  # fmt: skip
        except BaseException:
            self.slots.release(slot)
            raise
        # While there are fewer batches than workers, several workers make one batch.
        alone = self._may_carry and self._alone and len(self._dags) + 1 >= self._threads
        return RunningDag(session, batch, state, slot, time.monotonic(), view, ahead, alone=alone)

    def _run(self, action: sched.RunTask) -> None:
        dag, task = action.dag, action.task
        running = self._dags.get(dag)
        if running is None:  # its launch failed: the session is being closed
            self.post(sched.TaskFailed(dag, task))
            return
        running.running += 1
        if action.owners:
            running.owners[task.op] = action.owners
        self._runner.run(dag, running, task, action.ready)

    def _done(self, dag: int, running: RunningDag, ended: Sequence[Ended]) -> None:
        running.running -= 1
        first = ended[0].task
        events = [event for task, result, times in ended if (event := self._ended(dag, running, task, result, times))]
        if running.cancelled and running.running == 0:
            self._drop(running)
        if len(events) < len(ended):  # cancelled, or failed: nothing is wanted, but the lane is free
            self.post(sched.TaskFailed(dag, first))
        else:
            self.post(replace(events[0], then=events[1:]) if events[1:] else events[0])

    def _ended(
        self, dag: int, running: RunningDag, task: Task, result: TaskResult | BaseException, times: TaskTimes
    ) -> sched.TaskDone | None:
        """Record a task that has ended. None: its result is not wanted, or there is none, and the session fails."""
        of, owners = (running.session.id, running.batch, dag), running.owners_of(task)
        if running.cancelled:
            self.recorder.task(task, of, times, outcome="cancelled", owners=owners)
            return None
        if isinstance(result, BaseException):
            self.recorder.task(task, of, times, outcome="failed", owners=owners)
            if self._files is not None and not isinstance(result, RemoteError):
                self._files.look()  # what makes no sense may come from a file that has just changed
            result = self._changed_file() or result
            if type(result) is AttaError or not isinstance(result, AttaError):  # the code has failed, or somebody's own
                cause = result.__cause__ or result
                log.error("task failed", task=str(task), session=running.session.id, exc_info=cause)
            if not isinstance(result, AttaError):
                result = AttaError(
                    f"{task.kind.value} task of batch {running.batch}: {type(result).__name__}: {result}"
                )
            self.counters["task_errors"] += 1
            running.session.fail(result)
            return None
        self.recorder.task(task, of, times, result, owners=owners)
        self._runner.costs.answered(task, result.remote_bytes, result.requests)
        seconds = times[2] - times[1]
        running.count(task, result, seconds)
        self.counters[_COUNTERS[task.kind, task.lane]] += 1
        return sched.TaskDone(dag, task, result.growth, result.expand, result.nbytes, seconds)

    def _changed_file(self) -> AttaError | None:
        """What is wrong with the files that tasks have read."""
        return None if self._files is None else self._files.error

    def _deliver(self, session: Session, batch: int, running: RunningDag) -> None:
        if (error := self._changed_file()) is not None:
            self._drop(running)
            self.fail(session, error)
            return
        stats = {**running.state.stats, **running.stats}
        stats["make_ms"] = 1e3 * (time.monotonic() - running.launched)
        for name in ("nodes", "edges", "remote_rows", "remote_bytes", "cached_rows", "shared_rows", "summed_rows"):
            self.counters[name] += stats.get(name, 0.0)
        self.counters["batches"] += 1
        self._alone = not running.asks and running.work_ms > CARRIED_MS
        running.end()
        session.deliver(Delivery(batch, running.state.out, running.slot, stats))

    def _cancel(self, dag: int) -> None:
        running = self._dags.pop(dag, None)
        if running is None:
            return
        running.cancelled = True
        self.recorder.batch("cancelled", running.session.id, running.batch, dag=dag)
        if running.running == 0:
            self._drop(running)

    def _drop(self, running: RunningDag) -> None:
        running.end()
        self.slots.release(running.slot)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def watch_utilisation(self) -> None:
        """Feed the machine's CPU utilisation to the launch score until cancelled."""
        load = ProcessorLoad()
        while True:
            await asyncio.sleep(UTILISATION_PERIOD_S)
            if self._sessions:
                self.post(sched.Utilisation(load.percent()))
                at, nbytes = time.monotonic(), self.slots.resident_bytes
                read = 0 if self._disk is None else int(self._disk.stats().get("disk_read_bytes", 0))
                of_sessions = self._scheduler.sessions(at)
                self.recorder.sample(at, of_sessions, self._scheduler.stats(), buffer_bytes=nbytes, disk_bytes=read)

    def stats(self) -> dict[str, float]:
        return {
            **self.counters,
            **self._runner.costs.stats(),
            "cpu_s": time.process_time(),
            "loop_cpu_s": time.thread_time() - self._runner.brief_cpu_s,  # figures are asked for on the event loop
            **{f"scheduler_{k}": v for k, v in self._scheduler.stats().items()},
            "sessions": float(len(self._sessions)),
            "dags_in_flight": float(len(self._dags)),
            "slots_created": float(self.slots.created),
            "buffer_bytes": float(self.slots.resident_bytes),
            "buffer_limit_bytes": float(self.slots.quota_bytes),
            "lent_bytes": float(self.slots.lent_bytes),
            "cache_bytes": float(self._view.rows.nbytes),
            "window": float(self._window),
        }

    def session_figures(self) -> list[SessionFigures]:
        """Every open session, in the order of opening. A session that has failed holds no batches any more."""
        views = {view.name: view for view in self._scheduler.sessions(time.monotonic())}
        return [session.figures(views.get(name)) for name, session in self._sessions.items()]

    async def shutdown(self) -> None:
        """Close every session, wait for running tasks, free threads and slots."""
        for session in list(self._sessions.values()):
            session.fail(AttaError("the daemon is stopping"))
            self.close(session)
        if self._wake is not None:
            self._wake.cancel()
        await self._runner.close()
        self._pages.shutdown(wait=True, cancel_futures=True)
        self.slots.close()
