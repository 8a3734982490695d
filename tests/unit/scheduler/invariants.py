"""What must hold in the scheduler between two events."""

from __future__ import annotations

import math
from collections.abc import Iterable

from atta.samplers.dag.instance import Task
from atta.scheduler import Scheduler
from atta.scheduler.coarse import KEPT_PACES, PaceMemory, ScheduledSession, WakeUps
from atta.scheduler.fine import Dag, LaneQueue, _row_bytes


def validate(self: Scheduler) -> None:
    """Raise AssertionError where an invariant does not hold."""
    by_session = dict.fromkeys(self._sessions, 0)
    for number, dag in self._dags.items():
        assert number == dag.id < self._next_dag, f"DAG {dag.id} is kept as {number} before {self._next_dag}"
        if dag.cancelled:
            assert dag.running, f"DAG {number} is cancelled, runs nothing and is still kept"
            continue
        assert self._sessions.get(dag.session.name) is dag.session, f"DAG {number}: its session is not open"
        assert number in dag.session.dags, f"DAG {number} is unknown to its session"
        by_session[dag.session.name] += 1
    for name, session in self._sessions.items():
        assert session.name == name, f"session {session.name!r} is kept as {name!r}"
        assert not session.closed, f"session {name!r} is closed and still kept"
        check_session(session)
        count = by_session[name]
        assert count == session.in_flight, f"session {name!r}: {session.in_flight} in flight, {count} DAGs"
        waits = (name in self._held_back) + (name in self._cramped) + (session.check_at < math.inf)
        assert waits <= session.hungry, f"session {name!r} waits for {waits} things to launch its next batch"
        check_wakeups(self._wakeups, session)
    strangers = (self._held_back.keys() | self._cramped.keys()) - self._sessions.keys()
    assert not strangers, f"closed sessions wait: {sorted(strangers)}"
    for lane, queue in self._lanes.items():
        running = [task for dag in self._dags.values() for task in dag.running if task.lane is lane]
        check_lane(queue, lane.value, self._dags.values(), running)
    assert self._taken_bytes >= 0, f"consumers hold {self._taken_bytes} bytes"
    assert 0.0 <= self._load.percent <= 100.0, f"the utilisation is {self._load.percent} %"
    check_paces(self._paces)


def check_session(self: ScheduledSession) -> None:
    name = f"session {self.name!r}"
    assert 0 <= self.announced <= self.launched <= len(self.batches), (
        f"{name}: announced {self.announced}, launched {self.launched} of {len(self.batches)}"
    )
    assert self.in_flight >= 0, f"{name}: {self.in_flight} batches are in flight"
    assert self.in_flight + len(self.waiting) == self.launched - self.announced, (
        f"{name}: {self.in_flight} in flight and {len(self.waiting)} waiting are not launched - announced"
    )
    assert len(self.dags) == self.launched - self.announced, f"{name}: {len(self.dags)} DAGs are not announced"
    numbers = [*self.dags]
    assert numbers == sorted(numbers), f"{name}: DAGs out of launch order"
    unannounced = {self.batches[at] for at in range(self.announced, self.launched)}
    assert self.waiting.keys() <= unannounced, f"{name}: waiting batches were not launched, or were announced"
    assert not self.queue.keys() & unannounced, f"{name}: queued batches were not announced"
    assert len(self.queue) <= self.announced, f"{name}: more batches in the queue than announced"
    held = sum(nbytes for _, nbytes in self.waiting.values()) + sum(self.queue.values())
    assert self.finished_bytes == held, f"{name}: finished_bytes is {self.finished_bytes}, not {held}"
    assert 0 <= self.widening <= self.in_flight, f"{name}: {self.widening} of {self.in_flight} widen"
    assert self.pace.most >= self.in_flight or not self.in_flight, f"{name}: more in flight than pace.most"


def check_lane(self: LaneQueue, name: str, dags: Iterable[Dag], running: Iterable[Task]) -> None:
    """``dags``: all that exist; ``running``: those of this lane."""
    known, tasks = {id(dag) for dag in dags}, [*running]
    assert self.running == len(tasks), f"lane {name}: {self.running} tasks are counted as running, {len(tasks)} run"
    assert self.running <= self._most, f"lane {name}: {self.running} tasks run, at most {self._most} may"
    assert self.running == self._most or not self._heap, f"lane {name} idles while tasks wait"
    for _, _, dag, task, _ in self._heap:
        assert not dag.cancelled, f"lane {name}: {task} of cancelled DAG {dag.id} waits"
        assert id(dag) in known, f"lane {name}: {task} of unknown DAG {dag.id} waits"
    fetching = sum(map(_row_bytes, tasks)) + sum(_row_bytes(entry[3]) for entry in self._heap)
    assert math.isclose(self.fetching, fetching, rel_tol=1e-6, abs_tol=1.0), (
        f"lane {name}: fetches {self.fetching} bytes, not {fetching}"
    )


def check_paces(self: PaceMemory) -> None:
    assert len(self._paces) <= KEPT_PACES, f"{len(self._paces)} paces are kept"
    for loader, pace in self._paces.items():
        assert loader, "a pace without a loader is kept"
        assert pace.finished, f"the pace of loader {loader!r} has no finished batch"


def check_wakeups(self: WakeUps, session: ScheduledSession) -> None:
    if session.check_at == math.inf:
        return
    assert any(when == session.check_at and of is session for when, _, of in self._checks), (
        f"session {session.name!r} is to be checked at {session.check_at}, but no check is planned"
    )
    assert self._asked is not None, f"session {session.name!r} is to be checked, but no wake-up was asked for"
    assert self._asked <= session.check_at, f"the wake-up comes after the check of session {session.name!r}"
