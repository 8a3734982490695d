"""Whole clusters: determinism, conservation, order, and times that can be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.dag.instance import OTHERS, Kind, Lane, OwnedVertices, Task
from atta.scheduler.events import RunTask
from atta.scheduler.policies import POLICIES
from atta.scheduler.scheduler import Scheduler
from atta.simulate.cluster import SimulatedCluster, simulate
from atta.simulate.machine import Machine
from atta.simulate.profile import HopSize, Linear, LoopCosts, Profile, Remote
from tests.unit.simulate.scenarios import PROFILE, REPEATS, scenario


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_scenario_gives_the_same_outcome(policy: str) -> None:
    found = [simulate(scenario(policy=policy, machines=3, train_threads=1, seed=seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(list(POLICIES)),
    machines=st.integers(1, 6),
    cores=st.integers(1, 4),
    workers=st.integers(1, 4),
    neighbours=st.integers(1, 4),
    train_threads=st.integers(0, 2),
    lockstep=st.booleans(),
    cache_hit=st.sampled_from([0.0, 0.5, 1.0]),
    profile=st.sampled_from([PROFILE, REPEATS, replace(REPEATS, loop=LoopCosts(300.0, 40.0, 70.0, 90.0))]),
    peers=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_work_and_bytes_are_conserved(policy: str, seed: int, **options: Any) -> None:
    cluster = SimulatedCluster(scenario(policy=policy, seed=seed, batches=6, **options))
    outcome = cluster.run()
    for machine in cluster.machines:
        assert machine.cores.used() == pytest.approx(machine.cores.asked_s, rel=1e-6)
        assert machine.delivered == list(range(6))
        assert len(machine.completions_s) == 6
        assert machine.held == machine.bytes == 0
        assert machine.most_held <= cluster.scenario.scheduler.dag_cap
    ports = [machine.port for machine in cluster.machines]
    assert sum(p.sent for p in ports) == pytest.approx(sum(p.received for p in ports))
    busy = (outcome.cores_busy, outcome.loop_busy, outcome.trainer_busy, outcome.uplinks_busy, outcome.downlinks_busy)
    for share in (*busy, outcome.requests_busy, outcome.limit_busy):
        assert 0 <= share <= 1 + 1e-9


TASKS = ("seed", "neighborhood", "join", "feature", "end")
LOOP = LoopCosts(batch_us=300.0, task_us=40.0, request_us=70.0, answer_us=90.0, us_per_byte=0.001)


def test_cpu_is_the_sum_of_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile's prices are paid for every task and request that a scheduler hands out, and for nothing else."""
    runs: list[RunTask] = []
    original = Scheduler.on

    def on(self: Scheduler, event: object, now: float) -> list[object]:
        actions = original(self, event, now)
        runs.extend(action for action in actions if isinstance(action, RunTask))
        return actions

    monkeypatch.setattr(Scheduler, "on", on)
    profile = replace(PROFILE, loop=LOOP)
    outcome = simulate(scenario(profile, machines=3, cache_hit=0.25, train_s=0.0))

    def price(cost: Linear, units: float) -> float:
        return cost.fixed_us + cost.us_per_unit * units

    total, nbytes, requests = 3 * 20 * (PROFILE.batch_us + LOOP.batch_us) + len(runs) * LOOP.task_us, 0.0, 0
    for task, owners in ((run.task, run.owners) for run in runs):
        local = PROFILE.local[task.kind.value]
        if task.lane is Lane.CPU:
            total += price(local, task.cost)
            continue
        remote, whole = PROFILE.remote[task.kind.value], 0.0
        for share in owners:
            cost = share.feature_bytes if task.kind is Kind.FEATURE else share.degree
            units = cost * (0.75 if task.kind is Kind.FEATURE else 1.0)
            total += price(remote.serve, units) + price(remote.receive, units) + LOOP.request_us + LOOP.answer_us
            total += local.us_per_unit * (cost - units)
            total += LOOP.us_per_byte * units * remote.answer_bytes
            nbytes += units * (remote.request_bytes + remote.answer_bytes)
            whole += cost
        requests += len(owners)
        assert task.owner == OTHERS
        assert whole == pytest.approx(task.cost)
    assert requests == 2 * sum(run.task.lane is Lane.NET for run in runs)
    assert outcome.requests_per_batch == requests / 60
    assert outcome.cpu_ms_per_batch == pytest.approx(1e-3 * total / 60, rel=1e-6)
    assert outcome.link_bytes_per_batch == pytest.approx(nbytes / 60)


