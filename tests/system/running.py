"""Real daemons within the test's own process. They start and die in milliseconds, on ports that the test chooses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.daemon import Daemon

T = TypeVar("T")

# A daemon that was killed drains beside the next tests. What it logs must not be in the output that they look at, nor
# between the dots of a run.
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # it writes nothing


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all tests in this process. It is never closed: gRPC may still have events for it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="daemons", daemon=True).start()
    return loop


class Running:
    def __init__(self) -> None:
        self._daemons: dict[str, Daemon] = {}

    def start(self, data: Path, part: int | range, address: str, peers: Mapping[int, str], **settings: Any) -> Daemon:
        parts = range(part, part + 1) if isinstance(part, int) else part

        async def serve() -> Daemon:
            config = DaemonConfig(str(data), parts, address, dict(peers), threads=1, verify=False, **settings)
            answerer = None
            if config.model:
                from atta.train.launching.queries import ModelAnswers  # tests of daemons alone have no torch

                answerer = ModelAnswers(config)
            daemon = Daemon(config, answerer)
            await daemon.start()
            return daemon

        self._daemons[address] = self.run(serve())
        return self._daemons[address]

    def kill(self, address: str) -> None:
        """Break all connections of the daemon at ``address`` and stop listening there."""
        self.run(_end(self._daemons.pop(address)))

    def end(self, address: str) -> None:
        """Let the daemon at ``address`` drain, as after SIGTERM, and wait until it has ended."""
        daemon = self._daemons.pop(address)
        self.run(_drain(daemon))

    def kill_all(self) -> None:
        for address in list(self._daemons):
            self.kill(address)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, _loop()).result(120)


async def _drain(daemon: Daemon) -> None:
    daemon.drain()
    await daemon.wait()


async def _end(daemon: Daemon) -> None:
    for chore in daemon._chores:
        chore.cancel()
    daemon.batches.sessions.nearby.close()
    await daemon.front.server.stop(grace=None)
    await daemon.batches.engine.shutdown()
    await daemon.graph.peers.close()
    daemon.front.pool.shutdown()
    if daemon.tables.journal is not None:
        daemon.tables.journal.close()
    daemon.tables.backup.close()


@contextmanager
def daemons() -> Iterator[Running]:
    running = Running()
    try:
        yield running
    finally:
        running.kill_all()
