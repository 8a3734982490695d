"""Members of a job without barriers push gradients while answers are lost and their daemon is stopped.

Every gradient subtracts -1 from a weight of its own, so the weights tell how often each was applied: a gradient that
was acknowledged once, any other at most once. A member whose lease was over joins anew. The daemon is never killed: the
weights would be gone, and members would be told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import atta
from atta.errors import UnknownClientError
from atta.kvstore.parameters.spec import ParameterSpec, VectorStep
from tests.sim.scenarios.faults import bad_weather, healed, outages
from tests.sim.scenarios.graph import PARTS
from tests.sim.scenarios.sessions import EXPECTED, patiently
from tests.sim.threads import current
from tests.sim.world import World

__all__ = ["weights"]

MEMBERS, STEPS = 2, 6
SPEC = ParameterSpec(
    "job", (MEMBERS * STEPS,), MEMBERS, "arrival", VectorStep("sgd", 1.0), bound=2, lease_s=6.0, max_updates=0
)


def _connected(world: World) -> Any:
    return patiently(lambda: atta.connect([world.address(part) for part in range(PARTS)], deadline_s=10))


def _member(world: World, number: int, acknowledged: set[int], sent: set[int]) -> Callable[[], None]:
    def push(job: Any, life: int, step: int) -> None:
        column = number * STEPS + step
        gradient = np.zeros(SPEC.size, np.float32)
        gradient[column] = -1
        sent.add(column)
        patiently_but(lambda: job.push(number, step, gradient, life=life))
        acknowledged.add(column)
        world.event(f"member {number}: gradient {step} is acknowledged")

    def work() -> None:
        with _connected(world) as cluster:
            job, life, step = cluster.weights(SPEC), 0, 0
            patiently(lambda: job.create(np.zeros(SPEC.size, np.float32)))
            while step < STEPS:
                life += 1
                try:
                    step = patiently_but(lambda life=life: job.join(number, life))
                    while step < STEPS:
                        patiently_but(lambda life=life, step=step: job.begin(number, step, life=life, within_s=60))
                        push(job, life, step)
                        step += 1
                except UnknownClientError:
                    world.event(f"member {number}: its life {life} is over")
            patiently(lambda: job.leave(number, life))

    return work


def patiently_but(ask: Callable[[], Any]) -> Any:
    """As ``patiently``, but a member whose life is over must know."""
    for _ in range(400):
        try:
            return ask()
        except UnknownClientError:
            raise
        except EXPECTED:
            current().park(0.5)
    raise AssertionError("a daemon never answers")


async def weights(world: World) -> None:
    """See the module."""
    addresses = [world.address(part) for part in range(PARTS)]
    for part in range(PARTS):
        await world.serve(part, peers=dict(enumerate(addresses)))
    world.network.weather = bad_weather(world.rng)
    acknowledged: set[int] = set()
    sent: set[int] = set()
    clients = {
        f"member-{n}": world.client(f"member-{n}", _member(world, n, acknowledged, sent)) for n in range(MEMBERS)
    }
    places, kinds = [addresses[0], *clients], ("pause", "cut")

    def busy() -> bool:
        return any(thread.is_alive() for thread in clients.values())

    await outages(world, places, [*clients], busy=busy, every_s=world.rng.choice([0.2, 1.0, 4.0]), kinds=kinds)
    await world.ended(clients)
    await healed(world, addresses)
    await world.ended({"auditor": world.client("auditor", lambda: _audit(world, acknowledged, sent))})


def _audit(world: World, acknowledged: set[int], sent: set[int]) -> None:
    with _connected(world) as cluster:
        values = cluster.weights(SPEC).pull().values
    assert values is not None
    for column, times in enumerate(values):
        wanted = (1,) if column in acknowledged else (0, 1) if column in sent else (0,)
        assert times in wanted, f"gradient {column} was applied {times} times; acknowledged: {sorted(acknowledged)}"
