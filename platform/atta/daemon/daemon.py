"""A sampler daemon from start to exit: it loads its partitions, listens, serves, drains and ends."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import structlog

from atta import _native
from atta.daemon.config import DaemonConfig
from atta.daemon.durable.tables import DaemonTables
from atta.daemon.engine.engine import Engine
from atta.daemon.graph import DaemonGraph
from atta.daemon.services.control import ControlService
from atta.daemon.services.front import DaemonFront, ensure_descriptors
from atta.daemon.services.queries import Answerer, QueryService, query_apps
from atta.daemon.services.sessions import SessionService
from atta.errors import AttaError
from atta.observe import logs
from atta.observe.machine.threads import aside
from atta.observe.metrics import DaemonFigures
from atta.samplers import kernels
from atta.samplers.local.contract import sampling_contract
from atta.wire.clusterfile import check_address
from atta.wire.identity import Identity, new_incarnation
from atta.wire.parts import parts_text

log = structlog.get_logger("atta.daemon")
SCRAPE_S = 5.0
"""How long a scrape waits for the event loop before it fails."""


WATCH_S = 1.0
"""How often a daemon looks whether its files have changed, in seconds."""


class DaemonBatches:
    """The engine of one daemon and its sessions."""

    def __init__(self, config: DaemonConfig, graph: DaemonGraph, front: DaemonFront) -> None:
        self._files = graph.files
        self.engine = Engine(
            config, graph.versions.own, graph.peers, links=graph.links, files=graph.files, disk=graph.disk
        )
        guard = None if front.security is None else front.security.guard
        self.sessions = SessionService(
            config, self.engine, graph.versions, debts=front.debts, guard=guard, files=graph.files
        )
        self.services: dict[str, object] = {"SessionService": self.sessions}

    def start(self) -> None:
        """Listen for consumers on this machine."""
        self.sessions.listen()

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
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
        return {**self.engine.stats(), **self.sessions.stats()}

    async def close(self) -> None:
        self.sessions.nearby.close()
        await self.engine.shutdown()


class DaemonPart(Protocol):
    """A part of a daemon, which makes and ends what it consists of."""

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Its background tasks, by name."""

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""


