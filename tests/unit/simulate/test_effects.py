"""Effects in clusters: what limits a run, rows that batches have in common, epochs, threads that are woken, crowding."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.scheduler.coarse import Load, ScheduledSession
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import POLICIES, Policy, by_score, oldest_then_cheapest
from atta.simulate.cluster import Outcome, SimulatedCluster, limit_of, simulate
from atta.simulate.profile import HopSize, Linear, LoopCosts, Profile, Remote
from atta.simulate.reach import Overlap
from atta.simulate.scenario import Scenario
from tests.unit.simulate.scenarios import PROFILE, REPEATS, scenario

FREE = replace(PROFILE, local={}, remote={}, batch_us=0.0, spread=0.0)
"""Batches that take round trips and nothing else."""
BUSY = replace(FREE, local={"join": Linear(20_000)})
"""Batches with 60 ms of CPU time."""
SERVED = replace(FREE, remote={"feature": replace(PROFILE.remote["feature"], serve=Linear(10_000))})
"""Batches with 30 ms of CPU time at their owners."""

SENT = replace(FREE, remote={"feature": Remote(0.0, 1.0)})
"""Batches that pull 12 MB."""


@pytest.mark.parametrize(("limit", "profile", "options"), [
    ("cores", BUSY, {"cores": 1}),
    ("cores", BUSY, {"cores": 2, "train_s": 0.04, "train_threads": 2}),
    ("event loop", replace(FREE, loop=LoopCosts(task_us=2000)), {}),
    ("event loop", replace(FREE, loop=LoopCosts(request_us=2000)), {"machines": 8}),
    ("link", SENT, {"link": 1e7}),
    ("link", replace(SENT, parts=3, placement=((0, 1, 0), (0, 0, 1), (0, 1, 0))), {"machines": 3, "link": 1e7}),
    ("disk", replace(BUSY, disk_reads=0.001, disk_rate=1e4), {"machines": 1}),
    ("disk", replace(BUSY, disk_reads=0.001, disk_rate=1e9), {"machines": 1, "disk": 1e4}),
    ("trainer", BUSY, {"train_s": 0.1}),
    ("trainer", BUSY, {"cores": 3, "train_s": 0.1, "train_threads": 1}),
    ("worker threads", BUSY, {"workers": 1, "cores": 8}),
    ("serving threads", SERVED, {"serve_threads": 1, "cores": 8}),
    ("requests", FREE, {"net_in_flight": 1, "rtt_s": 20e-3}),
    ("batches in flight", FREE, {"policy": "sequential", "rtt_s": 20e-3}),
    ("batches in flight", BUSY, {"policy": "sequential", "cores": 8}),
])  # fmt: skip
def test_what_is_scarce_is_the_limit(limit: str, profile: Profile, options: dict[str, Any]) -> None:
    defaults = {"cores": 8, "workers": 8, "serve_threads": 8, "machines": 2, "link": 1e12, "train_s": 1e-4}
    outcome = simulate(scenario(profile, **{**defaults, "batches": 60, "known_batch_bytes": True, **options}))
    assert outcome.limit == limit
    if limit == "batches in flight":
        assert outcome.limit_busy < 0.75
    else:
        assert 0.75 < outcome.limit_busy <= 1 + 1e-9


def test_waiting_for_something_full_is_no_limit_of_its_own() -> None:
    things = ("cores", "event loop", "link", "disk", "trainer", "worker threads", "serving threads", "requests")
    idle = dict.fromkeys(things, 0.1)
    assert limit_of(idle) == ("batches in flight", 0.1)
    waiting = idle | {"link": 0.9, "requests": 1.0, "worker threads": 0.95}
    assert limit_of(waiting) == ("link", 0.9)
    assert limit_of(idle | {"requests": 1.0, "serving threads": 0.95}) == ("serving threads", 0.95)
    assert limit_of(idle | {"requests": 0.8}) == ("requests", 0.8)


def histogram(batches: list[set[int]]) -> list[int]:
    counts = [sum(row in batch for batch in batches) for row in set().union(*batches)]
    return [counts.count(number) for number in range(1, len(batches) + 1)]


def in_common(batches: list[set[int]], others: int) -> float:
    """Share of a batch's rows in the union of ``others`` different batches, over every batch and every choice."""
    found = total = 0
    for mine in batches:
        rest = [batch for batch in batches if batch is not mine]
        for chosen in combinations(rest, others):
            found += len(mine & set().union(*chosen))
            total += len(mine)
    return found / total


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=2, max_size=6))
@settings(max_examples=80, deadline=None)
def test_share_is_the_mean_over_all_choices(batches: list[set[int]]) -> None:
    overlap = Overlap(histogram(batches))
    shares = [overlap.share(others) for others in range(len(batches))]
    assert shares == pytest.approx([in_common(batches, others) for others in range(len(batches))])
    between = [overlap.share(others / 8) for others in range(8 * len(batches))]
    assert np.diff(between).min() > -1e-12
    assert between[-1] == shares[-1]


