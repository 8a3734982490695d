"""A bounded cache of rows of other partitions. Only tables of the dataset are cached, never mutable ones: they are
read-only, so a cached row stays right, and a later version of a table has a cache of its own (``beside``)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.kvstore.cache.choice import HaloHeat
from atta.kvstore.cache.sums import KeptSums
from atta.kvstore.disk import DiskData
from atta.partition.dataset import Dataset
from atta.partition.schema import TableSpec
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem


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

    def look_up(
        self, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray, turn: int = -1
    ) -> Lookup:
        """Which of ``ids`` (int64, internal) are cached for all ``tables``. Partition p owns the entries ``starts[p]``
        to ``starts[p + 1]``; ``starts`` is int64 [parts + 1]. It needs no lock, because a slot always belongs to one
        vertex and its bits are never cleared."""
        need = bits_of(self.tables, tables)
        return Lookup(*kernels.split_cached(self.index, self._present, ids, positions, starts, need=need))

    def keep(self, tables: Sequence[str], slots: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        """Keep rows that came from peers and lie at ``positions`` of ``outs``, the batch's arrays of the tables.
        ``slots``: ``missing_slots`` of a look-up."""
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


class RecentRows:
    """``count`` slots for the rows that batches known ahead will ask for next, and for those that were asked for most
    often lately: being asked counts half as much after ``half_life`` further rows. ``offsets`` int64 [P+1]: the
    partitions' ranges of ids."""

    def __init__(self, count: int, specs: Mapping[str, TableSpec], offsets: np.ndarray, *, half_life: int) -> None:
        self.index = _native.RecentIndex(count, half_life, offsets.tolist())
        self.tables = empty_rows(specs, count)

    def look_up(
        self, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray, turn: int = -1
    ) -> Lookup:
        """Raises ValueError for an id outside its owner's range."""
        ids, positions, starts = (np.ascontiguousarray(a, dtype=np.int64) for a in (ids, positions, starts))
        found = self.index.look_up(ids, positions, starts, bits_of(self.tables, tables), turn)
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


CachedRows = ChosenRows | RecentRows
"""Cached rows of one node type. Safe to use from many threads."""


def empty_rows(specs: Mapping[str, TableSpec], count: int) -> dict[str, np.ndarray]:
    """Arrays for ``count`` rows of each table, on huge pages if the system gives them."""
    return {name: kernels.empty_lines((count, *spec.row_shape), np.dtype(spec.dtype)) for name, spec in specs.items()}


def bits_of(kept: Mapping[str, np.ndarray], tables: Sequence[str]) -> int:
    """A byte with bit i set if the i-th kept table is in ``tables``."""
    return sum(1 << bit for bit, name in enumerate(kept) if name in tables)


MAX_TABLES = 8
"""At most this many tables of a node type are cached."""


