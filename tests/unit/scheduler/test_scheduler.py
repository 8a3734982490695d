"""Examples of scheduling, event by event."""

from __future__ import annotations

import tracemalloc
from collections import deque

import pytest

from atta.samplers.dag.instance import OTHERS, DagError, Kind, Lane, OwnedVertices, Task
from atta.scheduler.coarse import Pace, launch_score
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.events import (
    Action,
    BatchReady,
    BatchTaken,
    CancelDag,
    ConsumersHold,
    Event,
    LaunchDag,
    RunTask,
    SessionClosed,
    SessionOpened,
    TaskDone,
    Tick,
    Utilisation,
    WakeAt,
)
from atta.scheduler.scheduler import Scheduler, SchedulerError
from tests.unit.scheduler.harness import PLANS, Shell


def opened(
    policy: str = "fifo", batches: int = 4, plan: str = "one", **options: object
) -> tuple[Scheduler, list[Action]]:
    scheduler = Scheduler(SchedulerConfig(policy=policy, **options), 0)  # type: ignore[arg-type]
    return scheduler, scheduler.on(SessionOpened("s", PLANS[plan], range(batches), batch_bytes=10), 0.0)


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def runs(actions: list[Action]) -> list[tuple[int, Task]]:
    return [(a.dag, a.task) for a in actions if isinstance(a, RunTask)]


def end(scheduler: Scheduler, dag: int, task: Task, nbytes: int = 10, now: float = 0.0) -> list[Action]:
    """Run one DAG that adds no vertices to its end. All other RunTasks stay untouched."""
    while True:
        actions = scheduler.on(TaskDone(dag, task, nbytes=nbytes), now)
        following = [t for d, t in runs(actions) if d == dag]
        if not following:
            return actions
        (task,) = following


def test_a_batch_from_launch_to_queue() -> None:
    scheduler, actions = opened("sequential", batches=2, workers=2)
    assert kinds(actions) == ["LaunchDag", "RunTask"]
    assert actions[0] == LaunchDag(0, "s", 0)
    ((_, seed),) = runs(actions)
    actions = scheduler.on(TaskDone(0, seed, [OwnedVertices(0, 5, 9.0, 70.0), OwnedVertices(1, 2, 3.0, 4.0)]), 0.001)
    assert [(t.kind, t.lane) for _, t in runs(actions)] == [
        (Kind.FEATURE, Lane.CPU),  # 70 bytes take less time than 9 edges
        (Kind.NEIGHBORHOOD, Lane.CPU),
        (Kind.FEATURE, Lane.NET),
        (Kind.NEIGHBORHOOD, Lane.NET),
    ]
    ((_, join),) = [run for _, task in runs(actions) for run in runs(scheduler.on(TaskDone(0, task), 0.002))]
    assert join.kind is Kind.JOIN
    ((_, last),) = runs(scheduler.on(TaskDone(0, join), 0.003))
    assert last.kind is Kind.END
    actions = scheduler.on(TaskDone(0, last, nbytes=123), 0.004)
    assert actions[0] == BatchReady("s", 0, 0)
    assert actions[1] == LaunchDag(1, "s", 1)
    assert scheduler.stats()["finished_bytes"] == 123
    assert scheduler.on(BatchTaken("s", 0), 0.005) == []
    assert scheduler.stats()["finished_bytes"] == 0


def test_what_tasks_took_decides_which_is_cheapest() -> None:
    scheduler, actions = opened("sequential", batches=2, workers=1)
    ((_, seed),) = runs(actions)
    for _ in range(40):  # here fetching is slow
        fetch = Task(Kind.FEATURE, "x", 0, 0, 1, Lane.CPU, 70.0)
        scheduler.costs.observe(fetch, 0.5)
    ready = runs(scheduler.on(TaskDone(0, seed, [OwnedVertices(0, 5, 9.0, 70.0)]), 0.001))
    assert [t.kind for _, t in ready] == [Kind.NEIGHBORHOOD]


