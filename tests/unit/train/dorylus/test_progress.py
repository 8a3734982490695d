"""Intervals of several trainers, whose messages come in any order: bounds hold, and everything gets done."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atta.errors import AttaError, ConfigError
from atta.kvstore.parameter_jobs import SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.observe.timeline import document
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.progress import IntervalTracks, PipelineProgress, PipelineStage, Work, stages_of
from tests.unit.invariants import validate


class Job:
    """Trainers of a job: real weights, works that take their time, and messages under way."""

    def __init__(self, layers: int, intervals: int, world: int, epochs: int, mode: str, staleness: int) -> None:
        self.layers, self.per, self.mode, self.bound, self.epochs = layers, intervals, mode, staleness, epochs
        everybody = [(rank, number) for rank in range(world) for number in range(intervals)]
        others = {rank: [one for one in everybody if one[0] != rank] for rank in range(world)}
        self.ranks = [
            PipelineProgress(
                layers, intervals, epochs=epochs, mode=mode, staleness=staleness, rank=rank,
                forward=others[rank], backward=others[rank],
            )
            for rank in range(world)
        ]  # fmt: skip
        spec = ParameterSpec(
            "job", (1,) * layers, world * intervals, "summed", VectorStep("sgd", 1.0), "<f8", staleness, 30.0, epochs
        )
        self.job = SummedJob(spec, np.zeros(layers))
        self.doing: list[tuple[int, Work]] = []
        self.messages: list[Callable[[], None]] = []
        self.scattered: dict[tuple[int, PipelineStage], dict[tuple[int, int], int]] = {}  # as the readers know them
        for rank in range(world):
            for stage in self.ranks[0].stages:
                self.scattered[rank, stage] = dict.fromkeys(everybody, -1)
        self.ages: Counter[int] = Counter()
        self.pinned: dict[tuple[int, int, int], int] = {}

    def ask(self, rank: int) -> None:
        for work in self.ranks[rank].wanting():
            found = self.job.begin(rank * self.per + work.interval, work.epoch)
            if found is not None:
                assert found.values is not None
                self.pinned[rank, work.interval, work.epoch] = found.version
                self.ranks[rank].begun(work.interval, work.epoch, found.version)

    def start(self, rank: int, choice: int) -> bool:
        ready = self.ranks[rank].ready()
        if not ready:
            return False
        work = ready[choice % len(ready)]
        stage = self.ranks[rank].stages[work.stage]
        if stage.part.startswith("gather") and (stage.part, stage.layer) != ("gather", 0):
            before = self.ranks[rank].stages[work.stage - 1]
            if stage.part == "gather-back":
                before = PipelineStage("scatter-back", stage.layer + 1)
            age = work.epoch - min(self.scattered[rank, before].values())
            self.ages[age] += 1
            assert age <= (self.bound + 1 if self.mode == "async" and work.epoch else 0)
        if self.mode == "nopipe":
            at_work = {(w.epoch, w.stage) for r, w in self.doing if r == rank}
            assert at_work <= {(work.epoch, work.stage)}, "one stage at a time"
        self.ranks[rank].take(work)
        self.doing.append((rank, work))
        return True

    def end(self, choice: int) -> bool:
        if not self.doing:
            return False
        rank, work = self.doing.pop(choice % len(self.doing))
        stage, version = self.ranks[rank].stages[work.stage], self.pinned.get((rank, work.interval, work.epoch), 0)
        self.ranks[rank].end(work)
        if stage.part.startswith("scatter"):
            self.scattered[rank, stage][rank, work.interval] = work.epoch
            for other in range(len(self.ranks)):
                if other != rank:
                    self.messages.append(partial(self._arrive, other, stage, (rank, work.interval), work.epoch))
        if stage.gives_gradient:

            def push() -> None:
                member = rank * self.per + work.interval
                self.job.push(member, work.epoch, stage.layer, version, np.ones(1))
                self.ranks[rank].acknowledged(work.interval, work.epoch, stage.layer)

            self.messages.append(push)
        return True

    def deliver(self, choice: int) -> bool:
        if not self.messages:
            return False
        self.messages.pop(choice % len(self.messages))()
        return True

    def _arrive(self, rank: int, stage: PipelineStage, producer: tuple[int, int], epoch: int) -> None:
        self.scattered[rank, stage][producer] = max(epoch, self.scattered[rank, stage][producer])
        self.ranks[rank].arrived(stage, producer, epoch)

    def check(self) -> None:
        for one in self.ranks:
            validate(one)
        validate(self.job)

    def finish(self, rng: random.Random) -> None:
        idle = 0
        while (self.doing or self.messages or not all(one.done for one in self.ranks)) and idle < 400:
            rank, choice, act = rng.randrange(len(self.ranks)), rng.randrange(1 << 20), rng.randrange(3)
            self.ask(rank)
            done = self.start(rank, choice) if act == 0 else self.end(choice) if act == 1 else self.deliver(choice)
            idle = 0 if done else idle + 1
            self.check()
        assert all(one.done for one in self.ranks), "an interval waits for something that never comes"
        assert self.job.done
        assert self.job.weights.stashed == 0
        members = len(self.ranks) * self.per
        np.testing.assert_array_equal(self.job.weights.of(self.epochs), -float(members * self.epochs))


MODES = [("nopipe", 0), ("pipe", 0), ("async", 0), ("async", 1), ("async", 2)]
FEW = st.integers(1, 3)


@given(st.integers(0, 1 << 20), FEW, st.integers(1, 4), FEW, FEW, st.sampled_from(MODES))
@settings(max_examples=25, deadline=None)
def test_any_order_ends_within_bounds(
    seed: int, layers: int, intervals: int, world: int, epochs: int, mode: Any
) -> None:
    Job(layers, intervals, world, epochs, *mode).finish(random.Random(seed))


@pytest.mark.parametrize(("mode", "staleness"), MODES)
def test_rows_reach_the_greatest_age_and_no_more(mode: str, staleness: int) -> None:
    seen: Counter[int] = Counter()
    oldest = 0
    for seed in range(4 if mode == "async" else 1):
        job = Job(2, 3, 2, 6, mode, staleness)
        job.finish(random.Random(seed))
        seen += job.ages
        oldest = max(oldest, *(one.oldest for one in job.ranks))
    assert max(seen) == oldest
    assert (1 <= oldest <= staleness + 1) if mode == "async" else set(seen) == {0}


def test_an_epoch_ends_when_its_gradients_count() -> None:
    progress = PipelineProgress(1, 1, epochs=2)
    gather = progress.ready()[0]
    progress.take(gather)
    progress.end(gather)
    assert progress.ready() == [], "a worker needs weights"
    assert progress.wanting() == [Work(0, 1, 0)]
    progress.begun(0, 0, 0)
    loss = progress.ready()[0]
    progress.take(loss)
    progress.end(loss)
    assert progress.finished == 0
    assert progress.ready() == []
    progress.acknowledged(0, 1, 0)
    assert progress.finished == 0, "of another epoch"
    progress.acknowledged(0, 0, 0)
    assert progress.finished == 1
    assert progress.ready() == [Work(1, 0, 0)]


def test_bounds_that_make_no_sense_and_rows_that_nobody_reads_are_refused() -> None:
    for mode, staleness, words in (
        ("pipe", 1, "goes with mode=async"),
        ("async", -1, "at least 0"),
        ("fast", 0, "must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            PipelineProgress(2, 2, epochs=1, mode=mode, staleness=staleness)
    progress = PipelineProgress(2, 2, epochs=1, forward=[(1, 0)])
    progress.arrived(PipelineStage("scatter", 0), (1, 0), 0)
    for stage, producer in ((PipelineStage("scatter", 0), (1, 1)), (PipelineStage("scatter-back", 1), (1, 0))):
        with pytest.raises(ConfigError, match="nobody reads"):
            progress.arrived(stage, producer, 0)


def test_stages_of_two_layers_are_those_of_the_paper() -> None:
    assert [f"{stage.part} {stage.layer}" for stage in stages_of(2)] == [
        "gather 0", "apply 0", "scatter 0", "gather 1", "loss 1", "scatter-back 1", "gather-back 0", "apply-back 0",
    ]  # fmt: skip
    for layers in (1, 2, 3, 7):
        stages = stages_of(layers)
        assert sum(not stage.by_trainer for stage in stages) == 2 * layers - 1
        assert [stage.layer for stage in stages if stage.gives_gradient] == list(reversed(range(layers)))
    with pytest.raises(ConfigError, match="0 layers"):
        stages_of(0)


def test_tracks_are_events_up_to_a_bound() -> None:
    stages = stages_of(2)
    tracks = IntervalTracks(stages, 2, most=3)
    for stage in range(4):
        for interval in (1, 0):
            tracks.begin(Work(5, stage, interval), 3.0 * stage + interval)
        tracks.end(Work(5, stage, 1), 3.0 * stage + 2.5)
    assert [span.start for span in tracks.spans] == [1, 4, 7]
    assert tracks.left_out == 1
    events = json.loads(document(tracks.events(rank=3), {"left_out": tracks.left_out}))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["trainer 3", "interval 0", "interval 1"]
    mine = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in mine] == ["gather 0", "apply 0", "scatter 0"]
    assert [e["cat"] for e in mine] == ["trainer", "worker", "trainer"]
    assert {(e["pid"], e["tid"], e["dur"], e["args"]["epoch"]) for e in mine} == {(3, 1, 1.5e6, 5)}
    assert [e["ts"] for e in mine] == [1e6, 4e6, 7e6]


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


def test_tasks_go_out_in_order_and_answers_that_nobody_asked_for_are_refused() -> None:
    hand_out, third, last = HandOut(), Work(0, 4, 0), Work(1, 0, 0)
    for work in (last, SECOND, third, FIRST):
        hand_out.add(work)
    assert [hand_out.take(worker, 0.0) for worker in range(5)] == [FIRST, SECOND, third, last, None]
    for worker, work in ((0, SECOND), (1, FIRST), (9, FIRST)):
        with pytest.raises(ConfigError, match="was not given"):
            hand_out.result(worker, work, 1.0)
    for options in ({"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"max_relaunch": -1}):
        with pytest.raises(ConfigError, match="must be"):
            HandOut(**options)


def test_the_pool_shrinks_after_three_rises_and_grows_when_the_trainer_runs_dry() -> None:
    pool = PoolSize(40, limit=20, threads=4)
    assert pool.size == 20
    assert [pool.check(queue) for queue in (5, 6, 7, 8)] == [20, 20, 20, 16]
    assert [pool.check(queue) for queue in (9, 10, 10, 11)] == [16, 16, 16, 16], "not in a row"
    assert [pool.check(queue) for queue in (6, 4, 3, 3, 2)] == [16, 16, 20, 20, 20], "never more than the limit"

    # It starts with the intervals, but not with more than a hundred.
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
