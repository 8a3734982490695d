"""Makes tables from the entries of a log, as they were when the last entry was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from atta.kvstore.durable.entries import Created, Deleted, Entry, Forgotten, Grown, Registered, RowsPushed, Whole
from atta.kvstore.initial import RowIds
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec

__all__ = ["Replay"]


class Replay:
    """Tables by their keys. Entries are applied in the order of the log, by one thread, so the result is always the
    same.

    A checkpoint holds each table as it was at some moment after the first entry that follows the checkpoint. Its
    ``lsn`` says at which: entries up to there are left out. Entries of a table that was deleted are left out, too.
    """

    def __init__(self, tables: Iterable[MutableTable], ids: Callable[[MutableSpec], RowIds | None]) -> None:
        """``tables``: of the checkpoint. ``ids`` of a new table's rows; None: they are numbers."""
        self._tables, self._ids = {table.key: table for table in tables}, ids

    def by_name(self) -> dict[str, MutableTable]:
        """The tables."""
        return {table.spec.name: table for table in self._tables.values()}

    def apply(self, lsn: int, entry: Entry) -> None:
        """Apply record ``lsn``; raises ValueError or ConfigError if it contradicts the table."""
        if isinstance(entry, Created):
            self._create(lsn, entry)
            return
        table = self._tables.get(entry.key)
        if table is None:
            return
        match entry:
            case RowsPushed():
                if lsn > table.lsn:
                    push = entry.shaped(table.spec)
                    table.replay(push, entry.client, entry.sequence, entry.settled, lsn)
            case Registered():
                table.know(entry.client)
            case Forgotten():
                for client in entry.clients:
                    table.forget(client)
            case Grown():
                if entry.rows > table.rows:
                    table.grow(entry.rows)
            case Whole():
                table.whole = True
            case Deleted():
                del self._tables[entry.key]

    def _create(self, lsn: int, entry: Created) -> None:
        if entry.key in self._tables:
            return
        ids = self._ids(entry.spec)
        table = MutableTable(entry.spec, entry.first_row, entry.rows, table_id=entry.table_id, ids=ids)
        table.key, table.lsn = entry.key, lsn
        self._tables[entry.key] = table
