"""Rows of other partitions that this partition's batches ask for most, kept at home.

Who is asked for is known before the first batch: a vertex reaches a batch along its edges into this partition, so HALO vertices
rank by the number of those edges. Rows are kept when they first come by; nothing is fetched on purpose. Tables are read-only, so
a row that has been kept stays right.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset

__all__ = ["Lookup", "RowCache"]

MAX_TABLES = 8
"""Of one node type; further ones are not cached."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """How rows asked of a peer divide into kept and missing ones; positions are where the batch wants them.

    ``slots`` int32 [hits] and ``positions`` int64 [hits]; ``missing_rows``, ``missing_positions`` int64 [misses] and
    ``missing_slots`` int32 [misses]: where to keep the row when it comes, -1 for nowhere.
    """

    slots: np.ndarray
    positions: np.ndarray
    missing_rows: np.ndarray
    missing_positions: np.ndarray
    missing_slots: np.ndarray


class _Kept:
    """The chosen vertices of one node type and their rows."""

    def __init__(self, ids: np.ndarray, tables: dict[str, np.ndarray]) -> None:
        self.index = kernels.Compactor()
        self.index.insert(ids)
        self.tables = tables
        self.bits = {name: 1 << bit for bit, name in enumerate(tables)}
        self.present = np.zeros(len(ids), dtype=np.uint8)  # bit i: the row of table i is here


class RowCache:
    """A bounded cache of remote rows. Safe to use from many threads."""

    def __init__(self, dataset: Dataset, part: int, *, share: float, limit_bytes: int) -> None:
        """Choose the hottest ``share`` (0 to 1) of the HALO vertices, and no more than fit into ``limit_bytes``."""
        self._offsets = dataset.book.offsets
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        for node_type, tables in dataset.schema.node_tables.items():
            specs = dict(list(tables.items())[:MAX_TABLES])
            row_bytes = sum(spec.row_bytes for spec in specs.values())
            if share <= 0 or limit_bytes <= 0 or not row_bytes:
                continue
            ids = _hottest(dataset, part, node_type, share, limit_bytes // row_bytes)
            limit_bytes -= row_bytes * len(ids)
            if len(ids):
                rows = {name: np.empty((len(ids), *spec.row_shape), dtype=spec.dtype) for name, spec in specs.items()}
                for array in rows.values():
                    kernels.advise_huge(array)
                self._kept[node_type] = _Kept(ids, rows)

    @property
    def nbytes(self) -> int:
        """Memory that the kept rows take once all have come by."""
        return sum(table.nbytes for kept in self._kept.values() for table in kept.tables.values())

    def look_up(
        self, node_type: str, tables: Sequence[str], owner: int, rows: np.ndarray, positions: np.ndarray
    ) -> Lookup | None:
        """Which of ``owner``'s ``rows`` (int64, relative to its range) are here with all ``tables``; None: not cached at all."""
        kept = self._kept.get(node_type)
        if kept is None or any(name not in kept.bits for name in tables):
            return None
        need = sum(kept.bits[name] for name in tables)
        base = int(self._offsets[node_type][owner])
        return Lookup(*kernels.split_cached(kept.index, kept.present, rows, positions, need=need, base=base))

    def fill(self, node_type: str, tables: Sequence[str], found: Lookup, outs: Sequence[np.ndarray]) -> None:
        """Copy the rows that are here to where the batch wants them; ``outs``: its arrays of the tables."""
        kept = self._kept[node_type]
        for name, out in zip(tables, outs, strict=True):
            kernels.gather_rows(kept.tables[name], found.slots, out, positions=found.positions)

    def keep(self, node_type: str, tables: Sequence[str], slots: np.ndarray, blocks: Sequence[np.ndarray]) -> None:
        """Keep rows that came from a peer: ``blocks`` uint8 [rows, row bytes] per table, ``slots`` int32 as looked up."""
        chosen = np.flatnonzero(slots >= 0)
        if not len(chosen):
            return
        kept, at = self._kept[node_type], slots[chosen]
        with self._lock:
            for name, block in zip(tables, blocks, strict=True):
                kernels.scatter_rows(block[chosen], at, kept.tables[name])
            # Rows first, then the word that they are here: lookups read without the lock.
            kept.present[at] |= np.uint8(sum(kept.bits[name] for name in tables))


def _hottest(dataset: Dataset, part: int, node_type: str, share: float, most: int) -> np.ndarray:
    """Internal ids (int64, ascending) of the HALO vertices with the most edges into the partition."""
    halo = np.asarray(dataset.part(part).halo(node_type))
    count = min(int(share * len(halo)), most)
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    edges = np.zeros(len(halo), dtype=np.int64)
    for edge_type in dataset.schema.edge_types:
        if dataset.schema.endpoints(edge_type)[0] == node_type:
            sources = dataset.part(part).csc(edge_type).indices
            edges += kernels.count_ids(sources, dataset.schema.node_counts[node_type])[halo]
    # Ties go to lower ids, so that the choice does not depend on the sorting algorithm.
    hottest = np.argsort(-edges, kind="stable")[:count]
    return np.sort(halo[hottest]).astype(np.int64)
