"""The scheduler's view of its sessions, and the time since which tasks are ready."""

from __future__ import annotations

import pytest

from atta.scheduler import (
    BatchTaken,
    LaunchDag,
    RunTask,
    Scheduler,
    SchedulerConfig,
    SessionClosed,
    SessionOpened,
    TaskDone,
    Utilisation,
)
from atta.scheduler.coarse import launch_score
from tests.unit.scheduler.harness import PLANS


def drive(scheduler: Scheduler, actions: list, now: float, nbytes: int = 100) -> list:
    """Carry out one DAG at a time, each task in 10 ms, until nothing runs. Return the last actions."""
    while runs := [a for a in actions if isinstance(a, RunTask)]:
        actions = scheduler.on(TaskDone(runs[0].dag, runs[0].task, nbytes=nbytes), now)
        now += 0.01
    return actions


def test_a_session_from_opening_to_closing() -> None:
    config = SchedulerConfig(policy="sequential")
    scheduler = Scheduler(config, 0)
    assert scheduler.sessions() == ()
    actions = scheduler.on(SessionOpened("s", PLANS["one"], range(1)), 1.0)
    (view,) = scheduler.sessions()
    assert (view.name, view.batches, view.launched, view.in_flight, view.finished) == ("s", 1, 1, 1, 0)
    assert (view.score, view.sigma, view.sample_ms, view.train_ms) == (0.0, None, None, None)
    drive(scheduler, actions, 1.01)
    scheduler.on(Utilisation(50.0), 2.0)
    (view,) = scheduler.sessions()
    assert (view.in_flight, view.finished, view.finished_bytes) == (0, 1, 100)
    assert view.sigma is not None
    expected = launch_score(1000.0, utilisation=50.0, queued=1, sample_ms=view.sample_ms, train_ms=None, config=config)
    assert view.score == pytest.approx(expected)
    assert scheduler.sessions(3.0)[0].score == pytest.approx(2 * expected)  # grows with the gap
    scheduler.on(BatchTaken("s", 0, 7.0), 3.0)
    (view,) = scheduler.sessions()
    assert (view.finished, view.finished_bytes, view.train_ms) == (0, 0, 7.0)
    scheduler.on(SessionClosed("s"), 4.0)
    assert scheduler.sessions() == ()


def test_looking_changes_nothing() -> None:
    looked, plain = (Scheduler(SchedulerConfig(), 0) for _ in range(2))
    event = SessionOpened("s", PLANS["one"], range(9))
    first = looked.on(event, 1.0)
    assert first == plain.on(event, 1.0)
    for now in (1.0, 50.0, 0.0):
        assert len(looked.sessions(now)) == 1
    done = TaskDone(first[1].dag, first[1].task)  # type: ignore[union-attr]
    assert looked.on(done, 1.1) == plain.on(done, 1.1)


def test_a_task_says_since_when_it_could_have_run() -> None:
    scheduler = Scheduler(SchedulerConfig(policy="fifo", workers=1), 0)
    actions = scheduler.on(SessionOpened("s", PLANS["one"], range(2), batch_bytes=1), 1.0)
    assert [type(a) for a in actions[:2]] == [LaunchDag, LaunchDag]
    (seed,) = [a for a in actions if isinstance(a, RunTask)]
    assert seed.ready == 1.0
    (second,) = [a for a in scheduler.on(TaskDone(seed.dag, seed.task), 5.0) if isinstance(a, RunTask)]
    assert second.dag == 1
    assert second.ready == 1.0  # ready since its launch: the only worker was busy
