"""Tasks of workers that die, are slow and answer late; and how many workers there are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atta.errors import AttaError, ConfigError
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.progress import Work
from tests.unit.invariants import validate


class AnyWorkers(RuleBasedStateMachine):
    """Workers that do as they like. The counts are kept here once more, in the simplest way."""

    def __init__(self) -> None:
        super().__init__()
        self.hand_out, self.now = HandOut(max_relaunch=1000), 0.0
        self.number = 0
        self.busy: dict[int, Work] = {}
        self.counted: set[Work] = set()
        self.added: set[Work] = set()

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            work = Work(self.number // 7, self.number % 3, self.number)
            self.number += 1
            self.added.add(work)
            self.hand_out.add(work)

    @rule(worker=st.integers(0, 5))
    def take(self, worker: int) -> None:
        if worker in self.busy:
            return
        waits = self.hand_out.waiting
        work = self.hand_out.take(worker, self.now)
        assert (work is None) == (waits == 0)
        if work is not None:
            assert work not in self.counted
            self.busy[worker] = work

    @rule(worker=st.integers(0, 5))
    def answer(self, worker: int) -> None:
        if worker in self.busy:
            work = self.busy.pop(worker)
            assert self.hand_out.result(worker, work, self.now) == (work not in self.counted), "the first result counts"
            self.counted.add(work)

    @rule(worker=st.integers(0, 5))
    def die(self, worker: int) -> None:
        self.hand_out.gone(worker)
        self.busy.pop(worker, None)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for work in self.hand_out.late(self.now):
            assert work in self.added - self.counted

    @invariant()
    def counts_agree(self) -> None:
        validate(self.hand_out)

    def teardown(self) -> None:
        for worker in range(6):
            self.die(worker)
        while self.added - self.counted:
            self.take(9)
            self.answer(9)
        assert self.hand_out.take(9, self.now) is None


TestAnyWorkers = AnyWorkers.TestCase
TestAnyWorkers.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
FIRST, SECOND = Work(0, 1, 0), Work(0, 1, 1)


def test_tasks_go_out_in_order_and_once() -> None:
    hand_out = HandOut()
    for work in (Work(1, 0, 0), SECOND, Work(0, 4, 0), FIRST):
        hand_out.add(work)
    assert [hand_out.take(worker, 0.0) for worker in range(5)] == [FIRST, SECOND, Work(0, 4, 0), Work(1, 0, 0), None]


def test_a_late_task_is_done_twice_and_its_first_result_counts() -> None:
    hand_out = HandOut(timeout_s=1.0)
    hand_out.add(FIRST)
    assert hand_out.take(0, 10.0) == FIRST
    assert hand_out.late(10.9) == []
    assert hand_out.late(11.0) == [FIRST]
    assert hand_out.late(11.0) == [], "it waits for a worker"
    assert hand_out.take(1, 11.5) == FIRST
    assert hand_out.late(13.4) == [], "twice as long as before"
    assert hand_out.result(1, FIRST, 12.0)
    assert not hand_out.result(0, FIRST, 12.5)
    assert (hand_out.relaunched, hand_out.ignored, hand_out.lost) == (1, 1, 0)


def test_the_timeout_follows_the_mean() -> None:
    hand_out = HandOut()
    assert hand_out.timeout_s == 10.0
    hand_out.add(FIRST)
    hand_out.take(0, 0.0)
    hand_out.result(0, FIRST, 0.01)
    assert hand_out.timeout_s == 0.5
    for number in range(200):
        work = Work(1, 1, number)
        hand_out.add(work)
        hand_out.take(0, 0.0)
        hand_out.result(0, work, 2.0)
    assert hand_out.timeout_s == pytest.approx(10.0, rel=1e-3)


def test_tasks_of_dead_workers_go_to_others_but_not_for_ever() -> None:
    hand_out = HandOut(max_relaunch=2)
    hand_out.add(FIRST)
    for worker in range(2):
        assert hand_out.take(worker, 0.0) == FIRST
        hand_out.gone(worker)
    assert hand_out.take(2, 0.0) == FIRST
    with pytest.raises(AttaError, match=r"interval 0: a task had no result after 2 relaunches"):
        hand_out.gone(2)
    assert hand_out.lost == 3


def test_workers_that_hang_are_found_even_if_their_task_is_done() -> None:
    hand_out = HandOut(timeout_s=1.0)
    hand_out.add(FIRST)
    hand_out.take(0, 0.0)
    hand_out.late(1.0)
    hand_out.take(1, 1.0)
    hand_out.result(1, FIRST, 1.5)
    assert hand_out.stuck(29.9) == []
    assert hand_out.stuck(30.0) == [0]
    hand_out.gone(0)
    assert hand_out.stuck(99.0) == []


def test_answers_that_nobody_asked_for_are_refused() -> None:
    hand_out = HandOut()
    hand_out.add(FIRST)
    hand_out.add(SECOND)
    hand_out.take(0, 0.0)
    for worker, work in ((0, SECOND), (1, FIRST)):
        with pytest.raises(ConfigError, match="was not given"):
            hand_out.result(worker, work, 1.0)


@pytest.mark.parametrize("options", [{"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"max_relaunch": -1}])
def test_numbers_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        HandOut(**options)  # type: ignore[arg-type]


def test_the_pool_shrinks_after_three_rises_and_grows_when_the_trainer_runs_dry() -> None:
    pool = PoolSize(40, limit=20, threads=4)
    assert pool.size == 20
    assert [pool.check(queue) for queue in (5, 6, 7, 8)] == [20, 20, 20, 16]
    assert [pool.check(queue) for queue in (9, 10, 10, 11)] == [16, 16, 16, 16], "not in a row"
    assert [pool.check(queue) for queue in (6, 4, 3, 3, 2)] == [16, 16, 20, 20, 20], "never more than the limit"


def test_the_pool_starts_with_the_intervals_but_not_with_more_than_a_hundred() -> None:
    assert PoolSize(16, limit=1000).size == 16
    assert PoolSize(500, limit=1000).size == 100
    assert PoolSize(500, limit=8).size == 8
    with pytest.raises(ConfigError, match="workers=0"):
        PoolSize(5, limit=0)


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 50))
def test_the_pool_is_never_empty_nor_above_its_limit(seed: int, intervals: int, limit: int) -> None:
    pool, rng = PoolSize(intervals, limit=limit, threads=3), random.Random(seed)
    for _ in range(60):
        pool.check(rng.randrange(12))
        validate(pool)
