"""Members of a job without barriers push gradients while answers are lost and their daemon is stopped.

Every gradient subtracts -1 from a weight of its own, so the weights tell how often each was applied: a gradient that
was acknowledged once, any other at most once. A member whose lease was over joins anew. The daemon is never killed: the
weights would be gone, and members would be told so. It may forget a job that nobody asks about for several leases, but
no earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atta.errors import UnknownClientError, UnknownNameError
from atta.kvstore.parameter_jobs import JOB_LEASES
from atta.kvstore.parameters import ParameterSpec, VectorStep
from tests.sim.scenarios.faults import bad_weather, healed, outages
from tests.sim.scenarios.sessions import EXPECTED, connected, patiently, served
from tests.sim.threads import current
from tests.sim.world import World

MEMBERS, STEPS = 2, 6
SPEC = ParameterSpec(
    "job", (MEMBERS * STEPS,), MEMBERS, "arrival", VectorStep("sgd", 1.0), bound=2, lease_s=6.0, max_updates=0
)


@dataclass
class _Job:
    """What members know of their job: gradients by their weight, and when the daemon last answered anybody."""

    acknowledged: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    answered: float = 0.0
    forgotten: bool = False


def _member(world: World, number: int, known: _Job) -> Callable[[], None]:
    def patiently_but(ask: Callable[[], Any]) -> Any:
        """As ``patiently``, but a member whose life is over must know."""
        for _ in range(400):
            try:
                found = ask()
            except UnknownClientError:
                known.answered = world.loop.now
                raise
            except UnknownNameError:
                assert world.loop.now - known.answered > JOB_LEASES * SPEC.lease_s, "a job was forgotten too early"
                known.forgotten = True
                raise
            except EXPECTED:
                current().park(0.5)
            else:
                known.answered = world.loop.now
                return found
        raise AssertionError("a daemon never answers")

    def created(job: Any) -> tuple[int, int]:
        """The job's version, and how many gradients were acknowledged before this attempt: it may have been forgotten
        during an earlier one."""
        before = len(known.acknowledged)
        return job.create(np.zeros(SPEC.size, np.float32)), before

    def push(job: Any, life: int, step: int) -> None:
        column = number * STEPS + step
        gradient = np.zeros(SPEC.size, np.float32)
        gradient[column] = -1
        known.sent.add(column)
        patiently_but(lambda: job.push(number, step, gradient, life=life))
        known.acknowledged.add(column)
        world.event(f"member {number}: gradient {step} is acknowledged")

    def work() -> None:
        with connected(world) as cluster:
            job, life, step = cluster.weights(SPEC), 0, 0
            version, before = patiently(lambda: created(job))
            if version < before:  # this member is so late that it has created the job anew
                assert world.loop.now - known.answered > JOB_LEASES * SPEC.lease_s, "a job was forgotten too early"
                known.forgotten = True
                world.event(f"member {number}: its job was forgotten before it came")
            while step < STEPS and not known.forgotten:
                life += 1
                try:
                    step = patiently_but(lambda life=life: job.join(number, life))
                    while step < STEPS:
                        patiently_but(lambda life=life, step=step: job.begin(number, step, life=life, within_s=60))
                        push(job, life, step)
                        step += 1
                except UnknownClientError:
                    world.event(f"member {number}: its life {life} is over")
                except UnknownNameError:
                    world.event(f"member {number}: its job is forgotten")
            if not known.forgotten:
                with suppress(UnknownNameError):
                    patiently_but(lambda: job.leave(number, life))

    return work


async def weights(world: World) -> None:
    addresses = await served(world)
    world.network.weather = bad_weather(world.rng)
    known = _Job()
    clients = {f"member-{n}": world.client(f"member-{n}", _member(world, n, known)) for n in range(MEMBERS)}
    places, kinds = [addresses[0], *clients], ("pause", "cut")
    await outages(world, places, [*clients], clients, every_s=world.rng.choice([0.2, 1.0, 4.0]), kinds=kinds)
    await world.ended(clients)
    await healed(world, addresses)
    if not known.forgotten:
        await world.ended({"auditor": world.client("auditor", lambda: _audit(world, known))})


def _audit(world: World, known: _Job) -> None:
    with connected(world) as cluster:
        values = cluster.weights(SPEC).pull().values
    for column, times in enumerate(values):
        wanted = (1,) if column in known.acknowledged else (0, 1) if column in known.sent else (0,)
        acknowledged = sorted(known.acknowledged)
        assert times in wanted, f"gradient {column} was applied {times} times; acknowledged: {acknowledged}"
