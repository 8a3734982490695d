"""A bounded cache of remote rows. Its policy decides which rows it keeps.

Batches ask for the rows of the remote vertices that they sampled. A row that was fetched for a batch is kept if the
policy wants it. Rows that a policy has chosen beforehand may also be filled in (``chosen``). Only tables of the dataset
are cached. They are read-only, so a cached row stays right; a later version of a table has a cache of its own
(``beside``). Mutable tables are a service of their own and are never cached.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.cache.cached import CachedRows, Lookup
from atta.kvstore.cache.chosen import ChosenRows
from atta.kvstore.cache.ranking import RANKS, hottest, visits_for
from atta.kvstore.cache.recent import RecentRows
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.partition.schema import TableSpec

__all__ = ["RowCache", "bytes_of"]

MAX_TABLES = 8
"""At most this many tables of a node type are cached."""


class RowCache:
    """A bounded cache of remote rows. Safe to use from many threads.

    Policies: ``degree`` keeps the HALO vertices with the most edges into the partition. ``access`` keeps the HALO
    vertices that sampling with ``fan_outs`` from the partition's training vertices is expected to visit most
    (``ranking.expected_visits``). If there is more room, both add other remote vertices. ``recent`` keeps the rows that
    batches asked for lately (module ``recent``).

    Attributes:
        rows_asked: number of rows of peers that batches needed so far.
        rows_hit: number of these rows that were cached.
    """

    def __init__(
        self,
        dataset: Dataset,
        part: int,
        *,
        share: float | None = None,
        limit_bytes: int,
        rank: str = "degree",
        fan_outs: Sequence[int] = (15, 10, 5),
    ) -> None:
        """Reserve slots for remote rows, as many as fit into ``limit_bytes``. A ``share`` (0 to 1) limits them to this
        share of the HALO vertices.

        Raises:
            UnknownNameError: no such policy.
            ConfigError: a share outside 0 to 1; the policy ``access`` has no fan-outs, or one below -1.
        """
        if rank not in RANKS:
            raise UnknownNameError.of("cache ranking", rank, RANKS)
        if share is not None and not 0 <= share <= 1:
            raise ConfigError(
                f"share of the HALO vertices in the cache {share:g}: must be 0 to 1 (--cache-share: 0 to 100)"
            )
        self.rows_asked = self.rows_hit = 0
        self._lock = threading.Lock()
        self._counted = self
        self._makers: dict[str, Callable[[], CachedRows]] = {}
        self._kept: dict[str, CachedRows]
        counts, specs = {}, {t: dict(list(s.items())[:MAX_TABLES]) for t, s in dataset.schema.node_tables.items()}
        for node_type, tables in specs.items():
            most = _most(dataset, part, node_type, share)
            counts[node_type] = min(most, limit_bytes // _row_bytes(tables)) if tables and limit_bytes > 0 else 0
            limit_bytes -= counts[node_type] * _row_bytes(tables)
        visits = visits_for(dataset, part, rank, fan_outs) if any(counts.values()) else None
        for node_type, count in counts.items():
            offsets, tables = dataset.book.offsets[node_type], specs[node_type]
            if count and rank == "recent":
                window = len(dataset.part(part).halo(node_type))
                self._makers[node_type] = partial(RecentRows, count, tables, offsets, window=window)
            elif count:
                ids = hottest(dataset, part, node_type, count, None if visits is None else visits[node_type])
                self._makers[node_type] = partial(ChosenRows, ids, tables, offsets)
        self._kept = {node_type: make() for node_type, make in self._makers.items()}

    def beside(self, other: Mapping[str, RowCache]) -> RowCache:
        """A cache of another version of the tables. It chooses the same rows; look-ups count here.

        ``other``: by node type, the cache whose rows are right in that version, too. Other node types begin empty.
        """
        found = copy.copy(self)
        found._counted, found._kept = self._counted, {}
        for node_type, make in self._makers.items():
            kept = other[node_type]._kept.get(node_type) if node_type in other else None
            found._kept[node_type] = make() if kept is None else kept
        return found

    def forget(self) -> None:
        """Let go of all rows. Batches that have looked some up must have ended."""
        self._kept = {}

    @property
    def nbytes(self) -> int:
        """Memory of the cache when every slot is filled, in bytes."""
        return bytes_of([self])

    def chosen(self) -> Iterator[tuple[str, ChosenRows]]:
        """Node types, and their rows, whose policy knows before the first batch what it wants to keep."""
        for node_type, kept in self._kept.items():
            if isinstance(kept, ChosenRows):
                yield node_type, kept

    def stats(self) -> dict[str, float]:
        """Counters and the size, for a daemon's statistics."""
        with self._lock:
            asked, hit = self.rows_asked, self.rows_hit
        return {"cache_rows_asked": float(asked), "cache_rows_hit": float(hit), "cache_bytes": float(self.nbytes)}

    def look_up(
        self, node_type: str, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
    ) -> Lookup | None:
        """Which of ``ids`` (int64, internal) are cached for all ``tables``; None: the cache does not hold these tables.

        Partition p owns the entries ``starts[p]`` to ``starts[p + 1]``; ``starts`` is int64 [parts + 1].
        """
        kept = self._kept.get(node_type)
        usable = kept is not None and all(name in kept.tables for name in tables)
        found = kept.look_up(tables, ids, positions, starts) if kept is not None and usable else None
        with self._lock:
            self._counted.rows_asked += len(ids)
            self._counted.rows_hit += 0 if found is None else len(found.slots)
        return found

    def table(self, node_type: str, name: str) -> np.ndarray:
        """The cached rows of a table, by slot as looked up. Only rows that were found there may be read."""
        return self._kept[node_type].tables[name]

    def fill(
        self,
        node_type: str,
        tables: Sequence[str],
        slots: np.ndarray,
        positions: np.ndarray,
        outs: Sequence[np.ndarray],
    ) -> None:
        """Copy cached rows to ``positions`` (int64) of ``outs``, the batch's arrays of the tables; ``slots`` as looked
        up."""
        for name, out in zip(tables, outs, strict=True):
            kernels.gather_rows(self.table(node_type, name), slots, out, positions=positions)

    def keep(
        self,
        node_type: str,
        tables: Sequence[str],
        slots: np.ndarray,
        positions: np.ndarray,
        outs: Sequence[np.ndarray],
    ) -> None:
        """Keep rows that came from peers and lie at ``positions`` (int64) of ``outs``; ``slots`` as looked up."""
        self._kept[node_type].keep(tables, slots, positions, outs)


def bytes_of(caches: Iterable[RowCache]) -> int:
    """Memory of several caches (see ``RowCache.beside``) when every slot is filled, in bytes."""
    arrays = {id(rows): rows for cache in caches for kept in cache._kept.values() for rows in kept.tables.values()}
    return sum(rows.nbytes for rows in arrays.values())


def _row_bytes(tables: Mapping[str, TableSpec]) -> int:
    return sum(spec.row_bytes for spec in tables.values())


def _most(dataset: Dataset, part: int, node_type: str, share: float | None) -> int:
    """Number of rows of a node type to keep if memory suffices."""
    if share is not None:
        return int(share * len(dataset.part(part).halo(node_type)))
    low, high = dataset.book.range(node_type, part)
    return dataset.schema.node_counts[node_type] - (high - low)
