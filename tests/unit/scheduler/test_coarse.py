"""The launch score, its measurements, and the cost model against numpy's weighted least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.coarse import (
    KEPT_PACES,
    SIZE_MARGIN,
    Load,
    Pace,
    PaceMemory,
    ScheduledSession,
    balance,
    headroom,
    launch_score,
)
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.fine import ENOUGH, FORGETTING, CostModel, Line
from atta.scheduler.policies import by_score
from tests.unit.scheduler.harness import PLANS

CONFIG = SchedulerConfig()
times = st.floats(0.01, 1e5)
percents = st.floats(0, 100)
queues = st.integers(0, 100)


def score(gap: float = 10.0, c: float = 50.0, q: float = 4, sample: float = 40.0, train: float = 20.0) -> float:
    return launch_score(gap, Pace(sample, train), CONFIG, utilisation=c, queued=q)


def test_headroom_and_score_have_the_values_of_the_paper() -> None:
    for percent, value in ((0, 100.0), (50, 90.95), (80, 60.9), (95, 20.8), (100, 0.0)):
        assert headroom(percent) == pytest.approx(value, abs=0.05)
    assert headroom(-3) == headroom(0) == pytest.approx(100)
    assert headroom(130) == headroom(100) == pytest.approx(0, abs=1e-9)
    assert score() == pytest.approx(10 * headroom(50) * 40 / (20 * 4))
    assert score(q=0) == score(q=0.5) == pytest.approx(10 * headroom(50) * 40 / (20 * 0.5))
    assert score(c=100) == pytest.approx(10 * 1.0 * 40 / (20 * 4))
    unknown = launch_score(10, Pace(40, None), CONFIG, utilisation=50, queued=4)
    assert unknown == pytest.approx(10 * headroom(50) / 4)
    assert balance(None, 20, 2, 0.5) == 0.5


@given(gap=times, more=st.floats(1.001, 100), c=percents, d=percents, q=queues, r=queues, sample=times, train=times)
def test_score_falls_with_queue_and_utilisation_and_training_and_rises_with_gap_and_sampling(
    gap: float, more: float, c: float, d: float, q: int, r: int, sample: float, train: float
) -> None:
    base, ((idle, busy), (short, long)) = score(gap, c, q, sample, train), (sorted((c, d)), sorted((q, r)))
    assert score(gap, c, short, sample, train) >= score(gap, c, long, sample, train)
    if CONFIG.empty_queue <= short < long:
        assert score(gap, c, short, sample, train) > score(gap, c, long, sample, train)
    assert score(gap, idle, q, sample, train) >= score(gap, busy, q, sample, train)
    if headroom(idle) > CONFIG.least_headroom and busy - idle > 1e-6:
        assert score(gap, idle, q, sample, train) > score(gap, busy, q, sample, train)
    assert score(gap * more, c, q, sample, train) > base
    assert score(gap, c, q, sample * more, train) > base
    assert score(gap, c, q, sample, train * more) < base
    assert base > 0, "the floor of f keeps the score growing on a full machine"


def test_load_is_a_running_mean_over_a_tenth_of_a_second() -> None:
    load = Load(0.1)
    assert load.percent == 0.0, "unknown counts as idle"
    load.sample(40, 1.0)
    assert load.percent == 40
    load.sample(90, 1.1)
    assert load.percent == pytest.approx(40 + (1 - math.exp(-1)) * 50)
    load.sample(150, 100.0)
    assert load.percent == pytest.approx(100)
    load.sample(-5, 100.0)  # no time has passed
    assert load.percent == pytest.approx(100)


def test_sigma_is_calibrated_at_the_operating_point_and_then_frozen() -> None:
    pace = Pace()
    for ms in (10.0, 30.0, 20.0):
        pace.sampled(ms, 100, CONFIG)
    assert pace.sigma == pytest.approx(20.0 * headroom(95) / 4)
    for _ in range(5):
        pace.sampled(20.0, 100, CONFIG)
    frozen = pace.sigma
    for _ in range(20):
        pace.sampled(500.0, 100, CONFIG)
    assert pace.sigma == frozen == pytest.approx(20.0 * headroom(95) / 4)
    assert pace.sample_ms == pytest.approx(500, rel=0.02)


def test_at_the_operating_point_launches_keep_pace_with_consumption() -> None:
    """With C = C*, Q = Q*, T_sample at its mean: the score reaches sigma exactly when T_gap = T_train."""
    pace = Pace()
    for _ in range(8):
        pace.sampled(35.0, 1, CONFIG)
    for train in (2.0, 17.0, 300.0):
        assert score(train, 95, 4, 35.0, train) == pytest.approx(pace.sigma)


def test_running_means_and_sizes() -> None:
    pace = Pace()
    pace.sampled(10.0, 1000, CONFIG)
    pace.sampled(20.0, 600, CONFIG)
    assert pace.sample_ms == pytest.approx(12)
    assert pace.batch_bytes == SIZE_MARGIN * 1000
    pace.trained(30.0, 1, CONFIG)
    assert pace.train_ms == 30
    pace.trained(30.0, 3, CONFIG)  # three consumers drain the queue three times as fast
    assert pace.train_ms == pytest.approx(30 + 0.2 * (10 - 30))


def test_a_session_inherits_the_pace_of_the_one_before() -> None:
    pace = Pace()
    for _ in range(20):
        pace.sampled(50.0, 1000, CONFIG)
    heir = pace.inherited(CONFIG)
    assert heir.sigma == pytest.approx(50.0 * headroom(95) / 4)
    heir.sampled(5000.0, 10, CONFIG)
    assert heir.sigma == pytest.approx(50.0 * headroom(95) / 4)
    assert pace.sample_ms == pytest.approx(50)
    assert Pace().inherited(CONFIG) == Pace()


def session(**options: object) -> ScheduledSession:
    pace = Pace(sample_ms=40, train_ms=20, sigma=200.0, batch_bytes=10.0, most=CONFIG.dag_cap)
    made = ScheduledSession("s", PLANS["one"], range(100), 1, "", pace)
    made.last_launch = 0.0
    for name, value in options.items():
        setattr(made, name, value)
    return made


def test_the_wait_until_a_launch_is_exact_between_one_and_a_hundred_milliseconds() -> None:
    made = session(in_flight=1, queue=dict.fromkeys(range(4), 0))
    load = Load(0.1)
    load.sample(50, 0)
    due_ms = 200.0 / (headroom(50) * 40 / (20 * 4))  # the gap at which the score is sigma
    assert due_ms == pytest.approx(4.398, abs=0.001)
    assert by_score(made, load, due_ms / 1e3 + 1e-9, CONFIG) == 0
    assert by_score(made, load, (due_ms - 2) / 1e3, CONFIG) == pytest.approx(2e-3)
    assert by_score(made, load, (due_ms - 0.1) / 1e3, CONFIG) == 1e-3
    made.pace.sigma = 1e9
    assert by_score(made, load, 0.0, CONFIG) == 0.1


def test_liveness_calibration_and_saturation() -> None:
    load = Load(0.1)
    load.sample(100, 0)
    assert by_score(session(), load, 0.0, CONFIG) == 0, "nothing in flight, nothing finished"
    assert by_score(session(in_flight=3), load, 0.0, CONFIG) > 0
    fresh = session(in_flight=1, pace=Pace(batch_bytes=5.0))
    assert by_score(fresh, load, 0.0, CONFIG) == 0, "no threshold is known yet"
    load = Load(0.1)
    load.saturated = True
    hungry = Pace(sample_ms=700, train_ms=1, sigma=1e-9, batch_bytes=1.0)
    for made in (session(), session(in_flight=1, pace=hungry), session(in_flight=1, pace=Pace(batch_bytes=5.0))):
        assert by_score(made, load, 1e6, CONFIG) == math.inf


def test_the_next_epoch_counts_what_its_consumer_has_before_it() -> None:
    load = Load(0.1)
    present = session(in_flight=1, queue=dict.fromkeys(range(3), 0))
    following = session(before=present)
    assert following.line == (3, 4)
    alone = session(in_flight=1, queue=dict.fromkeys(range(3), 0))
    assert by_score(following, load, 1e-4, CONFIG) == by_score(alone, load, 1e-4, CONFIG) > 0
    present.closed = True
    assert following.line == (0, 0)
    assert by_score(following, load, 1e-4, CONFIG) == 0, "nothing is left of the epoch before"


def test_more_than_four_batches_are_for_idle_workers_and_come_by_steps() -> None:
    load, old = Load(0.1), CONFIG.widening_batches
    hungry = Pace(sample_ms=700, train_ms=1, sigma=1e-9, batch_bytes=1.0, most=6, finished=old - 1)
    four, made = session(in_flight=4, pace=hungry), session(in_flight=6, pace=hungry)
    load.idle = False
    assert by_score(session(in_flight=3, pace=Pace(sigma=1e-9)), load, 1e6, CONFIG) == 0, "four are always allowed"
    assert by_score(four, load, 1e6, CONFIG) == math.inf, "although there have been six"
    waiting = session(queue=dict.fromkeys(range(5), 0), pace=hungry)
    assert by_score(waiting, load, 1e6, CONFIG) == 0, "none in flight"
    waiting.queue[5] = 0
    assert by_score(waiting, load, 1e6, CONFIG) == math.inf, "six are enough for its consumer, who has never had seven"
    load.shared = True
    assert by_score(made, load, 1e6, CONFIG) == 0, "it is a matter of turns"
    load.shared, load.idle = False, True
    assert by_score(four, load, 1e6, CONFIG) == by_score(made, load, 1e6, CONFIG) == 0
    load.sample(100, 0.0)
    assert by_score(four, load, 1e6, CONFIG) == math.inf, "the machine is busy, whoever keeps it so"
    load.sample(0, 1e6)

    made.in_flight += 1
    assert made.widened()
    assert (hungry.most, made.widening) == (7, 1)
    assert by_score(made, load, 1e6, CONFIG) == 0, "the number may double in the beginning"
    hungry.finished = old
    assert by_score(made, load, 1e6, CONFIG) == math.inf, "the seventh has not been finished"


def test_a_busy_machine_allows_one_more_batch_whenever_twice_as_many_are_finished() -> None:
    load = Load(0.1)
    load.sample(100, 0.0)
    for batches, allowed in ((0, 4), (255, 4), (256, 5), (511, 5), (512, 6), (1023, 6), (1024, 7)):
        pace = Pace(sample_ms=700, train_ms=1, sigma=1e-9, batch_bytes=1.0, most=9, finished=batches)
        assert by_score(session(in_flight=allowed - 1, pace=pace), load, 1e6, CONFIG) == 0
        assert by_score(session(in_flight=allowed, pace=pace), load, 1e6, CONFIG) == math.inf


def test_turns_go_forward_by_work_over_weight_and_idle_sessions_save_nothing() -> None:
    light, heavy = session(pace=Pace(work_ms=2.0)), session(pace=Pace(work_ms=6.0), share=3.0)
    turn = 0.0
    for _ in range(5):
        turn = light.charge(turn)
    assert (turn, light.turn) == (8.0, 10.0)
    assert heavy.charge(turn) == 8.0, "it begins now, however long it has wanted nothing"
    assert heavy.turn == 10.0


def test_pipeline_floor_keeps_as_many_as_training_takes_meanwhile() -> None:
    load = Load(0.1)
    load.sample(CONFIG.target_utilisation - 1, 0)
    slow = Pace(sample_ms=70, train_ms=20, sigma=1e9, batch_bytes=1.0, most=9)  # training takes 3.5 batches meanwhile
    assert slow.depth == 3.5
    assert by_score(session(in_flight=3, queue={1: 0}, pace=slow), load, 0.0, CONFIG) == 0
    assert by_score(session(in_flight=4, queue={1: 0}, pace=slow), load, 0.0, CONFIG) > 0
    load.sample(100, 1e6)
    assert by_score(session(in_flight=3, queue={1: 0}, pace=slow), load, 0.0, CONFIG) == math.inf, "more than four"
    assert by_score(session(in_flight=2, queue={1: 0}, pace=slow), load, 0.0, CONFIG) == 0
    plain = SchedulerConfig(pipeline_floor=False)
    assert by_score(session(in_flight=2, queue={1: 0}, pace=slow), load, 0.0, plain) > 0
    assert Pace(sample_ms=70).depth == 0


def test_caps() -> None:
    config = SchedulerConfig(queue_bytes=100, max_dags=5)
    assert session(pace=Pace(batch_bytes=1e9)).within_caps(config), "one batch is always allowed"
    assert session(in_flight=4).within_caps(config)
    assert not session(in_flight=5).within_caps(config)
    assert not session(in_flight=3, queue={1: 0}, waiting={2: (0, 0)}).within_caps(config)
    assert session(in_flight=1, finished_bytes=80).within_caps(config)
    assert not session(in_flight=2, finished_bytes=80).within_caps(config)
    assert not session(in_flight=1, pace=Pace()).within_caps(config), "an unknown size is measured first"
    assert [SchedulerConfig(workers=workers).dag_cap for workers in (1, 8, 9, 64)] == [16, 16, 18, 128]


def test_the_paces_of_the_loaders_used_last_are_kept() -> None:
    memory = PaceMemory()
    for number in range(KEPT_PACES + 5):
        memory.keep(f"loader{number}", Pace(finished=1, largest=number))
        memory.keep("used often", Pace(finished=2))
        memory.keep("empty", Pace())
        memory.keep("", Pace(finished=1))
    assert len(memory) == KEPT_PACES
    assert memory.get("used often") == Pace(finished=2)
    assert memory.get("loader5") is None
    assert memory.get("loader6") is not None
    assert memory.get("loader68") == Pace(finished=1, largest=68)
    assert memory.get("empty") is memory.get("") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"queue_bytes": 0}, "queue_bytes must be at least 1"),
        ({"max_dags": -1}, "max_dags must be at least 0, not -1"),
        ({"averaging": 0.0}, "averaging"),
        ({"target_utilisation": 100.0}, "target_utilisation"),
        ({"sleep_s": 0.0}, "sleep_s"),
        ({"empty_queue": float("nan")}, "empty_queue"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SchedulerConfig(**options)  # type: ignore[arg-type]


def task(kind: Kind, cost: float, lane: Lane = Lane.CPU) -> Task:
    return Task(kind, "op", 0, 0, 1, lane, cost)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=3, max_size=40))
def test_the_line_is_the_weighted_least_squares_one(points: list[tuple[float, float]]) -> None:
    line = Line()
    for x, y in points:
        line.add(x, y)
    x, y = np.array(points).T
    weights = FORGETTING ** np.arange(len(points))[::-1]
    fixed, slope = line.fit()
    assert fixed >= 0
    assert slope >= 0
    if np.ptp(x) < 1 or np.ptp(x) < 1e-3 * x.max():
        return  # nearly one cost: any line through the mean is good enough
    slope_wanted, fixed_wanted = np.polyfit(x, y, 1, w=np.sqrt(weights))
    scale = max(1.0, y.max())
    if slope_wanted > 1e-9 and fixed_wanted > 1e-9 * scale:
        assert fixed + slope * x == pytest.approx(fixed_wanted + slope_wanted * x, abs=1e-4 * scale)
    # For any bounds, no flat line through zero or the mean fits better.
    error = weights @ (fixed + slope * x - y) ** 2
    mean = weights @ y / weights.sum()
    assert error <= weights @ (mean - y) ** 2 * (1 + 1e-6) + 1e-3 * scale


def test_costs_of_different_kinds_become_comparable() -> None:
    model = CostModel()
    for cost in np.linspace(1e4, 1e6, 20):
        model.observe(task(Kind.FEATURE, cost), 1e-6 * (20 + 0.0002 * cost))
        model.observe(task(Kind.NEIGHBORHOOD, cost), 1e-6 * (40 + 0.05 * cost))
    few_edges, many_bytes = task(Kind.NEIGHBORHOOD, 1e5), task(Kind.FEATURE, 1e6)
    assert model.estimate(few_edges) == pytest.approx(40 + 5000, rel=1e-3)
    assert model.estimate(many_bytes) == pytest.approx(20 + 200, rel=1e-3)
    assert few_edges.cost < many_bytes.cost  # the raw figures say the opposite
    assert model.stats()["feature_cpu_per_unit_us"] == pytest.approx(0.0002, rel=1e-3)


def test_typical_figures_until_enough_tasks_have_run_and_then_the_latest() -> None:
    model, fresh = CostModel(), CostModel()
    some = task(Kind.JOIN, 1000.0)
    for _ in range(ENOUGH - 1):
        model.observe(some, 1.0)
        assert model.estimate(some) == fresh.estimate(some)
    model.observe(some, 1.0)
    assert model.estimate(some) == pytest.approx(1e6)
    assert fresh.estimate(task(Kind.FEATURE, 10.0, Lane.NET)) > fresh.estimate(task(Kind.FEATURE, 10.0))
    model = CostModel()
    for seconds, times in ((1e-3, 500), (4e-3, 1000)):
        for cost in np.resize([100.0, 200.0], times):
            model.observe(task(Kind.JOIN, cost), seconds)
    assert model.estimate(task(Kind.JOIN, 150.0)) == pytest.approx(4000, rel=0.05)
