"""Consumers read epochs of batches while daemons are killed, stopped and cut off, with replicas and without.

The batches of each consumer come in order, each once, and are bit for bit those of an undisturbed run, also after the
consumer was stopped, or began anew from its last state. Sampling crosses the partitions, so daemons lose each other,
too. In the end no session is left anywhere. Where nothing was disturbed, no lease has run out.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import atta
from atta.client.cluster import connect_all
from atta.errors import (
    DeadlineError,
    PeerLostError,
    QuotaExceededError,
    RestartedError,
    UnavailableError,
    UnknownClientError,
)
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from tests.sim.network import Weather
from tests.sim.scenarios.faults import bad_weather, healed, outages
from tests.sim.threads import current
from tests.sim.world import World

PARTS = 2
NODES, EDGES = 60, 400


@cache
def graph() -> Path:
    """Its folder: 60 vertices with 400 in-edges, 4 features, 40 training seeds."""
    rng = np.random.default_rng(3)
    folder = Path(mkdtemp(prefix="atta-sim-"))
    with GraphWriter(folder / "graph") as writer:
        features = rng.standard_normal((NODES, 4)).astype(np.float32)
        labels = rng.integers(0, 3, NODES).astype(np.int64)
        train = np.sort(rng.permutation(NODES)[:40])
        writer.add_nodes("node", NODES, tables={"x": features, "y": labels}, splits={"train": train})
        writer.add_edges("node__to__node", rng.integers(0, NODES, EDGES), rng.integers(0, NODES, EDGES))
    partition_graph(folder / "graph", folder / "data", parts=PARTS, method="random", seed=1)
    return folder / "data"


CONSUMERS, EPOCHS, LEASE_S = 2, 2, 4.0
EXPECTED = (UnavailableError, DeadlineError, QuotaExceededError, UnknownClientError)
"""What a fault may lead to. Anything else says that something wrong was served."""
GIVEN_UP = (*EXPECTED, RestartedError, PeerLostError)
"""What an iterator gives up with: the latest error of an outage, also if the daemon is just back then."""


@dataclass
class Read:
    lines: list[str] = field(default_factory=list)


def patiently(ask: Callable[[], Any], lost: tuple[type[Exception], ...] = EXPECTED) -> Any:
    """Ask again while an answer may be ``lost``."""
    for _ in range(400):
        try:
            return ask()
        except lost:
            current().park(0.5)
    raise AssertionError("a daemon never answers")


def connected(world: World) -> Any:
    return patiently(lambda: atta.connect([world.address(part) for part in range(PARTS)], deadline_s=10))


async def served(world: World, **settings: Any) -> list[str]:
    """Addresses of the daemons of all parts, which have started."""
    addresses = [world.address(part) for part in range(PARTS)]
    for part in range(PARTS):
        await world.serve(part, peers=dict(enumerate(addresses)), **settings)
    return addresses


def _loader(cluster: Any, rank: int) -> Any:
    return atta.NeighborLoader(
        cluster, [3, 2], batch_size=4, shuffle=True, seed=7, rank=rank, world_size=CONSUMERS, reconnect=60, home=rank
    )


def _line(epoch: int, batch: Any) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(batch._raw.arrays.items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return f"epoch {epoch} batch {batch.batch_id} {digest.hexdigest()[:12]}"


def _consumer(world: World, rank: int, read: Read, *, work_s: float, where: Callable[[], Any]) -> Callable[[], None]:
    rng = np.random.default_rng([world.seed, rank])

    def work() -> None:
        state: Any = None
        with patiently(lambda: connect_all(where(), None, deadline_s=10, where=where)) as cluster:
            while state is None or state["epoch"] < EPOCHS:
                loader = _loader(cluster, rank)
                if state is not None:
                    loader.load_state_dict(state)
                epoch = 0 if state is None else state["epoch"]
                state = _some(world, loader, epoch, read, rng, work_s)
                world.event(f"consumer {rank}: is at epoch {state['epoch']}, batch {state['batch']}")

    return work


def _some(world: World, loader: Any, epoch: int, read: Read, rng: np.random.Generator, work_s: float) -> Any:
    """Read to the end of the epoch, or until something is in the way; returns the loader's state."""
    stream = iter(loader)
    try:
        for batch in stream:
            line = _line(epoch, batch)
            read.lines.append(line)
            world.event(f"batch {line}")
            del batch
            if work_s:
                current().park(work_s * rng.random())
            if rng.random() < 0.05:
                break  # the program ends, and begins anew from its last state
    except GIVEN_UP as error:
        world.event(f"gives up: {type(error).__name__}")
    state = loader.state_dict()
    del stream
    return state


