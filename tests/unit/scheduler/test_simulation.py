"""The table of launch policies, and policies compared on a simulated machine: deterministic, without a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.simulate import simulate as simulate_command
from atta.errors import UnknownNameError
from atta.scheduler.coarse import Load, ScheduledSession
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import POLICIES, Policy, oldest_then_cheapest, policy_named
from atta.scheduler.scheduler import Scheduler
from atta.simulate.cluster import Outcome, simulate
from atta.simulate.profile import HopSize, Linear, Profile
from atta.simulate.scenario import Scenario
from atta_bench.loader.scheduler import SchedulerBench, scheduler
from tests.unit.scheduler.harness import Shell
from tests.unit.simulate.scenarios import PROFILE

ROWS = 200.0
"""Vertices per hop. Requests for them take a round trip and nothing else."""


@dataclass(frozen=True)
class Workload:
    """``sample_ms``: CPU time of a batch. ``train_ms``: time per batch on ``train_threads`` cores (0 = elsewhere)."""

    cores: int
    sample_ms: float
    rtt_ms: float
    train_ms: float
    train_threads: int = 0
    spread: float = 0.3  # of batch sizes, log-normal

    def profile(self) -> Profile:
        """Hops, joins and features take equal parts of the CPU time, all of it for the vertices at home."""
        third_us = 1e3 * self.sample_ms / 3
        return Profile(
            batch_size=round(ROWS),
            fan_outs=(15, 10, 5),
            hops=(HopSize(ROWS, 0.5),) * 4,
            local={
                "neighborhood": Linear(us_per_unit=third_us / (3 * ROWS / 2)),
                "join": Linear(us_per_unit=third_us / (3 * ROWS)),
                "feature": Linear(us_per_unit=third_us / (4 * ROWS / 2)),
            },
            spread=self.spread,
            row_bytes=1.0,
            batch_bytes=1e6,
        )


def run(config: SchedulerConfig, work: Workload, batches: int, *, known: bool = False) -> Outcome:
    """Figures of two such machines; ``known``: the size of a batch need not be measured first."""
    return simulate(
        Scenario(
            work.profile(),
            cores=work.cores,
            rtt_s=1e-3 * work.rtt_ms,
            scheduler=config,
            train_s=1e-3 * work.train_ms,
            train_threads=work.train_threads,
            lockstep=False,
            batches=batches,
            known_batch_bytes=known,
        )
    )


WORKLOADS = {
    "sampling on the CPU": Workload(cores=2, sample_ms=20, rtt_ms=0.5, train_ms=5),
    "waiting for the network": Workload(cores=2, sample_ms=4, rtt_ms=20, train_ms=5),
    "training on the CPU": Workload(cores=2, sample_ms=5, rtt_ms=0.5, train_ms=40, train_threads=2),
    "all of it": Workload(cores=2, sample_ms=8, rtt_ms=20, train_ms=20, train_threads=2),
}
BATCHES = 150


@cache
def simulated(workload: str, policy: str, depth: int = 1, *, floor: bool = True) -> Outcome:
    work = WORKLOADS[workload]
    config = SchedulerConfig(workers=work.cores, policy=policy, prefetch=depth, pipeline_floor=floor)
    return run(config, work, BATCHES)


@pytest.mark.parametrize("workload", [
    pytest.param(name, marks=[pytest.mark.slow] * (name in ("all of it", "training on the CPU"))) for name in WORKLOADS
])  # fmt: skip
def test_two_level_is_as_good_as_the_best_fixed_depth(workload: str) -> None:
    best = max(simulated(workload, "prefetch", depth).batches_per_s for depth in (2, 4, 8, 16))
    ours = simulated(workload, "two-level")
    assert ours.batches_per_s >= 0.95 * best
    assert ours.most_held <= 16


@pytest.mark.slow
def test_no_fixed_depth_fits_all_workloads_as_well_as_the_score() -> None:
    """Small depths have a bad worst case, the launch score does not."""
    worst = {
        depth: min(
            simulated(w, "prefetch", depth).batches_per_s / simulated(w, "prefetch", 16).batches_per_s
            for w in WORKLOADS
        )
        for depth in (2, 4, 8)
    }
    assert worst[2] < 0.4
    assert worst[4] < 0.6
    assert worst[8] < 0.95
    best = simulated("all of it", "prefetch", 8).batches_per_s
    plain = simulated("all of it", "two-level", floor=False).batches_per_s
    assert 0.85 * best <= plain <= simulated("all of it", "two-level").batches_per_s
    assert simulated("training on the CPU", "two-level").trainer_busy > 0.97


@pytest.mark.parametrize("workload", ["waiting for the network", "all of it"])
def test_two_level_beats_one_dag_at_a_time(workload: str) -> None:
    assert simulated(workload, "two-level").batches_per_s >= 2.1 * simulated(workload, "sequential").batches_per_s


@pytest.mark.parametrize(("workload", "times"), [("sampling on the CPU", 3.0), ("waiting for the network", 1.3)])
def test_batches_are_made_sooner_than_by_launching_as_many_as_allowed(workload: str, times: float) -> None:
    ours, fifo = simulated(workload, "two-level"), simulated(workload, "fifo")
    assert ours.batches_per_s >= 0.98 * fifo.batches_per_s
    assert fifo.completion_ms_mean >= times * ours.completion_ms_mean


def test_oldest_first_shortens_dags() -> None:
    """32 DAGs of mixed sizes at once: mean time to completion, compared with first come, first served."""
    work = Workload(cores=2, sample_ms=20, rtt_ms=1, train_ms=0.1, spread=0.8)
    means = {}
    for policy in ("prefetch", "fifo"):
        config = SchedulerConfig(workers=2, policy=policy, prefetch=64, max_dags=64)
        outcome = run(config, work, 32, known=True)
        means[policy] = outcome.completion_ms_mean
        assert outcome.most_held == 32
    assert means["fifo"] >= 1.2 * means["prefetch"]


def test_policies_are_offered_and_unknown_ones_refused_at_every_door() -> None:
    config = SchedulerConfig(policy="two-levels")
    for door in (
        lambda: policy_named("two-levels"),
        lambda: Scheduler(config, 0),
        lambda: Scenario(PROFILE, scheduler=config),
    ):
        with pytest.raises(UnknownNameError, match="did you mean 'two-level'"):
            door()
    assert SchedulerConfig().policy in POLICIES
    assert option(simulate_command, "policy").metavar == f"[{'|'.join(POLICIES)}]"
    assert option(scheduler, "policies").default == ",".join(POLICIES)
    assert SchedulerBench.policies == tuple(POLICIES)


@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 50), st.integers(0, 50), st.floats(0, 1e9), st.floats(0, 1e9))
def test_oldest_first_means_that_age_beats_cost(name: str, a: int, b: int, cost: float, other: float) -> None:
    policy = POLICIES[name]
    if policy.oldest_first and a < b:
        assert policy.order(a, cost) < policy.order(b, other)
    assert policy.oldest_first == (name != "fifo")


def option(command: click.Command, name: str) -> click.Parameter:
    return next(p for p in command.params if p.name == name)


def test_one_entry_adds_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch in pairs: two batches when nothing is in flight."""

    def pairs(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
        return 0.0 if session.launched % 2 or session.in_flight == 0 else math.inf

    monkeypatch.setitem(POLICIES, "pairs", Policy(pairs, oldest_then_cheapest, "Launch two batches at a time."))
    shell = Shell(SchedulerConfig(policy="pairs", workers=4))
    shell.open("s", "one", batches=6, batch_bytes=1000)
    assert len(shell.launches) == 2
    shell.drain()
    assert [batch for _, _, batch in shell.launches] == shell.books["s"].batches
