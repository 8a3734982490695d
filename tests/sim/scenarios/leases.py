"""A job's table lives as long as somebody asks for it, and not much longer.

A client asks again and again, over a network that loses calls. If the table is gone, nobody had an answer for at least
as long as the lease. Some time after the last question it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

import atta
from atta.daemon.services.tables import LEASE_LOOK_S
from atta.errors import UnknownNameError
from atta.kvstore.spec import MutableSpec
from tests.sim.scenarios.faults import bad_weather, healed
from tests.sim.scenarios.sessions import EXPECTED, PARTS, patiently, served
from tests.sim.threads import current
from tests.sim.world import World

TABLE_LEASE_S, ASKS = 8.0, 12


def _asking(world: World, every_s: float) -> Callable[[], None]:
    def work() -> None:
        where = [world.address(part) for part in range(PARTS)]
        with patiently(lambda: atta.connect(where, deadline_s=4)) as cluster:
            asked = world.loop.now
            try:
                table = patiently(lambda: cluster.tables.create(MutableSpec("job", 8, lease_s=TABLE_LEASE_S)))
            except UnknownNameError as error:
                _gone(world, asked, str(error))
                return
            asked = world.loop.now
            for _ in range(ASKS):
                asked = _ask(world, table, asked)
                if not asked:
                    return
                current().park(every_s)

    return work


def _ask(world: World, table: Any, asked: float) -> float:
    began = world.loop.now
    try:
        table.pull(np.arange(8))
    except UnknownNameError as error:
        _gone(world, asked, str(error))
        return 0.0
    except EXPECTED:
        return asked
    return began


def _gone(world: World, asked: float, told: str) -> None:
    silent_s = world.loop.now - asked
    assert silent_s > TABLE_LEASE_S, f"a table was dropped {silent_s:.3f} s after somebody had asked for it"
    assert "lease" in told, f"a job is not told that its table's lease ran out: {told}"


async def leases(world: World) -> None:
    addresses = await served(world)
    world.network.weather = bad_weather(world.rng)
    every_s = world.rng.choice([0.5, 3.0, 7.0, 20.0])
    await world.ended({"client": world.client("client", _asking(world, every_s))})
    await healed(world, addresses)
    await asyncio.sleep(TABLE_LEASE_S + 3 * LEASE_LOOK_S)
    left = [table.spec.name for address in addresses for table in world.daemons[address].tables.service._tables.list()]
    assert not left, f"tables of a job that has ended are left: {left}"
