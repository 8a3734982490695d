"""The changes of a daemon's mutable tables on their way: first into the log, then into the tables, then answered.

Whatever has come while a group of changes was written is the next group, so many pushes share one write, and one wait
for the disk. Changes are made in the order of their records. So a replay of the log gives the same bits, and a change
that cannot be written has changed nothing.

A thread writes and applies large groups, and forces them to the disk. The event loop itself writes and applies small
ones that are not forced: the system only copies them, which costs less than handing them over. If the system has too
much to write back it stops whoever writes; after a write that took long, the thread writes for a while.

When the log has become long, all tables are written beside it (a *checkpoint*), and the log begins anew. Pushes go on
meanwhile, and wait if the log has grown to four times that length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.peers.chunks import SMALL_BYTES
from atta.errors import AttaError, QuotaExceededError
from atta.kvstore.durable.entries import Entry, Registered, RowsPushed
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.requests import Push
from atta.kvstore.mutable.sequences import Claim
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.tables import Tables
from atta.observe.machine.threads import aside, named_threads
from atta.partition.dataset import Dataset, part_folder

__all__ = ["Journal", "open_journal"]

log = structlog.get_logger("atta.daemon")
GROUP_BYTES = 4 << 20
"""A group ends with the change that makes it this large."""
GROUP_CHANGES = 1024
POLL_S = 0.002
"""How often a change that has to wait looks whether it may go on."""
AGAIN_S = 5.0
"""How long the daemon waits after a checkpoint has failed."""
SLOW_S, SLOW_FOR_S = 0.002, 1.0
"""A write that took so long on the event loop, and how long the thread writes then."""
MOST_LOGS = 4


@dataclass(frozen=True, eq=False, slots=True)
class _Change:
    """``apply(number of the record)`` makes the change in ``table`` (None: in none that exists); it moves ``nbytes``.
    ``give_back`` is called instead if the entry cannot be written."""

    entry: Entry
    apply: Callable[[int], None]
    nbytes: int
    done: asyncio.Future[None]
    table: MutableTable | None = None
    give_back: Callable[[], None] | None = None


class Journal:
    """Writes and makes the changes of ``tables``, which has it as its recorder. ``run`` it on the event loop."""

    def __init__(self, store: TableStore, tables: Tables, *, log_bytes: int) -> None:
        """On the event loop. ``store``: opened. ``log_bytes``: a log of this size is followed by a checkpoint."""
        self._store, self._tables, self._log_bytes = store, tables, log_bytes
        self._waiting: deque[_Change] = deque()
        self._come = asyncio.Event()
        self._turn = asyncio.Lock()  # held while changes are written and made
        self._loop = asyncio.get_running_loop()
        self._writer = named_threads(1, "atta-log")
        self._saving: asyncio.Task[None] | None = None
        self._failed: tuple[str, float] | None = None  # why the last checkpoint failed, and when to try again
        self._ended, self._slow_until = False, 0.0
        self._groups = self._records = 0

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "table_log_bytes": float(self._store.log_bytes),
            "table_log_records": float(self._records),
            "table_log_groups": float(self._groups),
        }

    # -- changes -------------------------------------------------------------------------------------------------------

    async def push(self, table: MutableTable, push: Push, client: int, sequence: int, settled: int) -> bool:
        """Write and apply a checked push; False: it was applied before. Also raises the errors of ``table.claim``.

        Raises:
            QuotaExceededError: it cannot be written. Then nothing has changed, and the number is unused.
        """
        await self._room()
        while (claim := table.claim(client, sequence, settled)) is Claim.BUSY:
            await asyncio.sleep(POLL_S)
        if claim is Claim.APPLIED:
            return False  # and so it was written
        entry = RowsPushed(table.key, client, sequence, settled, push)
        apply, give_back = partial(table.finish, push, client, sequence), partial(table.give_back, client, sequence)
        await self._put(entry, apply, push.rows.nbytes + push.values.nbytes, table, give_back)
        return True

    async def register(self, table: MutableTable, client: int) -> None:
        """Write that a client of the table has registered; raises QuotaExceededError."""
        await self._put(Registered(table.key, client), _nothing, 0)

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        """See ``TableRecorder``. Not for the event loop's own thread."""
        asyncio.run_coroutine_threadsafe(self._change(entry, apply, nbytes), self._loop).result()

    def note(self, entry: Entry) -> None:
        """See ``TableRecorder``."""
        if not self._ended:
            self._loop.call_soon_threadsafe(lambda: self._put(entry, _nothing, 0).add_done_callback(_ignore))

    def replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        """See ``TableRecorder``. Not for the event loop's own thread."""
        asyncio.run_coroutine_threadsafe(self._replace(tables, apply), self._loop).result()

    async def _change(self, entry: Entry, apply: Callable[[int], None], nbytes: int) -> None:
        await self._put(entry, apply, nbytes)

    def _put(
        self,
        entry: Entry,
        apply: Callable[[int], None],
        nbytes: int,
        table: MutableTable | None = None,
        give_back: Callable[[], None] | None = None,
    ) -> asyncio.Future[None]:
        change = _Change(entry, apply, nbytes, self._loop.create_future(), table, give_back)
        if self._ended:
            _refuse(change, QuotaExceededError("the daemon is stopping: its tables do not change any more"))
        else:
            self._waiting.append(change)
            self._come.set()
        return change.done

    async def _room(self) -> None:
        """Wait while the log is as long as it may be.

        Raises:
            QuotaExceededError: it will stay so, because the tables cannot be written.
        """
        while self._store.log_bytes >= MOST_LOGS * self._log_bytes:
            if self._failed is not None and self._saving is None:
                raise QuotaExceededError(
                    f"the log of tables has {self._store.log_bytes} bytes, and the tables cannot be written beside it: "
                    f"{self._failed[0]}; the push has changed nothing"
                )
            self._come.set()
            await asyncio.sleep(POLL_S)

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: write and make the changes that come."""
        try:
            while True:
                async with self._turn:
                    await self._checkpoint_if_due()
                    if group := self._group():
                        await self._commit(group)
                if not self._waiting:
                    self._come.clear()
                    await self._come.wait()
        finally:
            self._ended = True
            while self._waiting:
                _refuse(self._waiting.popleft(), QuotaExceededError("the daemon is stopping: nothing was changed"))

    async def finish(self) -> None:
        """Wait until everything that has come is made."""
        while self._waiting or self._turn.locked():
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Let go of the log. ``run`` has ended."""
        self._writer.shutdown(wait=True)
        if self._saving is None:  # else another daemon must not begin before this process has ended
            self._store.close()

    def _group(self) -> list[_Change]:
        group: list[_Change] = []
        size = 0
        while self._waiting and size < GROUP_BYTES and len(group) < GROUP_CHANGES:
            group.append(self._waiting.popleft())
            size += group[-1].nbytes
        return group

    async def _commit(self, group: Sequence[_Change]) -> None:
        small = sum(change.nbytes for change in group) <= SMALL_BYTES
        try:
            if small and not self._store.forced and self._loop.time() >= self._slow_until:
                first = self._write_here(group)
            else:
                first = await self._loop.run_in_executor(self._writer, self._write, group)
        except OSError as error:
            cause = f"the log of tables in {self._store.folder} cannot be written: {error.strerror or error}"
            log.error("changes of tables refused", changes=len(group), error=cause)
            for change in group:
                _refuse(change, QuotaExceededError(f"{cause}; nothing was changed"))
            return
        self._groups, self._records = self._groups + 1, self._records + len(group)
        # A thread that waits for a copy of a table would occupy the writer; here nothing waits with it.
        while not all(change.table is None or change.table.takes_pushes for change in group):
            await asyncio.sleep(POLL_S)
        if small:
            _apply(group, first)
        else:
            await self._loop.run_in_executor(self._writer, _apply, group, first)
        for change in group:
            if not change.done.done():
                change.done.set_result(None)

    def _write_here(self, group: Sequence[_Change]) -> int:
        began = self._loop.time()
        first = self._write(group)
        if self._loop.time() - began > SLOW_S:
            self._slow_until = self._loop.time() + SLOW_FOR_S
        return first

    def _write(self, group: Sequence[_Change]) -> int:
        """Write the group; returns the number of its first record."""
        return self._store.append([change.entry.encode() for change in group]).lsn + 1

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    async def _checkpoint_if_due(self) -> None:
        now = self._loop.time()
        if self._saving is not None or self._store.log_bytes < self._log_bytes:
            return
        if self._failed is not None and now < self._failed[1]:
            return
        try:
            at = await aside(self._store.rotate)
        except AttaError as error:
            self._note_failure(error)
            return
        # All changes up to here have been made. The tables of now are written, even if they are deleted meanwhile.
        tables = [table for table in self._tables.lasting() if table.key]
        write = partial(self._store.checkpoint, at, lambda folder: self._tables.write(folder, tables))
        self._saving = asyncio.create_task(self._checkpoint(write), name="checkpoint")

    async def _checkpoint(self, write: Callable[[], None]) -> None:
        try:
            await aside(write)
            self._failed = None
        except AttaError as error:
            self._note_failure(error)
        finally:
            self._saving = None
            self._come.set()

    def _note_failure(self, error: AttaError) -> None:
        self._failed = (str(error), self._loop.time() + AGAIN_S)
        self._loop.call_later(AGAIN_S, self._come.set)
        log.error("tables not written beside their log", error=str(error), log_bytes=self._store.log_bytes)

    async def _replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        async with self._turn:
            if self._saving is not None:
                await asyncio.wait([self._saving])
            at = await aside(self._store.rotate)
            loaded = [table for table in tables.values() if table.key]
            await aside(self._store.checkpoint, at, lambda folder: self._tables.write(folder, loaded))
            apply(at.lsn)