def test_a_worker_has_its_next_task_at_hand() -> None:
    plan = {"batches": 4, "workers": 1, "prefetch": 4}
    alone, ahead = (opened("prefetch", **plan, at_hand=spare) for spare in (0, 1))
    assert [len(runs(actions)) for _, actions in (alone, ahead)] == [1, 2]
    for scheduler, actions in (alone, ahead):
        number, task = runs(actions)[0]
        following = runs(scheduler.on(TaskDone(number, task, []), 0.001))
        assert len(following) == 1  # one for the one that has ended


def test_remote_requests_run_beside_cpu_tasks_and_within_their_own_bound() -> None:
    scheduler, actions = opened("sequential", workers=1, net_in_flight=1)
    ((_, seed),) = runs(actions)
    far = [OwnedVertices(owner, 5, 1.0, 2000.0) for owner in (1, 2, 3)]
    actions = scheduler.on(TaskDone(0, seed, [OwnedVertices(0, 5, 1.0, 2000.0), *far]), 0.0)
    assert [(t.lane, t.kind, t.owner) for _, t in runs(actions)] == [
        (Lane.CPU, Kind.NEIGHBORHOOD, 0),
        (Lane.NET, Kind.NEIGHBORHOOD, OTHERS),
    ]
    assert [a.owners for a in actions if isinstance(a, RunTask)] == [(), tuple(far)]
    _, (_, remote) = runs(actions)
    ((_, rows),) = runs(scheduler.on(TaskDone(0, remote), 0.0))
    assert (rows.lane, rows.kind, rows.owner, rows.cost) == (Lane.NET, Kind.FEATURE, OTHERS, 6000.0)


def test_two_level_launches_by_score_and_asks_to_be_woken() -> None:
    scheduler = Scheduler(SchedulerConfig(workers=1), 0)
    actions = scheduler.on(SessionOpened("s", PLANS["flat"], range(50)), 0.0)
    assert [a for a in actions if isinstance(a, LaunchDag)] == [LaunchDag(0, "s", 0)], "one batch to learn its size"
    ((_, task),) = runs(actions)
    scheduler.on(Utilisation(95.0), 0.0)
    actions = end(scheduler, 0, task, now=0.040)
    # Q = 1, C = C*, T_sample = 40 ms, T_train unknown (ratio 1).
    # The score reaches sigma at sigma / (f(C*) * 1 / 1) = 40 / 4 = 10 ms after the launch.
    assert kinds(actions) == ["BatchReady", "LaunchDag", "RunTask", "WakeAt"]
    assert actions[-1] == WakeAt(pytest.approx(0.05))  # type: ignore[arg-type]
    assert kinds(scheduler.on(Tick(), 0.0501)) == ["LaunchDag"], "the only worker has a task, and another one waits"


def test_a_launch_that_the_score_refused_is_considered_when_the_machine_is_less_busy() -> None:
    scheduler = Scheduler(SchedulerConfig(workers=2), 0)
    ((_, task),) = runs(scheduler.on(SessionOpened("s", PLANS["flat"], range(50)), 0.0))
    scheduler.on(Utilisation(100.0), 0.0)
    actions = end(scheduler, 0, task, now=0.040)
    assert kinds(actions) == ["BatchReady", "WakeAt"]
    assert actions[-1] == WakeAt(pytest.approx(0.14)), "on a full machine the score rises slowly"  # type: ignore[arg-type]
    assert kinds(scheduler.on(Utilisation(100.0), 0.1)) == [], "nothing has changed"
    assert kinds(scheduler.on(Tick(), 0.14)) == ["WakeAt"]
    assert kinds(scheduler.on(Utilisation(0.0), 0.15)) == ["LaunchDag", "RunTask", "WakeAt"]


