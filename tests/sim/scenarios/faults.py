"""What goes wrong while clients work, and how it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from atta.errors import DataError, DiskFullError
from tests.sim.network import Weather
from tests.sim.threads import SimThread
from tests.sim.world import World


def bad_weather(rng: random.Random) -> Weather:
    """A network that loses calls; every third one is only slow."""
    if rng.random() < 1 / 3:
        return Weather(delay_s=0.05)
    return Weather(
        delay_s=rng.choice([0.002, 0.02, 0.3]),
        request_lost=rng.choice([0.0, 0.05, 0.2]),
        answer_lost=rng.choice([0.0, 0.1, 0.3]),
        late=rng.choice([0.0, 0.05, 0.15]),
        silent=rng.choice([0.0, 0.0, 0.02]),
    )


def alive(clients: Mapping[str, SimThread]) -> bool:
    return any(thread.is_alive() for thread in clients.values())


async def outages(
    world: World,
    addresses: Sequence[str],
    callers: Sequence[str],
    clients: Mapping[str, SimThread],
    *,
    every_s: float,
    kinds: Sequence[str],
) -> None:
    """Something happens to one of the daemons again and again, while clients work."""
    rng = world.rng
    while alive(clients):
        await asyncio.sleep(every_s * (0.2 + rng.random()))
        address, kind = rng.choice(addresses), rng.choice(kinds)
        if not alive(clients):
            return
        await outage(world, address, kind, callers, rng.choice([0.05, 0.5, 3.0]))


async def outage(world: World, address: str, kind: str, callers: Sequence[str], lasts_s: float) -> None:
    """Something of this kind happens to a daemon or a consumer, and ends."""
    rng = world.rng
    consumer = ":" not in address
    if kind in ("kill", "power") and not consumer:
        world.kill(address, power=kind == "power")
        await asyncio.sleep(lasts_s)
        await back(world, address)
    elif kind == "torn" and not consumer:
        world.disk.tearing.add(world.nodes[address])
        await asyncio.sleep(lasts_s)
        world.kill(address)  # it may have written nothing
        await back(world, address)
    elif kind == "pause" or (consumer and kind != "clock"):
        await world.pause(address, lasts_s)
    elif kind == "clock":
        world.nodes[address].clock_s += rng.choice([-3600.0, 3600.0])
    else:
        caller, how = rng.choice(callers), rng.choice(["refuse", "silent"])  # a daemon is a caller of its peers
        world.event(f"{caller} -> {address}: {how} for {lasts_s:g} s")
        world.network.cuts[caller, address] = how
        await asyncio.sleep(lasts_s)
        world.network.cuts.pop((caller, address), None)


async def back(world: World, address: str) -> None:
    """Start a daemon that is dead; again and again while its disk is full, or fails to force data."""
    while not world.nodes[address].alive:
        try:
            await world.restart(address)
        except DataError as error:
            unwritten = isinstance(error, DiskFullError) or "cannot be written" in error.cause
            if not unwritten or not (world.disk.full or world.disk.failing):
                raise
            world.event(f"{address}: does not start, its disk cannot be written")
            await asyncio.sleep(0.5)


async def healed(world: World, addresses: Sequence[str]) -> None:
    world.network.weather = Weather(delay_s=0.002)
    world.network.cuts.clear()
    for address in addresses:
        await back(world, address)
    await asyncio.sleep(6.0)  # what was late has arrived
