"""The mutable tables of one owner, by name, within a quota of memory."""

from __future__ import annotations

import contextlib
import gc
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

from atta.errors import AttaError, ConfigError, DataError, DrainingError, QuotaExceededError, UnknownNameError
from atta.kvstore.durable.entries import ChangeKind, TableChange, TableRecorder
from atta.kvstore.durable.frames import LogHeader
from atta.kvstore.durable.logfile import TABLES_FILE
from atta.kvstore.durable.saved import ALONE, Contents, TablesFile, TablesWriter
from atta.kvstore.mutable.owners import TableOwner
from atta.kvstore.mutable.sequences import Client
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, RowIds
from atta.observe.machine.memory import available_bytes
from atta.partition.disk.staging import Staging

MAX_TABLES = 1024
"""At most this many tables are held."""
MAX_CLIENTS = 65_536
"""At most this many clients are known to all tables together. A client of several tables counts several times."""
CHANGE_S = 10.0
"""How long a change of the set of tables waits for another one, which may itself wait for a backup that is away."""


class Tables:
    """Creates, finds and drops mutable tables. Safe to use from many threads; finding a table takes no lock."""

    def __init__(
        self,
        quota_bytes: int,
        *,
        free_bytes: Callable[[], int] = available_bytes,
        beside: Callable[[], int] = lambda: 0,
        owner: TableOwner | None = None,
    ) -> None:
        """Hold no tables yet.

        ``quota_bytes``: for all tables together, and what ``beside`` says is taken by other things. While a table grows,
        is copied or is restored, it is in memory twice. ``free_bytes``: how much memory the process may still take.
        Tables leave an eighth of it free. ``owner``: None: there is no dataset, and rows are their numbers.
        """
        self.quota_bytes = quota_bytes
        self._owner = owner
        self._free_bytes, self._beside = free_bytes, beside
        self._changing = threading.Lock()
        self._tables: dict[str, MutableTable] = {}  # replaced, never changed
        self._closed = False
        self._dropped: tuple[weakref.ref[MutableTable], ...] = ()
        """Tables that are not here any more. Each stays in memory until the last request on it has been answered."""
        self._given_up: AttaError | None = None
        self.recorder: TableRecorder | None = None
        """Where changes of tables without a lease are recorded before they are made; None: nowhere."""

    def row_ids(self, spec: MutableSpec) -> RowIds | None:
        """The ids of the rows of a table that are its owner's; None: they are row numbers. See ``TableOwner.ids``."""
        return None if self._owner is None else self._owner.ids(spec)

    @property
    def _dataset_id(self) -> str:
        return "" if self._owner is None else self._owner.dataset.dataset_id

    @property
    def used_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    @property
    def lingering_bytes(self) -> int:
        """Bytes of dropped tables that requests still read."""
        return sum(table.nbytes for table in (ref() for ref in self._dropped) if table is not None)

    @property
    def clients(self) -> int:
        """Number of known clients. A client of several tables counts several times."""
        return sum(table.clients for table in self._tables.values())

    def create(
        self, spec: MutableSpec, first_row: int = 0, rows: int | None = None, *, table_id: int = 0, whole: bool = False
    ) -> MutableTable:
        """A new table with global rows ``first_row`` ... ``first_row + rows - 1`` (None: all rows of the spec).

        If the table exists and was created in the same way, return it as it is now, with its own id. ``whole`` creates
        nothing, but notes that all shards of the table ``table_id`` have been created.

        Raises:
            UnknownNameError: with ``whole``: the table was dropped since it was created.
            ConfigError: a table of that name was created in another way, or the spec has fewer rows.
            QuotaExceededError: there is no room for it, or the tables are closed.
        """
        rows = spec.rows if rows is None else rows
        if self._given_up is not None and spec.lease_s is None:
            raise self._given_up
        with self._change():
            if (existing := self._tables.get(spec.name)) is not None:
                existing.renew_lease()
                _check_same(existing, spec, first_row, rows)
                if whole and not existing.whole and existing.table_id == table_id:
                    self._record(existing, ChangeKind.WHOLE, lambda _: setattr(existing, "whole", True))
                return existing
            if whole:
                lease_s = spec.lease_s
                over = "" if lease_s is None else f", or its lease of {lease_s:g} s ran out before all daemons had it"
                raise UnknownNameError(
                    f"mutable table {spec.name!r} was dropped while it was being created: it was deleted, or lost when the "
                    f"daemon was started anew{over}; create it again"
                )
            self._check_open()
            if len(self._tables) >= MAX_TABLES:
                raise QuotaExceededError(f"table {spec.name}: there are {MAX_TABLES} tables, the most possible")
            self._check_room(f"table {spec.name}", spec.nbytes(max(0, rows)))
            table = MutableTable(spec, first_row, rows, table_id=table_id, ids=self.row_ids(spec))
            table.key = self._new_key(table)
            self._record(table, ChangeKind.CREATED, partial(self._add, table), first_row, rows, table_id, spec=spec)
            return table

    def _add(self, table: MutableTable, lsn: int) -> None:
        table.lsn = lsn
        self._tables = {**self._tables, table.spec.name: table}

    def get(self, name: str, table_id: int = 0) -> MutableTable:
        """The table of that name, for a client that opened it as ``table_id`` (0: the client has not opened it). Raises
        UnknownNameError: there is no such table, or it was created anew since then. A table that was loaded from a
        snapshot is accepted for every earlier id."""
        table = self._tables.get(name)
        if table is None and self._given_up is not None:
            raise self._given_up
        if table is None and table_id:
            raise UnknownNameError(
                f"mutable table {name!r} is not here any more: it was deleted, its lease ran out, or it was lost when the "
                "daemon was started anew; "
                "'atta tables load SNAPSHOT' brings back what was saved"
            )
        if table is None:
            raise UnknownNameError.of("mutable table", name, self._tables)
        if table_id not in (0, table.table_id) and not table.load_id:
            raise UnknownNameError(f"mutable table {name!r} is not the one that was opened: it was created anew since")
        table.renew_lease()
        return table

    def delete(self, name: str) -> bool:
        """Drop a table; False: there was no such table. Its memory is freed after the last request on it. Raises
        QuotaExceededError: the tables are closed."""
        with self._change():
            self._check_open()
            table = self._tables.get(name)
            if table is not None:
                self._record(table, ChangeKind.DELETED, lambda _: self._drop({name}))
            return table is not None

    def _drop(self, names: Set[str]) -> None:
        self._replace({name: table for name, table in self._tables.items() if name not in names})

    def list(self) -> tuple[MutableTable, ...]:
        """All tables, in order of their names."""
        return tuple(table for _, table in sorted(self._tables.items()))

    def lasting(self) -> tuple[MutableTable, ...]:
        """The tables that snapshots hold: those without a lease."""
        return tuple(table for table in self.list() if table.spec.lease_s is None)

    def _leased(self) -> dict[str, MutableTable]:
        return {name: table for name, table in self._tables.items() if table.spec.lease_s is not None}

    def grow(self, name: str, rows: int, table_id: int = 0) -> MutableTable:
        """Grow a table's shard to ``rows`` rows.

        Raises:
            UnknownNameError: there is no such table; see ``get``.
            ConfigError: it has more rows already, or may not have this many.
            QuotaExceededError: there is no room for them, or the tables are closed.
        """
        with self._change():
            self._check_open()
            table = self.get(name, table_id)
            if rows > table.rows:
                # The new rows are made first, then appended to a copy of the old rows.
                more, all_of_them = table.spec.nbytes(rows - table.rows), table.spec.nbytes(rows)
                self._check_room(f"table {name}", more, for_a_while=all_of_them)
                table.check_grown(rows)
                self._record(table, ChangeKind.GROWN, lambda _: table.grow(rows), rows, nbytes=all_of_them)
            else:
                table.grow(rows)
            return table

    def register(self, table: MutableTable, client: Client) -> None:
        """Let a client push to one of the tables; see ``MutableTable.register``."""
        if self.clients >= MAX_CLIENTS:
            raise QuotaExceededError(f"the tables know {MAX_CLIENTS} clients already: forget those that are done")
        table.register(client)

    def forget(self, client: Client) -> bool:
        """Drop a client that will not come again from all tables. Returns whether a table knew it."""
        known = [table for table in self._tables.values() if table.forget(client)]
        for table in known:
            self._note(table, (client,))
        return bool(known)

    def expire(self, now: float, idle_s: float) -> int:
        """Forget clients that were silent for more than ``idle_s`` seconds before ``now``; returns how many. See
        ``Sequences.expire``."""
        gone = {table: table.expire(now, idle_s) for table in self._tables.values()}
        for table, clients in gone.items():
            self._note(table, clients)
        return sum(map(len, gone.values()))

    def is_lease_over(self, now: float) -> bool:
        """Whether ``end_leases`` would drop a table. Call it regularly; see ``MutableTable.lease_is_over``."""
        return True in [table.lease_is_over(now) for table in self._leased().values()]  # each of them is asked

    def end_leases(self, now: float) -> tuple[str, ...]:
        """Drop the tables whose lease is over, and return their names; see ``MutableTable.lease_is_over``."""
        with self._change():
            over = {name for name, table in self._leased().items() if table.lease_is_over(now)}
            self._drop(over)
            return tuple(sorted(over))

    def close(self) -> None:
        """Refuse every later change. Waits for the pushes that are being applied."""
        self._closed = True
        with contextlib.suppress(QuotaExceededError), self._change():
            pass  # a change that was begun is in the tables now, unless it waits for a backup that is away
        for table in self._tables.values():
            table.close()

    def snapshot(
        self,
        folder: str | Path,
        *,
        snapshot_id: str = "",
        overwrite: bool = False,
        copied: Callable[[], None] | None = None,
    ) -> None:
        """Write all tables without a lease into ``folder``, which appears complete or not at all. A push to a table is
        in the snapshot completely or not at all.

        ``copied``: there are no pushes until this is called. All tables are copied first, if there is room. Raises
        ConfigError: the folder exists and may not be replaced. DataError: it cannot be written, for example because the
        disk is full. Names the file; no files are left behind."""
        with Staging(folder, TABLES_FILE, overwrite=overwrite) as staging:
            tables = self.lasting()
            if copied is None or sum(table.nbytes for table in tables) > self._room():
                self.write(staging.path, tables, snapshot_id=snapshot_id)
                return
            copies = [table.copied() for table in tables]
            copied()
            with TablesWriter(staging.path, self._contents(tables, snapshot_id)) as file:
                for saved, arrays in copies:
                    file.write(file.begin(saved, arrays))

    def _contents(self, tables: Sequence[MutableTable], snapshot_id: str) -> Contents:
        return Contents([table.spec.name for table in tables], snapshot_id, time.time_ns(), self._dataset_id)

    def write(
        self,
        folder: Path,
        tables: Sequence[MutableTable],
        *,
        snapshot_id: str = "",
        header: LogHeader = ALONE,
        over: Path | None = None,
    ) -> None:
        """Write ``tables`` into a folder that exists. The caller completes the folder. Raises DataError. ``header``:
        see ``TablesWriter``. ``over``: a folder like it, whose file may be taken and written over."""
        with TablesWriter(folder, self._contents(tables, snapshot_id), header, over and over / TABLES_FILE) as file:
            for table in tables:
                # A closed table takes no pushes, so writing it delays no push and needs no copy. If there is no room,
                # it cannot be copied either.
                table.write_to(file, copy=not self._closed and table.nbytes <= self._room())

    def prepare(self, folder: str | Path, *, resume: bool = False) -> dict[str, MutableTable]:
        """Read and check the tables of a snapshot while the present tables stay in use. ``adopt`` exchanges them.

        ``resume``: see ``MutableTable.of``. Raises DataError: the folder is damaged or is not a snapshot; names the
        file. Or it has rows of vertices or edges of another dataset. QuotaExceededError: there is no room for its
        tables."""
        file, found, total = TablesFile(Path(folder)), {}, 0
        leased = sum(table.nbytes for table in self._leased().values()) + self._beside()
        for saved in file.tables():
            self._check_dataset(Path(folder), file.contents.dataset, saved.spec)
            nbytes = saved.spec.nbytes(saved.rows)
            total += nbytes
            if total + leased > self.quota_bytes:
                stay = f" beside {leased} bytes of tables with a lease and weights" if leased else ""
                raise QuotaExceededError(f"{folder}: tables of {total} bytes{stay}, the quota is {self.quota_bytes}")
            self._check_memory(str(folder), nbytes)
            found[saved.spec.name] = MutableTable.of(saved, file.arrays(saved), resume=resume)
        return found

    def _check_dataset(self, folder: Path, of: str, spec: MutableSpec) -> None:
        """Rows of a snapshot lie in the order of their owner's vertices or edges, which another dataset has not."""
        if spec.policy != "range" and of and self._dataset_id and of != self._dataset_id:
            raise DataError(
                folder,
                f"its rows of table {spec.name} are {spec.policy} of dataset {of}, this is {self._dataset_id}: cut in "
                "another way, rows would be those of other vertices",
            )

    def adopt(self, tables: Mapping[str, MutableTable], load_id: int, steps: Mapping[str, int]) -> None:
        """Replace all tables without a lease by ``tables``. A table with a lease stays, also if one has its name.
        ``steps``: the highest step number that any shard of each table has seen. Raises QuotaExceededError if the
        tables are closed."""
        with self._change():
            self._check_open()
            for name, table in tables.items():
                table.note_load(load_id, steps.get(name, 0))
                table.key = self._new_key(table)

            def exchange(_: int) -> None:
                self._replace({**tables, **self._leased()})

            if self.recorder is None:
                exchange(0)
            else:
                self.recorder.replace(tables, exchange)

    def recovered(self, tables: Mapping[str, MutableTable]) -> None:
        """Hold the tables that the log had, also if they were given up; raises QuotaExceededError if they are too large."""
        if (total := sum(table.nbytes for table in tables.values())) > self.quota_bytes:
            raise QuotaExceededError(
                f"the tables that were kept have {total} bytes, the quota is {self.quota_bytes}; start with more --tables"
            )
        self._tables, self._given_up = dict(tables), None

    def give_up(self, why: AttaError) -> None:
        """Another process holds the tables now: drop all that last, and raise ``why`` where they are asked for."""
        self._given_up = why
        self._replace(self._leased())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Change the set of tables; raises QuotaExceededError if another change does not end."""
        if not self._changing.acquire(timeout=CHANGE_S):
            raise QuotaExceededError(
                f"another table is being created, grown, deleted or loaded, and has been for {CHANGE_S:g} s: it may wait "
                "for a backup that does not answer"
            )
        try:
            yield
        finally:
            self._changing.release()

    def _new_key(self, table: MutableTable) -> int:
        """A number for the log; 0: the table is not kept."""
        return 0 if self.recorder is None or table.spec.lease_s is not None else 1 + secrets.randbits(62)

    def _record(
        self,
        table: MutableTable,
        kind: ChangeKind,
        apply: Callable[[int], None],
        *words: int,
        spec: MutableSpec | None = None,
        nbytes: int = 0,
    ) -> None:
        if self.recorder is None or not table.key:
            apply(0)
        else:
            self.recorder.record(TableChange(kind, table.key, words, spec), apply, nbytes=nbytes)

    def _note(self, table: MutableTable, clients: Iterable[Client]) -> None:
        known = tuple(client for client in clients if isinstance(client, int))
        if self.recorder is not None and table.key and known:
            self.recorder.note(TableChange(ChangeKind.FORGOTTEN, table.key, known))

    def _replace(self, tables: dict[str, MutableTable]) -> None:
        gone = set(self._tables.values()) - set(tables.values())
        still_read = (ref for ref in self._dropped if ref() is not None)
        self._dropped = (*still_read, *map(weakref.ref, gone))
        self._tables = tables

    def _check_open(self) -> None:
        if self._closed:
            raise DrainingError("the daemon")

    def _check_room(self, what: str, more: int, *, for_a_while: int = 0) -> None:
        used = self.used_bytes + self.lingering_bytes + self._beside()
        if used + more > self.quota_bytes and self.lingering_bytes:
            gc.collect()  # the error of a request may have kept a table that nobody reads
            used = self.used_bytes + self.lingering_bytes + self._beside()
        if used + more > self.quota_bytes:
            raise QuotaExceededError(
                f"{what}: {more} more bytes, {used} of {self.quota_bytes} bytes for mutable tables are used"
            )
        self._check_memory(what, more + for_a_while)

    def _check_memory(self, what: str, more: int) -> None:
        if more > (room := self._room()):
            raise QuotaExceededError(
                f"{what}: {more} more bytes of memory; the daemon may take {room} more (of the machine or its control group)"
            )

    def _room(self) -> int:
        free = self._free_bytes()
        return free - free // 8


def _check_same(table: MutableTable, spec: MutableSpec, first_row: int, rows: int) -> None:
    have = {**table.spec.to_dict(), "first_row": table.first_row, "rows of the shard": table.created_rows}
    want = {**spec.to_dict(), "first_row": first_row, "rows of the shard": rows}
    different = [f"{key} is {have[key]!r}, not {want[key]!r}" for key in have if have[key] != want[key]]
    if different:
        raise ConfigError(f"table {spec.name} exists: {'; '.join(different)}")
