"""Runs one seed of one scenario."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.sim.scenarios.graph import graph
from tests.sim.scenarios.leases import leases
from tests.sim.scenarios.promotion import promotion
from tests.sim.scenarios.sessions import expected, sessions
from tests.sim.scenarios.tables import tables
from tests.sim.scenarios.weights import weights
from tests.sim.world import World

__all__ = ["SCENARIOS", "Outcome", "simulate"]

SCENARIOS: dict[str, Callable[[World], Coroutine[Any, Any, None]]] = {
    "tables": tables,
    "promotion": promotion,
    "sessions": sessions,
    "weights": weights,
    "leases": leases,
}


@dataclass(frozen=True)
class Outcome:
    """How a seed has ended: ``error`` is "" if every invariant held; the log has a line for each event."""

    scenario: str
    seed: int
    error: str
    log: tuple[str, ...]
    seconds: float
    """Simulated seconds."""
    kills: int
    """How many daemons were killed."""
    power_cuts: int
    """How many of them because the power failed."""


def simulate(scenario: str, seed: int) -> Outcome:
    """Run a scenario under faults that the seed decides."""
    error = ""
    expected()  # made once, in a simulation of its own
    with World.of(seed, graph()) as world:
        try:
            world.run(lambda: SCENARIOS[scenario](world))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        lasted, log = world.loop.now - 1000, tuple(world.loop.log)
        kills, power_cuts = world.kills, world.power_cuts
        if not error and world.loop.failures:
            error = "; ".join(world.loop.failures)
    return Outcome(scenario, seed, error, log, lasted, kills, power_cuts)
