"""``validate`` finds every invariant that a test breaks by hand. Logged events leave out large data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atta.samplers.dag.instance import Kind, Lane, OwnedVertices, Task
from atta.scheduler import Scheduler, SchedulerConfig, SessionOpened, TaskDone
from atta.scheduler.coarse import KEPT_PACES, Pace, ScheduledSession
from atta.scheduler.fine import Dag, LaneQueue
from tests.unit.scheduler.harness import PLANS, Shell
from tests.unit.scheduler.invariants import check_lane, validate

WAITING = {99: (0, 7)}


def busy() -> Scheduler:
    """Two sessions: one with running and waiting tasks and a finished batch, one that waits for its next check."""
    shell = Shell(SchedulerConfig(workers=1, net_in_flight=1, max_dags=3, policy="fifo"), seed=9)
    shell.open("a", "two", batches=9, batch_bytes=1000)
    while not shell.books["a"].ready:
        shell.finish()
    shell.open("b", "two", batches=9, batch_bytes=1000)
    for _ in range(3):
        shell.finish()
    scheduler = shell.scheduler
    validate(scheduler)
    assert scheduler._dags
    assert session(scheduler).queue
    return scheduler


def session(scheduler: Scheduler) -> ScheduledSession:
    return scheduler._sessions["a"]


def dag(scheduler: Scheduler) -> Dag:
    return next(iter(scheduler._dags.values()))


def lane(scheduler: Scheduler) -> LaneQueue:
    return next(queue for queue in scheduler._lanes.values() if len(queue))


def set_of(attribute: str, value: object) -> Callable[[Scheduler], None]:
    return lambda scheduler: setattr(session(scheduler), attribute, value)


def cancel_and_stop(scheduler: Scheduler) -> None:
    dag(scheduler).cancelled = True
    dag(scheduler).running.clear()


def plan_late(scheduler: Scheduler) -> None:
    scheduler._wakeups.plan(session(scheduler), 1.0)
    scheduler._wakeups._asked = 2.0


BROKEN: dict[str, tuple[Callable[[Scheduler], None], str]] = {
    "a session is announced before it is launched": (set_of("announced", 8), "announced 8"),
    "more is launched than there is": (set_of("launched", 10), "launched 10 of 9"),
    "a batch is forgotten": (lambda s: set_of("in_flight", session(s).in_flight + 1)(s), "in flight"),
    "a negative number in flight": (set_of("in_flight", -1), "-1 batches"),
    "a DAG too many": (lambda s: session(s).dags.update({10**6: None}), "not announced"),
    "DAGs out of order": (
        lambda s: set_of("dags", dict.fromkeys(sorted(session(s).dags, reverse=True)))(s),
        "out of launch order",
    ),
    "a strange batch waits": (
        lambda s: (set_of("waiting", WAITING)(s), set_of("in_flight", session(s).in_flight - 1)(s))[0],
        "waiting batches",
    ),
    "a batch is queued before it is announced": (
        lambda s: session(s).queue.update({session(s).batches[session(s).launched - 1]: 0}),
        "queued batches",
    ),
    "more is queued than was announced": (
        lambda s: session(s).queue.update(dict.fromkeys(range(1000, 1010), 0)),
        "more batches in the queue",
    ),
    "bytes are counted wrong": (lambda s: set_of("finished_bytes", session(s).finished_bytes + 1)(s), "finished_bytes"),
    "more widen than are in flight": (set_of("widening", 9), "9 of"),
    "the largest number was not noted": (lambda s: setattr(session(s).pace, "most", 0), "pace.most"),
    "a closed session is kept": (set_of("closed", True), "closed and still kept"),
    "a session has another's name": (set_of("name", "z"), "kept as 'a'|its session is not open"),
    "a DAG has another's number": (lambda s: setattr(dag(s), "id", 10**6), "is kept as"),
    "a cancelled DAG without tasks is kept": (cancel_and_stop, "runs nothing"),
    "a DAG of no session": (
        lambda s: setattr(dag(s), "session", ScheduledSession("q", PLANS["one"], [], 1, "", Pace())),
        "not open",
    ),
    "a session does not know its DAG": (lambda s: dag(s).session.dags.pop(dag(s).id), "unknown to its session"),
    "fewer DAGs than batches in flight": (lambda s: s._dags.pop(dag(s).id), "in flight"),
    "a session waits twice": (
        lambda s: (s._held_back.update(a=session(s)), s._cramped.update(a=session(s))),
        "waits for 2 things",
    ),
    "a stranger waits": (lambda s: s._cramped.update(q=session(s)), "closed sessions wait"),
    "a check is not planned": (lambda s: (s._cramped.clear(), set_of("check_at", 5.0)(s)), "no check is planned"),
    "nobody will wake the scheduler": (
        lambda s: (s._cramped.clear(), s._wakeups.plan(session(s), 1.0)),
        "no wake-up was asked for",
    ),
    "the wake-up comes too late": (lambda s: (s._cramped.clear(), plan_late(s)), "comes after the check"),
    "a lane miscounts": (lambda s: setattr(lane(s), "running", 0), "counted as running"),
    "a lane is too full": (lambda s: setattr(lane(s), "_most", 0), "at most 0 may"),
    "a lane idles": (lambda s: setattr(lane(s), "_most", 2), "idles"),
    "a cancelled DAG's task waits": (lambda s: setattr(lane(s)._heap[0][2], "cancelled", True), "cancelled"),
    "a lane's bytes are wrong": (lambda s: setattr(lane(s), "fetching", 1e9), "fetches"),
    "consumers hold less than nothing": (lambda s: setattr(s, "_taken_bytes", -1), "consumers hold"),
    "the utilisation is no percentage": (lambda s: setattr(s._load, "percent", 101.0), "utilisation"),
    "a pace of nothing is kept": (lambda s: s._paces._paces.update(x=Pace()), "no finished batch"),
    "a pace of no loader is kept": (lambda s: s._paces._paces.update({"": Pace(finished=1)}), "without a loader"),
    "too many paces are kept": (
        lambda s: s._paces._paces.update({str(n): Pace(finished=1) for n in range(KEPT_PACES + 1)}),
        "paces are kept",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    scheduler = busy()
    damage, words = BROKEN[name]
    damage(scheduler)
    with pytest.raises(AssertionError, match=words):
        validate(scheduler)


def test_a_task_of_an_unknown_dag_is_named() -> None:
    scheduler = busy()
    queue = lane(scheduler)
    with pytest.raises(AssertionError, match="unknown DAG"):
        check_lane(queue, "cpu", [], [entry[3] for entry in queue._heap][: queue.running])


def test_events_in_logs_leave_out_bulk() -> None:
    opened = SessionOpened("s", PLANS["two"], list(range(100_000)), loader="job/0")
    assert len(repr(opened)) < 250
    assert "batches=<100000 from 0 to 99999>" in repr(opened)
    assert "plan=<plan of " in repr(opened)
    assert "batches=<7 from" not in repr(SessionOpened("s", PLANS["one"], range(7)))
    task = Task(Kind.JOIN, "hop1", 0, 0, 1, Lane.CPU, 5.0)
    done = TaskDone(3, task, [OwnedVertices(owner, 10) for owner in range(1000)])
    assert len(repr(done)) < 500
    assert "growth=<1000 from OwnedVertices(owner=0" in repr(done)
    assert repr(task) in repr(done)