def test_three_machines_make_a_batch_in_the_time_that_one_computes() -> None:
    """One batch each. All of its vertices beyond the seeds lie with the three machines in equal parts."""
    small = Profile(
        batch_size=100,
        fan_outs=(5,),
        hops=(HopSize(100), HopSize(300, 1 / 3)),
        local={name: Linear(us) for name, us in zip(TASKS, (1000, 2000, 3000, 500, 700), strict=True)},
        remote={"feature": Remote(0.1, 1.0, serve=Linear(1000, 0.1), receive=Linear(2000, 0.1))},
        loop=LoopCosts(batch_us=1000, task_us=100, request_us=200, answer_us=300),
        parts=3,
        row_bytes=100.0,
        batch_us=500.0,
    )
    options: dict[str, Any] = {"machines": 3, "cores": 8, "workers": 2, "serve_threads": 1, "batches": 1}
    cluster = SimulatedCluster(scenario(small, link=math.inf, rtt_s=4e-3, train_s=5e-3, **options))
    outcome = cluster.run()
    # Milliseconds. So small tasks at home run on the event loop, and every task's end takes 0.1 of it: SEED 1.1, rows of
    # the seeds 1.6, hop at home 3.6, both ends 3.8, JOIN 6.9. Then the rows of hop 1 are asked for at both other
    # machines, with 10,000 units each. Requests arrive at 8.9. A machine's event loop takes the first until 9.1, the
    # second until 9.3. Its only serving thread has answered them at 11.1 and at 13.1, so answers arrive at 13.1 and
    # 15.1. Each takes 0.3 of the event loop, and then 3 of the serving thread.
    first, second = 13.1, 15.1
    rows_are_here = [
        first + 0.3 + 3 + 3,  # machine 0 was the first at both owners
        first + 0.3 + 3 + 3,  # machine 1 was the first at machine 0: the second answer comes while it takes this one in
        second + 0.3 + 3 + 3,
    ]
    ends = [at + 0.1 + 0.7 + 0.1 for at in rows_are_here]  # of the event loop, END, of the event loop
    assert [1e3 * m.completions_s[0] for m in cluster.machines] == pytest.approx(ends)
    assert 1e3 * outcome.duration_s == pytest.approx(ends[2] + 1.0 + 0.5 + 5)  # hand-over, consumer, training
    assert outcome.requests_per_batch == 2
    assert outcome.loop_busy * outcome.duration_s == pytest.approx(
        1e-3 * (7 * 0.1 + 2 * 0.2 + 2 * 0.3 + 1.0 + 1 + 2 * 0.5 + 2 + 3 + 0.7)
    )


def test_a_request_may_stand_for_several() -> None:
    """16 of 31 peers asked in place of all of them: the same costs and bytes, and a rate that is a little higher."""
    options: dict[str, Any] = {"machines": 32, "batches": 6, "link": 1.25e8, "train_s": 0.0}
    profile = replace(PROFILE, loop=LOOP, remote={
        kind: Remote(0.02, 1.0, Linear(15, 0.0001), Linear(15, 0.0001)) for kind in ("neighborhood", "feature")
    })  # fmt: skip
    few, all_ = (simulate(scenario(profile, peers=peers, **options)) for peers in (16, 31))
    assert all_.requests_per_batch == pytest.approx(5 * 31, rel=1e-3)
    assert few.requests_per_batch == pytest.approx(all_.requests_per_batch, rel=1e-3)
    assert few.cpu_ms_per_batch == pytest.approx(all_.cpu_ms_per_batch, rel=1e-3)
    assert few.link_bytes_per_batch == pytest.approx(all_.link_bytes_per_batch, rel=1e-3)
    assert 1.0 <= few.seeds_per_s / all_.seeds_per_s < 1.12
    assert few.events < 0.75 * all_.events


@pytest.mark.parametrize("policy", [
    pytest.param(policy, marks=[pytest.mark.slow] * (policy != "two-level")) for policy in POLICIES
])  # fmt: skip
@pytest.mark.parametrize("lockstep", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("option", "values"), [
    ("link", (1.25e7, 1.25e8, 1.25e9)), ("cores", (1, 2, 4, 8)), ("rtt_s", (20e-3, 5e-3, 1e-4)),
])  # fmt: skip
def test_better_hardware_is_never_slower(policy: str, lockstep: bool, option: str, values: tuple[float, ...]) -> None:
    fixed = {"policy": policy, "lockstep": lockstep, "machines": 3, "batches": 60, "known_batch_bytes": True}
    rates = [simulate(scenario(**fixed, **{option: v})).seeds_per_s for v in values]
    assert all(better >= 0.98 * worse for worse, better in pairwise(rates)), rates


