"""From counters to a profile, without any run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.engine.task_costs import TaskCosts
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.costs import Line
from atta.simulate.fitting import Measurements, ServedDataset, profile_of


def sums(points: list[tuple[float, float]]) -> tuple[float, float, float, float, float]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return (
        float(len(points)), sum(xs), sum(x * x for x in xs), sum(ys), sum(x * y for x, y in points),
    )  # fmt: skip


@given(
    fixed=st.floats(0, 10),
    slope=st.floats(0, 10),
    xs=st.lists(st.integers(0, 1000), min_size=2, max_size=20, unique=True),
)
def test_a_line_is_found_again(fixed: float, slope: float, xs: list[int]) -> None:
    found = Line(*sums([(float(x), fixed + slope * x) for x in xs])).fit()
    assert found == pytest.approx((fixed, slope), rel=1e-4, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=20))
def test_costs_are_never_negative(points: list[tuple[float, float]]) -> None:
    fixed, slope = Line(*sums(points)).fit()
    assert fixed >= 0
    assert slope >= 0


def test_points_that_tell_no_slope() -> None:
    assert Line().fit() == (0.0, 0.0)
    assert Line(*sums([(0.0, 2.0), (0.0, 4.0)])).fit() == (3.0, 0.0)
    assert Line(*sums([(2.0, 2.0), (2.0, 4.0)])).fit() == (0.0, 1.5)


def test_daemons_sum_by_kind_and_lane() -> None:
    costs = TaskCosts()
    here = Task(Kind.NEIGHBORHOOD, "nbr1", 0, 0, 1, Lane.CPU, 10.0)
    there = Task(Kind.NEIGHBORHOOD, "nbr1", 1, 0, 1, Lane.NET, 4.0)
    for task in (here, there):
        costs.ran(task, 0.5)
        costs.answered(task, 100)
    costs.ran(here, 0.7)
    names = ("n", "x", "xx", "y", "xy")
    stats = costs.stats()
    assert [stats[f"cost_neighborhood_cpu_{n}"] for n in names] == pytest.approx([2, 20, 200, 1.2, 12])
    assert [stats[f"cost_neighborhood_net_{n}"] for n in names] == [1, 4, 16, 100, 400]


def seen(batches: int, requests: int, nbytes: float, *, hops: int = 2) -> Measurements:
    """A run on a machine where a batch takes 3 ms besides its tasks, a request 1 ms, and a byte 2 ns."""
    run = Measurements(
        batches, fresh=[100.0 * batches] * (hops + 1), home=[50.0 * batches] * (hops + 1), sizes=[300.0] * batches
    )

    def tasks(kind: str, lane: str, count: int, x: float, y: float) -> None:
        for name, value in zip(("n", "x", "xx", "y", "xy"), (1.0, x, x * x, y, x * y), strict=True):
            run.totals[f"cost_{kind}_{lane}_{name}"] = run.of(kind, lane, name) + count * value

    for x in (100.0, 300.0):
        tasks("neighborhood", "cpu", batches, x, 50e-6 + 1e-6 * x)
    tasks("seed", "cpu", batches, 0.0, 200e-6)
    tasks("feature", "cpu", batches, 1000.0, 1e-3)
    each = nbytes / requests
    tasks("neighborhood", "net", requests, 50.0, each)
    busy = sum(run.of(kind, "cpu", "y") for kind in ("neighborhood", "seed", "feature"))
    serving = requests * (50e-6 + 1e-6 * 50.0)
    run.totals["cpu_s"] = busy + serving + 3e-3 * batches + 1e-3 * requests + 2e-9 * nbytes
    return run


def test_what_is_left_is_told_apart() -> None:
    runs = [seen(20, 80, 4e7), seen(80, 320, 4e7), seen(20, 40, 1e6)]
    made = profile_of(runs, ServedDataset("id", 2, 8.0, 4000), 100, (5, 5), measured={"where": "here"})
    assert made.local["neighborhood"].fixed_us == pytest.approx(50)
    assert made.local["neighborhood"].us_per_unit == pytest.approx(1)
    assert made.local["seed"].fixed_us == pytest.approx(200)
    assert made.batch_us == pytest.approx(3000, rel=1e-3)
    remote = made.remote["neighborhood"]
    assert remote.answer_bytes == pytest.approx(4e7 / 80 / 50)
    assert remote.receive.fixed_us == pytest.approx(500, rel=1e-3)
    assert remote.receive.us_per_unit == pytest.approx(1e-3 * remote.answer_bytes, rel=1e-3)
    assert remote.serve.fixed_us == pytest.approx(50 + 500, rel=1e-3)
    assert [hop.new for hop in made.hops] == [100.0] * 3
    assert [hop.home for hop in made.hops] == [0.5] * 3
    assert made.parts == 2
    assert made.spread == pytest.approx(0.0, abs=1e-9)
    assert made.measured["where"] == "here"
