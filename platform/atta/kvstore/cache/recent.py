"""Rows that were asked for lately: any remote row may enter, and makes way when batches no longer ask for it.

A batch asks for each row at most once, so a cache smaller than a batch that kept whatever came last would have thrown every row
away before the next batch asks for it. Therefore two rules. A row enters a full cache only on its second sighting (sightings are
forgotten after about as many others as there are HALO vertices), so that a scan leaves nothing behind. And a row makes way only
after ``QUIET_PULLS`` pulls in a row from its owner have not asked for it; a hand goes round the slots to find such rows (CLOCK,
with the number of the last pull in place of a reference bit). Rows that nearly every batch asks for thus stay, others come and go.

A slot that is being read must not be given to another row. A look-up pins the slots of its hits, and ``fill`` (or the end of the
look-up, if its task fails) takes the pins away; a slot that is being written is pinned as well, and its row is found only when it
is complete. The native index holds a mutex for its own words only; rows are copied outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atta import _native
from atta.kvstore.cache.cached import Lookup, Pins, bits_of, empty_rows
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.schema import TableSpec

__all__ = ["RecentRows"]

QUIET_PULLS = 4
"""More let rows that are asked for often stay longer, fewer follow a change of the workload sooner (`atta bench cache`)."""


class RecentRows:
    """A shelf of ``count`` slots. ``offsets`` int64 [P+1]: the partitions' ranges of ids; ``window``: sightings remembered."""

    def __init__(self, count: int, specs: Mapping[str, TableSpec], offsets: np.ndarray, *, window: int) -> None:
        self.index = _native.RecentIndex(count, window, QUIET_PULLS, offsets.tolist())
        self.tables = empty_rows(specs, count)

    def look_up(self, tables: Sequence[str], owner: int, rows: np.ndarray, positions: np.ndarray) -> Lookup:
        """See ``CachedRows``; ValueError: a row outside the owner's range."""
        rows, positions = (np.ascontiguousarray(a, dtype=np.int64) for a in (rows, positions))
        found = self.index.look_up(rows, positions, owner, bits_of(self.tables, tables))
        return Lookup(*found, Pins(self.index, found[0]))

    def fill(self, tables: Sequence[str], found: Lookup, outs: Sequence[np.ndarray]) -> None:
        """See ``CachedRows``."""
        try:
            for name, out in zip(tables, outs, strict=True):
                kernels.gather_rows(self.tables[name], found.slots, out, positions=found.positions)
        finally:
            if found.pins is not None:
                found.pins.release()

    def keep(self, tables: Sequence[str], slots: np.ndarray, blocks: Sequence[np.ndarray]) -> None:
        """See ``CachedRows``; here ``slots`` are ids, because a slot is chosen only when the row has come."""
        chosen = np.flatnonzero(slots >= 0)
        if not len(chosen):
            return
        at, todo = self.index.reserve(np.ascontiguousarray(slots[chosen], dtype=np.int64), bits_of(self.tables, tables))
        written = False
        try:
            for name, block in zip(tables, blocks, strict=True):
                mine = np.flatnonzero(todo & np.uint8(bits_of(self.tables, [name])))
                kernels.scatter_rows(block[chosen[mine]], at[mine], self.tables[name])
            written = True
        finally:
            self.index.publish(at, todo, written)
