"""250 seeds over all scenarios, and 250 more where long tests run. ``python -m tests.sim`` runs any number."""

from __future__ import annotations

import pytest

from tests.sim.simulation import SCENARIOS, simulate

SEEDS = {"tables": 30, "promotion": 10, "sessions": 30, "weights": 105, "leases": 75}
"""More of those that take less time."""
MORE = [pytest.param(0, id="first"), pytest.param(1, id="more", marks=pytest.mark.slow)]


def test_every_scenario_has_its_seeds() -> None:
    assert set(SEEDS) == set(SCENARIOS)
    assert sum(SEEDS.values()) == 250


@pytest.mark.parametrize("turn", MORE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold_under_faults(scenario: str, turn: int) -> None:
    for seed in range(turn * SEEDS[scenario], (turn + 1) * SEEDS[scenario]):
        outcome = simulate(scenario, seed)
        assert not outcome.error, f"again: python -m tests.sim --scenario {scenario} --from {seed}\n{outcome.error}"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_seed_repeats_its_log(scenario: str) -> None:
    first, second, other = simulate(scenario, 1), simulate(scenario, 1), simulate(scenario, 2)
    assert first.log == second.log != other.log
    assert len(first.log) > 50