def test_rows_of_a_cache_are_not_pulled() -> None:
    rng = np.random.default_rng(0)
    batches = [set(np.flatnonzero(rng.random(400) < np.linspace(0.02, 1, 400)).tolist()) for _ in range(7)]
    counts = {row: sum(row in batch for batch in batches) for row in set().union(*batches)}
    wanted = sum(counts.values())
    hot = [row for row in counts if counts[row] >= 6]
    left = [{row for row in batch if row not in hot} for batch in batches]
    overlap = Overlap(histogram(batches), hit=sum(counts[row] for row in hot) / wanted)
    assert overlap.share(2) == pytest.approx(in_common(left, 2))
    assert 0 < overlap.share(2) < Overlap(histogram(batches)).share(2)
    assert Overlap(histogram(batches), hit=1.0).share(3) == 0
    assert Overlap(()).share(3) == 0


def test_batches_in_flight_ask_once() -> None:
    options: dict[str, Any] = {"policy": "prefetch", "link": 2e7, "machines": 2, "batches": 40, "train_s": 0.0}

    def sent(*, share: bool, prefetch: int) -> float:
        return simulate(scenario(REPEATS, prefetch=prefetch, share_pulls=share, **options)).link_bytes_per_batch

    alone = sent(share=False, prefetch=8)
    assert sent(share=False, prefetch=1) == pytest.approx(alone, rel=0.02)
    assert alone > 1.05 * sent(share=True, prefetch=2) > 1.05 * 1.05 * sent(share=True, prefetch=8)


def test_a_batch_fetches_when_later_ones_are_sampled_and_knows_them_no_sooner() -> None:
    """A window costs time and memory where the profile says that nothing is at hand."""
    ahead = {window: simulate(scenario(replace(FREE, window=window), rtt_s=20e-3)) for window in (0, 4)}
    assert ahead[4].rows_per_batch == ahead[0].rows_per_batch > 0
    assert ahead[4].most_held > ahead[0].most_held
    assert ahead[4].completion_ms_mean > ahead[0].completion_ms_mean
    assert simulate(scenario(replace(FREE, window=4), rtt_s=20e-3, window=0)) == ahead[0]


def test_sums_take_the_place_of_the_last_hops_rows() -> None:
    away = [hop.new * (1 - hop.home) for hop in PROFILE.hops]
    profile = replace(SENT, aggregate="mean", summed=0.25, cache_hit=0.5, window=3)
    found = simulate(scenario(profile, machines=2))
    asked = 0.5 * (sum(away[:-1]) + 0.25 * away[-1])
    assert found.rows_per_batch == pytest.approx(asked, rel=0.01)
    assert found.link_bytes_per_batch == pytest.approx(asked * PROFILE.row_bytes, rel=0.01)
    assert found.requests_per_batch == simulate(scenario(SENT, machines=2)).requests_per_batch + 1
    at_once = simulate(scenario(replace(profile, window=0), machines=2))
    assert found.completion_ms_mean == pytest.approx(at_once.completion_ms_mean, rel=0.1), "sums wait for no batch"


@pytest.mark.parametrize("options", [{"policy": "sequential"}, {"cache_hit": 1.0, "train_s": 0.0}])
def test_a_batch_shares_nothing_with_itself_nor_what_is_cached(options: dict[str, Any]) -> None:
    """A batch alone asks for all of its rows, although the pulls of its hops run together."""
    shared, alone = (scenario(REPEATS, machines=2, link=2e7, share_pulls=share, **options) for share in (True, False))
    assert simulate(shared) == simulate(alone)


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


