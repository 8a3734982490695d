"""The changes of a daemon's mutable tables on their way: first into the log, then to the backup, if there is one, then into the
tables, then answered. Whatever has come while a group of changes was written is the next group.

A thread writes and applies large groups, and forces them to the disk. The event loop itself does so with small ones that are
not forced: the system only copies them. If the system has too much to write back it stops whoever writes; after a write that
took long, the thread writes for a while. When the log has become long, all tables are written beside it (a *checkpoint*), and
the log begins anew. Pushes go on meanwhile, and wait if the log has grown to four times that length.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from atta.daemon.durable.shipping import Shipping
from atta.daemon.peers.peers import SMALL_BYTES
from atta.errors import AttaError, DrainingError, QuotaExceededError, StalePrimaryError
from atta.kvstore.durable.entries import ChangeKind, Entry, RowsPushed, TableChange
from atta.kvstore.durable.frames import Buffer, LogHeader, LogPosition
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.requests import Push
from atta.kvstore.mutable.sequences import Changes, Claim
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.tables import Tables
from atta.observe.machine.threads import aside, named_threads

log = structlog.get_logger("atta.daemon")
GROUP_BYTES = 4 << 20
"""A group ends with the change that makes it this large."""
GROUP_CHANGES = 1024
AGAIN_S = 5.0
"""How long the daemon waits after a checkpoint has failed."""
SLOW_S, SLOW_FOR_S = 0.002, 1.0
"""A write that waited so long on the event loop, and how long the thread writes then."""
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

    def __init__(
        self,
        store: TableStore,
        tables: Tables,
        *,
        log_bytes: int,
        at_once: int = SMALL_BYTES,
        shipping: Shipping | None = None,
    ) -> None:
        """On the event loop. ``store``: opened. ``log_bytes``: a log of this size is followed by a checkpoint.
        ``at_once``: so many bytes of rows are moved on the event loop itself. ``shipping``: to a backup."""
        self._shipping, self._at_once = shipping, at_once
        self._stale: StalePrimaryError | None = None
        self._store, self._tables, self._log_bytes = store, tables, log_bytes
        self._waiting: deque[_Change] = deque()
        self._come = asyncio.Event()
        self._turn = asyncio.Lock()  # held while changes are written and made
        self._changes = Changes()  # of what the log holds, and of what is under way
        self._loop = asyncio.get_running_loop()
        self._writer = named_threads(1, "atta-log")
        self._saving: asyncio.Task[None] | None = None
        self._failed: tuple[str, float] | None = None  # why the last checkpoint failed, and when to try again
        self._ended, self._slow_until = False, 0.0
        self._copied = asyncio.Event()  # the backup has what the log had when it was opened
        self._groups = self._records = 0

    @property
    def store_id(self) -> bytes:
        """Which store of tables this is."""
        return self._store.store_id

    @property
    def epoch(self) -> int:
        """How often it was opened, more if a backup has taken over; 0: another daemon holds the tables now."""
        return 0 if self._stale is not None else self._store.epoch

    def stats(self) -> dict[str, float]:
        shipping = self._shipping
        copied = {} if shipping is None else {"backup_lag": float(shipping.lag), "backup_away": float(shipping.away)}
        return {
            **copied,
            "table_log_bytes": float(self._store.log_bytes),
            "table_log_records": float(self._records),
            "table_log_groups": float(self._groups),
        }

    # -- changes -------------------------------------------------------------------------------------------------------

    async def copied(self) -> None:
        """Wait until the backup, if there is one, has all that the log had when it was opened. Before that, nobody may
        be told that a change was made earlier: it may be one that the backup lacks, and the backup may take over.
        Raises StalePrimaryError: the backup has taken over."""
        if self._shipping is not None:
            await self._copied.wait()
        if self._stale is not None:
            raise self._stale

    async def push(self, table: MutableTable, push: Push, client: int, sequence: int, settled: int) -> bool:
        """Write and apply a checked push; False: it was applied before. Also raises the errors of ``table.claim``.
        Raises QuotaExceededError: it cannot be written. Then nothing has changed, and the number is unused."""
        await self.copied()
        await self._room()
        claim = Claim.BUSY

        def claimed() -> bool:
            nonlocal claim
            claim = table.claim(client, sequence, settled)
            return claim is not Claim.BUSY

        await table.changes.until(claimed)
        if claim is Claim.APPLIED:
            return False  # and so it was written
        entry = RowsPushed(table.key, client, sequence, settled, push)
        apply, give_back = partial(table.finish, push, client, sequence), partial(table.give_back, client, sequence)
        nbytes = push.rows.nbytes + push.values.nbytes
        if self._is_idle(nbytes) and table.takes_pushes:
            self._make_at_once(entry, apply, give_back)
        else:
            await self._put(entry, apply, nbytes, table, give_back)
        return True

    def _is_idle(self, nbytes: int) -> bool:
        """Whether the event loop may make a change of so many bytes now: nothing is under way, and nobody is waited for."""
        waits = self._waiting or self._turn.locked() or self._ended or self._shipping is not None
        return not waits and self._writes_here(nbytes)

    def _make_at_once(self, entry: Entry, apply: Callable[[int], None], give_back: Callable[[], None]) -> None:
        try:
            before = self._write_here([entry.encode()])
        except OSError as error:
            give_back()
            raise self._unwritten(error, 1) from None
        self._groups, self._records = self._groups + 1, self._records + 1
        apply(before.lsn + 1)
        if self._store.log_bytes >= self._log_bytes:
            self._come.set()  # a checkpoint is due

    async def register(self, table: MutableTable, client: int) -> None:
        """Write that a client of the table has registered; raises QuotaExceededError."""
        await self._put(TableChange(ChangeKind.REGISTERED, table.key, (client,)), _nothing, 0)

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        """Not for the event loop's own thread."""
        asyncio.run_coroutine_threadsafe(self._change(entry, apply, nbytes), self._loop).result()

    def note(self, entry: Entry) -> None:
        if not self._ended:
            self._loop.call_soon_threadsafe(lambda: self._put(entry, _nothing, 0).add_done_callback(_ignore))

    def replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        """Not for the event loop's own thread."""
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
        if self._stale is not None:
            _refuse(change, self._stale)
        elif self._ended:
            _refuse(change, DrainingError("the daemon"))
        else:
            self._waiting.append(change)
            self._come.set()
        return change.done

    async def _room(self) -> None:
        """Wait while the log is as long as it may be. Raises QuotaExceededError: it will stay so, because the tables
        cannot be written."""

        def is_room() -> bool:
            if self._store.disk_bytes < MOST_LOGS * self._log_bytes:
                return True
            if self._failed is not None and self._saving is None:
                raise QuotaExceededError(
                    f"the log of tables has {self._store.disk_bytes} bytes, and the tables cannot be written beside it: "
                    f"{self._failed[0]}; the push has changed nothing"
                )
            if self._is_checkpoint_due():
                self._come.set()
            return False

        await self._changes.until(is_room)

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: write and make the changes that come."""
        try:
            if self._shipping is not None:
                await self._ship([], self._store.position)
                self._copied.set()
            while True:
                async with self._turn:
                    await self._checkpoint_if_due()
                    if group := self._group():
                        await self._commit(group)
                self._changes.notify()
                if not self._waiting and not self._is_checkpoint_due():
                    self._come.clear()
                    await self._come.wait()
        finally:
            self._ended = True
            while self._waiting:
                _refuse(self._waiting.popleft(), DrainingError("the daemon"))
            self._changes.notify()
            if self._shipping is not None:
                await self._shipping.close()

    async def finish(self) -> None:
        """Wait until everything that has come is made. What waits for a backup that is away is not waited for."""
        if self._shipping is not None and self._shipping.away:
            return
        await self._changes.until(lambda: not (self._waiting or self._turn.locked()))

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
        nbytes = sum(change.nbytes for change in group)
        bodies = [change.entry.encode() for change in group]
        handed_over = self._shipping is None and nbytes > self._at_once and not any(map(_is_busy, group))
        try:
            if self._writes_here(nbytes):
                before = self._write_here(bodies)
            else:
                work = partial(self._write_and_apply, group) if handed_over else self._store.append
                before = await self._loop.run_in_executor(self._writer, work, bodies)
        except OSError as error:
            refused = self._unwritten(error, len(group))
            for change in group:
                _refuse(change, refused)
            return
        self._groups, self._records = self._groups + 1, self._records + len(group)
        if handed_over:
            _answer(group)
        elif await self._is_copied(group, bodies, before):
            await self._make(group, before.lsn + 1, here=nbytes <= self._at_once)

    async def _is_copied(
        self, group: Sequence[_Change], bodies: Sequence[Sequence[Buffer]], before: LogPosition
    ) -> bool:
        """Wait for the backup. False: this daemon is stale, and the group is refused."""
        try:
            if await self._ship(bodies, before):
                return True
        except asyncio.CancelledError:  # the daemon stops, and the backup is away: nobody knows whether they will count
            for change in group:
                change.done.cancel()
            raise
        assert self._stale is not None
        for change in group:
            _refuse(change, self._stale)
        return False

    def _write_and_apply(self, group: Sequence[_Change], bodies: Sequence[Sequence[Buffer]]) -> LogPosition:
        """On the thread: both, as to hand a group over costs as much as a small push."""
        before = self._store.append(bodies)
        _apply(group, before.lsn + 1)
        return before

    async def _make(self, group: Sequence[_Change], first: int, *, here: bool) -> None:
        """Make the changes whose records begin at number ``first``, and answer them."""
        # A thread that waits for a copy of a table would occupy the writer; here nothing waits with it.
        while (busy := next(filter(_is_busy, group), None)) is not None and busy.table is not None:
            await busy.table.changes.until(partial(_takes_pushes, busy.table))
        if here:
            _apply(group, first)
        else:
            await self._loop.run_in_executor(self._writer, _apply, group, first)
        _answer(group)

    def _writes_here(self, nbytes: int) -> bool:
        """Whether the event loop itself writes so many bytes."""
        return nbytes <= self._at_once and not self._store.forced and self._loop.time() >= self._slow_until

    def _unwritten(self, error: OSError, changes: int) -> QuotaExceededError:
        """Why changes are refused, which the log of the daemon has, too."""
        cause = f"the log of tables in {self._store.folder} cannot be written: {error.strerror or error}"
        log.error("changes of tables refused", changes=changes, error=cause)
        return QuotaExceededError(f"{cause}; nothing was changed")

    def _write_here(self, bodies: Sequence[Sequence[Buffer]]) -> LogPosition:
        began, waits = self._loop.time(), _waits()
        before = self._store.append(bodies)
        if self._loop.time() - began > SLOW_S and _waits() > waits:
            self._slow_until = self._loop.time() + SLOW_FOR_S
        return before

    async def _ship(self, bodies: Sequence[Sequence[Buffer]], before: LogPosition) -> bool:
        """Wait until the backup, if there is one, has everything; False: this daemon is stale."""
        if self._shipping is None:
            return True
        try:
            await self._shipping.reach(bodies, before)
        except StalePrimaryError as error:
            self._stale = error
            log.error("tables given up", error=str(error))
            self._tables.give_up(error)
            while self._waiting:
                _refuse(self._waiting.popleft(), error)
            return False
        return True

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _is_checkpoint_due(self) -> bool:
        waits = self._failed is not None and self._loop.time() < self._failed[1]
        return self._saving is None and self._store.log_bytes >= self._log_bytes and not waits

    async def _checkpoint_if_due(self) -> None:
        if not self._is_checkpoint_due():
            return
        try:
            at = await aside(self._store.rotate)
        except AttaError as error:
            self._note_failure(error)
            return
        if self._shipping is not None:
            self._shipping.rotated()
        # All changes up to here have been made. The tables of now are written, even if they are deleted meanwhile.
        tables = [table for table in self._tables.lasting() if table.key]
        write = partial(self._store.checkpoint, at, partial(self._write, tables))
        self._saving = asyncio.create_task(self._checkpoint(write), name="checkpoint")

    def _write(self, tables: Sequence[MutableTable], folder: Path, header: LogHeader, over: Path) -> None:
        self._tables.write(folder, tables, header=header, over=over)

    async def _checkpoint(self, write: Callable[[], None]) -> None:
        try:
            await aside(write)
            self._failed = None
            if self._shipping is not None:
                await self._shipping.checkpointed()
        except AttaError as error:
            self._note_failure(error)
        finally:
            self._saving = None
            self._come.set()
            self._changes.notify()

    def _note_failure(self, error: AttaError) -> None:
        self._failed = (str(error), self._loop.time() + AGAIN_S)
        self._loop.call_later(AGAIN_S, self._come.set)
        log.error("tables not written beside their log", error=str(error), log_bytes=self._store.log_bytes)
        self._changes.notify()

    async def _replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        async with self._turn:
            if self._saving is not None:
                await asyncio.wait([self._saving])
            at = await aside(self._store.rotate)
            loaded = [table for table in tables.values() if table.key]
            await aside(self._store.checkpoint, at, partial(self._write, loaded))
            if self._shipping is not None:
                self._shipping.rotated()
                await self._shipping.reach_checkpoint()
            apply(at.lsn)
        self._changes.notify()


def _waits() -> int:
    """How often this thread has waited for something, not counting that others had their turn on its processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _apply(group: Sequence[_Change], first: int) -> None:
    for lsn, change in enumerate(group, first):
        change.apply(lsn)


def _is_busy(change: _Change) -> bool:
    # Whether its table is being copied.
    return change.table is not None and not change.table.takes_pushes


def _takes_pushes(table: MutableTable) -> bool:
    return table.takes_pushes


def _answer(group: Sequence[_Change]) -> None:
    for change in group:
        if not change.done.done():
            change.done.set_result(None)


def _refuse(change: _Change, error: AttaError) -> None:
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
