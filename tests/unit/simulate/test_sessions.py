"""Epochs as loaders run them, small remote parts, threads that are woken, and cores that parts have shared."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from atta.errors import ConfigError
from atta.scheduler import POLICIES
from atta.simulate import HopSize, LoopCosts, Profile, Scenario, SimulatedCluster, simulate
from tests.unit.simulate.scenarios import PROFILE, scenario

SMALL = replace(PROFILE, epoch_seeds=7_200, spread=0.0, parts=2)
"""With two machines an epoch has four batches: three of 1,024 seeds, and one of 528."""


@pytest.mark.parametrize("policy", POLICIES)
def test_epochs_follow_each_other_and_their_last_batch_is_what_is_left(policy: str) -> None:
    cluster = SimulatedCluster(scenario(SMALL, policy=policy, machines=2, epochs=3, lockstep=False))
    outcome = cluster.run()
    assert [cluster.model.seeds(batch) for batch in range(8)] == 2 * [1024, 1024, 1024, 528]
    assert cluster.model.vertices(3) == pytest.approx(cluster.model.vertices(0) * 528 / 1024)
    for machine in cluster.machines:
        assert machine.delivered == list(range(12))
        assert machine.held == machine.bytes == 0
    assert outcome.seeds_per_s * outcome.duration_s == pytest.approx(3 * 7_200)


def test_batches_of_an_epoch_have_the_measured_mean() -> None:
    """The profile's mean is one of full batches and the last one, which reaches more vertices per seed."""
    hops = (HopSize(900.0), HopSize(9_000.0, 0.85), HopSize(50_000.0, 0.75), HopSize(90_000.0, 0.7))
    model = SimulatedCluster(scenario(replace(SMALL, hops=hops), machines=2, epochs=1)).model
    assert sum(map(model.vertices, range(4))) / 4 == pytest.approx(sum(hop.new for hop in hops))
    assert model.vertices(3) < model.vertices(0)


def test_epochs_of_whole_batches_are_like_one_session() -> None:
    """A session is opened before the one before ends, so the machine always has something to do."""
    whole = replace(SMALL, epoch_seeds=2 * 10 * 1024)
    options: dict[str, Any] = {"machines": 2, "known_batch_bytes": True}
    epochs = simulate(scenario(whole, epochs=4, **options))
    once = simulate(scenario(whole, batches=40, **options))
    assert epochs.seeds_per_s == pytest.approx(once.seeds_per_s, rel=0.05)
    assert epochs.cpu_ms_per_batch == pytest.approx(once.cpu_ms_per_batch)


def test_sessions_cost_what_the_profile_says() -> None:
    dear = replace(SMALL, session_us=5_000.0, loop=LoopCosts(session_us=3_000.0))
    free, paid = (simulate(scenario(profile, machines=2, epochs=3)) for profile in (SMALL, dear))
    assert 12 * (paid.cpu_ms_per_batch - free.cpu_ms_per_batch) == pytest.approx(3 * 8)


def test_epochs_need_their_number_of_seeds() -> None:
    with pytest.raises(ConfigError, match="how many seeds an epoch has"):
        scenario(replace(PROFILE, epoch_seeds=0), epochs=1)


@pytest.mark.parametrize("away", [0.2, 0.5, 3.7])
def test_few_remote_vertices_come_in_as_many_batches_as_their_mean_says(away: float) -> None:
    profile = Profile(100, (), (HopSize(100, 1 - away / 100),), {}, parts=2)
    model = SimulatedCluster(scenario(profile, machines=2)).model
    found = [sum(s.rows for s in model.growth(0, batch, 0, 1.0) if s.owner == 1) for batch in range(1000)]
    assert sum(found) / 1000 == pytest.approx(away, abs=0.01)
    assert {math.floor(away), math.ceil(away)} == set(found)


def _alone(profile: Profile, **options: Any) -> Scenario:
    return scenario(profile, policy="sequential", machines=2, cores=8, batches=10, train_s=0.0, **options)


def test_batches_take_longer_the_longer_threads_take_to_wake() -> None:
    times = [simulate(_alone(replace(PROFILE, wake_us=us))).completion_ms_mean for us in (0.0, 50.0, 100.0, 200.0)]
    assert all(shorter < longer for shorter, longer in pairwise(times))
    assert times[3] - times[0] == pytest.approx(2 * (times[2] - times[0]), rel=0.15)
    cpu = [simulate(_alone(replace(PROFILE, wake_us=us))).cpu_ms_per_batch for us in (0.0, 200.0)]
    assert cpu[1] == pytest.approx(cpu[0])


def test_nobody_wakes_where_all_cores_are_at_work() -> None:
    busy = [
        simulate(scenario(replace(PROFILE, wake_us=us), machines=2, cores=1, train_s=0.0, rtt_s=0.0)).seeds_per_s
        for us in (0.0, 100.0)
    ]
    assert busy[1] == pytest.approx(busy[0], rel=0.01)


@pytest.mark.parametrize("shared", [True, False])
def test_only_machines_that_share_cores_pay_for_crowding(shared: bool) -> None:
    profile = replace(PROFILE, crowding=1.5, spread=0.0)
    plain, crowded = (
        simulate(scenario(p, machines=2, shared_cores=shared, batches=10)).cpu_ms_per_batch
        for p in (replace(profile, crowding=1.0), profile)
    )
    assert crowded == pytest.approx(plain if shared else plain / 1.5)