@cache
def expected() -> tuple[tuple[str, ...], ...]:
    reads = [Read() for _ in range(CONSUMERS)]
    with World.of(0, graph()) as world:
        world.run(lambda: _calm(world, reads))
    return tuple(tuple(read.lines) for read in reads)


def _places(world: World, replicas: int) -> Callable[[], Any]:
    return lambda: {part: tuple(world.address(part, n) for n in range(replicas)) for part in range(PARTS)}


async def _started(world: World, replicas: int) -> list[str]:
    peers = _places(world, replicas)()
    for part in range(PARTS):
        for replica in range(replicas):
            await world.serve(part, replica, peers=peers, lease_s=LEASE_S, peer_deadline_s=5.0)
    return [address for addresses in peers.values() for address in addresses]


async def _calm(world: World, reads: list[Read]) -> None:
    await _started(world, 1)
    await world.ended(_clients(world, reads, 0.0, 1))


def _clients(world: World, reads: list[Read], work_s: float, replicas: int) -> dict[str, Any]:
    where = _places(world, replicas)
    makers = {f"consumer-{n}": _consumer(world, n, read, work_s=work_s, where=where) for n, read in enumerate(reads)}
    return {name: world.client(name, work) for name, work in makers.items()}


async def sessions(world: World) -> None:
    rng = world.rng
    undisturbed = rng.random() < 0.15
    replicas = rng.choice([1, 2])
    addresses = await _started(world, replicas)
    reads = [Read() for _ in range(CONSUMERS)]
    work_s = rng.choice([0.0, 0.5, 2 * LEASE_S])
    if not undisturbed:
        world.network.weather = bad_weather(rng)
    else:
        work_s, world.network.weather = 2 * LEASE_S, Weather()
    clients = _clients(world, reads, work_s, replicas)
    if not undisturbed:
        await outages(
            world,
            [*addresses, *clients],
            [*clients, *(address.partition(":")[0] for address in addresses)],
            clients,
            every_s=rng.choice([0.3, 2.0, 10.0]),
            kinds=("kill", "kill", "pause", "cut", "clock"),
        )
    await world.ended(clients)
    for rank, read in enumerate(reads):
        _same(rank, tuple(read.lines), expected()[rank])
    await _nothing_left(world, addresses, undisturbed=undisturbed)


def _same(rank: int, found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    for at, (got, right) in enumerate(zip(found, wanted, strict=False)):
        assert got == right, f"consumer {rank}: its batch {at} is {got}, not {right}"
    assert len(found) == len(wanted), f"consumer {rank}: has got {len(found)} batches, not {len(wanted)}"


async def _nothing_left(world: World, addresses: list[str], *, undisturbed: bool) -> None:
    await healed(world, addresses)
    await asyncio.sleep(3 * LEASE_S)
    for address in addresses:
        daemon = world.daemons[address]
        left = len(daemon.batches.sessions), daemon.batches.engine.stats()["sessions"]
        assert not any(left), f"{address}: sessions are left: {left}"
        lent = daemon.batches.engine.stats()["lent_bytes"]
        assert not lent, f"{address}: {lent} bytes of batches are lent to nobody"
        if undisturbed:
            expired = daemon.batches.sessions.stats()["sessions_expired"]
            assert not expired, f"{address}: {expired} leases have run out, and nothing was wrong"