def test_a_tick_that_comes_too_early_is_asked_for_again() -> None:
    scheduler = Scheduler(SchedulerConfig(workers=1), 0)
    ((_, task),) = runs(scheduler.on(SessionOpened("s", PLANS["flat"], range(50)), 0.0))
    scheduler.on(Utilisation(100.0), 0.0)
    (wake,) = (a for a in end(scheduler, 0, task, now=1.0) if isinstance(a, WakeAt))
    assert scheduler.on(Tick(), wake.when - 1e-3) == [wake]
    assert kinds(scheduler.on(Utilisation(100.0), wake.when - 1e-3)) == [], "the shell holds that wake-up"
    (again,) = scheduler.on(Tick(), wake.when - 1e-9)
    assert isinstance(again, WakeAt)
    assert again.when >= wake.when + 1e-3 - 2e-9, "rounding does not make it spin"


def test_bytes_cap_counts_finished_and_estimated() -> None:
    shell = Shell(SchedulerConfig(policy="fifo", queue_bytes=10_000, workers=4), size=1000)
    shell.open("s", "flat", batches=40)
    assert len(shell.launches) == 1, "nothing is known about sizes yet"
    while shell.running:
        shell.finish()
    # 1.125 * at most 1000 each: at least eight batches fit, never eleven
    assert 8 <= len(shell.launches) <= 10
    assert sum(shell.books["s"].sizes.values()) <= 10_000
    before = len(shell.launches)
    shell.take("s")
    assert len(shell.launches) == before + 1
    shell.drain()


def test_announced_batches_are_not_cancelled() -> None:
    scheduler, actions = opened("sequential", batches=2, plan="flat")
    ((_, task),) = runs(actions)
    end(scheduler, 0, task)
    assert scheduler.on(SessionClosed("s"), 0.0) == [CancelDag(1)]
    assert scheduler.on(SessionClosed("s"), 0.0) == scheduler.on(BatchTaken("s", 1), 0.0) == []
    assert scheduler.stats()["cancelled_total"] == 1
    assert "LaunchDag" in kinds(scheduler.on(SessionOpened("s", PLANS["flat"], range(1), batch_bytes=10), 0.0))


def test_stalled_sessions_leave_room_for_later_ones() -> None:
    shell = Shell(SchedulerConfig(policy="fifo", max_dags=50, buffer_bytes=20_000), size=1000)
    for number in range(4):
        shell.open(f"s{number}", batches=30, batch_bytes=1000.0)
        while shell.running:
            shell.finish()
    held = [sum(book.sizes.values()) for book in shell.books.values()]
    assert held[0] > held[1] > held[2] > held[3] > 0  # half of what is left, and so on
    assert sum(held) < 20_000
    assert held[0] <= 10_000
    for _ in range(len(shell.books["s0"].ready)):  # what a consumer holds still counts; then it gives that back
        shell.take("s0")
    launched = shell.books["s3"].launched
    shell.give_back()
    assert shell.books["s3"].launched > launched
    shell.drain()


def test_who_takes_batches_of_the_later_session_does_not_wait_for_the_earlier_one() -> None:
    """A consumer has stopped in mid-epoch and keeps its iterator."""
    shell = Shell(SchedulerConfig(workers=2), seed=1)
    shell.open("left", "one", batches=40, loader="a", batch_bytes=1000)
    shell.open("new", "one", batches=40, loader="a", batch_bytes=1000)
    for _ in range(5000):
        if shell.running:
            shell.finish(shell.rng.randrange(len(shell.running)))
        elif shell.books["new"].taken < len(shell.books["new"].ready):
            shell.take("new", 1.0)
        elif shell.wake is not None:
            shell.tick()
        shell.now += 1e-4
    assert shell.books["new"].taken == 40
    assert shell.books["left"].taken == 0


def test_measurements_outlive_a_session_of_the_same_profile() -> None:
    shell = Shell(SchedulerConfig(workers=2))
    shell.open("epoch0", "one", batches=20, loader="a")
    shell.drain()
    shell.close("epoch0")
    before = len(shell.launches)
    shell.open("epoch1", "one", batches=20, loader="a")
    assert len(shell.launches) == before + 1
    shell.now += 1.0
    if shell.wake is not None:
        shell.tick()
    assert len(shell.launches) > before + 1, "no first batch to measure"
    shell.drain()