def test_sessions_cost_what_the_profile_says_and_no_more() -> None:
    dear = replace(SMALL, session_us=5_000.0, loop=LoopCosts(session_us=3_000.0))
    free, paid = (simulate(scenario(profile, machines=2, epochs=3)) for profile in (SMALL, dear))
    assert 12 * (paid.cpu_ms_per_batch - free.cpu_ms_per_batch) == pytest.approx(3 * 8)
    with pytest.raises(ConfigError, match="how many seeds an epoch has"):
        scenario(replace(PROFILE, epoch_seeds=0), epochs=1)
    whole = replace(SMALL, epoch_seeds=2 * 10 * 1024)
    options: dict[str, Any] = {"machines": 2, "known_batch_bytes": True}
    epochs = simulate(scenario(whole, epochs=4, **options))
    once = simulate(scenario(whole, batches=40, **options))
    assert epochs.seeds_per_s == pytest.approx(once.seeds_per_s, rel=0.05)
    assert epochs.cpu_ms_per_batch == pytest.approx(once.cpu_ms_per_batch)


@pytest.mark.parametrize("away", [0.2, 0.5, 3.7])
def test_few_remote_vertices_come_in_as_many_batches_as_their_mean_says(away: float) -> None:
    profile = Profile(100, (), (HopSize(100, 1 - away / 100),), {}, parts=2)
    model = SimulatedCluster(scenario(profile, machines=2)).model
    found = [sum(s.rows for s in model.growth(0, batch, 0, 1.0) if s.owner == 1) for batch in range(1000)]
    assert sum(found) / 1000 == pytest.approx(away, abs=0.01)
    assert {math.floor(away), math.ceil(away)} == set(found)


def test_batches_take_longer_the_longer_threads_take_to_wake_but_where_all_cores_are_at_work() -> None:
    def waking(us: float, **options: Any) -> Outcome:
        return simulate(scenario(replace(PROFILE, wake_us=us), machines=2, train_s=0.0, **options))

    found = [waking(us, policy="sequential", cores=8, batches=10) for us in (0.0, 50.0, 100.0, 200.0)]
    times = [outcome.completion_ms_mean for outcome in found]
    assert all(shorter < longer for shorter, longer in pairwise(times))
    assert times[3] - times[0] == pytest.approx(2 * (times[2] - times[0]), rel=0.15)
    assert found[3].cpu_ms_per_batch == pytest.approx(found[0].cpu_ms_per_batch)
    idle, busy = (waking(us, cores=1, rtt_s=0.0).seeds_per_s for us in (0.0, 100.0))
    assert busy == pytest.approx(idle, rel=0.01)


@pytest.mark.parametrize("shared", [True, False])
def test_only_machines_that_share_cores_pay_for_crowding(shared: bool) -> None:
    profile = replace(PROFILE, crowding=1.5, spread=0.0)
    plain, crowded = (
        simulate(scenario(p, machines=2, shared_cores=shared, batches=10)).cpu_ms_per_batch
        for p in (replace(profile, crowding=1.0), profile)
    )
    assert crowded == pytest.approx(plain if shared else plain / 1.5)


def by_rules(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """The rules of ``by_score`` without the score."""
    if load.saturated or not session.may_widen(load, config):
        return math.inf
    held = session.line[1]
    return 0.0 if held == 0 or session.pace.sigma is None or held < session.pace.depth + 1 else math.inf


def by_score_alone(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """The score of the paper, with a launch where there would never be one."""
    wide, free = mock.patch.object(ScheduledSession, "may_widen"), mock.patch.object(load, "saturated", False)
    with wide, free:
        return by_score(session, load, now, replace(config, pipeline_floor=False))


@pytest.mark.slow
def test_the_launch_score_is_worth_more_than_the_rules_beside_it() -> None:
    """Where latency decides, at equal bytes. Fixed depths up to 32 are no better."""
    alone = {
        name: Policy(rule, oldest_then_cheapest, "") for name, rule in (("rules", by_rules), ("score", by_score_alone))
    }
    with mock.patch.dict(POLICIES, alone):
        found = {
            (policy, depth): simulate(
                Scenario(
                    PROFILE, batch_size=64, rtt_s=0.01, batches=200, seed=1,
                    scheduler=SchedulerConfig(policy=policy, prefetch=depth, queue_bytes=1 << 28, log_events=0),
                )
            ).seeds_per_s
            for policy, depth in [("two-level", 1), ("rules", 1), ("score", 1), ("prefetch", 16), ("prefetch", 32)]
        }  # fmt: skip
    both, rules, score, *deep = found.values()
    assert both > 1.05 * rules
    assert score == pytest.approx(both, rel=0.02)
    assert max(deep) < 1.02 * both