def test_one_core_and_no_network_does_one_batch_per_batch_of_cpu() -> None:
    alone = replace(PROFILE, spread=0.0)
    outcome = simulate(scenario(alone, workers=1, machines=1, cores=1, batches=100, train_s=0.0))
    assert outcome.link_bytes_per_batch == 0
    assert outcome.batches_per_s == pytest.approx(1e3 / outcome.cpu_ms_per_batch, rel=1e-6)
    hops = [1024.0, 10_000.0, 60_000.0, 100_000.0]
    cost_us = 200 + 50 + 1500 + sum(30 + 0.0003 * 264 * n for n in hops)
    cost_us += sum(50 + 0.01 * 30 * n for n in hops[:-1])
    cost_us += sum(100 + 0.02 * n * min(30, f) for n, f in zip(hops[:-1], (15, 10, 5), strict=True))
    cost_us += sum(30 for n in hops if n > 65_536)  # its features come in two chunks
    assert outcome.cpu_ms_per_batch == pytest.approx(1e-3 * cost_us, rel=1e-6)


def test_waiting_and_bytes_take_their_time() -> None:
    # No CPU cost, one batch at a time. Hops 2 and 3 and the last features take a round trip each. Hop 1 is at home.
    free = replace(PROFILE, local={}, remote={}, batch_us=0.0)
    outcome = simulate(scenario(free, policy="sequential", machines=2, batches=10, rtt_s=10e-3, train_s=0.0))
    assert outcome.completion_ms_mean == pytest.approx(30.0)
    assert outcome.duration_s == pytest.approx(10 * 30e-3)
    # One remote hop. Request and answer of its features pass a link that carries 1 MB/s, full duplex.
    feature = Remote(0.1, 1.0, serve=Linear(2000), receive=Linear(3000))
    hops = HopSize(100, 1.0), HopSize(400, 0.5)
    small = Profile(100, (5,), hops, local={}, remote={"feature": feature}, parts=2, row_bytes=100.0)
    link = 1e6 / 0.956  # headers
    outcome = simulate(scenario(small, policy="sequential", machines=2, link=link, rtt_s=4e-3, batches=5, train_s=0.0))
    # 200 rows of 100 bytes: 2 ms request + 20 ms answer + round trip + 2 ms serving + 3 ms receiving
    assert outcome.completion_ms_mean == pytest.approx(2 + 20 + 4 + 2 + 3)
    assert outcome.link_bytes_per_batch == pytest.approx(22_000)


def test_trainers_in_lockstep_are_never_a_batch_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = dict.fromkeys((True, False), 0)
    original = Machine._take
    for lockstep in (True, False):
        cluster = SimulatedCluster(scenario(machines=6, cores=2, link=1e9, batches=30, train_s=0.01, lockstep=lockstep))

        def take(machine: Machine, batch: int, cluster: SimulatedCluster = cluster, lockstep: bool = lockstep) -> None:
            original(machine, batch)
            counts = [len(m.delivered) for m in cluster.machines]
            apart[lockstep] = max(apart[lockstep], max(counts) - min(counts))

        monkeypatch.setattr(Machine, "_take", take)
        cluster.run()
        assert all(machine.delivered == list(range(30)) for machine in cluster.machines)
    assert apart[True] == 1
    assert apart[False] > 1


def test_the_slower_of_trainer_and_sampling_sets_the_pace() -> None:
    outcome = simulate(scenario(machines=2, batches=100, train_s=0.1))
    assert outcome.trainer_busy > 0.97
    assert outcome.batches_per_s == pytest.approx(10, rel=0.03)
    on_cpu = simulate(scenario(machines=2, batches=60, cores=2, train_s=0.1, train_threads=2))
    assert on_cpu.cores_busy > 0.9