def test_protocol_faults_are_reported() -> None:
    scheduler, actions = opened(batches=2, plan="flat")
    (_, task), _ = runs(actions)
    with pytest.raises(SchedulerError, match="open already"):
        scheduler.on(SessionOpened("s", PLANS["one"], range(3)), 0.0)
    with pytest.raises(SchedulerError, match="twice"):
        scheduler.on(SessionOpened("t", PLANS["one"], [1, 1]), 0.0)
    with pytest.raises(SchedulerError, match="0 trainers"):
        scheduler.on(SessionOpened("t", PLANS["one"], [1], trainers=0), 0.0)
    with pytest.raises(SchedulerError, match="not in the output queue"):
        scheduler.on(BatchTaken("s", 0), 0.0)
    with pytest.raises(SchedulerError, match="not running"):
        scheduler.on(TaskDone(99, task), 0.0)
    with pytest.raises(SchedulerError, match="not running"):
        scheduler.on(TaskDone(0, Task(Kind.END, "", 0, 0, 1, Lane.CPU, 0.0)), 0.0)
    with pytest.raises(DagError):
        scheduler.on(TaskDone(0, task, [OwnedVertices(0, -1)]), 0.0)
    scheduler = Scheduler(SchedulerConfig(workers=1), 0)
    ((dag, task),) = runs(scheduler.on(SessionOpened("s", PLANS["flat"], range(50)), 0.0))
    stranger = TaskDone(dag, task._replace(op="other"))
    with pytest.raises(SchedulerError, match="was not ready after"):
        scheduler.on(TaskDone(dag, task, then=[stranger]), 0.1)
    scheduler = Scheduler(SchedulerConfig(), 0)
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SchedulerError, match="share"):
            scheduler.on(SessionOpened("s", PLANS["one"], range(1), share=weight), 0.0)


def test_the_log_is_bounded_and_names_causes() -> None:
    scheduler = Scheduler(SchedulerConfig(log_events=3), 0)
    for i in range(10):
        scheduler.on(Utilisation(float(i)), float(i))
    assert [(now, event) for now, event, _ in scheduler.log] == [(i, Utilisation(float(i))) for i in (7.0, 8.0, 9.0)]
    silent = Scheduler(SchedulerConfig(log_events=0), 0)
    silent.on(Tick(), 0.0)
    assert silent.log == ()


def test_who_had_no_room_goes_on_when_consumers_let_go() -> None:
    scheduler = Scheduler(SchedulerConfig(policy="fifo", buffer_bytes=25), 0)
    scheduler.on(ConsumersHold(20), 0.0)
    for name in "ab":
        assert kinds(scheduler.on(SessionOpened(name, PLANS["one"], range(4), batch_bytes=10), 0.0)) == []
    assert kinds(scheduler.on(ConsumersHold(24), 0.0)) == []
    assert kinds(scheduler.on(ConsumersHold(16), 0.0)) == []
    scheduler.on(SessionClosed("a"), 0.0)
    (launch, _) = scheduler.on(ConsumersHold(15), 0.0)
    assert launch == LaunchDag(0, "b", 0)


def test_very_many_batches_take_no_memory() -> None:
    tracemalloc.start()
    try:
        scheduler, actions = opened("sequential", batches=1 << 31)
        assert kinds(actions) == ["LaunchDag", "RunTask"]
        assert scheduler.unlaunched("s") == (1 << 31) - 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


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


