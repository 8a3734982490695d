"""Opens what a daemon has kept of its mutable tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.durable.journal import Journal
from atta.daemon.durable.shipping import Shipping
from atta.daemon.peers.peers import moved_at_once
from atta.kvstore.durable.files import STORE_FILE
from atta.kvstore.durable.store import TableStore
from atta.kvstore.tables import Tables
from atta.partition.dataset import Dataset, part_folder
from atta.wire.identity import Identity
from atta.wire.security.credentials import Credentials

__all__ = ["journal_of", "open_journal", "open_store", "tables_about", "tables_folder"]

log = structlog.get_logger("atta.daemon")


def tables_folder(config: DaemonConfig) -> Path:
    """Where this daemon keeps its tables."""
    data = Path(config.data).absolute()
    folder = Path(config.tables_dir) if config.tables_dir else data.with_name(f"{data.name}.tables")
    return folder / part_folder(config.parts.start)


def tables_about(config: DaemonConfig, dataset: Dataset) -> dict[str, Any]:
    """Whose tables the daemon keeps, as plain values."""
    parts = config.parts
    return {"dataset": dataset.dataset_id, "parts": [parts.start, parts.stop], "daemons": len(set(dataset.groups))}


def open_journal(
    config: DaemonConfig, dataset: Dataset, tables: Tables, credentials: Credentials | None = None
) -> Journal | None:
    """Give ``tables`` what the daemon has kept, and a journal of its changes; None: it is to keep nothing.

    On the event loop. ``credentials``: for the backup. A backup that was promoted earlier keeps what it took over.

    Raises:
        ConfigError, DataError, QuotaExceededError: see ``open_store``.
    """
    promoted = config.keep_backup and (tables_folder(config) / STORE_FILE).exists()
    if config.durability == "none" and not promoted:
        return None
    return journal_of(open_store(config, dataset, tables), config, dataset, tables, credentials)


def open_store(config: DaemonConfig, dataset: Dataset, tables: Tables) -> TableStore:
    """Give ``tables``, which are empty, what was kept in the daemon's folder.

    Raises:
        ConfigError: another daemon keeps its tables there, or they belong to another dataset or other partitions.
        DataError: a file is damaged, is missing or cannot be written; names it.
        QuotaExceededError: there is no room in memory.
    """
    # A backup reads files of the store while it is written, so they must stay as they are.
    keep_bytes = 0 if config.durability == "replica" else config.log_bytes
    forced = config.durability == "disk"
    store = TableStore(tables_folder(config), tables_about(config, dataset), forced=forced, keep_bytes=keep_bytes)
    try:
        found = store.open(partial(tables.prepare, resume=True), tables.row_ids)
        tables.recovered(found.tables)
    except BaseException:
        store.close()
        raise
    if found.torn_bytes:
        log.warning("end of the log cut off", bytes=found.torn_bytes, folder=str(store.folder))
    log.info("tables recovered", tables=len(found.tables), records=found.records, folder=str(store.folder))
    return store


def journal_of(
    store: TableStore, config: DaemonConfig, dataset: Dataset, tables: Tables, credentials: Credentials | None
) -> Journal:
    """The journal of ``tables``, which came from ``store``. On the event loop."""
    shipping = None
    if config.durability == "replica":
        meant = Identity(config.parts.start, dataset.dataset_id)
        shipping = Shipping(store, config.backup, meant, credentials)
    at_once = moved_at_once(config.threads)
    tables.recorder = journal = Journal(store, tables, log_bytes=config.log_bytes, at_once=at_once, shipping=shipping)
    return journal
