"""What the policies have in common: a shelf keeps rows of one node type and says which of those asked for it has."""

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
    """Keeps the slots of a look-up's hits from being reused until ``release``, or until nobody holds the look-up any more."""

    def __init__(self, index: _native.RecentIndex, slots: np.ndarray) -> None:
        self._index, self._slots = index, slots

    def release(self) -> None:
        """Give the slots free; again: nothing happens."""
        slots, self._slots = self._slots, self._slots[:0]
        if len(slots):
            self._index.unpin(slots)

    def __del__(self) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Lookup:
    """How rows asked of a peer divide into kept and missing ones; positions are where the batch wants them.

    ``slots`` int32 [hits] and ``positions`` int64 [hits]; ``missing_rows``, ``missing_positions`` int64 [misses] and
    ``missing_slots`` int32 or int64 [misses]: what ``keep`` is to be told with the row when it comes, -1: not to be kept (policies
    that choose beforehand give the slot, others the vertex's id). ``pins`` holds the slots of the hits until they are filled.
    """

    slots: np.ndarray
    positions: np.ndarray
    missing_rows: np.ndarray
    missing_positions: np.ndarray
    missing_slots: np.ndarray
    pins: Pins | None = None


class CachedRows(Protocol):
    """Kept rows of one node type. Safe to use from many threads."""

    tables: dict[str, np.ndarray]
    """The tables that are kept, [slots, *row shape] each."""

    def look_up(self, tables: Sequence[str], owner: int, rows: np.ndarray, positions: np.ndarray) -> Lookup:
        """Which of ``owner``'s ``rows`` (int64, relative to its range) are here with all ``tables``."""

    def fill(self, tables: Sequence[str], found: Lookup, outs: Sequence[np.ndarray]) -> None:
        """Copy the rows that are here to where the batch wants them; once per look-up."""

    def keep(self, tables: Sequence[str], slots: np.ndarray, blocks: Sequence[np.ndarray]) -> None:
        """Keep rows that came from a peer; ``slots``: entries of ``missing_slots``."""


def empty_rows(specs: Mapping[str, TableSpec], count: int) -> dict[str, np.ndarray]:
    """Room for ``count`` rows of each table, on huge pages where the system gives them."""
    rows = {name: np.empty((count, *spec.row_shape), dtype=spec.dtype) for name, spec in specs.items()}
    for array in rows.values():
        kernels.advise_huge(array)
    return rows


def bits_of(kept: Mapping[str, np.ndarray], tables: Sequence[str]) -> int:
    """A byte with bit i set for the i-th kept table, for those in ``tables``."""
    return sum(1 << bit for bit, name in enumerate(kept) if name in tables)
