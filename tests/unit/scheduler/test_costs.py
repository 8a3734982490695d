"""The cost model against numpy's weighted least squares, and its purpose: comparing tasks of different kinds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.fine import ENOUGH, FORGETTING, CostModel, Line


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


def test_typical_figures_until_enough_tasks_have_run() -> None:
    model, fresh = CostModel(), CostModel()
    some = task(Kind.JOIN, 1000.0)
    for _ in range(ENOUGH - 1):
        model.observe(some, 1.0)
        assert model.estimate(some) == fresh.estimate(some)
    model.observe(some, 1.0)
    assert model.estimate(some) == pytest.approx(1e6)
    assert fresh.estimate(task(Kind.FEATURE, 10.0, Lane.NET)) > fresh.estimate(task(Kind.FEATURE, 10.0))


def test_the_latest_tasks_count_most() -> None:
    model = CostModel()
    for seconds, times in ((1e-3, 500), (4e-3, 1000)):
        for cost in np.resize([100.0, 200.0], times):
            model.observe(task(Kind.JOIN, cost), seconds)
    assert model.estimate(task(Kind.JOIN, 150.0)) == pytest.approx(4000, rel=0.05)
