"""A primary with a backup: machines are lost, daemons are cut off from each other, and backups take over.

Three daemons may vote: a primary and its backup of partition 0, and the daemon of partition 1. After a promotion an
operator lets the former primary begin anew, as the backup of the new one. What is acknowledged is applied once, and so
on (see ``pushes``), also after the loss of the primary's machine. ``rules`` has what daemons must not do.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import atta
from atta.client.control import Connection
from atta.errors import AttaError, DiskFullError, RestartedError, UnknownNameError
from atta.kvstore.durable.backup import BEHIND_FILE
from atta.protos.v1 import backup_pb2
from atta.wire.clusterfile import write_cluster
from tests.sim.scenarios.faults import alive, back, bad_weather, healed, outage
from tests.sim.scenarios.pushes import CLIENTS, PUSHES, ROWS, SPEC, Pushed, begin
from tests.sim.scenarios.rules import Rules
from tests.sim.scenarios.sessions import EXPECTED, patiently
from tests.sim.threads import current
from tests.sim.world import World

STALE = (*EXPECTED, RestartedError, UnknownNameError)
"""What a client may be told that still speaks to a former primary."""
PROMOTE_AFTER_S = 3.0
LONGEST_S = 150.0
"""No push begins later."""
KINDS = ("kill", "kill", "kill", "pause", "cut", "split", "split", "lose", "promote", "rival")


class Machines:
    def __init__(self, world: World, folder: Path, log_bytes: int) -> None:
        self.world, self._folder, self._log_bytes = world, folder, log_bytes
        self.holder, self.backup, self.witness = world.address(0, 0), world.address(0, 1), world.address(1)
        self.file, self.lost = folder / "cluster.toml", set[str]()
        write_cluster(self.file, [(self.holder, self.backup), self.witness])
        self._peers = {0: (self.holder, self.backup), 1: self.witness}
        self.copied = False
        """Whether the backup has had all records of its primary once."""

    @property
    def all(self) -> list[str]:
        return [one for one in (self.holder, self.backup, self.witness) if one not in self.lost]

    def folder(self, address: str) -> Path:
        return self._folder / address.replace(":", "-")

    async def start_holder(self) -> None:
        await self._serve(self.holder, durability="replica", backup=self.backup)

    async def start_backup(self) -> None:
        self.copied = False
        await self._serve(self.backup, keep_backup=True, promote_after_s=PROMOTE_AFTER_S)

    async def start_witness(self) -> None:
        await self._serve(self.witness, durability="process")

    async def _serve(self, address: str, **settings: Any) -> None:
        part, replica = (int(number) for number in address.partition(":")[0].split("-")[1:])
        settings = {"tables_dir": str(self.folder(address)), "log_bytes": self._log_bytes, **settings}
        try:
            await self.world.serve(part, replica, peers=self._peers, **settings)
        except DiskFullError:
            await back(self.world, address)

    def holds(self, address: str) -> bool:
        """Whether a daemon lives and says that it holds tables."""
        return self.world.nodes[address].alive and self.world.daemons[address].tables.about()[0] > 0

    def look(self) -> None:
        journal = self.world.daemons[self.holder].tables.journal if self.world.nodes[self.holder].alive else None
        shipping = journal._shipping if journal is not None else None
        self.copied |= shipping is not None and shipping._at is not None and shipping.lag == 0

    def lose(self, rules: Rules) -> None:
        self.world.kill(self.holder)
        shutil.rmtree(self.folder(self.holder))
        rules.forget(self.world.nodes[self.holder].name)
        self.lost.add(self.holder)
        self.world.event(f"{self.holder}: its machine is lost")

    async def accept(self) -> None:
        """The primary was lost while it told the backup of records that nobody had acknowledged: go on without them."""
        behind = self.folder(self.backup) / "part-0000.backup" / BEHIND_FILE
        if behind.exists():
            self.world.event(f"{self.backup}: {BEHIND_FILE} is removed")
            self.world.kill(self.backup)
            behind.unlink()
            await back(self.world, self.backup)

    async def change_places(self) -> None:
        """The backup was promoted: it gets the former primary as its backup, which begins anew."""
        self.world.event(f"{self.backup} holds the tables: {self.holder} becomes its backup")
        self.world.kill(self.holder)
        shutil.rmtree(self.folder(self.holder), ignore_errors=True)
        self.lost.clear()
        self.world.kill(self.backup)
        self.holder, self.backup = self.backup, self.holder
        await self.start_holder()
        await self.start_backup()


def _worker(world: World, machines: Machines, number: int, pushed: Pushed) -> Callable[[], None]:
    rng = np.random.default_rng([world.seed, number])

    def work() -> None:
        columns = list(range(number * PUSHES, (number + 1) * PUSHES))
        while columns and world.loop.now < 1000 + LONGEST_S:
            with patiently(lambda: atta.connect(machines.file, deadline_s=10), STALE) as cluster:
                try:
                    table = cluster.tables.create(SPEC)
                except STALE:
                    current().park(0.5)
                    continue
                while columns and not pushed.unknown & set(columns):
                    together = [columns.pop(0) for _ in range(min(len(columns), int(rng.integers(1, 4))))]
                    ends = [begin(world, table, pushed, column, rng, STALE) for column in together]
                    for at in rng.permutation(len(ends)):
                        ends[at]()
                    if pushed.unknown & set(together):
                        break  # connect anew: another daemon may hold the tables
                    current().park(float(rng.choice([0.0, 0.5, 3.0])))

    return work


def _ask(world: World, address: str, method: str, request: Any, name: str) -> None:
    """Ask a daemon something, as an operator or a stranger does."""

    def work() -> None:
        connection = Connection(address, 5.0)
        try:
            connection.meet(connection.describe())
            world.event(f"{address}: {method}: {connection.call(method, request)}".replace("\n", " "))
        except AttaError as error:
            world.event(f"{address}: {method} fails: {type(error).__name__}")
        finally:
            connection.close()

    world.client(f"{name}-{world.network.count}", work)


async def _split(world: World, names: list[str], addresses: list[str], lasts_s: float) -> None:
    """A part of all processes is cut off from the others, in both directions or in one."""
    rng = world.rng
    one = {name for name in names if rng.random() < 0.5}
    how, both = rng.choice(["refuse", "silent"]), rng.random() < 0.7
    cuts = {
        (name, address): how
        for name in names
        for address in addresses
        if (name in one) != (address.partition(":")[0] in one) and (both or name in one)
    }
    world.event(f"{sorted(one)} are cut off ({how}) for {lasts_s:g} s")
    world.network.cuts.update(cuts)
    await asyncio.sleep(lasts_s)
    for cut in cuts:
        world.network.cuts.pop(cut, None)


async def _happens(world: World, machines: Machines, rules: Rules, clients: list[str]) -> None:
    rng, kind = world.rng, world.rng.choice(KINDS)
    lasts_s = rng.choice([0.05, 0.5, 3.0, 8.0])
    if kind == "split":
        names = [*clients, *(address.partition(":")[0] for address in machines.all)]
        await _split(world, names, machines.all, lasts_s)
    elif kind == "lose":
        if machines.copied and machines.holder not in machines.lost and not machines.holds(machines.backup):
            machines.lose(rules)
    elif kind == "promote":
        if machines.lost:
            await machines.accept()
        if machines.lost or rng.random() < 0.3:
            _ask(world, machines.backup, "BackupService.Promote", backup_pb2.PromoteRequest(), "operator")
    elif kind == "rival":
        copy = world.daemons[machines.backup].tables.backup._copy
        request = backup_pb2.VoteRequest(part=0, candidate="rival:1")
        request.store.CopyFrom(backup_pb2.StoreName(id=copy._store_id, epoch=copy._epoch))
        _ask(world, rng.choice(machines.all), "BackupService.Vote", request, "rival")
    else:
        callers = [*clients, *(address.partition(":")[0] for address in machines.all)]
        await outage(world, rng.choice(machines.all), kind, callers, lasts_s)


async def promotion(world: World) -> None:
    folder, rng = Path(mkdtemp(prefix="atta-sim-")), world.rng
    try:
        with Rules(world).kept() as rules:
            machines = Machines(world, folder, rng.choice([1 << 10, 4 << 10, 1 << 20]))
            await machines.start_holder()
            await machines.start_backup()
            await machines.start_witness()
            await _run(world, machines, rules)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(world: World, machines: Machines, rules: Rules) -> None:
    rng, pushed, every_s = world.rng, Pushed(), world.rng.choice([0.1, 1.0, 5.0])
    world.network.weather = bad_weather(rng)
    world.disk.full = rng.choice([0.0, 0.0, 0.05])
    workers = {f"client-{n}": _worker(world, machines, n, pushed) for n in range(CLIENTS)}
    clients = {name: world.client(name, work) for name, work in workers.items()}
    while alive(clients):
        await asyncio.sleep(every_s * (0.2 + rng.random()))
        machines.look()
        if machines.holds(machines.backup) and (machines.lost or rng.random() < 0.5):
            await machines.change_places()
        else:
            await _happens(world, machines, rules, list(clients))
    await world.ended(clients)
    world.disk.full = 0.0
    await healed(world, machines.all)
    if machines.lost and not machines.holds(machines.backup):
        await asyncio.sleep(5 * PROMOTE_AFTER_S)
        await machines.accept()
        if not machines.holds(machines.backup):  # a rival has a vote
            _ask(world, machines.backup, "BackupService.Promote", backup_pb2.PromoteRequest(), "operator")
    await _audit(world, machines, pushed)


async def _audit(world: World, machines: Machines, pushed: Pushed) -> None:
    def look() -> np.ndarray:
        with atta.connect(machines.file, deadline_s=10) as cluster:
            return np.asarray(cluster.tables.create(SPEC).pull(np.arange(ROWS)).values)

    await world.ended({"auditor": world.client("auditor", lambda: pushed.check(patiently(look, STALE), all_of=True))})
    world.event(f"audit: {len(pushed.acknowledged)} acknowledged, {len(pushed.unknown)} unknown")
