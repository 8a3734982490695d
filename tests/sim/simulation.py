"""Runs seeds of scenarios, in this process or in several."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tests.sim.scenarios.leases import leases
from tests.sim.scenarios.promotion import promotion
from tests.sim.scenarios.sessions import expected, graph, sessions
from tests.sim.scenarios.tables import tables
from tests.sim.scenarios.weights import weights
from tests.sim.world import World

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
    digest: bytes
    """Of the whole log."""
    seconds: float
    """Simulated seconds."""
    kills: int
    """How many daemons were killed."""
    power_cuts: int
    """How many of them because the power failed."""


def simulate(scenario: str, seed: int) -> Outcome:
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
    digest = hashlib.sha256("\n".join(log).encode()).digest()
    return Outcome(scenario, seed, error, log, digest, lasted, kills, power_cuts)


TOGETHER = 10
"""So many seeds are one task of a process."""
TASKS_OF_A_POOL = 200
"""Then new processes take the place of these, with none of their memory."""


def several(names: Sequence[str], seeds: range, *, jobs: int, logs: bool) -> Generator[Outcome]:
    """Run ``seeds`` in ``jobs`` processes; the outcomes come in order. Close it to stop early.

    ``logs``: keep the log of every seed, not only of those that fail.
    """
    tasks = [
        (tuple(names), range(at, min(at + TOGETHER, seeds.stop)), logs)
        for at in range(seeds.start, seeds.stop, TOGETHER)
    ]
    if jobs <= 1:
        for task in tasks:
            yield from _run(task)
        return
    for first in range(0, len(tasks), TASKS_OF_A_POOL):
        pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
        try:
            for outcomes in pool.map(_run, tasks[first : first + TASKS_OF_A_POOL]):
                yield from outcomes
        finally:
            pool.shutdown(cancel_futures=True)


def _run(task: tuple[tuple[str, ...], range, bool]) -> list[Outcome]:
    names, seeds, logs = task
    outcomes = [simulate(name, seed) for seed in seeds for name in names]
    return [outcome if logs or outcome.error else replace(outcome, log=()) for outcome in outcomes]
