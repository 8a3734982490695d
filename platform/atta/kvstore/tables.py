"""The mutable tables of one owner, by name, within a quota of memory."""

from __future__ import annotations

import threading
from pathlib import Path

from atta.errors import ConfigError, DataError, QuotaExceededError, UnknownNameError
from atta.kvstore.mutable import MutableTable
from atta.kvstore.sequences import Client
from atta.kvstore.snapshots import read_saved
from atta.kvstore.spec import MutableSpec, check_name
from atta.partition.files import read_sealed, write_sealed
from atta.partition.staging import Staging

__all__ = ["Tables"]

MANIFEST = "tables.json"
_FORMAT = "atta-mutable-tables"
_VERSION = 1


class Tables:
    """Creates, finds and drops mutable tables. Safe to use from many threads; finding one waits for nobody."""

    def __init__(self, quota_bytes: int) -> None:
        """``quota_bytes``: of all tables together; while a table grows, is copied or is restored, it is in memory twice."""
        self.quota_bytes = quota_bytes
        self._changing = threading.Lock()
        self._tables: dict[str, MutableTable] = {}  # replaced, never changed

    @property
    def used_bytes(self) -> int:
        """Memory of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    def create(self, spec: MutableSpec, first_row: int = 0, rows: int | None = None) -> MutableTable:
        """A new table with global rows ``first_row`` ... ``first_row + rows - 1`` (None: all rows of the spec).

        Creating a table again as it was created returns it as it is now.

        Raises:
            ConfigError: a table of that name was created otherwise, or the rows pass those of the spec.
            QuotaExceededError: there is no room for it.
        """
        rows = spec.rows if rows is None else rows
        with self._changing:
            existing = self._tables.get(spec.name)
            if existing is not None:
                _check_same(existing, spec, first_row, rows)
                return existing
            self._check_room(spec.name, spec.nbytes(max(0, rows)))
            table = MutableTable(spec, first_row, rows)
            self._tables = {**self._tables, spec.name: table}
            return table

    def get(self, name: str) -> MutableTable:
        """The table of that name; raises UnknownNameError with the nearest name that exists."""
        tables = self._tables
        if name not in tables:
            raise UnknownNameError.of("mutable table", name, tables)
        return tables[name]

    def delete(self, name: str) -> bool:
        """Drop a table; False: there was none. Its memory is freed when the last request on it is done."""
        with self._changing:
            tables = dict(self._tables)
            found = tables.pop(name, None)
            self._tables = tables
            return found is not None

    def list(self) -> tuple[MutableTable, ...]:
        """All tables, in order of their names."""
        return tuple(table for _, table in sorted(self._tables.items()))

    def grow(self, name: str, rows: int) -> MutableTable:
        """Let a table's shard have ``rows`` rows.

        Raises:
            UnknownNameError: there is no such table.
            ConfigError: it has more rows already, or may not have as many.
            QuotaExceededError: there is no room for them.
        """
        with self._changing:
            table = self.get(name)
            if rows > table.rows:
                self._check_room(name, table.spec.nbytes(rows - table.rows))
            table.grow(rows)
            return table

    def forget(self, client: Client) -> None:
        """Drop the numbers of a client's pushes to all tables; it will not come again."""
        for table in self._tables.values():
            table.forget(client)

    def snapshot(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write all tables into ``folder``, which appears whole or not at all; each as it is between two pushes to it.

        Raises:
            ConfigError: the folder exists and may not be replaced.
        """
        with Staging(folder, MANIFEST, overwrite=overwrite) as staging:
            tables = self.list()
            for table in tables:
                path = _folder_of(staging.path, table.spec.name)
                path.mkdir(parents=True)
                table.write_snapshot(path)
            names = [table.spec.name for table in tables]
            write_sealed(staging.path / MANIFEST, {"format": _FORMAT, "version": _VERSION, "tables": names})

    def restore(self, folder: str | Path) -> None:
        """Hold the tables of a snapshot instead of the present ones.

        Raises:
            DataError: it is damaged or is no snapshot; names the file. Nothing has changed.
            QuotaExceededError: its tables have no room; nothing has changed.
        """
        folder = Path(folder)
        with self._changing:
            names = _read_names(folder / MANIFEST)
            total = 0
            for name in names:
                saved, _ = read_saved(_folder_of(folder, name))
                if saved.spec.name != name:
                    raise DataError(_folder_of(folder, name), f"holds table {saved.spec.name} instead of {name}")
                total += saved.spec.nbytes(saved.rows)
            if total > self.quota_bytes:
                raise QuotaExceededError(f"{folder}: its tables have {total} bytes, the quota is {self.quota_bytes}")
            self._tables = {name: MutableTable.load(_folder_of(folder, name)) for name in names}

    def _check_room(self, name: str, more: int) -> None:
        used = self.used_bytes
        if used + more > self.quota_bytes:
            raise QuotaExceededError(
                f"table {name}: {more} more bytes, {used} of {self.quota_bytes} bytes for mutable tables are used"
            )


def _folder_of(folder: Path, name: str) -> Path:
    return folder / "tables" / name


def _read_names(path: Path) -> list[str]:
    names = read_sealed(path, "a snapshot of mutable tables", _FORMAT, _VERSION).get("tables")
    try:
        for name in names if isinstance(names, list) else [names]:
            check_name(name)
    except ConfigError as error:
        raise DataError(path, f"malformed: {error}") from None
    return list(names or ())


def _check_same(table: MutableTable, spec: MutableSpec, first_row: int, rows: int) -> None:
    have = {**table.spec.to_dict(), "first_row": table.first_row, "rows of the shard": table.created_rows}
    want = {**spec.to_dict(), "first_row": first_row, "rows of the shard": rows}
    different = [f"{key} is {have[key]!r}, not {want[key]!r}" for key in have if have[key] != want[key]]
    if different:
        raise ConfigError(f"table {spec.name} exists: {'; '.join(different)}")