class Daemon:
    """One sampler daemon: create it, ``start`` it, ``wait`` for its end. ``drain`` ends it.

    Attributes:
        front, graph, batches, tables, queries: its parts. Each names its services, its background tasks and its figures.
    """

    def __init__(self, config: DaemonConfig, answerer: Answerer | None = None) -> None:
        """Load and check the partitions. ``answerer``: the model that answers queries, if there is one. Raises DataError: a
        file is missing, truncated, altered or of another version. ConfigError: there is no such partition or ranking of the
        cache. Also what ``OpenedData.of`` raises."""
        check_address(config.listen)
        _ = config.metrics_address  # a mistake is refused before loading, which may take minutes
        self.config, began = config, time.monotonic()
        contract = sampling_contract()
        self.front = DaemonFront(config)
        self.graph = DaemonGraph(config, contract, self.front)
        self.batches = DaemonBatches(config, self.graph, self.front)
        self.tables = DaemonTables(config, self.graph, self.front, self._begin)
        self.queries = QueryService(answerer, config.listen, config.query_wait_s, self.graph.peers.unreached)
        self._answerer = answerer
        self._identity = Identity(config.parts.start, self.graph.dataset.dataset_id, new_incarnation())
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()
        self._orphaned = self._interrupted = False
        self._chores: list[asyncio.Task[None]] = []
        self._failure: AttaError | None = None
        parts = (self.graph, self.batches.engine, self.tables)
        has_model = answerer is not None
        self._control = ControlService(self._identity, contract, parts, self._stats, self._stopping, answers=has_model)
        self._parts: tuple[DaemonPart, ...] = (self.batches, self.tables, self.graph, self.front, self.queries)
        memory = self.graph.memory
        log.debug(
            "loaded",
            seconds=round(time.monotonic() - began, 2),
            memory=memory.way,
            cache_mbytes=memory.cache // 1_000_000,
            because=memory.why,
        )

    @property
    def address(self) -> str:
        """Where it serves."""
        return self.front.address

    async def start(self) -> None:
        """Listen and serve. Raises ConfigError: the address cannot be bound. DataError: a file was cut short while it
        was loaded."""
        self.graph.files.check()
        loop = asyncio.get_running_loop()
        self.front.serve_metrics(self._identity, partial(self._scraped, loop), query_apps(self.queries, loop))
        parts = (self.graph, self.batches, self.tables)
        services = {name: service for part in parts for name, service in part.services.items()}
        recorder = self.batches.engine.recorder
        served = dict.fromkeys(("GraphService", "KvService"), recorder.served)
        services |= {"ControlService": self._control, "QueryService": self.queries}
        self.front.bind(self._identity, services, served, self.graph.files.check)
        if self._answerer is not None:
            self._answerer.begin(lambda: self.graph.versions.now, self.address, self.front.outgoing)
        self.graph.start(recorder)
        self.batches.start()
        await self.front.start()
        for part in self._parts:
            for name, chore in part.chores().items():
                self._begin(name, chore)
        self._draining = asyncio.get_running_loop().create_task(self._drain_when_asked(), name="drain")
        self._draining.add_done_callback(self._drained)
        if not self.config.peers and len(self.config.parts) < self.graph.dataset.num_parts:
            log.warning("no --peers: batches that need other partitions will fail")
        log.info(
            "serving",
            address=self.address,
            part=f"{parts_text(self.config.parts)} of {self.graph.dataset.num_parts}",
            dataset=self.graph.dataset.dataset_id,
            tls=self.front.security is not None,
        )

    def _begin(self, name: str, chore: Coroutine[Any, Any, None]) -> None:
        """Start a background task that runs until ``drain`` ends it."""
        task = asyncio.get_running_loop().create_task(chore, name=name)
        task.add_done_callback(self._ended)
        self._chores.append(task)

    def _ended(self, chore: asyncio.Task[None]) -> None:
        """A daemon stops when one of its chores dies. Without them leases, for example, would never run out."""
        if self._stopping.is_set() and chore.cancelled():
            return
        self._fail(chore)
        self._stopping.set()

    def _drained(self, draining: asyncio.Task[None]) -> None:
        if draining.cancelled() or draining.exception() is not None:
            self._fail(draining)
        self._stopped.set()

    def _fail(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        cause = f"{type(error).__name__}: {error}" if error is not None else "it ended"
        log.error("background task died", task=task.get_name(), exc_info=error)
        self._failure = self._failure or AttaError(f"the daemon's task {task.get_name()} died: {cause}")

    def _stats(self) -> dict[str, float]:
        return {
            "parts": float(len(self.config.parts)),
            "queue_limit_bytes": float(self.config.most_queue_bytes),
            "log_lines_dropped": float(logs.dropped_lines()),
            **{name: value for part in self._parts for name, value in part.stats().items()},
            **self._control.process.stats(),
        }

    def _scraped(self, loop: asyncio.AbstractEventLoop) -> DaemonFigures:
        """Read the figures on the event loop, where none changes meanwhile. The thread of a scrape calls this."""
        return asyncio.run_coroutine_threadsafe(self._figures(), loop).result(SCRAPE_S)

    async def _figures(self) -> DaemonFigures:
        return DaemonFigures(self._stats(), self.batches.engine.session_figures(), self._control.jobs.figures())

    def drain(self) -> None:
        """Begin to stop; a second call exits at once. A signal handler of the event loop may call it."""
        if self._stopping.is_set():
            log.warning("stopping at once")
            logs.drain()
            os._exit(130)
        self._stopping.set()

    def interrupt(self) -> None:
        """Like ``drain``, for Ctrl-C: ``wait`` then raises KeyboardInterrupt."""
        self._interrupted = True
        self.drain()

    def orphan(self) -> None:
        """Begin to stop without waiting for sessions: the process that the daemon served has ended."""
        self._orphaned = True
        self._stopping.set()

    async def wait(self) -> None:
        """Wait until the daemon has stopped. Raises AttaError: its tables are not saved, or it stopped because one of
        its background tasks died. KeyboardInterrupt: it stopped because of Ctrl-C."""
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure
        if self._interrupted:
            raise KeyboardInterrupt

    async def _drain_when_asked(self) -> None:
        await self._stopping.wait()
        loop, sessions = asyncio.get_running_loop(), self.batches.sessions
        log.info("draining", sessions=len(sessions), at_most_s=self.config.drain_s)
        sessions.draining = self.queries.draining = True
        saving = asyncio.create_task(self.tables.service.finish())
        await self.front.refuse()
        deadline = loop.time() + self.config.drain_s
        while (len(sessions) or len(self.queries)) and not self._orphaned and loop.time() < deadline:
            await asyncio.sleep(0.05)
        self._failure = await saving or self._failure
        for chore in self._chores:
            chore.cancel()
        await self.front.stop(grace=1.0)
        await self.batches.close()
        await self.graph.close()
        self.front.close()
        self.tables.close()
        log.info("stopped")


def serve(
    config: DaemonConfig, answerer: Answerer | None = None, *, ready: Callable[[str], None] | None = None
) -> None:
    """Run a daemon until SIGTERM, SIGINT or a Stop request. ``ready`` is called with the address once it serves. Raises
    ConfigError: the process may not open enough files. Also what ``Daemon`` raises."""
    kernels.retain_heap()
    _native.outlive_torn_maps()
    ensure_descriptors(config.max_sessions)
    asyncio.run(_serve(config, answerer, ready))


async def _serve(config: DaemonConfig, answerer: Answerer | None, ready: Callable[[str], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's own handler would wait until all is loaded
    if config.exit_with_parent:
        _end_with_stdin(True)
    daemon = Daemon(config, answerer)
    ensure_descriptors(config.max_sessions)  # once more: mapped files have taken some
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, daemon.drain)
    loop.add_signal_handler(signal.SIGINT, daemon.interrupt)
    await daemon.start()
    if config.exit_with_parent:
        _end_with_stdin(False)
        loop.add_reader(sys.stdin.fileno(), _on_stdin, daemon, loop)
    gc.freeze()  # the garbage collector need not visit what has been loaded: it stays
    if ready is not None:
        ready(daemon.address)
    await daemon.wait()


def _end_with_stdin(yes: bool) -> None:
    """Whether the end of standard input ends this process at once, by SIGIO: while it loads, nothing else looks there."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if yes else flags & ~os.O_ASYNC)


def _on_stdin(daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
    """Standard input became readable. Its end means that the parent process is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        daemon.orphan()
