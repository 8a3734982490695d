"""Invariants hold for seeds of all scenarios, and planted bugs are found. ``python -m tests.sim`` runs any number."""

from __future__ import annotations

import pytest

from tests.sim.planted import PLANTED, found
from tests.sim.simulation import SCENARIOS, simulate

SEEDS = {"tables": 5, "promotion": 2, "sessions": 4, "weights": 15, "leases": 11}
"""More of those that take less time."""
MORE = [pytest.param(0, 1, id="first"), pytest.param(1, 8, id="more", marks=pytest.mark.slow)]


def test_every_scenario_has_its_seeds() -> None:
    assert set(SEEDS) == set(SCENARIOS)


@pytest.mark.parametrize(("first", "end"), MORE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold_under_faults_and_a_seed_repeats_its_log(scenario: str, first: int, end: int) -> None:
    for seed in range(first * SEEDS[scenario], end * SEEDS[scenario]):
        outcome = simulate(scenario, seed)
        assert not outcome.error, f"again: python -m tests.sim --scenario {scenario} --from {seed}\n{outcome.error}"
    assert simulate(scenario, seed).log == outcome.log
    assert len(outcome.log) > 50


FEW = 12
MANY = 40


@pytest.mark.parametrize(
    "bug", ["numbers of pushes are forgotten", pytest.param("the cursor is off by one", marks=pytest.mark.slow)]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert found(bug, FEW) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nine_of_ten_planted_bugs_are_found() -> None:
    assert len(PLANTED) >= 10
    missed = [bug for bug in PLANTED if found(bug, MANY) is None]
    assert len(missed) <= len(PLANTED) // 10, f"not found within {MANY} seeds: {missed}"
