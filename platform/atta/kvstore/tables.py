"""The mutable tables of one owner, by name, within a quota of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from atta.errors import ConfigError, DataError, QuotaExceededError, UnknownNameError
from atta.kvstore.mutable.sequences import Client
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.snapshots.files import read_saved, writing
from atta.kvstore.snapshots.parts import MANIFEST, read_contents, write_contents
from atta.kvstore.spec import MutableSpec
from atta.observe.machine.memory import available_bytes
from atta.partition.disk.staging import Staging, recover

__all__ = ["Tables"]


class Tables:
    """Creates, finds and drops mutable tables. Safe to use from many threads; finding one waits for nobody."""

    def __init__(self, quota_bytes: int, *, free_bytes: Callable[[], int] = available_bytes) -> None:
        """Hold no tables yet.

        Args:
            quota_bytes: of all tables together; while a table grows, is copied or is restored, it is in memory twice.
            free_bytes: memory that the process may still take; an eighth of it is left to everything else.
        """
        self.quota_bytes = quota_bytes
        self._free_bytes = free_bytes
        self._changing = threading.Lock()
        self._tables: dict[str, MutableTable] = {}  # replaced, never changed
        self._closed = False

    @property
    def used_bytes(self) -> int:
        """Memory of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    @property
    def clients(self) -> int:
        """Clients that are known, counted once for every table."""
        return sum(table.clients for table in self._tables.values())

    def create(
        self, spec: MutableSpec, first_row: int = 0, rows: int | None = None, *, table_id: int = 0, whole: bool = False
    ) -> MutableTable:
        """A new table with global rows ``first_row`` ... ``first_row + rows - 1`` (None: all rows of the spec).

        Creating a table again as it was created returns it as it is now, with the id that it has. ``whole`` creates nothing, but
        notes that all shards of the table ``table_id`` have been created.

        Raises:
            UnknownNameError: it is not here any more.
            ConfigError: a table of that name was created otherwise, or the rows pass those of the spec.
            QuotaExceededError: there is no room for it, or the tables are closed.
        """
        rows = spec.rows if rows is None else rows
        with self._changing:
            existing = self._tables.get(spec.name)
            if existing is not None:
                _check_same(existing, spec, first_row, rows)
                existing.whole = existing.whole or (whole and existing.table_id == table_id)
                return existing
            if whole:
                return self.get(spec.name, table_id)  # says that it is not there
            self._check_open()
            self._check_room(f"table {spec.name}", spec.nbytes(max(0, rows)))
            table = MutableTable(spec, first_row, rows, table_id=table_id)
            self._tables = {**self._tables, spec.name: table}
            return table

    def get(self, name: str, table_id: int = 0) -> MutableTable:
        """The table of that name, for one who has opened it as ``table_id`` (0: who has not).

        Raises:
            UnknownNameError: there is none, or it was created anew since; what was loaded from a snapshot takes the place of any.
        """
        table = self._tables.get(name)
        if table is None and table_id:
            raise UnknownNameError(
                f"mutable table {name!r} is not here any more: it was deleted, or lost when the daemon was started anew; "
                "'atta tables load SNAPSHOT' brings back what was saved"
            )
        if table is None:
            raise UnknownNameError.of("mutable table", name, self._tables)
        if table_id not in (0, table.table_id) and not table.load_id:
            raise UnknownNameError(f"mutable table {name!r} is not the one that was opened: it was created anew since")
        return table

    def delete(self, name: str) -> bool:
        """Drop a table; False: there was none. Its memory is freed when the last request on it is done.

        Raises:
            QuotaExceededError: the tables are closed.
        """
        with self._changing:
            self._check_open()
            tables = dict(self._tables)
            found = tables.pop(name, None)
            self._tables = tables
            return found is not None

    def list(self) -> tuple[MutableTable, ...]:
        """All tables, in order of their names."""
        return tuple(table for _, table in sorted(self._tables.items()))

    def grow(self, name: str, rows: int, table_id: int = 0) -> MutableTable:
        """Let a table's shard have ``rows`` rows.

        Raises:
            UnknownNameError: there is no such table; see ``get``.
            ConfigError: it has more rows already, or may not have as many.
            QuotaExceededError: there is no room for them, or the tables are closed.
        """
        with self._changing:
            self._check_open()
            table = self.get(name, table_id)
            if rows > table.rows:
                # The new rows are made, then put behind a copy of the old ones.
                more, all_of_them = table.spec.nbytes(rows - table.rows), table.spec.nbytes(rows)
                self._check_room(f"table {name}", more, for_a_while=all_of_them)
            table.grow(rows)
            return table

    def forget(self, client: Client) -> bool:
        """Drop a client of any of the tables, which will not come again; False: none knew it."""
        return sum(table.forget(client) for table in self._tables.values()) > 0

    def expire(self, now: float, idle_s: float) -> int:
        """Forget clients of which nothing was heard for so long; see ``Sequences.expire``."""
        return sum(table.expire(now, idle_s) for table in self._tables.values())

    def close(self) -> None:
        """Let nothing change any more: whatever would is refused, pushes under way are waited for."""
        with self._changing:
            self._closed = True
            for table in self._tables.values():
                table.close()

    def snapshot(self, folder: str | Path, *, snapshot_id: str = "", overwrite: bool = False) -> None:
        """Write all tables into ``folder``, which appears whole or not at all; each as it is between two pushes to it.

        Raises:
            ConfigError: the folder exists and may not be replaced.
            DataError: it cannot be written, for want of space for one; names the file, and nothing is left of it.
        """
        with Staging(folder, MANIFEST, overwrite=overwrite) as staging:
            tables = self.list()
            for table in tables:
                # Nobody waits for a table that takes no pushes, and what there is no room for cannot be copied.
                copy = not self._closed and table.nbytes <= self._room()
                table.write_snapshot(table_folder(staging.path, table.spec.name, make=True), copy=copy)
            write_contents(staging.path, snapshot_id, [table.spec.name for table in tables])

    def prepare(self, folder: str | Path) -> dict[str, MutableTable]:
        """The tables of a snapshot, read and checked, beside the present ones; ``adopt`` lets them take their place.

        Raises:
            DataError: it is damaged or is no snapshot; names the file.
            QuotaExceededError: its tables have no room.
        """
        folder = Path(folder)
        recover(folder)
        names, total = read_contents(folder).tables, 0
        for name in names:
            saved, _ = read_saved(table_folder(folder, name))
            if saved.spec.name != name:
                raise DataError(table_folder(folder, name), f"holds table {saved.spec.name} instead of {name}")
            total += saved.spec.nbytes(saved.rows)
        if total > self.quota_bytes:
            raise QuotaExceededError(f"{folder}: its tables have {total} bytes, the quota is {self.quota_bytes}")
        self._check_memory(str(folder), total)
        return {name: MutableTable.load(table_folder(folder, name)) for name in names}

    def adopt(self, tables: Mapping[str, MutableTable], load_id: int, steps: Mapping[str, int]) -> None:
        """Hold these tables instead of the present ones.

        ``steps``: the highest number of a step that any shard of each table has seen. Raises QuotaExceededError once closed.
        """
        with self._changing:
            self._check_open()
            for name, table in tables.items():
                table.loaded(load_id, steps.get(name, 0))
            self._tables = dict(tables)

    def restore(self, folder: str | Path) -> None:
        """Hold the tables of a snapshot instead of the present ones; errors of ``prepare``, and then nothing has changed."""
        self.adopt(self.prepare(folder), 0, {})

    def _check_open(self) -> None:
        if self._closed:
            raise QuotaExceededError("the daemon is stopping: its tables do not change any more")

    def _check_room(self, what: str, more: int, *, for_a_while: int = 0) -> None:
        used = self.used_bytes
        if used + more > self.quota_bytes:
            raise QuotaExceededError(
                f"{what}: {more} more bytes, {used} of {self.quota_bytes} bytes for mutable tables are used"
            )
        self._check_memory(what, more + for_a_while)

    def _check_memory(self, what: str, more: int) -> None:
        room = self._room()
        if more > room:
            raise QuotaExceededError(
                f"{what}: {more} more bytes of memory; the daemon may take {room} more (of the machine or its control group)"
            )

    def _room(self) -> int:
        free = self._free_bytes()
        return free - free // 8


def table_folder(folder: Path, name: str, *, make: bool = False) -> Path:
    """Where a snapshot has the table of that name."""
    path = folder / "tables" / name
    if make:
        with writing(path):
            path.mkdir(parents=True)
    return path


def _check_same(table: MutableTable, spec: MutableSpec, first_row: int, rows: int) -> None:
    have = {**table.spec.to_dict(), "first_row": table.first_row, "rows of the shard": table.created_rows}
    want = {**spec.to_dict(), "first_row": first_row, "rows of the shard": rows}
    different = [f"{key} is {have[key]!r}, not {want[key]!r}" for key in have if have[key] != want[key]]
    if different:
        raise ConfigError(f"table {spec.name} exists: {'; '.join(different)}")
