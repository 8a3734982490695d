"""A sampler daemon from start to exit: it loads its partitions, listens, serves, drains and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2

from atta import _native
from atta.daemon.caches import DaemonCaches
from atta.daemon.config import DaemonConfig
from atta.daemon.descriptors import connections_that_fit, ensure_descriptors
from atta.daemon.durable.backup import BackupService, Holder
from atta.daemon.durable.candidate import Candidate
from atta.daemon.durable.journal import Journal
from atta.daemon.durable.neighbours import Neighbours
from atta.daemon.durable.opening import journal_of, open_journal, open_store, tables_about, tables_folder
from atta.daemon.engine.engine import Engine
from atta.daemon.limits import grpc_options
from atta.daemon.live.service import UpdateService
from atta.daemon.live.versions import LiveVersions
from atta.daemon.loading import OpenedData
from atta.daemon.peers.connection import PeerAddresses
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.peers import CHUNK_BYTES, Peers, moved_at_once
from atta.daemon.security.security import DaemonSecurity
from atta.daemon.services.control import ControlService
from atta.daemon.services.data import GraphService, KvService, TurnPool
from atta.daemon.services.debts import Debts
from atta.daemon.services.handling import Handling
from atta.daemon.services.jobs import JobBoard
from atta.daemon.services.others import add_health_and_reflection
from atta.daemon.services.parameters import ParameterService
from atta.daemon.services.rooms import AnswerRoom, RequestRoom
from atta.daemon.services.sessions import SessionService
from atta.daemon.services.string_ids import IdService
from atta.daemon.services.tables import TableService
from atta.errors import AttaError, ConfigError, StalePrimaryError
from atta.kvstore.durable.votes import VoteBook
from atta.kvstore.mutable.owners import TableOwner
from atta.kvstore.parameters.jobs import ParameterJobs
from atta.kvstore.store import Store
from atta.kvstore.tables import Tables
from atta.observe import logs
from atta.observe.figures import ProcessFigures
from atta.observe.machine.threads import aside
from atta.observe.metrics import DaemonCollector, DaemonFigures, serve_metrics
from atta.observe.version import __version__
from atta.samplers import kernels
from atta.samplers.local.contract import operator_fingerprint, sampling_contract
from atta.samplers.shard import Shard
from atta.wire.clusterfile import check_address
from atta.wire.contract import Contract
from atta.wire.identity import Identity, new_incarnation
from atta.wire.security.credentials import Credentials

__all__ = ["Daemon", "serve"]

log = structlog.get_logger("atta.daemon")
WATCH_S = 1.0
"""How often a daemon looks whether its files have changed, in seconds."""
SCRAPE_S = 5.0
"""How long a scrape waits for the event loop before it fails."""


class Daemon:
    """One sampler daemon: create it, ``start`` it, ``wait`` for its end. ``drain`` ends it."""

    def __init__(self, config: DaemonConfig) -> None:
        """Load and check the partitions.

        Raises:
            DataError: a file is missing, truncated, altered or of another version.
            ConfigError: there is no such partition or ranking of the cache. Also what ``OpenedData.of`` raises.
        """
        check_address(config.listen)
        _ = config.metrics_address  # a mistake is refused before loading, which may take minutes
        self._security = DaemonSecurity.of(config, debts := Debts())
        self.config = config
        self.address = config.listen
        began = time.monotonic()
        opened = OpenedData.of(config)
        self._dataset, self._files, resident = opened.dataset, opened.files, opened.resident
        self._identity = Identity(config.parts.start, self._dataset.dataset_id, new_incarnation())
        shard = Shard(self._dataset, opened.owner, resident=resident)
        store = Store(self._dataset, opened.owner, resident=resident)
        outgoing, guard = (s.outgoing, s.guard) if (s := self._security) is not None else (None, None)
        self._contract = Contract(sampling_contract(), operator_fingerprint())
        peers = self._peers = Peers(
            opened.peers,
            self._dataset,
            config.peer_deadline_s,
            config.peer_delay_s,
            outgoing,
            contract=self._contract,
            own=config.listen,
            moved=PeerAddresses(config.peers, config.peers_file).now,
        )
        with_links = config.links and self._dataset.num_parts > 1
        encrypted = outgoing is not None
        self._links = (
            DaemonLinks(config, self._dataset, shard, store, peers, encrypted=encrypted) if with_links else None
        )
        self._caches = DaemonCaches(config, opened, peers, self._links)
        cache, edges = self._caches.rows, self._caches.edges
        self._engine = Engine(
            config, self._dataset, shard, store, peers, cache=cache, edges=edges, links=self._links, files=self._files
        )
        self._versions = LiveVersions(config.data, store, shard, cache, edges, resident=resident)
        self._updates = UpdateService(self._versions)
        self._serving = TurnPool(config.threads, "atta-serve")
        self._sessions = SessionService(
            config, self._engine, config.listen, self._versions, debts=debts, guard=guard, files=self._files
        )
        self._jobs = JobBoard(time.monotonic)
        answers = self._answers = AnswerRoom(config.answer_bytes, 3 * CHUNK_BYTES, debts)
        graph = partial(GraphService, shard, self._serving, config.listen)
        self._graph = graph(answers=answers, versions=self._versions)
        at_once = moved_at_once(config.threads)
        self._kv = KvService(
            store,
            self._dataset.dataset_id,
            self._serving,
            address=config.listen,
            at_once=at_once,
            answers=answers,
            versions=self._versions,
        )
        self._ids = IdService(self._dataset, opened.owner, store, self._serving, config.listen, answers=answers)
        weights = ParameterJobs(lambda: config.table_bytes - tables.used_bytes)
        tables = self._held = Tables(
            config.table_bytes, beside=lambda: weights.used_bytes, owner=TableOwner(self._dataset, opened.owner)
        )
        self._weights = ParameterService(weights, config.parts.start)
        snapshots = Path(config.snapshots) if config.snapshots else None
        self._journal: Journal | None = open_journal(config, self._dataset, tables, outgoing)
        if (
            config.keep_backup and self._journal is None
        ):  # else tables could begin anew here, beside those of the primary
            tables.give_up(StalePrimaryError(config.listen, "keeps a copy of the tables that another daemon holds"))
        self._backup, self._candidate = self._make_backup(outgoing)
        self._tables = TableService(
            self._dataset,
            opened.owner,
            tables,
            self._serving,
            snapshots=snapshots,
            snapshot_bytes=config.most_snapshot_bytes,
            answers=answers,
            journal=self._journal,
        )
        self._process = ProcessFigures()
        self._requests = RequestRoom(config.request_bytes, debts)
        self._handling = Handling(self._identity, config.listen, self._requests, self._files.check)
        self._stopping, self._orphaned = asyncio.Event(), False
        self._stopped = asyncio.Event()
        log.info(
            "loaded",
            seconds=round(time.monotonic() - began, 2),
            memory=opened.memory.way,
            cache_mbytes=opened.memory.cache // 1_000_000,
            because=opened.memory.why,
        )
        self._chores: list[asyncio.Task[None]] = []
        self._failure: AttaError | None = None
        self._interrupted = False

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ConfigError: the address cannot be bound. DataError: a file was cut short while it was loaded.
        """
        self._files.check()
        if (metrics := self.config.metrics_address) is not None:
            host, port = metrics
            about = {"dataset": self._dataset.dataset_id, "version": __version__}
            read = partial(_ask_loop, asyncio.get_running_loop(), self._figures)
            collector = DaemonCollector(self.config.parts.start, about, read)
            if self._security is not None:
                self._security.serve_metrics(host, port, collector)
            else:
                serve_metrics(port, collector, host=host)
            log.info("metrics", address=f"{host}:{port}")
        connections = connections_that_fit(self.config.max_connections, self.config.max_sessions)
        self._server = grpc.aio.server(
            options=grpc_options(self.config, connections),
            maximum_concurrent_rpcs=self.config.max_calls,
            interceptors=(self._security.guard,) if self._security is not None else (),
        )
        control = ControlService(
            self._identity,
            self._engine,
            self._process,
            self._stats,
            self._stopping.set,
            jobs=self._jobs,
            contract=self._contract,
            draining=self._stopping.is_set,
            unreached=self._peers.unreached,
            tables=self._about_tables,
            files=self._files,
        )
        served = self._engine.recorder.served
        handlers = {
            "GraphService": served("GraphService", self._graph.methods()),
            "KvService": served("KvService", self._kv.methods()),
            "IdService": self._ids.methods(),
            "TableService": self._tables.methods(),
            "BackupService": self._backup.methods(),
            "UpdateService": self._updates.methods(),
            "ParameterService": self._weights.methods(),
            "SessionService": self._sessions.methods(),
            "ControlService": control.methods(),
        }
        if self._links is not None:
            handlers["LinkService"] = self._links.service.methods()
            self._engine.recorder.elsewhere = self._links.served
        self._server.add_generic_rpc_handlers([self._handling.service(*service) for service in handlers.items()])
        names = [f"atta.v1.{service}" for service in handlers]
        self._health = add_health_and_reflection(self._server, names)
        host = self.config.listen.rpartition(":")[0]
        try:
            if self._security is not None:
                port = self._security.listen(self._server, self.config.listen)
            else:
                port = self._server.add_insecure_port(self.config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self.config.listen}: the address is in use or not of this machine"
            ) from error
        self.address = f"{host}:{port}"
        if self._links is not None:
            self._links.listen()
        self._sessions.listen()
        await self._server.start()
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        chores = {
            **self._caches.chores(),
            "watch_utilisation": self._engine.watch_utilisation(),
            "expire_sessions": self._sessions.expire(),
            "forget_idle_clients": self._tables.forget_idle(),
            "end_leases_of_tables": self._tables.end_leases(),
            "end_leases_of_weights": self._weights.end_leases(),
            "watch_versions": self._versions.watch(),
            "watch_files": self._watch_files(),
            **({} if self._security is None else {"watch_certificate": self._security.watch_certificate()}),
        }
        if self._links is not None:
            chores["accept_links"] = self._links.service.accept()
        if self._candidate is not None:
            chores["take_over_tables"] = self._candidate.run()
        if self._journal is not None:
            chores["write_log_of_tables"] = self._journal.run()
        self._begin_chores(**chores)
        log.info(
            "serving",
            address=self.address,
            part=self.config.parts.start,
            parts=len(self.config.parts),
            dataset=self._dataset.dataset_id,
            tls=self._security is not None,
            incarnation=self._identity.incarnation,
        )

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
        self._engine.fail_all(self._files.error)
        await asyncio.Event().wait()

    def _make_backup(self, outgoing: Credentials | None) -> tuple[BackupService, Candidate | None]:
        """What keeps a copy of another daemon's tables, and what takes over from it."""
        config, folder, dataset = self.config, tables_folder(self.config), self._dataset
        holder = Holder(folder, tables_about(config, dataset), self._store_id, self._check_free, self._take_over)
        neighbours = Neighbours(config.peers, dataset.dataset_id, config.listen, outgoing)
        votes = VoteBook(folder.with_name(f"{folder.name}.{config.listen.replace(':', '-')}.votes"))
        keeps = config.keep_backup
        backup = BackupService(holder, config.listen, keeps=keeps, neighbours=neighbours, votes=votes)
        if not config.promote_after_s:
            return backup, None
        return backup, Candidate(backup, neighbours, config.listen, config.parts.start, config.promote_after_s)

    def _about_tables(self) -> tuple[int, bool]:
        """The epoch of the tables that are kept here (0: none are), and whether another daemon has them, too."""
        together = self.config.keep_backup or self.config.durability == "replica"
        return (0 if self._journal is None else self._journal.epoch), together

    def _store_id(self) -> bytes:
        """Which store of tables this daemon holds; empty: it keeps none."""
        return b"" if self._journal is None else self._journal.store_id

    def _check_free(self) -> None:
        """Raise ConfigError if this daemon holds tables that a copy would replace."""
        if held := [table.spec.name for table in self._held.lasting()]:
            raise ConfigError(f"this daemon holds tables of its own, which would be lost: {', '.join(held[:5])}")

    async def _take_over(self) -> int:
        """Hold the tables of which this daemon has kept a copy; returns their number."""
        store = await aside(open_store, self.config, self._dataset, self._held)
        journal = journal_of(store, self.config, self._dataset, self._held, None)
        self._journal = self._tables.journal = journal
        chore = asyncio.get_running_loop().create_task(journal.run(), name="write_log_of_tables")
        chore.add_done_callback(self._ended)
        self._chores.append(chore)
        return len(self._held.lasting())

    def _begin_chores(self, **chores: Coroutine[Any, Any, None]) -> None:
        """Start the background tasks that run until ``drain`` ends them."""
        loop = asyncio.get_running_loop()
        self._chores = [loop.create_task(chore, name=name) for name, chore in chores.items()]
        for chore in self._chores:
            chore.add_done_callback(self._ended)
        self._draining = loop.create_task(self._drain_when_asked(), name="drain")
        self._draining.add_done_callback(self._drained)

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
        links = {} if self._links is None else self._links.stats()
        parts = (self._engine, self._sessions, self._tables, self._weights, self._caches, self._handling, self._process)
        return {
            **self._backup.stats(),
            "parts": float(len(self.config.parts)),
            "queue_limit_bytes": float(self.config.most_queue_bytes),
            "request_bytes": float(self._requests.used_bytes),
            "answer_bytes": float(self._answers.used_bytes),
            "log_lines_dropped": float(logs.dropped_lines()),
            **{name: value for part in parts for name, value in part.stats().items()},
            **self._versions.stats(),
            **({} if self._security is None else self._security.stats()),
            **links,
        }

    def _figures(self) -> DaemonFigures:
        return DaemonFigures(self._stats(), self._engine.session_figures(), self._jobs.figures())

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
        """Wait until the daemon has stopped.

        Raises:
            AttaError: its tables are not saved, or it stopped because one of its background tasks died.
            KeyboardInterrupt: it stopped because of Ctrl-C.
        """
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure
        if self._interrupted:
            raise KeyboardInterrupt

    async def _drain_when_asked(self) -> None:
        await self._stopping.wait()
        log.info("draining", sessions=len(self._sessions), at_most_s=self.config.drain_s)
        self._sessions.draining = True
        saving = asyncio.create_task(self._tables.finish())
        await self._health.enter_graceful_shutdown()
        deadline = asyncio.get_running_loop().time() + self.config.drain_s
        while len(self._sessions) and not self._orphaned and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        self._failure = await saving or self._failure
        for chore in self._chores:
            chore.cancel()
        await self._server.stop(grace=1.0)
        self._sessions.nearby.close()
        await self._engine.shutdown()
        if self._links is not None:
            await self._links.close()
        self._serving.shutdown()
        if self._journal is not None:
            self._journal.close()
        self._backup.close()
        log.info("stopped")


