"""The scheduler's one entry: ``Scheduler.on(event, now) -> actions``."""

from __future__ import annotations

import math
from collections import deque

from atta.samplers.dag.instance import DagInstance, Kind, Lane, Task
from atta.scheduler import events
from atta.scheduler.coarse import Load, Pace, PaceMemory, ScheduledSession, SessionView, WakeUps, view
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.fine import CostModel, Dag, LaneQueue
from atta.scheduler.policies import policy_named


class SchedulerError(AssertionError):
    """The shell broke the protocol of the scheduler: a bug in Atta, not a mistake of a user."""


class Scheduler:
    """Decides when DAGs are launched and which of their ready tasks run next.

    Pure: no thread, socket or clock. State changes only through ``on``; never modify attributes from outside.
    ``home`` is the partition of this daemon.

    The shell must answer every RunTask with TaskDone or TaskFailed, also for DAGs that were cancelled in the meantime:
    until then the task counts as running.
    """

    def __init__(self, config: SchedulerConfig, home: int) -> None:
        self._config = config
        self._home = home
        policy = policy_named(config.policy)
        self._due = policy.rule
        self.costs = CostModel()
        self._lanes = {
            Lane.CPU: LaneQueue(config.workers, policy.order, self.costs, config.at_hand),
            Lane.NET: LaneQueue(config.net_in_flight, policy.order, self.costs),
        }
        self._load = Load(config.utilisation_window_s)
        self._sessions: dict[str, ScheduledSession] = {}  # by name, in the order of opening; all open
        self._paces = PaceMemory()
        self._dags: dict[int, Dag] = {}  # by id: in flight, or cancelled while tasks still run
        self._next_dag = 0  # larger than every id
        self._turn = 0.0  # of the latest launch, see ``ScheduledSession.charge``
        # A hungry session is in at most one of these two, or has a check planned.
        self._held_back: dict[str, ScheduledSession] = {}  # wait for lanes to run low
        self._cramped: dict[str, ScheduledSession] = {}  # have no room for another batch
        self._wakeups = WakeUps()
        self._now = 0.0  # time of the latest event
        self._log: deque[tuple[float, events.Event, tuple[events.Action, ...]]] = deque(maxlen=config.log_events)
        self._finished = 0
        self._cancelled = 0
        self._most_bytes = 0  # largest number of bytes that finished batches ever took
        self._taken_bytes = 0  # of batches that consumers have taken and still read; not negative

    def on(self, event: events.Event, now: float) -> list[events.Action]:
        """Take in one event at time ``now`` (seconds of any monotonic clock); return what to do, in this order. Raises
        SchedulerError or DagError when the event contradicts what was asked for."""
        actions: list[events.Action] = []
        self._now = now
        match event:
            case events.TaskDone():
                self._task_done(event, now, actions)
            case events.BatchTaken():
                self._batch_taken(event, now, actions)
            case events.Tick():
                self._wakeups.arrived()
            case events.Utilisation():
                self._load.sample(event.percent, now)
                self._consider_refused(now, actions)
            case events.SessionOpened():
                self._session_opened(event, now, actions)
            case events.SessionClosed():
                self._session_closed(event, now, actions)
                self._consider_cramped(now, actions)
            case events.TaskFailed():
                self._task_failed(event, now, actions)
                self._consider_cramped(now, actions)
            case events.ConsumersHold():
                freed, self._taken_bytes = event.nbytes < self._taken_bytes, event.nbytes
                if freed:
                    self._consider_cramped(now, actions)
        while (session := self._wakeups.due(now)) is not None:
            self._consider(session, now, actions)
        if self._config.window:
            self._release_alone(now)
        self._run_ready_tasks(actions)
        self._consider_held_back(now, actions)
        if (wake := self._wakeups.next(now)) is not None:
            actions.append(events.WakeAt(wake))
        self._log.append((now, event, tuple(actions)))
        return actions

    @property
    def log(self) -> tuple[tuple[float, events.Event, tuple[events.Action, ...]], ...]:
        """The last decisions, oldest first: (time, event, the actions it caused)."""
        return tuple(self._log)

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics; a walk over all sessions."""
        sessions = self._sessions.values()
        return {
            "sessions": float(len(self._sessions)),
            "in_flight": float(sum(s.in_flight for s in sessions)),
            "finished": float(sum(s.finished for s in sessions)),
            "finished_bytes": float(sum(s.finished_bytes for s in sessions)),
            "finished_bytes_peak": float(self._most_bytes),
            "launched_total": float(self._next_dag),
            "finished_total": float(self._finished),
            "cancelled_total": float(self._cancelled),
            "ready_cpu": float(len(self._lanes[Lane.CPU])),
            "ready_net": float(len(self._lanes[Lane.NET])),
            "running_cpu": float(self._lanes[Lane.CPU].running),
            "running_net": float(self._lanes[Lane.NET].running),
            "utilisation": self._load.percent,
        }

    def sessions(self, now: float | None = None) -> tuple[SessionView, ...]:
        """Every open session, in the order of opening, at time ``now`` (default: that of the latest event)."""
        at = self._now if now is None else now
        return tuple(view(session, self._load, at, self._config) for session in self._sessions.values())

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _session_opened(self, event: events.SessionOpened, now: float, actions: list[events.Action]) -> None:
        if event.session in self._sessions:
            raise SchedulerError(f"session {event.session!r} is open already")
        if not 0 < event.share < math.inf:
            raise SchedulerError(f"session {event.session!r} has the share {event.share}")
        if event.trainers < 1:
            raise SchedulerError(f"session {event.session!r} has {event.trainers} trainers")
        if not isinstance(event.batches, range) and len(set(event.batches)) < len(event.batches):
            raise SchedulerError(f"session {event.session!r} names a batch twice")
        known = self._known_pace(event.loader) if event.loader else None
        pace = known.inherited(self._config) if known is not None else Pace(batch_bytes=event.batch_bytes or None)
        session = ScheduledSession(
            event.session, event.plan, event.batches, event.trainers, event.loader, pace, event.share
        )
        earlier = [s for s in self._sessions.values() if s.loader and s.loader == event.loader]
        session.before = earlier[-1] if earlier else None
        self._sessions[event.session] = session
        self._note_loaders()
        self._consider(session, now, actions)

    def _known_pace(self, loader: str) -> Pace | None:
        """What was measured of this loader's latest session, which may still be open."""
        running = [s.pace for s in self._sessions.values() if s.loader == loader and s.pace.finished]
        return running[-1] if running else self._paces.get(loader)

    def _session_closed(self, event: events.SessionClosed, now: float, actions: list[events.Action]) -> None:
        if (session := self._sessions.get(event.session)) is not None:
            self._close(session, now, actions)

    def _close(self, session: ScheduledSession, now: float, actions: list[events.Action]) -> None:
        del self._sessions[session.name]
        self._held_back.pop(session.name, None)
        self._cramped.pop(session.name, None)
        self._note_loaders()
        session.closed, session.before = True, None
        self._paces.keep(session.loader, session.pace)
        for number in session.dags:
            self._cancelled += 1
            actions.append(events.CancelDag(number))
            dag = self._dags.get(number)  # None: finished, waiting for an earlier batch
            if dag is not None:
                dag.cancelled, dag.parked = True, []
                if not dag.running:
                    del self._dags[number]
        for lane in self._lanes.values():
            lane.drop_cancelled()
        self._consider_followers(session, now, actions)

    def _consider_followers(self, session: ScheduledSession, now: float, actions: list[events.Action]) -> None:
        """Their consumer has fewer batches before theirs, and no event of their own would say so."""
        for follower in [s for s in self._sessions.values() if s.before is session]:
            self._consider(follower, now, actions)

    def _batch_taken(self, event: events.BatchTaken, now: float, actions: list[events.Action]) -> None:
        session = self._sessions.get(event.session)
        if session is None:  # closed in the meantime
            return
        if event.batch not in session.queue:
            raise SchedulerError(f"batch {event.batch} of session {event.session!r} is not in the output queue")
        session.finished_bytes -= session.queue.pop(event.batch)
        session.before = None  # its consumer waits for no batch of the session before
        if event.train_ms > 0:
            session.pace.trained(event.train_ms, session.trainers, self._config)
        self._consider(session, now, actions)
        self._consider_followers(session, now, actions)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _task_done(self, event: events.TaskDone, now: float, actions: list[events.Action]) -> None:
        dag = self._answered(event.dag, event.task)
        ready: list[Task] = []
        for done in (event, *event.then):
            if done.seconds > 0:
                self.costs.observe(done.task, done.seconds)
            if dag is None:
                continue
            if done is not event:
                if done.task not in ready:
                    raise SchedulerError(f"DAG {dag.id}: {done.task} was not ready after {event.task}")
                ready.remove(done.task)
            if done.task.lane is Lane.CPU:
                dag.work_s += done.seconds
            ready += dag.instance.done(done.task, done.growth, done.expand)
        if dag is None:
            return
        for task in ready:
            if dag.waits_for and task.kind is Kind.FEATURE and (self._config.own_rows or task.lane is Lane.NET):
                dag.parked.append(task)
            else:
                self._lanes[task.lane].push(dag, task, now)
        if dag.instance.sampled and not dag.sampled:
            self._dag_sampled(dag, now, actions)
        if dag.instance.finished:
            self._dag_finished(dag, (event.then or [event])[-1].nbytes, now, actions)

    def _dag_sampled(self, dag: Dag, now: float, actions: list[events.Action]) -> None:
        """All of the batch is known. Earlier ones may have waited for that, before they fetch rows."""
        session, dag.sampled = dag.session, True
        if not self._config.window:
            return
        if dag.parked:
            session.parked += 1
            dag.parked_at = now
        later = 0
        for number in reversed(session.dags):
            other = self._dags.get(number)  # None: finished
            if other is not None and other.parked_at is not None and later >= other.waits_for:
                self._release(other, now)
            later += other is None or other.sampled
        self._consider(session, now, actions)

    def _release_alone(self, now: float) -> None:
        """The oldest batch of a session fetches its rows if all others in flight wait, too, and no further one comes
        before something happens."""
        for session in self._sessions.values():
            if session.parked and not session.at_work and session.check_at == math.inf:
                dags = (self._dags.get(number) for number in session.dags)
                self._release(next(dag for dag in dags if dag is not None and dag.parked_at is not None), now)

    def _release(self, dag: Dag, now: float) -> None:
        assert dag.parked_at is not None
        dag.launched += now - dag.parked_at  # that time was none of sampling
        dag.parked_at, dag.session.parked = None, dag.session.parked - 1
        for task in dag.parked:
            self._lanes[task.lane].push(dag, task, now)
        dag.parked = []

    def _task_failed(self, event: events.TaskFailed, now: float, actions: list[events.Action]) -> None:
        if (dag := self._answered(event.dag, event.task)) is not None:
            actions.append(events.FailSession(dag.session.name, dag.id, event.task))
            self._close(dag.session, now, actions)

    def _answered(self, number: int, task: Task) -> Dag | None:
        """Free the lane of a task that has run; its DAG, or None when the result is no longer wanted."""
        dag = self._dags.get(number)
        if dag is None and 0 <= number < self._next_dag:
            return None  # cancelled, and all its running tasks had answered
        if dag is None or task not in dag.running:
            raise SchedulerError(f"DAG {number}: {task} is not running")
        dag.running.remove(task)
        self._lanes[task.lane].release(task)
        if not dag.cancelled:
            return dag
        if not dag.running:
            del self._dags[number]
        return None

    def _dag_finished(self, dag: Dag, nbytes: int, now: float, actions: list[events.Action]) -> None:
        del self._dags[dag.id]
        session = dag.session
        session.in_flight -= 1
        session.widening -= dag.widens
        session.waiting[dag.batch] = (dag.id, nbytes)
        session.finished_bytes += nbytes
        self._most_bytes = max(self._most_bytes, sum(s.finished_bytes for s in self._sessions.values()))
        session.pace.sampled(1e3 * (now - dag.launched), nbytes, self._config, 1e3 * dag.work_s)
        self._finished += 1
        while session.announced < session.launched:
            batch = session.batches[session.announced]
            if batch not in session.waiting:
                break
            number, size = session.waiting.pop(batch)
            session.queue[batch] = size
            session.announced += 1
            del session.dags[number]
            actions.append(events.BatchReady(session.name, batch, number))
        self._consider(session, now, actions)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _consider(self, session: ScheduledSession, now: float, actions: list[events.Action]) -> None:
        """Launch what is due in a session, and note when to look again."""
        session.check_at = math.inf
        self._held_back.pop(session.name, None)
        self._cramped.pop(session.name, None)
        while session.hungry:
            if not session.within_caps(self._config, self._free_bytes()):
                self._cramped[session.name] = session
                return
            # Sessions that wait for the lanes have their turns first.
            self._load.saturated = any(other.turn < session.turn for other in self._able()) or self._saturated()
            self._look_at_workers()
            if (wait := self._due(session, self._load, now, self._config)) > 0:
                if wait < math.inf:
                    self._wakeups.plan(session, now + wait)
                elif self._load.saturated or not session.may_widen(self._load, self._config):
                    self._held_back[session.name] = session
                return
            self._launch(session, now, actions)

    def _consider_refused(self, now: float, actions: list[events.Action]) -> None:
        """The utilisation is another: consider the sessions whose launch the score has refused until later."""
        for session in [s for s in self._sessions.values() if s.check_at < math.inf]:
            self._consider(session, now, actions)

    def _saturated(self) -> bool:
        """Whether a task waits for every worker, requests wait for their turn, or rows to come keep any link busy."""
        cpu, net = self._lanes[Lane.CPU], self._lanes[Lane.NET]
        return cpu.backlog >= cpu.width or net.backlog > 0 or net.fetching >= self._config.fetch_bytes

    def _consider_held_back(self, now: float, actions: list[events.Action]) -> None:
        """Lanes have run low: consider the sessions that waited for it, in turn."""
        while not self._saturated() and (able := self._able()):
            self._consider(min(able, key=lambda s: s.turn), now, actions)
            self._run_ready_tasks(actions)

    def _look_at_workers(self) -> None:
        self._load.idle = self._lanes[Lane.CPU].backlog < 0

    def _note_loaders(self) -> None:
        self._load.shared = len({s.loader or s.name for s in self._sessions.values()}) > 1

    def _able(self) -> list[ScheduledSession]:
        """Sessions that wait for the lanes, except those that must not have more batches now."""
        if not self._held_back:
            return []
        self._look_at_workers()
        return [s for s in self._held_back.values() if s.may_widen(self._load, self._config)]

    def unlaunched(self, session: str) -> int:
        """Batches of a session that have not been launched; 0 if it is not open."""
        found = self._sessions.get(session)
        return len(found.batches) - found.launched if found is not None else 0

    def waits_for_room(self, session: str) -> bool:
        """Whether a session holds nothing and waits for others to leave it some of the buffers."""
        found = self._sessions.get(session)
        return found is not None and found.hungry and found.in_flight + found.finished == 0

    def _consider_cramped(self, now: float, actions: list[events.Action]) -> None:
        """Buffers are free again: consider the sessions that had no room, the one that holds least first."""
        if self._config.buffer_bytes:
            for session in sorted(self._cramped.values(), key=lambda s: s.held_bytes):
                self._consider(session, now, actions)

    def _free_bytes(self) -> float:
        """What all sessions leave of the buffers; inf without a bound."""
        if not self._config.buffer_bytes:
            return math.inf
        sessions = self._sessions.values()
        # A batch of unknown size counts as the largest batch of any session.
        largest = max([s.pace.batch_bytes or 0.0 for s in sessions], default=0.0)
        unknown = largest * sum(s.in_flight for s in sessions if s.pace.batch_bytes is None)
        return self._config.buffer_bytes - self._taken_bytes - unknown - sum(s.held_bytes for s in sessions)

    def _launch(self, session: ScheduledSession, now: float, actions: list[events.Action]) -> None:
        number = self._next_dag
        self._next_dag += 1
        batch, index = session.batches[session.launched], session.launched
        dag = Dag(number, session, batch, DagInstance(session.plan, self._home, self._config.chunk_rows), now)
        self._dags[number] = dag
        session.dags[number] = None
        session.launched += 1
        session.in_flight += 1
        session.last_launch = now
        dag.widens = session.widened()
        if session.plan.summed is None:
            dag.waits_for = min(self._config.window, index, len(session.batches) - 1 - index)
        self._turn = session.charge(self._turn)
        actions.append(events.LaunchDag(number, session.name, batch))
        for task in dag.instance.start():
            self._lanes[task.lane].push(dag, task, now)

    def _run_ready_tasks(self, actions: list[events.Action]) -> None:
        for lane in self._lanes.values():
            while (taken := lane.take()) is not None:
                dag, task, ready = taken
                actions.append(events.RunTask(dag.id, task, ready, dag.instance.owners_of(task)))
