"""The table of launch policies, and the places that read it."""

from __future__ import annotations

import math

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.simulate import simulate
from atta.errors import UnknownNameError
from atta.scheduler import POLICIES, Policy, Scheduler, SchedulerConfig, policy_named
from atta.scheduler.coarse import Load, ScheduledSession
from atta.scheduler.policies import oldest_then_cheapest
from atta.simulate import Scenario
from atta_bench.loader.scheduler import SchedulerBench, scheduler
from tests.unit.scheduler.harness import Shell
from tests.unit.simulate.scenarios import PROFILE


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
    assert option(simulate, "policy").metavar == f"[{'|'.join(POLICIES)}]"
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
