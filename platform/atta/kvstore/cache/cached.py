"""The common part of the row cache's policies: the cached rows of one node type, and look-ups in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from atta import _native
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.schema import TableSpec

__all__ = ["CachedRows", "Lookup", "Pins", "bits_of", "empty_rows"]


class Pins:
    """Keeps the slots of a look-up's hits from being reused until ``release``, or until the look-up is dropped."""

    def __init__(self, index: _native.RecentIndex, slots: np.ndarray) -> None:
        self._index, self._slots = index, slots

    def release(self) -> None:
        """Free the slots. A second call does nothing."""
        slots, self._slots = self._slots, self._slots[:0]
        if len(slots):
            self._index.unpin(slots)

    def __del__(self) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Which of the peers' rows are cached and which are missing. A position is the row's place in the batch.

    Hits: ``slots`` int32 [hits] and ``positions`` int64 [hits]. Policies that give slots to other rows hold them with
    ``pins``: keep it until the rows have been copied.

    Misses: ``missing_ids`` and ``missing_positions`` int64 [misses], ``missing_starts`` int64 [parts + 1] their bounds
    by owner, ``missing_slots`` int32 or int64 [misses]. Pass ``missing_slots`` to ``keep`` when the rows have come; -1:
    do not keep the row. Policies that choose beforehand give the slot, others the vertex's id.
    """

    slots: np.ndarray
    positions: np.ndarray
    missing_ids: np.ndarray
    missing_positions: np.ndarray
    missing_starts: np.ndarray
    missing_slots: np.ndarray
    pins: Pins | None = None


class CachedRows(Protocol):
    """Cached rows of one node type. Safe to use from many threads."""

    tables: dict[str, np.ndarray]
    """The cached tables, [slots, *row shape] each."""

    def look_up(self, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray) -> Lookup:
        """Which of ``ids`` (int64, internal) are cached for all ``tables``. Partition p owns the entries ``starts[p]``
        to ``starts[p + 1]``; ``starts`` is int64 [parts + 1]."""

    def keep(self, tables: Sequence[str], slots: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        """Keep rows that came from peers and lie at ``positions`` of ``outs``, the batch's arrays of the tables.
        ``slots``: ``missing_slots`` of a look-up."""


def empty_rows(specs: Mapping[str, TableSpec], count: int) -> dict[str, np.ndarray]:
    """Arrays for ``count`` rows of each table, on huge pages if the system gives them."""
    rows = {name: np.empty((count, *spec.row_shape), dtype=spec.dtype) for name, spec in specs.items()}
    for array in rows.values():
        kernels.advise_huge(array)
    return rows


def bits_of(kept: Mapping[str, np.ndarray], tables: Sequence[str]) -> int:
    """A byte with bit i set if the i-th kept table is in ``tables``."""
    return sum(1 << bit for bit, name in enumerate(kept) if name in tables)
