"""Real daemons within the test's own process: started and killed in milliseconds, on ports that the test chooses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from atta.daemon.config import DaemonConfig
from atta.daemon.daemon import Daemon

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all tests of the process, never closed: gRPC may still have events for it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="daemons", daemon=True).start()
    return loop


class Running:
    """Daemons on an event loop that runs beside the test."""

    def __init__(self) -> None:
        self._daemons: dict[str, Daemon] = {}

    def start(self, data: Path, part: int, address: str, peers: Mapping[int, str], **settings: Any) -> Daemon:
        """Serve a partition at ``address``."""

        async def serve() -> Daemon:
            config = DaemonConfig(str(data), part, address, dict(peers), threads=1, verify=False, **settings)
            daemon = Daemon(config)
            await daemon.start()
            return daemon

        self._daemons[address] = self.run(serve())
        return self._daemons[address]

    def kill(self, address: str) -> None:
        """All connections break, and nobody listens there any more."""
        self.run(_end(self._daemons.pop(address)))

    def kill_all(self) -> None:
        """The same for all."""
        for address in list(self._daemons):
            self.kill(address)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns, which runs where the daemons do."""
        return asyncio.run_coroutine_threadsafe(work, _loop()).result(120)


async def _end(daemon: Daemon) -> None:
    for chore in daemon._chores:
        chore.cancel()
    await daemon._server.stop(grace=None)
    await daemon._engine.shutdown()
    daemon._serving.shutdown()


@contextmanager
def daemons() -> Iterator[Running]:
    """Those that are running at the end are killed."""
    running = Running()
    try:
        yield running
    finally:
        running.kill_all()
