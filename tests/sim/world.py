"""A simulated cluster: daemons and clients on machines of their own, and what happens to them."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atta.daemon.config import DaemonConfig
from atta.daemon.daemon import Daemon
from tests.sim.disk import Disk
from tests.sim.loop import Node, VirtualLoop
from tests.sim.network import Network
from tests.sim.patches import installed
from tests.sim.threads import SimThread

MOST_COLLECTIONS = 5


class World:
    """Everything that a simulation has. Make it with ``World.of``."""

    def __init__(self, seed: int, data: Path, *, until_s: float) -> None:
        self.seed, self.data, self.rng = seed, data, random.Random(seed)
        self.loop = VirtualLoop(self.rng, until_s=until_s)
        self.network, self.disk = Network(self.loop), Disk(self.loop)
        self.disk.kill = self._kill
        self.nodes: dict[str, Node] = {}
        self.daemons: dict[str, Daemon] = {}
        self._configs: dict[str, DaemonConfig] = {}
        self.kills = self.power_cuts = 0
        """How many daemons were killed, and how many of them because the power failed."""
        self._gone: list[Any] = []  # what killed processes had in memory; it must not be finalised before the end

    @classmethod
    @contextmanager
    def of(cls, seed: int, data: Path, *, until_s: float = 600.0) -> Iterator[World]:
        world = cls(seed, data, until_s=until_s)
        with installed(world.loop, world.network, world.disk):
            try:
                yield world
            finally:
                world._end()

    def _end(self) -> None:
        for node in self.nodes.values():
            self._kill(node)
        for one in [node for node in self._gone if isinstance(node, Node)]:
            assert not [thread for thread in one.threads if thread.is_alive()], "a thread has survived its process"
        self.loop.set_exception_handler(lambda *_: None)
        self.loop.over = True
        self._gone.clear()
        for held in (self.daemons, self.nodes, self.network.servers, self.network.under_way):
            held.clear()  # type: ignore[attr-defined]
        self.disk.end()
        self.loop._ready.clear()  # type: ignore[attr-defined]
        self.loop._scheduled.clear()  # type: ignore[attr-defined]
        for _ in range(MOST_COLLECTIONS):  # what is finalised may let go of more
            if not gc.collect():
                break
        self.loop.close()

    def event(self, text: str) -> None:
        self.loop.event(text)

    def run(self, main: Callable[[], Any]) -> None:
        self.loop.run_until_complete(main())

    # -- daemons -------------------------------------------------------------------------------------------------------

    def address(self, part: int, replica: int = 0) -> str:
        return f"daemon-{part}-{replica}:{7000 + part}"

    async def serve(self, part: int, replica: int = 0, **settings: Any) -> None:
        address = self.address(part, replica)
        plain = {"threads": 1, "verify": False, "memory": "copy", "links": False, "trace_events": 0, "insecure": True}
        settings = {**plain, **settings}
        log_bytes = settings.pop("log_bytes", None)
        config = DaemonConfig(str(self.data), range(part, part + 1), listen=address, **settings)
        if log_bytes is not None:  # shorter than an operator may choose, so that there are many checkpoints
            object.__setattr__(config, "log_bytes", log_bytes)
        self._configs[address] = config
        await self.restart(address)

    async def restart(self, address: str) -> None:
        """Start a daemon again, as a new process at the same address."""
        node = self.nodes[address] = Node(address.partition(":")[0])
        self.event(f"{node.name}: starts")

        async def start() -> Daemon:
            daemon = Daemon(self._configs[address])
            self._gone.append(daemon)
            await daemon.start()
            return daemon

        try:
            self.daemons[address] = await self.loop.create_task(start(), context=node.context())
        except BaseException:
            self._kill(node)  # its process ends
            raise

    def kill(self, address: str, *, power: bool = False) -> None:
        """End a process at once; ``power``: its machine with it."""
        node = self.nodes[address]
        if node.alive:
            self.event(f"{node.name}: is killed")
            self.kills += 1
            if power:
                self.power_cuts += 1
                self.disk.power_cut(node)
            self._kill(node)

    def _kill(self, node: Node) -> None:
        self._gone.append(node)
        node.alive = False
        for thread in node.threads:
            thread.kill()
        for ended in node.ended:
            ended()
        self.network.break_all(node)

    async def pause(self, address: str, seconds: float) -> None:
        node = self.nodes[address]
        if node.alive and not node.paused:
            self.event(f"{node.name}: is stopped for {seconds:.3f} s")
            node.paused = True
            await asyncio.sleep(seconds)
            self.event(f"{node.name}: goes on")
            self.loop.resume(node)

    # -- clients -------------------------------------------------------------------------------------------------------

    def client(self, name: str, work: Callable[[], None]) -> SimThread:
        node = self.nodes[name] = Node(name)
        thread: list[SimThread] = []

        def begin() -> None:
            thread.append(SimThread(self.loop, work, name))
            thread[0].start()

        node.context().run(begin)
        return thread[0]

    async def ended(self, threads: Mapping[str, SimThread]) -> None:
        for thread in threads.values():
            await thread.ended()
        for name, thread in threads.items():
            if thread.error is not None:
                raise AssertionError(f"{name}: {type(thread.error).__name__}: {thread.error}") from thread.error
