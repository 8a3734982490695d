"""Sessions that could each use all workers share them by weight, no matter how heavy their batches are."""

from __future__ import annotations

from collections import deque

import pytest

from atta.samplers.dag.instance import Kind, OwnedVertices, Task
from atta.scheduler import (
    BatchReady,
    BatchTaken,
    Event,
    LaunchDag,
    RunTask,
    Scheduler,
    SchedulerConfig,
    SessionOpened,
    TaskDone,
)
from atta.scheduler.scheduler import SchedulerError
from tests.unit.scheduler.harness import PLANS


def worked(seconds: dict[str, float], weights: dict[str, float], *, until: float = 20.0) -> dict[str, float]:
    """Seconds of one worker on each session's tasks of ``seconds`` each. Consumers take batches at once."""
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


def test_shares_must_be_positive() -> None:
    scheduler = Scheduler(SchedulerConfig(), 0)
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SchedulerError, match="share"):
            scheduler.on(SessionOpened("s", PLANS["one"], range(1), share=weight), 0.0)
