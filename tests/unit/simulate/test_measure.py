"""From counters to a profile, without any run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.engine.runner import TaskCosts
from atta.samplers.batch.items import FeatureItem, owners_of
from atta.samplers.dag.instance import OTHERS, Kind, Lane, Task
from atta.scheduler.fine import Line
from atta.simulate.fitting import Measurements, ServedDataset, Waits, profile_of


@given(
    fixed=st.floats(0, 10),
    slope=st.floats(0, 10),
    xs=st.lists(st.integers(0, 1000), min_size=2, max_size=20, unique=True),
)
def test_a_line_is_found_again(fixed: float, slope: float, xs: list[int]) -> None:
    found = Line.through((float(x), fixed + slope * x) for x in xs).fit()
    assert found == pytest.approx((fixed, slope), rel=1e-4, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=20))
def test_costs_are_never_negative(points: list[tuple[float, float]]) -> None:
    fixed, slope = Line.through(points).fit()
    assert fixed >= 0
    assert slope >= 0


def test_points_that_tell_no_slope() -> None:
    assert Line().fit() == Line.through([]).fit() == (0.0, 0.0)
    assert Line.through([(0.0, 2.0), (0.0, 4.0)]).fit() == (3.0, 0.0)
    assert Line.through([(2.0, 2.0), (2.0, 4.0)]).fit() == (0.0, 1.5)


def test_daemons_sum_by_kind_and_lane() -> None:
    costs = TaskCosts()
    here = Task(Kind.NEIGHBORHOOD, "nbr1", 0, 0, 1, Lane.CPU, 10.0)
    there = Task(Kind.NEIGHBORHOOD, "nbr1", OTHERS, 0, 1, Lane.NET, 4.0)
    for task in (here, there):
        costs.ran(task, 0.5)
        costs.answered(task, 100, 3)
    costs.ran(here, 0.7)
    names = ("n", "x", "xx", "y", "xy", "r")
    stats = costs.stats()
    assert [stats[f"cost_neighborhood_cpu_{n}"] for n in names] == pytest.approx([2, 20, 200, 1.2, 12, 0])
    assert [stats[f"cost_neighborhood_net_{n}"] for n in names] == [1, 4, 16, 100, 400, 3]


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), max_size=4))
def test_requests_are_the_owners_of_all_items_together(rows_of: list[list[int]]) -> None:
    items = []
    for counts in rows_of:
        starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(starts[-1])
        items.append(FeatureItem("node", ("x",), rows, rows, starts))
    assert owners_of(items) == len({owner for counts in rows_of for owner, rows in enumerate(counts) if rows})


BATCH, REQUEST, BYTE = 3e-3, 1e-3, 2e-9
"""Seconds of other threads on the machine that is measured."""
LOOP_BATCH, LOOP_TASK, LOOP_REQUEST, LOOP_BYTE = 7e-4, 5e-5, 3e-4, 1e-9
"""Seconds of its event loops."""


def seen(batches: int, remote: int, owners: int, nbytes: float, *, hops: int = 2, linked: bool = False) -> Measurements:
    """A run of so many batches, remote tasks and owners per remote task. ``linked``: no request is a message."""
    run = Measurements(
        batches, fresh=[100.0 * batches] * (hops + 1), home=[50.0 * batches] * (hops + 1), sizes=[300.0] * batches
    )

    def tasks(kind: str, lane: str, count: int, x: float, y: float, requests: int = 0) -> None:
        sums = zip(("n", "x", "xx", "y", "xy", "r"), (1.0, x, x * x, y, x * y, requests), strict=True)
        for name, value in sums:
            run.totals[f"cost_{kind}_{lane}_{name}"] = run.of(kind, lane, name) + count * value

    for x in (100.0, 300.0)[:hops]:
        tasks("neighborhood", "cpu", batches, x, 50e-6 + 1e-6 * x)
    tasks("seed", "cpu", batches, 0.0, 200e-6)
    tasks("feature", "cpu", batches, 1000.0, 1e-3)
    tasks("neighborhood", "net", remote, 50.0, nbytes / remote, owners)
    at_home = {kind: run.of(kind, "cpu", "n") for kind in ("neighborhood", "seed", "feature")}
    busy = sum(run.of(kind, "cpu", "y") for kind in at_home)
    requests = remote * owners
    run.totals["loop_cpu_s"] = (
        LOOP_BATCH * batches
        + LOOP_TASK * (sum(at_home.values()) + remote)
        + LOOP_REQUEST * requests * (not linked)
        + LOOP_BYTE * nbytes
    )
    run.totals["link_requests_asked"] = requests * linked
    work = 1e-6 * 50.0 * remote  # a unit takes as long for another daemon as at home
    others = work + BATCH * batches + REQUEST * requests + BYTE * nbytes
    run.totals["cpu_s"] = busy + others + run.totals["loop_cpu_s"]
    return run


def test_what_is_left_is_told_apart() -> None:
    """Over eight partitions, with seven owners per task, and fewer in batches of few vertices."""
    runs = [seen(20, 80, 7, 4e7), seen(80, 320, 7, 4e7), seen(90, 300, 2, 1e5), seen(20, 20, 7, 1e6, hops=1)]
    made = profile_of(runs, ServedDataset("id", 8, 8.0, 4000), 100, (5, 5), measured={"where": "here"})
    assert made.local["neighborhood"].fixed_us == pytest.approx(50)
    assert made.local["neighborhood"].us_per_unit == pytest.approx(1)
    assert made.local["seed"].fixed_us == pytest.approx(200)
    assert made.batch_us == pytest.approx(1e6 * BATCH, rel=1e-3)
    remote = made.remote["neighborhood"]
    assert remote.answer_bytes == pytest.approx(4e7 / 80 / 50)
    assert remote.receive.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    assert remote.receive.us_per_unit == pytest.approx(1e6 * BYTE / 2 * remote.answer_bytes, rel=1e-3)
    assert remote.serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    assert remote.serve.us_per_unit == pytest.approx(1 + remote.receive.us_per_unit, rel=1e-3)
    half = 1e6 * LOOP_REQUEST / 2
    found = made.loop.batch_us, made.loop.task_us, made.loop.request_us, made.loop.answer_us, made.loop.us_per_byte
    assert found == pytest.approx((1e6 * LOOP_BATCH, 1e6 * LOOP_TASK, half, half, 1e6 * LOOP_BYTE), rel=1e-3)
    assert [hop.new for hop in made.hops] == [100.0] * 3
    assert [hop.home for hop in made.hops] == [0.5] * 3
    assert made.degree == pytest.approx((100 + 300) / (50 + 50))  # in-edges of the vertices expanded at home
    assert made.parts == 8
    assert made.spread == pytest.approx(0.0, abs=1e-9)
    assert made.measured["where"] == "here"


def test_requests_over_links_cost_the_event_loops_nothing() -> None:
    runs = [
        seen(20, 80, 7, 4e7, linked=True),
        seen(80, 320, 7, 4e7, linked=True),
        seen(90, 300, 2, 1e5, linked=True),
        seen(20, 20, 7, 1e6, hops=1, linked=True),
    ]
    made = profile_of(runs, ServedDataset("id", 8, 8.0, 4000), 100, (5, 5), measured={})
    found = made.loop.batch_us, made.loop.task_us, made.loop.us_per_byte
    assert found == pytest.approx((1e6 * LOOP_BATCH, 1e6 * LOOP_TASK, 1e6 * LOOP_BYTE), rel=1e-3)
    assert made.loop.request_us == made.loop.answer_us == 0
    assert made.remote["neighborhood"].serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)


def test_with_two_partitions_the_event_loops_share_of_a_request_counts_as_its_tasks() -> None:
    runs = [seen(20, 80, 1, 4e7), seen(80, 320, 1, 4e7), seen(90, 360, 1, 1e5), seen(20, 20, 1, 1e6, hops=1)]
    made = profile_of(runs, ServedDataset("id", 2, 8.0, 4000), 100, (5, 5), measured={})
    assert made.loop.request_us == made.loop.answer_us == 0
    assert made.remote["neighborhood"].serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    tasks = 2 + 1 + 1 + 4  # of a batch: two hops, seeds and rows at home, four of the other owner
    whole = LOOP_BATCH + LOOP_TASK * tasks + LOOP_REQUEST * 4
    assert made.loop.batch_us + tasks * made.loop.task_us == pytest.approx(1e6 * whole, rel=0.05)


SESSION, LOOP_SESSION = 8e-3, 4e-3


def opened(run: Measurements, sessions: int) -> Measurements:
    """The same run, with the costs of its sessions."""
    run.totals["sessions_opened"] = sessions
    run.totals["loop_cpu_s"] += LOOP_SESSION * sessions
    run.totals["cpu_s"] += (LOOP_SESSION + SESSION) * sessions
    return run


def test_sessions_are_told_from_batches_by_an_epoch_of_one_batch() -> None:
    runs = [
        opened(seen(24, 96, 7, 4e7, linked=True), 8),
        opened(seen(96, 384, 7, 4e7, linked=True), 8),
        opened(seen(900, 3000, 2, 1e5, linked=True), 8),
        opened(seen(32, 64, 7, 1e6, hops=1, linked=True), 32),
        opened(seen(24, 48, 7, 1e6, hops=1, linked=True), 8),
    ]
    made = profile_of(runs, ServedDataset("id", 8, 8.0, 4000), 100, (5, 5), measured={})
    assert made.session_us == pytest.approx(1e6 * SESSION, rel=1e-3)
    assert made.loop.session_us == pytest.approx(1e6 * LOOP_SESSION, rel=1e-3)
    assert made.batch_us == pytest.approx(1e6 * BATCH, rel=1e-3)
    assert made.loop.batch_us == pytest.approx(1e6 * LOOP_BATCH, rel=1e-3)


@pytest.mark.parametrize(("dearer", "crowding"), [(1.3, 1.3), (1.0, 1.0), (0.9, 1.0)])
def test_crowding_is_what_a_batch_costs_beside_others_over_what_it_costs_alone(dearer: float, crowding: float) -> None:
    run, alone = seen(20, 80, 1, 4e7), seen(20, 80, 1, 4e7)
    run.totals["cpu_s"] *= dearer
    described, waits = ServedDataset("id", 2, 8.0, 4000), Waits(2e-4, 1e-3)
    made = profile_of([run, seen(80, 320, 1, 4e7)], described, 100, (5, 5), measured={}, alone=alone, waits=waits)
    assert made.crowding == pytest.approx(crowding)
    assert (made.wake_us, made.timer_us) == pytest.approx((200.0, 1000.0))