def test_owners_of_a_hop_are_no_more_than_its_vertices_and_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[tuple[int, int, str], set[int]] = {}
    original = Machine._ask

    def ask(self: Machine, dag: int, task: Task, owners: Sequence[OwnedVertices]) -> None:
        asked[self.index, dag, task.op] = {share.owner for share in owners}
        original(self, dag, task, owners)

    monkeypatch.setattr(Machine, "_ask", ask)
    few = replace(PROFILE, hops=(HopSize(8, 1.0), HopSize(10, 0.8), HopSize(100, 0.0), HopSize(100, 0.0)), spread=0.0)
    simulate(scenario(replace(few, batch_size=8), machines=30, neighbours=6, batches=2))
    owners = {op: {len(found) for (_, _, o), found in asked.items() if o == op} for op in ("feature1", "feature2")}
    # With 30 machines, the 2 of 10 remote vertices have become 3.9. Four vertices at random lie with 3.1 of 6 owners.
    assert owners == {"feature1": {3}, "feature2": {6}}
    served = [sum(i in found for found in asked.values()) for i in range(30)]
    assert max(served) - min(served) <= 4


@pytest.mark.parametrize(("owners", "vertices"), [(6, 4), (63, 20), (63, 500), (255, 100), (1, 3)])
def test_requests_are_the_owners_that_a_task_touches(owners: int, vertices: int) -> None:
    rng = np.random.default_rng(owners)
    touched = np.mean([len(set(rng.integers(0, owners, vertices).tolist())) for _ in range(4000)])
    profile = Profile(8, (2,), (HopSize(8), HopSize(vertices, 0.0)), {}, row_bytes=1.0)
    outcome = simulate(scenario(profile, machines=owners + 1, batches=1))
    # Up to 16 owners a whole number of them is asked; beyond, requests stand for what they touch on average.
    assert outcome.requests_per_batch == pytest.approx(touched, rel=0.01 if owners > 16 else 0.1)


def test_vertices_of_an_unknown_cut_lie_at_random_and_more_machines_keep_less_at_home() -> None:
    """One partition was measured, so all of its vertices were at home. The seeds stay there."""
    one = replace(PROFILE, parts=1, hops=tuple(HopSize(hop.new, 1.0) for hop in PROFILE.hops))
    model = SimulatedCluster(scenario(one, machines=4)).model
    assert [hop.home for hop in model.hops] == [1.0, 0.25, 0.25, 0.25]
    assert {hop.home for hop in SimulatedCluster(scenario(one, machines=1)).model.hops} == {1.0}
    home = [SimulatedCluster(scenario(machines=machines)).model.hops[1].home for machines in (1, 2, 8)]
    assert home == pytest.approx([1.0, 0.85, 1 - 0.15 * (7 / 8) / (1 / 2)])


def test_other_batch_sizes_and_fan_outs_scale_the_batch() -> None:
    whole, half = (SimulatedCluster(scenario(batch_size=size, batches=4)) for size in (1024, 512))
    assert half.model.hops[3].new == pytest.approx(whole.model.hops[3].new / 2)
    assert half.model.batch_bytes(1.0) == pytest.approx(whole.model.batch_bytes(1.0) / 2, rel=1e-3)
    shallow = SimulatedCluster(scenario(fan_outs=(15, 5), batches=4))
    assert [hop.new for hop in shallow.model.hops] == pytest.approx([1024, 10_000, 30_000])
    assert shallow.run().cpu_ms_per_batch < whole.run().cpu_ms_per_batch


def test_measured_owners_are_asked_as_much_as_they_were() -> None:
    """Machine 0 wants twice the mean from machine 1, machine 1 a third of it from machine 2, machine 2 the rest."""
    placement = ((0.0, 2.0, 0.0), (0.0, 0.0, 1 / 3), (1 / 3, 1 / 3, 0.0))
    model = SimulatedCluster(scenario(replace(PROFILE, parts=3, placement=placement), machines=3)).model
    hop = model.hops[2]
    away = hop.new * (1 - hop.home)
    for machine, row in enumerate(placement):
        shares = {share.owner: share.rows for share in model.growth(machine, 0, 2, 1.0)}
        assert sum(shares.values()) == pytest.approx(hop.new, abs=2)
        for owner, factor in enumerate(row):
            assert shares.get(owner, 0) == pytest.approx(away * factor, abs=1) or owner == machine
    # Another number of machines has no such owners, so all get equal shares.
    others = SimulatedCluster(scenario(replace(PROFILE, parts=3, placement=placement), machines=4)).model
    assert len({share.rows for share in others.growth(0, 0, 2, 1.0) if share.owner}) <= 2
