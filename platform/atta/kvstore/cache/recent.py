"""Cached rows that were asked for lately: any remote row may enter, and is replaced when batches no longer ask for it.

A batch asks for each row at most once. A cache that is smaller than a batch and keeps the latest rows would drop every
row before the next batch asks for it. Therefore there are two rules. First, a row enters a full cache only when it is
seen the second time, so a single scan over many rows changes nothing. A sighting is forgotten after about as many
others as there are HALO vertices. Second, a row is replaced only after ``QUIET_PULLS`` consecutive pulls from its owner
have not asked for it. A hand goes round the slots to find such rows (CLOCK, with the number of the last pull in place
of a reference bit). So rows that nearly every batch asks for stay.

A slot that is being read must not be given to another row. A look-up pins the slots of its hits. They are free again
when its ``pins`` are released or dropped: with the batch, at the latest. A slot that is being written is pinned too, and
look-ups find its row only when it is complete. The native index holds its mutex only for its own data; rows are copied
outside of it.
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
"""How many pulls a row survives without being asked for. More keep frequent rows longer; fewer follow a change of the
workload sooner (`atta bench cache`)."""


class RecentRows:
    """``count`` slots. ``offsets`` int64 [P+1]: the partitions' ranges of ids. ``window``: number of remembered
    sightings."""

    def __init__(self, count: int, specs: Mapping[str, TableSpec], offsets: np.ndarray, *, window: int) -> None:
        self.index = _native.RecentIndex(count, window, QUIET_PULLS, offsets.tolist())
        self.tables = empty_rows(specs, count)

    def look_up(self, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray) -> Lookup:
        """Raises ValueError for an id outside its owner's range."""
        ids, positions, starts = (np.ascontiguousarray(a, dtype=np.int64) for a in (ids, positions, starts))
        found = self.index.look_up(ids, positions, starts, bits_of(self.tables, tables))
        return Lookup(*found, Pins(self.index, found[0]))

    def keep(self, tables: Sequence[str], slots: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        """Here ``slots`` are ids, because a slot is chosen only when the row has come."""
        chosen = np.flatnonzero(slots >= 0)
        if not len(chosen):
            return
        at, todo = self.index.reserve(np.ascontiguousarray(slots[chosen], dtype=np.int64), bits_of(self.tables, tables))
        written, from_ = False, positions[chosen]
        try:
            for name, out in zip(tables, outs, strict=True):
                mine = np.flatnonzero(todo & np.uint8(bits_of(self.tables, [name])))
                kernels.gather_rows(out, from_[mine], self.tables[name], positions=at[mine])
            written = True
        finally:
            self.index.publish(at, todo, written)
