"""What a daemon makes for consumers: the engine, and the sessions that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.engine import Engine
from atta.daemon.graph import DaemonGraph
from atta.daemon.services.front import DaemonFront
from atta.daemon.services.sessions import SessionService
from atta.observe.machine.threads import aside

log = structlog.get_logger("atta.daemon")
WATCH_S = 1.0
"""How often a daemon looks whether its files have changed, in seconds."""


class DaemonBatches:
    """The engine of one daemon and its sessions."""

    def __init__(self, config: DaemonConfig, graph: DaemonGraph, front: DaemonFront) -> None:
        self._files = graph.files
        cache, edges = graph.caches.rows, graph.caches.edges
        read = (graph.dataset, graph.shard, graph.store, graph.peers)
        self.engine = Engine(config, *read, cache=cache, edges=edges, links=graph.links, files=graph.files)
        guard = None if front.security is None else front.security.guard
        self.sessions = SessionService(
            config, self.engine, config.listen, graph.versions, debts=front.debts, guard=guard, files=graph.files
        )

    def services(self) -> dict[str, object]:
        """By name."""
        return {"SessionService": self.sessions}

    def start(self) -> None:
        """Listen for consumers on this machine."""
        self.sessions.listen()

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Its background tasks."""
        return {
            "watch_utilisation": self.engine.watch_utilisation(),
            "expire_sessions": self.sessions.expire(),
            "watch_files": self._watch_files(),
        }

    async def _watch_files(self) -> None:
        """End all sessions when a file of the dataset has changed. The daemon goes on, to say so."""
        replaced = False
        while self._files.error is None:
            await asyncio.sleep(WATCH_S)
            await aside(self._files.look)
            if self._files.replaced and not replaced:
                replaced = True
                log.warning("files replaced", cause=self._files.described)
        log.error("file changed", cause=str(self._files.error))
        self.engine.fail_all(self._files.error)
        await asyncio.Event().wait()

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        return {**self.engine.stats(), **self.sessions.stats()}

    async def close(self) -> None:
        """End all sessions and the threads."""
        self.sessions.nearby.close()
        await self.engine.shutdown()
