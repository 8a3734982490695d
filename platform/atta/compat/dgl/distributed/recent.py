"""Rows that came with a batch, until a script asks for them by the batch's ids.

A DistDGL script fetches rows after it has got a batch: ``g.ndata["feat"][inputs]``. So the ids that a loader hands out are
remembered, with their batch. What a script asks for by such ids is sent along from then on; what one that trains will ask
for is guessed. A script gets the memory of the batch itself, once: what it asks for again must not show what it has written
there, so that comes from the daemons. From then on this table is copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.client.loaders.sampled import SampledBatch


class Wanted:
    """The tables (node type, table) whose rows come along with a loader's batches: ``whole`` and ``seeds``, those that a
    script has asked for by the ids of all vertices of a batch, or of its seeds alone; ``again``: more than once in a batch.
    """

    def __init__(self, whole: Iterable[tuple[str, str]] = (), seeds: Iterable[tuple[str, str]] = ()) -> None:
        """``whole``, ``seeds``: what the script will probably ask for."""
        self.whole: set[tuple[str, str]] = set()
        self.seeds: set[tuple[str, str]] = set()
        self.again: set[tuple[str, str]] = set()
        self._guessed = frozenset(whole), frozenset(seeds)

    def note(self, node_type: str, table: str, *, whole: bool) -> None:
        """The script has asked for rows of ``table``: they are sent along from now on."""
        (self.whole if whole else self.seeds).add((node_type, table))

    def settle(self) -> None:
        """An epoch has ended: send nothing any more that the script has not asked for."""
        self._guessed = frozenset(), frozenset()

    def state(self) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
        """What is sent along now: of all vertices, and of the seeds alone."""
        whole = self._guessed[0] | self.whole
        return whole, (self._guessed[1] | self.seeds) - whole


class BatchTables:
    """The tables that came with a batch, for scripts that write into the rows that they get."""

    def __init__(self, batch: SampledBatch, wanted: Wanted) -> None:
        self.wanted, self.batch = wanted, batch
        self._taken: set[tuple[str, str]] = set()

    def take(self, node_type: str, table: str, count: int) -> np.ndarray | None:
        """The first ``count`` rows [count, *row shape], which the caller may write into; None: they are not here."""
        rows = self.batch.tables.get(node_type, {}).get(table)
        if rows is None or len(rows) < count:
            return None
        key = node_type, table
        if key in self._taken:
            self.wanted.again.add(key)
            return None
        if key in self.wanted.again:
            return rows[:count].copy()
        self._taken.add(key)
        return rows[:count]


@dataclass(frozen=True)
class _HandedOut:
    """Ids that a loader has handed out: the first vertices of a type in a batch. ``version``: torch's count of writes."""

    tensor: weakref.ref[Any]
    version: int
    node_type: str
    tables: BatchTables
    whole: bool


class BatchRows:
    """Finds the rows that came with a batch by the ids of the batch. It is kept as long as the script has these ids:
    any longer, its memory could not hold the next batches."""

    def __init__(self) -> None:
        self._ids: dict[int, _HandedOut] = {}

    def remember(self, ids: Any, node_type: str, tables: BatchTables, *, whole: bool) -> None:
        """``ids``: the tensor that the script gets; the first vertices of ``node_type`` in the batch, all if
        ``whole``."""
        key, known = id(ids), self._ids
        dropped = weakref.ref(ids, lambda _: known.pop(key, None))
        known[key] = _HandedOut(dropped, _writes(ids), node_type, tables, whole)

    def find(self, node_type: str, table: str, ids: Any) -> np.ndarray | None:
        """Rows [n, *row shape] of a node table, if ``ids`` is a tensor of ids as a loader gave it and they came with its
        batch."""
        known = self._ids.get(id(ids))
        given: Any = None if known is None else known.tensor()
        if known is None or given is not ids or known.node_type != node_type or _writes(given) != known.version:
            return None
        known.tables.wanted.note(node_type, table, whole=known.whole)
        return known.tables.take(node_type, table, len(given))


def _writes(ids: Any) -> int:
    """How often a tensor was written to; 0 where torch does not count."""
    return 0 if ids.is_inference() else int(ids._version)
