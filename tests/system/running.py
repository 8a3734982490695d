"""Real daemons within the test's own process: started and killed in milliseconds, on ports that the test chooses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from atta.daemon.config import DaemonConfig
from atta.daemon.server import Daemon

T = TypeVar("T")


class Running:
    """Daemons on an event loop of their own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._daemons: dict[str, Daemon] = {}

    def start(self, data: Path, part: int, address: str, peers: Mapping[int, str], **settings: Any) -> Daemon:
        """Serve a partition at ``address``."""

        async def serve() -> Daemon:
            config = DaemonConfig(str(data), part, address, dict(peers), threads=1, verify=False, **settings)
            daemon = Daemon(config)
            await daemon.start()
            return daemon

        self._daemons[address] = self._do(serve())
        return self._daemons[address]

    def kill(self, address: str) -> None:
        """All connections break, and nobody listens there any more."""
        self._do(_end(self._daemons.pop(address)))

    def kill_all(self) -> None:
        for address in list(self._daemons):
            self.kill(address)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


async def _end(daemon: Daemon) -> None:
    for chore in daemon._chores:
        chore.cancel()
    await daemon._server.stop(grace=None)
    await daemon._engine.shutdown()
    daemon._serving.shutdown()


@contextmanager
def daemons() -> Iterator[Running]:
    """Those that are running at the end are killed."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="daemons")
    thread.start()
    running = Running(loop)
    try:
        yield running
    finally:
        running.kill_all()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
