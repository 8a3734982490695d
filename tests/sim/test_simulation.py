"""500 seeds over all scenarios. ``python -m tests.sim`` runs more."""

from __future__ import annotations

import pytest

from tests.sim.simulation import SCENARIOS, simulate

SEEDS = {"tables": 60, "promotion": 20, "sessions": 60, "weights": 210, "leases": 150}
"""More of those that take less time."""


def test_every_scenario_has_its_seeds() -> None:
    assert set(SEEDS) == set(SCENARIOS)
    assert sum(SEEDS.values()) == 500


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold_under_faults(scenario: str) -> None:
    for seed in range(SEEDS[scenario]):
        outcome = simulate(scenario, seed)
        assert not outcome.error, f"again: python -m tests.sim --scenario {scenario} --from {seed}\n{outcome.error}"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_seed_repeats_its_log(scenario: str) -> None:
    first, second, other = simulate(scenario, 1), simulate(scenario, 1), simulate(scenario, 2)
    assert first.log == second.log != other.log
    assert len(first.log) > 50
