"""Cached rows of vertices that are chosen before the first batch. A row enters when a batch first fetches it, or when it
is filled in, and stays."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atta.kvstore.cache.cached import Lookup, bits_of, empty_rows
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.schema import TableSpec

__all__ = ["ChosenRows"]


class ChosenRows:
    """Caches the rows of ``ids`` (int64, internal ids, ascending) and no others. ``offsets`` int64 [P+1]: the
    partitions' ranges of ids. The row of ``ids[i]`` is in slot i."""

    def __init__(self, ids: np.ndarray, specs: Mapping[str, TableSpec], offsets: np.ndarray) -> None:
        self.index = kernels.Compactor(int(offsets[-1]))
        self.index.insert(ids)
        self.ids = ids
        self.tables = empty_rows(specs, len(ids))
        self._lock = threading.Lock()
        self._present = np.zeros(len(ids), dtype=np.uint8)  # bit i: the row of table i is here

    @property
    def row_bytes(self) -> int:
        """Bytes of one vertex's rows in all tables."""
        return sum(table[:1].nbytes for table in self.tables.values())

    def absent(self, slots: np.ndarray) -> np.ndarray:
        """Those of ``slots`` that lack a row."""
        every = np.uint8(bits_of(self.tables, list(self.tables)))
        return np.asarray(slots[self._present[slots] != every])

    def look_up(self, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray) -> Lookup:
        """It needs no lock, because a slot always belongs to one vertex and its bits are never
        cleared."""
        need = bits_of(self.tables, tables)
        return Lookup(*kernels.split_cached(self.index, self._present, ids, positions, starts, need=need))

    def keep(self, tables: Sequence[str], slots: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        bits = bits_of(self.tables, tables)
        chosen = np.flatnonzero(slots >= 0)
        chosen = chosen[self._present[slots[chosen]] & bits != bits]  # other batches may have brought them by now
        if not len(chosen):
            return
        at, from_ = slots[chosen], positions[chosen]
        with self._lock:
            for name, out in zip(tables, outs, strict=True):
                kernels.gather_rows(out, from_, self.tables[name], positions=at)
            # Write the rows first, then their bits: look-ups read without the lock.
            self._present[at] |= np.uint8(bits)