class RowCache:
    """A bounded cache of remote rows. Safe to use from many threads.

    Policies: ``degree`` keeps the HALO vertices with the most edges into the partition. ``access`` keeps the HALO
    vertices that sampling with ``fan_outs`` from the partition's training vertices is expected to visit most
    (``HaloHeat.visits``). If there is more room, both add other remote vertices. ``recent`` keeps the rows that
    batches asked for lately.

    Attributes:
        rows_asked: number of rows of peers that batches needed so far.
        rows_hit: number of these rows that were cached.
        sums: in what the rows leave of the memory; None: they leave none, or are not chosen yet.
    """

    def __init__(self) -> None:
        """A cache that keeps nothing until ``choose`` is called, at any time, while batches look rows up."""
        self.rows_asked = self.rows_hit = 0
        self.sums: KeptSums | None = None
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._counted = self
        self._makers: dict[str, Callable[[], CachedRows]] = {}
        self._right: dict[str, RowCache] = {}
        self._kept: dict[str, CachedRows] = {}
        self._forgotten = False

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        part: int,
        *,
        share: float | None = None,
        limit_bytes: int,
        rank: str = "degree",
        fan_outs: Sequence[int] = (15, 10, 5),
    ) -> RowCache:
        """A cache whose rows have been chosen; see ``HaloHeat`` and ``choose``, also for errors."""
        found = cls()
        found.choose(HaloHeat(dataset, part, rank, fan_outs), limit_bytes=limit_bytes, share=share)
        return found

    def choose(self, heat: HaloHeat, *, limit_bytes: int, share: float | None = None) -> None:
        """Reserve slots for remote rows, as many as fit into ``limit_bytes``. A ``share`` (0 to 1) limits them to this
        share of the HALO vertices. Called once. Raises ConfigError: a share outside 0 to 1."""
        dataset, part = heat.dataset, heat.part
        check_share(share)
        makers: dict[str, Callable[[], CachedRows]] = {}
        for node_type, specs in dataset.schema.node_tables.items():
            tables = dict(list(specs.items())[:MAX_TABLES])
            most = _most(dataset, part, node_type, share)
            count = min(most, limit_bytes // _row_bytes(tables)) if tables and limit_bytes > 0 else 0
            limit_bytes -= count * _row_bytes(tables)
            offsets = dataset.book.offsets[node_type]
            if count and heat.rank == "recent":
                makers[node_type] = partial(RecentRows, count, tables, offsets, half_life=len(heat.halo(node_type)))
            elif count:
                makers[node_type] = partial(ChosenRows, heat.hottest(node_type, count), tables, offsets)
        self.sums = KeptSums(limit_bytes) if makers and limit_bytes > 0 else None
        with self._making:
            self._makers.update(makers)  # caches beside this one have the same
        for node_type in makers:
            self._rows(node_type)

    def _rows(self, node_type: str) -> CachedRows | None:
        """The rows of a node type. They are reserved when they are first wanted."""
        found = self._kept.get(node_type)
        if found is not None or node_type not in self._makers or self._forgotten:
            return found
        with self._making:
            return self._made(node_type)

    def _made(self, node_type: str) -> CachedRows | None:
        if node_type not in self._kept and not self._forgotten:
            other = self._right.pop(node_type, None)
            right = None if other is None else other._made(node_type)
            self._kept[node_type] = self._makers[node_type]() if right is None else right
        return self._kept.get(node_type)

    def beside(self, other: Mapping[str, RowCache]) -> RowCache:
        """A cache of another version of the tables. It chooses the same rows; look-ups count here. ``other``: by node
        type, the cache whose rows are right in that version, too. Other node types begin empty."""
        found = copy.copy(self)
        found._right, found._kept, found._forgotten = dict(other), {}, False
        for node_type in self._makers:
            found._rows(node_type)
        if self._makers:
            found._right = {}  # it would keep rows of versions that nobody reads
        return found

    def forget(self) -> None:
        """Let go of all rows. Batches that have looked some up must have ended. Rows that are not chosen yet will come."""
        self._forgotten, self._kept = bool(self._makers), {}

    @property
    def nbytes(self) -> int:
        """Memory of the cache when every slot is filled, in bytes."""
        return bytes_of([self])

    def chosen(self) -> Iterator[tuple[str, ChosenRows]]:
        """Node types, and their rows, whose policy knows before the first batch what it wants to keep."""
        for node_type, kept in [*self._kept.items()]:
            if isinstance(kept, ChosenRows):
                yield node_type, kept

    def stats(self) -> dict[str, float]:
        """Counters and the size, for a daemon's statistics."""
        with self._lock:
            asked, hit = self.rows_asked, self.rows_hit
        return {"cache_rows_asked": float(asked), "cache_rows_hit": float(hit), "cache_bytes": float(self.nbytes)}

    def look_up(
        self,
        node_type: str,
        tables: Sequence[str],
        ids: np.ndarray,
        positions: np.ndarray,
        starts: np.ndarray,
        *,
        turn: int = -1,
    ) -> Lookup | None:
        """Which of ``ids`` (int64, internal) are cached for all ``tables``; None: the cache does not hold these tables.
        Partition p owns the entries ``starts[p]`` to ``starts[p + 1]``; ``starts`` is int64 [parts + 1]. ``turn``: of
        the batch that asks, if it is known ahead (``RowsAhead``)."""
        kept = self._rows(node_type)
        usable = kept is not None and all(name in kept.tables for name in tables)
        found = kept.look_up(tables, ids, positions, starts, turn) if kept is not None and usable else None
        with self._lock:
            self._counted.rows_asked += len(ids)
            self._counted.rows_hit += 0 if found is None else len(found.slots)
        return found

    def expect(self, node_type: str, tables: Sequence[str], rows: np.ndarray) -> None:
        """Rows at home are read at once."""

    def holds(self, node_type: str, name: str) -> bool:
        """Whether rows of this table may be here."""
        kept = self._kept.get(node_type)
        return kept is not None and name in kept.tables

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
        """Copy cached rows to ``positions`` (int64) of ``outs``, the batch's arrays; ``slots``: found ones."""
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


class RowsAhead:
    """A cache as a batch sees it whose rows are fetched when later batches have been sampled, too: until then it only
    says which rows it will ask for. ``turn``: batches with lower ones ask earlier. ``disk``: where rows at home may be."""

    def __init__(self, cache: RowCache, turn: int, disk: DiskData | None = None) -> None:
        self.cache, self.turn, self._disk = cache, turn, disk

    def expect(self, node_type: str, tables: Sequence[str], rows: np.ndarray) -> None:
        """The batch will ask for ``rows`` (int64 [n]) at home."""
        if self._disk is not None:
            self._disk.expect(self.turn, node_type, tables, rows)

    def look_up(
        self, node_type: str, tables: Sequence[str], ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
    ) -> None:
        """As ``RowCache.look_up``, but no row is here yet."""
        kept = self.cache._rows(node_type)
        if isinstance(kept, RecentRows):
            kept.index.expect(self.turn, np.ascontiguousarray(ids, dtype=np.int64))

    def look_up_now(self, items: Sequence[FeatureItem]) -> list[Lookup | None]:
        """As ``RowCache.look_up``, when the rows of ``items``, which have ``starts``, are fetched."""
        found = []
        for item in items:
            assert item.starts is not None
            what = item.node_type, item.tables, item.rows, item.positions, item.starts
            found.append(self.cache.look_up(*what, turn=self.turn))
        return found

    def fill(self, item: FeatureItem, found: Lookup, outs: Sequence[np.ndarray]) -> None:
        """As ``RowCache.fill``, for the rows that were found. From then on others may take their places."""
        self.cache.fill(item.node_type, item.tables, found.slots, found.positions, outs)
        if found.pins is not None:
            found.pins.release()

    def close(self) -> None:
        """The batch will ask for nothing any more."""
        if self._disk is not None:
            self._disk.close(self.turn)
        for kept in [*self.cache._kept.values()]:
            if isinstance(kept, RecentRows):
                kept.index.close(self.turn)


def bytes_of(caches: Iterable[RowCache]) -> int:
    """Memory of several caches (see ``RowCache.beside``) when every slot is filled, in bytes."""
    kept = [rows for cache in caches for rows in [*cache._kept.values()]]
    arrays = {id(rows): rows for held in kept for rows in held.tables.values()}
    return sum(rows.nbytes for rows in arrays.values())


def check_share(share: float | None) -> None:
    """Raise ConfigError for a share of the HALO vertices that is not 0 to 1."""
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"share of HALO vertices in the cache {share:g}: must be 0 to 1 (--cache-share: 0 to 100)")


def _row_bytes(tables: Mapping[str, TableSpec]) -> int:
    return sum(spec.row_bytes for spec in tables.values())


def _most(dataset: Dataset, part: int, node_type: str, share: float | None) -> int:
    """Number of rows of a node type to keep if memory suffices."""
    if share is not None:
        return int(share * len(dataset.part(part).halo(node_type)))
    low, high = dataset.book.range(node_type, part)
    return dataset.schema.node_counts[node_type] - (high - low)
