"""What keeps a record of the changes of tables, as tables see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from atta.kvstore.durable.entries import Entry
from atta.kvstore.mutable.table import MutableTable

__all__ = ["TableRecorder"]


class TableRecorder(Protocol):
    """Keeps a record of every change of tables. The threads that change tables wait for it; see ``Journal``."""

    def record(self, entry: Entry, apply: Callable[[int], None], *, nbytes: int = 0) -> None:
        """Write the entry, then let ``apply(number of the record)`` make the change, which moves ``nbytes``.

        Raises:
            QuotaExceededError: the entry cannot be written, for example because the disk is full.
        """

    def note(self, entry: Entry) -> None:
        """Write an entry some time: it may be lost. Does not wait."""

    def replace(self, tables: Mapping[str, MutableTable], apply: Callable[[int], None]) -> None:
        """Keep ``tables`` instead of all present ones, then let ``apply`` exchange them; raises DataError."""