def test_a_session_is_viewed_from_opening_to_closing() -> None:
    config = SchedulerConfig(policy="sequential")
    scheduler = Scheduler(config, 0)
    assert scheduler.sessions() == ()
    ((_, task),) = runs(scheduler.on(SessionOpened("s", PLANS["one"], range(1)), 1.0))
    (view,) = scheduler.sessions()
    assert (view.name, view.batches, view.launched, view.in_flight, view.finished) == ("s", 1, 1, 1, 0)
    assert (view.score, view.sigma, view.sample_ms, view.train_ms) == (0.0, None, None, None)
    end(scheduler, 0, task, nbytes=100, now=1.01)
    scheduler.on(Utilisation(50.0), 2.0)
    (view,) = scheduler.sessions()
    assert (view.in_flight, view.finished, view.finished_bytes) == (0, 1, 100)
    assert view.sigma is not None
    expected = launch_score(1000.0, Pace(view.sample_ms), config, utilisation=50.0, queued=1)
    assert view.score == pytest.approx(expected)
    assert scheduler.sessions(3.0)[0].score == pytest.approx(2 * expected)  # grows with the gap
    scheduler.on(BatchTaken("s", 0, 7.0), 3.0)
    (view,) = scheduler.sessions()
    assert (view.finished, view.finished_bytes, view.train_ms) == (0, 0, 7.0)
    scheduler.on(SessionClosed("s"), 4.0)
    assert scheduler.sessions() == ()
    scheduler = Scheduler(SchedulerConfig(policy="fifo", workers=1), 0)
    actions = scheduler.on(SessionOpened("s", PLANS["one"], range(2), batch_bytes=1), 1.0)
    (seed,) = [a for a in actions if isinstance(a, RunTask)]
    (second,) = [a for a in scheduler.on(TaskDone(seed.dag, seed.task), 5.0) if isinstance(a, RunTask)]
    assert (seed.ready, second.dag, second.ready) == (1.0, 1, 1.0)  # since its launch: the only worker was busy


def worked(seconds: dict[str, float], weights: dict[str, float], *, until: float = 20.0) -> dict[str, float]:
    """Seconds of one worker on each session's tasks of ``seconds`` each."""
    scheduler = Scheduler(SchedulerConfig(workers=1), 0)
    spent, of_dag = dict.fromkeys(seconds, 0.0), dict[int, str]()
    running: deque[tuple[int, Task]] = deque()
    events: deque[Event] = deque(
        SessionOpened(name, PLANS["one"], range(10**6), share=weights[name], batch_bytes=1.0) for name in seconds
    )
    now = 0.0
    while now < until:
        if not events:
            dag, task = running.popleft()
            now += seconds[of_dag[dag]]
            spent[of_dag[dag]] += seconds[of_dag[dag]]
            growth = [OwnedVertices(0, 10, 5.0, 5.0)] if task.kind in (Kind.SEED, Kind.JOIN) else []
            events.append(TaskDone(dag, task, growth, None, 1 if task.kind is Kind.END else 0, seconds[of_dag[dag]]))
        for action in scheduler.on(events.popleft(), now):
            match action:
                case LaunchDag(dag, session, _):
                    of_dag[dag] = session
                case RunTask(dag, task):
                    running.append((dag, task))
                case BatchReady(session, batch, _):
                    events.append(BatchTaken(session, batch, 0.01))
    return spent


@pytest.mark.parametrize(
    ("seconds", "weights"),
    [
        ({"a": 0.001, "b": 0.001}, {"a": 1, "b": 1}),
        ({"a": 0.001, "b": 0.004}, {"a": 1, "b": 1}),
        ({"a": 0.002, "b": 0.002}, {"a": 3, "b": 1}),
        ({"a": 0.001, "b": 0.002}, {"a": 1, "b": 2}),
        ({"a": 0.001, "b": 0.001, "c": 0.003}, {"a": 2, "b": 1, "c": 1}),
    ],
)
def test_workers_are_shared_by_weight(seconds: dict[str, float], weights: dict[str, float]) -> None:
    spent = worked(seconds, weights)
    assert sum(spent.values()) == pytest.approx(20, rel=0.01)  # no worker is idle
    for name, share in spent.items():
        assert share / 20 == pytest.approx(weights[name] / sum(weights.values()), rel=0.2), spent


def test_a_session_alone_has_everything_whatever_its_weight() -> None:
    assert worked({"a": 0.001}, {"a": 0.001}, until=5.0)["a"] == pytest.approx(5, rel=0.01)
