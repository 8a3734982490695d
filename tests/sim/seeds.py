"""Runs many seeds, in this process or in several."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.sim.simulation import simulate

__all__ = ["Ended", "Several", "several"]

TOGETHER = 10
"""So many seeds are one task of a process."""
TASKS_OF_A_POOL = 200
"""Then new processes take the place of these, with none of their memory."""


@dataclass(frozen=True)
class Ended:
    """How a seed has ended: ``error`` is "" if every invariant held; ``log`` is empty unless somebody will read it."""

    scenario: str
    seed: int
    error: str
    digest: bytes
    """Of the whole log."""
    log: tuple[str, ...]


@dataclass(frozen=True)
class Several:
    """Some seeds, each in all scenarios. ``next``: the seed after them."""

    ended: tuple[Ended, ...]
    next: int
    simulated_s: float
    cpu_s: float
    kills: int
    power_cuts: int


def several(names: Sequence[str], seeds: range, *, jobs: int, logs: bool) -> Generator[Several]:
    """Run ``seeds`` in ``jobs`` processes; the results come in order. Close it to stop early.

    ``logs``: keep the log of every seed, not only of those that fail.
    """
    tasks = [
        (tuple(names), range(at, min(at + TOGETHER, seeds.stop)), logs)
        for at in range(seeds.start, seeds.stop, TOGETHER)
    ]
    if jobs <= 1:
        yield from map(_run, tasks)
        return
    for first in range(0, len(tasks), TASKS_OF_A_POOL):
        pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
        try:
            yield from pool.map(_run, tasks[first : first + TASKS_OF_A_POOL])
        finally:
            pool.shutdown(cancel_futures=True)


def _run(task: tuple[tuple[str, ...], range, bool]) -> Several:
    names, seeds, logs = task
    simulated, began, ended, kills, power_cuts = 0.0, time.process_time(), [], 0, 0
    for seed in seeds:
        for name in names:
            outcome = simulate(name, seed)
            simulated += outcome.seconds
            kills, power_cuts = kills + outcome.kills, power_cuts + outcome.power_cuts
            digest = hashlib.sha256("\n".join(outcome.log).encode()).digest()
            ended.append(Ended(name, seed, outcome.error, digest, outcome.log if logs or outcome.error else ()))
    return Several(tuple(ended), seeds.stop, simulated, time.process_time() - began, kills, power_cuts)
