"""Clients push to a mutable table while answers are lost and daemons die.

The table tells of each push whether it was applied, and how often: see ``pushes``. Logs are short, so that daemons
write checkpoints, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.kvstore.durable.frames import FILE_HEADER_BYTES
from tests.sim.scenarios.faults import bad_weather, healed, outages
from tests.sim.scenarios.pushes import CLIENTS, PUSHES, ROWS, SPEC, Pushed, begin
from tests.sim.scenarios.sessions import EXPECTED, connected, patiently, served
from tests.sim.world import World

TOGETHER = 3


def _worker(world: World, number: int, pushed: Pushed) -> Callable[[], None]:
    rng = np.random.default_rng([world.seed, number])

    def work() -> None:
        with connected(world) as cluster:
            table = patiently(lambda: cluster.tables.create(SPEC))
            columns = list(range(number * PUSHES, (number + 1) * PUSHES))
            while columns:
                together = int(rng.integers(1, TOGETHER + 1))
                begun = [begin(world, table, pushed, column, rng) for column in columns[:together]]
                del columns[:together]
                for at in rng.permutation(len(begun)):
                    begun[at]()
                if rng.random() < 0.5:
                    _look(world, table, pushed)

    return work


def _look(world: World, table: Any, pushed: Pushed) -> None:
    acknowledged = set(pushed.acknowledged)
    try:
        values = table.pull(np.arange(ROWS)).values
    except EXPECTED:
        return
    for column in acknowledged:
        rows = pushed.rows[column]
        assert (values[rows, column] == 1).all(), f"push {column} was acknowledged, and is not there: {values[rows]}"
    assert (values <= 1).all(), "a push was applied twice"


async def tables(world: World) -> None:
    folder, rng = Path(mkdtemp(prefix="atta-sim-")), world.rng
    try:
        durability, log_bytes = rng.choice(["process", "disk"]), rng.choice([1 << 10, 4 << 10, 1 << 20])
        addresses = await served(world, durability=durability, tables_dir=str(folder), log_bytes=log_bytes)
        world.network.weather = bad_weather(rng)
        world.disk.full, world.disk.failing = rng.choice([0.0, 0.0, 0.1]), rng.choice([0.0, 0.05, 0.2])
        world.disk.force_s = rng.choice([0.01, 0.3])
        pushed = Pushed()
        clients = {f"client-{n}": world.client(f"client-{n}", _worker(world, n, pushed)) for n in range(CLIENTS)}
        kinds = ["kill", "torn", "pause", "cut", *(["power", "power"] if durability == "disk" else [])]
        await outages(world, addresses, list(clients), clients, every_s=rng.choice([0.1, 1.0, 5.0]), kinds=kinds)
        await world.ended(clients)
        world.disk.full = world.disk.failing = 0.0
        await healed(world, addresses)
        await _audit(world, pushed)
        if rng.random() < 0.3:
            await _damaged(world, folder, addresses[0], pushed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _audit(world: World, pushed: Pushed) -> None:
    def work() -> None:
        with connected(world) as cluster:
            table = patiently(lambda: cluster.tables.create(SPEC))
            pushed.check(table.pull(np.arange(ROWS)).values, all_of=True)

    await world.ended({"auditor": world.client("auditor", work)})
    world.event(f"audit: {len(pushed.acknowledged)} acknowledged, {len(pushed.unknown)} unknown")


async def _damaged(world: World, folder: Path, address: str, pushed: Pushed) -> None:
    """A bit flips in what a daemon has kept: it refuses to start, and never serves something else."""
    world.kill(address)
    logs = sorted(path for path in folder.rglob("log-*") if path.stat().st_size > 400 and "part-0000" in str(path))
    if not logs:
        return
    # With `disk` a bit of the last group of the last file looks like a group that was not acknowledged.
    last = logs[0] == max(logs[0].parent.glob("log-*"))
    world.disk.flip(str(logs[0]), world.rng.randrange(FILE_HEADER_BYTES if last else logs[0].stat().st_size // 2))
    try:
        await world.restart(address)
    except DataError as error:
        world.event(f"refused: {str(error).rpartition(':')[2]}")
        return
    await _audit(world, pushed)
