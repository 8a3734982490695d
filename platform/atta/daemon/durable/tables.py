"""What a daemon holds for training: mutable tables, their log and its copy, weights of jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.durable.backup import BackupService, Candidate, Holder, Neighbours
from atta.daemon.durable.journal import Journal
from atta.daemon.durable.shipping import Shipping
from atta.daemon.graph import DaemonGraph
from atta.daemon.peers.peers import moved_at_once
from atta.daemon.services.front import DaemonFront
from atta.daemon.services.parameters import ParameterService
from atta.daemon.services.tables import TableService
from atta.errors import ConfigError, StalePrimaryError
from atta.kvstore.durable.backup import VoteBook
from atta.kvstore.durable.logfile import STORE_FILE
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.owners import TableOwner
from atta.kvstore.parameter_jobs import ParameterJobs
from atta.kvstore.tables import Tables
from atta.observe.machine.threads import aside
from atta.partition.dataset import Dataset, part_folder
from atta.wire.identity import Identity

log = structlog.get_logger("atta.daemon")


class DaemonTables:
    """Tables and weights of one daemon, their journal (None: nothing is kept), and the backup that keeps a copy of another
    daemon's tables and takes them over. Created on the event loop."""

    def __init__(
        self,
        config: DaemonConfig,
        graph: DaemonGraph,
        front: DaemonFront,
        begin: Callable[[str, Coroutine[Any, Any, None]], None],
    ) -> None:
        """Open what was kept. ``begin``: starts a background task. Raises ConfigError, DataError, QuotaExceededError:
        see ``_opened``."""
        self._config, self._dataset, self._begin = config, graph.dataset, begin
        jobs = ParameterJobs(lambda: config.table_bytes - held.used_bytes)
        owner = TableOwner(graph.dataset, graph.owner)
        self.held = held = Tables(config.table_bytes, beside=lambda: jobs.used_bytes, owner=owner)
        self._weights = ParameterService(jobs, config.parts.start)
        self._outgoing = front.outgoing
        promoted = config.keep_backup and (tables_folder(config) / STORE_FILE).exists()
        self.journal = self._journal_of(self._opened()) if config.durability != "none" or promoted else None
        if config.keep_backup and self.journal is None:
            # Else tables could begin anew here, beside those of the primary.
            held.give_up(StalePrimaryError(config.listen, "keeps a copy of the tables that another daemon holds"))
        self.service = TableService(
            graph.dataset,
            graph.owner,
            held,
            graph.make,
            snapshots=Path(config.snapshots) if config.snapshots else None,
            snapshot_bytes=config.most_snapshot_bytes,
            journal=self.journal,
        )
        self.backup, self._candidate = self._make_backup()
        self.services: dict[str, object] = {
            "TableService": self.service,
            "BackupService": self.backup,
            "ParameterService": self._weights,
        }

    def _make_backup(self) -> tuple[BackupService, Candidate | None]:
        """What keeps a copy of another daemon's tables, and what takes over from it."""
        config, folder, dataset = self._config, tables_folder(self._config), self._dataset
        holder = Holder(folder, tables_about(config, dataset), self._store_id, self._check_free, self._take_over)
        neighbours = Neighbours(config.peers, dataset.dataset_id, config.listen, self._outgoing)
        votes = VoteBook(folder.with_name(f"{folder.name}.{config.listen.replace(':', '-')}.votes"))
        backup = BackupService(holder, config.listen, keeps=config.keep_backup, neighbours=neighbours, votes=votes)
        if not config.promote_after_s:
            return backup, None
        return backup, Candidate(backup, neighbours, config.listen, config.parts.start, config.promote_after_s)

    def _opened(self) -> TableStore:
        """Give the tables, which are empty, what was kept in the daemon's folder. Raises ConfigError: another daemon
        keeps its tables there, or they belong to another dataset or other partitions. DataError: a file is damaged, is
        missing or cannot be written; names it. QuotaExceededError: there is no room in memory."""
        config, held = self._config, self.held
        # A backup reads files of the store while it is written, so they must stay as they are.
        keep_bytes = 0 if config.durability == "replica" else config.log_bytes
        about, forced = tables_about(config, self._dataset), config.durability == "disk"
        store = TableStore(tables_folder(config), about, forced=forced, keep_bytes=keep_bytes)
        try:
            found = store.open(partial(held.prepare, resume=True), held.row_ids)
            held.recovered(found.tables)
        except BaseException:
            store.close()
            raise
        if found.torn_bytes:
            log.warning("end of the log cut off", bytes=found.torn_bytes, folder=str(store.folder))
        log.info("tables recovered", tables=len(found.tables), records=found.records, folder=str(store.folder))
        return store

    def _journal_of(self, store: TableStore) -> Journal:
        config, shipping = self._config, None
        if config.durability == "replica":
            meant = Identity(config.parts.start, self._dataset.dataset_id)
            shipping = Shipping(store, config.backup, meant, self._outgoing)
        at_once = moved_at_once(config.threads)
        journal = Journal(store, self.held, log_bytes=config.log_bytes, at_once=at_once, shipping=shipping)
        self.held.recorder = journal
        return journal

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        found = {
            "forget_idle_clients": self.service.forget_idle(),
            "end_leases_of_tables": self.service.end_leases(),
            "end_leases_of_weights": self._weights.end_leases(),
        }
        if self._candidate is not None:
            found["take_over_tables"] = self._candidate.run()
        if self.journal is not None:
            found["write_log_of_tables"] = self.journal.run()
        return found

    def stats(self) -> dict[str, float]:
        return {**self.backup.stats(), **self.service.stats(), **self._weights.stats()}

    def about(self) -> tuple[int, bool]:
        """The epoch of the tables that are kept here (0: none are), and whether another daemon has them, too."""
        together = self._config.keep_backup or self._config.durability == "replica"
        return (0 if self.journal is None else self.journal.epoch), together

    def _store_id(self) -> bytes:
        """Which store of tables this daemon holds; empty: it keeps none."""
        return b"" if self.journal is None else self.journal.store_id

    def _check_free(self) -> None:
        """Raise ConfigError if this daemon holds tables that a copy would replace."""
        if held := [table.spec.name for table in self.held.lasting()]:
            raise ConfigError(f"this daemon holds tables of its own, which would be lost: {', '.join(held[:5])}")

    async def _take_over(self) -> int:
        """Hold the tables of which this daemon has kept a copy; returns their number."""
        self.journal = self.service.journal = self._journal_of(await aside(self._opened))
        self._begin("write_log_of_tables", self.journal.run())
        return len(self.held.lasting())

    def close(self) -> None:
        """Let go of all files. ``service.finish`` has ended."""
        if self.journal is not None:
            self.journal.close()
        self.backup.close()


def tables_folder(config: DaemonConfig) -> Path:
    """Where this daemon keeps its tables."""
    data = Path(config.data).absolute()
    folder = Path(config.tables_dir) if config.tables_dir else data.with_name(f"{data.name}.tables")
    return folder / part_folder(config.parts.start)


def tables_about(config: DaemonConfig, dataset: Dataset) -> dict[str, Any]:
    """Whose tables the daemon keeps, as plain values."""
    parts = config.parts
    return {"dataset": dataset.dataset_id, "parts": [parts.start, parts.stop], "daemons": len(set(dataset.groups))}
