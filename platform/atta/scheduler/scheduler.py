"""The door of the scheduler: ``Scheduler.on(event, now) -> actions``."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from itertools import count

from atta.samplers.dag.instance import DagInstance, Lane, Task
from atta.scheduler.coarse import LAUNCH_RULES, Load, Pace, Session
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.costs import CostModel
from atta.scheduler.events import (
    Action,
    BatchReady,
    BatchTaken,
    CancelDag,
    ConsumersHold,
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
from atta.scheduler.fine import ORDERS, Dag, LaneQueue
from atta.scheduler.views import SessionView, view

__all__ = ["Scheduler", "SchedulerConfig", "SchedulerError"]

PROFILES = 64
"""Measurements kept of closed sessions, the most recently used ones."""


EARLY_S = 1e-4
"""A check may happen so much too early: timers and clocks round differently, and asking for another tick would spin."""


class SchedulerError(AssertionError):
    """The shell broke the protocol of the scheduler: a bug in Atta, never the fault of a user."""


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
        self._due = LAUNCH_RULES[config.policy]
        order = ORDERS[config.policy]
        self.costs = CostModel()
        widths = {Lane.CPU: config.workers, Lane.NET: config.net_in_flight}
        self._lanes = {lane: LaneQueue(width, order, self.costs) for lane, width in widths.items()}
        self._load = Load(config.utilisation_window_s)
        self._sessions: dict[str, Session] = {}
        self._profiles: OrderedDict[str, Pace] = OrderedDict()
        self._dags: dict[int, Dag] = {}
        self._next_dag = 0
        self._turn = 0.0  # of the latest launch, see ``Session.charge``
        self._held_back: dict[str, Session] = {}  # those that wait for lanes to run low
        self._cramped: dict[str, Session] = {}  # those that have no room for a batch more
        self._checks: list[tuple[float, int, Session]] = []  # heap; an entry counts if it is its session's check_at
        self._sequence = count()
        self._wake: float | None = None  # the wake-up that the shell holds
        self._now = 0.0  # time of the latest event
        self._log: deque[tuple[float, Event, tuple[Action, ...]]] = deque(maxlen=config.log_events)
        self._finished = 0
        self._cancelled = 0
        self._most_bytes = 0  # of finished batches at any time
        self._taken_bytes = 0  # of batches in the hands of consumers

    def on(self, event: Event, now: float) -> list[Action]:
        """Take in one event at time ``now`` (seconds of any monotonic clock); return what to do, in this order.

        Raises SchedulerError or DagError when the event contradicts what was asked for.
        """
        actions: list[Action] = []
        self._now = now
        match event:
            case TaskDone():
                self._task_done(event, now, actions)
            case BatchTaken():
                self._batch_taken(event, now, actions)
            case Tick():
                self._wake = None
            case Utilisation():
                self._load.sample(event.percent, now)
            case SessionOpened():
                self._session_opened(event, now, actions)
            case SessionClosed():
                self._session_closed(event, actions)
                self._consider_cramped(now, actions)
            case TaskFailed():
                self._task_failed(event, actions)
                self._consider_cramped(now, actions)
            case ConsumersHold():
                freed, self._taken_bytes = event.nbytes < self._taken_bytes, event.nbytes
                if freed:
                    self._consider_cramped(now, actions)
        self._check_due_sessions(now, actions)
        self._run_ready_tasks(actions)
        self._consider_held_back(now, actions)
        self._ask_for_wake_up(now, actions)
        self._log.append((now, event, tuple(actions)))
        return actions

    @property
    def log(self) -> tuple[tuple[float, Event, tuple[Action, ...]], ...]:
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

    def _session_opened(self, event: SessionOpened, now: float, actions: list[Action]) -> None:
        if event.session in self._sessions:
            raise SchedulerError(f"session {event.session!r} is open already")
        if not 0 < event.weight < math.inf:
            raise SchedulerError(f"session {event.session!r} has the weight {event.weight}")
        if event.trainers < 1:
            raise SchedulerError(f"session {event.session!r} has {event.trainers} trainers")
        if not isinstance(event.batches, range) and len(set(event.batches)) < len(event.batches):
            raise SchedulerError(f"session {event.session!r} names a batch twice")
        known = self._known_pace(event.profile) if event.profile else None
        pace = known.inherited(self._config) if known is not None else Pace(batch_bytes=event.batch_bytes or None)
        session = Session(event.session, event.plan, event.batches, event.trainers, event.profile, pace, event.weight)
        earlier = [s for s in self._sessions.values() if s.profile and s.profile == event.profile]
        session.before = earlier[-1] if earlier else None
        self._sessions[event.session] = session
        self._note_profiles()
        self._consider(session, now, actions)

    def _known_pace(self, profile: str) -> Pace | None:
        """What was measured of the latest session of this profile, which may still be open."""
        running = [s.pace for s in self._sessions.values() if s.profile == profile and s.pace.finished]
        return running[-1] if running else self._profiles.get(profile)

    def _session_closed(self, event: SessionClosed, actions: list[Action]) -> None:
        session = self._sessions.get(event.session)
        if session is not None:
            self._close(session, actions)

    def _close(self, session: Session, actions: list[Action]) -> None:
        del self._sessions[session.name]
        self._held_back.pop(session.name, None)
        self._cramped.pop(session.name, None)
        self._note_profiles()
        session.closed, session.before = True, None
        if session.profile and session.pace.finished:
            self._profiles[session.profile] = session.pace
            self._profiles.move_to_end(session.profile)
            if len(self._profiles) > PROFILES:
                self._profiles.popitem(last=False)
        for number in session.dags:
            self._cancelled += 1
            actions.append(CancelDag(number))
            dag = self._dags.get(number)  # None: finished, waiting for an earlier batch
            if dag is not None:
                dag.cancelled = True
                if not dag.running:
                    del self._dags[number]
        for lane in self._lanes.values():
            lane.drop_cancelled()

    def _batch_taken(self, event: BatchTaken, now: float, actions: list[Action]) -> None:
        session = self._sessions.get(event.session)
        if session is None:  # closed in the meantime
            return
        if event.batch not in session.queue:
            raise SchedulerError(f"batch {event.batch} of session {event.session!r} is not in the output queue")
        session.finished_bytes -= session.queue.pop(event.batch)
        session.before = None  # whoever takes batches of this one does not wait for others
        if event.train_ms > 0:
            session.pace.trained(event.train_ms, session.trainers, self._config)
        self._consider(session, now, actions)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _task_done(self, event: TaskDone, now: float, actions: list[Action]) -> None:
        dag = self._answered(event.dag, event.task)
        if event.seconds > 0:
            self.costs.observe(event.task, event.seconds)
        if dag is None:
            return
        if event.task.lane is Lane.CPU:
            dag.work_s += event.seconds
        for task in dag.instance.done(event.task, event.growth, event.expand):
            self._lanes[task.lane].push(dag, task, now)
        if dag.instance.finished:
            self._dag_finished(dag, event.nbytes, now, actions)

    def _task_failed(self, event: TaskFailed, actions: list[Action]) -> None:
        dag = self._answered(event.dag, event.task)
        if dag is not None:
            actions.append(FailSession(dag.session.name, dag.id, event.task))
            self._close(dag.session, actions)

    def _answered(self, number: int, task: Task) -> Dag | None:
        """Free the lane of a task that has run; its DAG, or None when nobody wants the result any more."""
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

    def _dag_finished(self, dag: Dag, nbytes: int, now: float, actions: list[Action]) -> None:
        del self._dags[dag.id]
        session = dag.session
        session.in_flight -= 1
        session.growing -= dag.grows
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
            actions.append(BatchReady(session.name, batch, number))
        self._consider(session, now, actions)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _check_due_sessions(self, now: float, actions: list[Action]) -> None:
        while self._checks and self._checks[0][0] <= now + EARLY_S:
            when, _, session = heapq.heappop(self._checks)
            if when == session.check_at and not session.closed:
                self._consider(session, now, actions)

    def _consider(self, session: Session, now: float, actions: list[Action]) -> None:
        """Launch what is due in a session, and note when to look again."""
        session.check_at = math.inf
        self._held_back.pop(session.name, None)
        self._cramped.pop(session.name, None)
        while session.hungry:
            if not session.within_caps(self._config, self._free_bytes()):
                self._cramped[session.name] = session
                return
            # Those that wait for the lanes have their turns first.
            earlier = any(other.turn < session.turn for other in self._able())
            self._load.saturated = earlier or self._saturated()
            self._look_at_workers()
            wait = self._due(session, self._load, now, self._config)
            if wait > 0:
                if wait < math.inf:
                    session.check_at = now + wait
                    heapq.heappush(self._checks, (session.check_at, next(self._sequence), session))
                elif self._load.saturated or not session.may_grow(self._load, self._config):
                    self._held_back[session.name] = session
                return
            self._launch(session, now, actions)

    def _saturated(self) -> bool:
        """Whether a task waits for every worker, requests for their turn, or enough rows are to come to keep any link busy."""
        cpu, net = self._lanes[Lane.CPU], self._lanes[Lane.NET]
        return cpu.backlog >= cpu.width or net.backlog > 0 or net.fetching >= self._config.fetch_bytes

    def _consider_held_back(self, now: float, actions: list[Action]) -> None:
        """Lanes have run low: those that waited for it, in turn."""
        while not self._saturated() and (able := self._able()):
            self._consider(min(able, key=lambda s: s.turn), now, actions)
            self._run_ready_tasks(actions)

    def _look_at_workers(self) -> None:
        self._load.idle = self._lanes[Lane.CPU].backlog < 0

    def _note_profiles(self) -> None:
        self._load.shared = len({s.profile or s.name for s in self._sessions.values()}) > 1

    def _able(self) -> list[Session]:
        """Sessions that wait for the lanes, without those that must not grow now."""
        if not self._held_back:
            return []
        self._look_at_workers()
        return [s for s in self._held_back.values() if s.may_grow(self._load, self._config)]

    def unlaunched(self, session: str) -> int:
        """Batches of a session that have not been launched; 0 if it is not open."""
        found = self._sessions.get(session)
        return len(found.batches) - found.launched if found is not None else 0

    def waits_for_room(self, session: str) -> bool:
        """Whether a session holds nothing and could go on if others left something of the buffers."""
        found = self._sessions.get(session)
        return found is not None and found.hungry and found.in_flight + found.finished == 0

    def _consider_cramped(self, now: float, actions: list[Action]) -> None:
        """Buffers are free again: of those that had no room, the ones that hold least come first."""
        if self._config.buffer_bytes:
            for session in sorted(self._cramped.values(), key=lambda s: s.held_bytes):
                self._consider(session, now, actions)

    def _free_bytes(self) -> float:
        """What is left of the buffers; without a bound there is always more."""
        if not self._config.buffer_bytes:
            return math.inf
        sessions = self._sessions.values()
        # What a session makes whose sizes are not known yet counts as the largest batches of others.
        largest = max([s.pace.batch_bytes or 0.0 for s in sessions], default=0.0)
        unknown = largest * sum(s.in_flight for s in sessions if s.pace.batch_bytes is None)
        return self._config.buffer_bytes - self._taken_bytes - unknown - sum(s.held_bytes for s in sessions)

    def _launch(self, session: Session, now: float, actions: list[Action]) -> None:
        number = self._next_dag
        self._next_dag += 1
        batch = session.batches[session.launched]
        dag = Dag(number, session, batch, DagInstance(session.plan, self._home, self._config.chunk_rows), now)
        self._dags[number] = dag
        session.dags[number] = None
        session.launched += 1
        session.in_flight += 1
        session.last_launch = now
        dag.grows = session.grown()
        self._turn = session.charge(self._turn)
        actions.append(LaunchDag(number, session.name, batch))
        for task in dag.instance.start():
            self._lanes[task.lane].push(dag, task, now)

    def _run_ready_tasks(self, actions: list[Action]) -> None:
        for lane in self._lanes.values():
            while (taken := lane.take()) is not None:
                dag, task, ready = taken
                actions.append(RunTask(dag.id, task, ready))

    def _ask_for_wake_up(self, now: float, actions: list[Action]) -> None:
        """Ask for a tick at the next check, unless the shell holds an earlier one."""
        while self._checks and (self._checks[0][0] != self._checks[0][2].check_at or self._checks[0][2].closed):
            heapq.heappop(self._checks)
        if self._wake is not None and self._wake <= now:
            self._wake = None
        if self._checks and (self._wake is None or self._checks[0][0] < self._wake):
            self._wake = self._checks[0][0]
            actions.append(WakeAt(self._wake))