def _ask_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], DaemonFigures]) -> DaemonFigures:
    """Call ``read`` on the event loop, where no figure changes meanwhile. The thread of a scrape calls this."""
    answer: Future[DaemonFigures] = Future()

    def ask() -> None:
        try:
            answer.set_result(read())
        except Exception as error:
            answer.set_exception(error)

    loop.call_soon_threadsafe(ask)
    return answer.result(SCRAPE_S)


def serve(config: DaemonConfig, *, ready: Callable[[str], None] | None = None) -> None:
    """Run a daemon until SIGTERM, SIGINT or a Stop request. ``ready`` is called with the address once it serves.

    Raises:
        ConfigError: the process may not open enough files. Also what ``Daemon`` raises.
    """
    kernels.retain_heap()
    _native.outlive_torn_maps()
    ensure_descriptors(config.max_sessions)
    asyncio.run(_serve(config, ready))


async def _serve(config: DaemonConfig, ready: Callable[[str], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's own handler would wait until all is loaded
    daemon = Daemon(config)
    ensure_descriptors(config.max_sessions)  # once more: mapped files have taken some
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, daemon.drain)
    loop.add_signal_handler(signal.SIGINT, daemon.interrupt)
    await daemon.start()
    if config.exit_with_parent:
        loop.add_reader(sys.stdin.fileno(), _on_stdin, daemon, loop)
    gc.freeze()  # the garbage collector need not visit what has been loaded: it stays
    if ready is not None:
        ready(daemon.address)
    await daemon.wait()


def _on_stdin(daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
    """Standard input became readable. Its end means that the parent process is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        daemon.orphan()
