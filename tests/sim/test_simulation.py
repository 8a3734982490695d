"""A few seeds of every scenario. ``python -m tests.sim`` runs more."""

from __future__ import annotations

import pytest

from tests.sim.simulation import SCENARIOS, simulate

SEEDS = 2
"""Of each scenario; ``make test`` has a few seconds for all of them."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold_under_faults(scenario: str) -> None:
    for seed in range(SEEDS):
        outcome = simulate(scenario, seed)
        assert not outcome.error, f"again: python -m tests.sim --scenario {scenario} --from {seed}\n{outcome.error}"


def test_a_seed_repeats_its_log() -> None:
    first, second, other = simulate("tables", 1), simulate("tables", 1), simulate("tables", 2)
    assert first.log == second.log != other.log
    assert len(first.log) > 50