def open_journal(config: DaemonConfig, dataset: Dataset, tables: Tables) -> Journal | None:
    """Give ``tables`` what the daemon has kept, and a journal of its changes; None: it is to keep nothing.

    Raises:
        ConfigError: another daemon keeps its tables there, or they belong to another dataset or other partitions.
        DataError: a file is damaged, is missing or cannot be written; names it.
        QuotaExceededError: there is no room in memory.
    """
    if config.durability == "none":
        return None
    data, parts = Path(config.data).absolute(), config.parts
    folder = Path(config.tables_dir) if config.tables_dir else data.with_name(f"{data.name}.tables")
    about = {"dataset": dataset.dataset_id, "parts": [parts.start, parts.stop], "daemons": len(set(dataset.groups))}
    store = TableStore(folder / part_folder(parts.start), about, forced=config.durability == "disk")
    try:
        found = store.open(partial(tables.prepare, resume=True))
        tables.recovered(found.tables)
    except BaseException:
        store.close()
        raise
    if found.torn_bytes:
        log.warning("end of the log cut off", bytes=found.torn_bytes, folder=str(store.folder))
    log.info("tables recovered", tables=len(found.tables), records=found.records, folder=str(store.folder))
    tables.recorder = journal = Journal(store, tables, log_bytes=config.log_bytes)
    return journal


def _apply(group: Sequence[_Change], first: int) -> None:
    for lsn, change in enumerate(group, first):
        change.apply(lsn)


def _refuse(change: _Change, error: QuotaExceededError) -> None:
    if change.give_back is not None:
        change.give_back()
    if not change.done.done():
        change.done.set_exception(error)


def _nothing(_: int) -> None:
    pass


def _ignore(done: asyncio.Future[None]) -> None:
    """A note that was lost is no error."""
    if not done.cancelled():
        done.exception()
