"""The rows that the cache's policy has chosen, as pieces.

Rows of the HALO vertices with most edges into the partition come first, because batches ask for them most. Rows of other
remote vertices, which batches reach through other partitions, come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from atta.daemon.filling.pieces import FillPiece
from atta.daemon.filling.source import FillSource, of_one_owner
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.chosen import ChosenRows
from atta.kvstore.cache.ranking import HaloHeat
from atta.samplers.batch.items import FeatureItem

__all__ = ["FILL_BYTES", "row_pieces"]

FILL_BYTES = 4 << 20
"""About so many bytes of rows come at once. Larger pieces cost less Python, and need more memory on their way."""


def row_pieces(cache: RowCache, heat: HaloHeat, source: FillSource) -> Iterator[FillPiece]:
    """All chosen rows, about ``FILL_BYTES`` of an owner at a time, in the order in which they are wanted."""
    dataset = heat.dataset
    for node_type, kept in cache.chosen():
        asked = _edges_of(kept.ids, heat, node_type)
        step = max(1, FILL_BYTES // kept.row_bytes)
        bounds = np.searchsorted(kept.ids, dataset.book.offsets[node_type])
        for owner, (low, high) in enumerate(pairwise(bounds.tolist())):
            rows = _OwnedRows(node_type, kept, owner, dataset.num_parts, source)
            slots = low + np.argsort(-asked[low:high], kind="stable")
            for first in range(0, high - low, step):
                yield FillPiece(owner, partial(rows.fetch, np.sort(slots[first : first + step])))


def _edges_of(ids: np.ndarray, heat: HaloHeat, node_type: str) -> np.ndarray:
    """int64 [ids]: edges of remote vertices (ascending) into the partition; 0 of those beyond its HALO."""
    halo, edges = heat.halo(node_type), np.zeros(len(ids), dtype=np.int64)
    if len(halo):
        at = np.minimum(np.searchsorted(halo, ids), len(halo) - 1)
        near = halo[at] == ids
        edges[near] = heat.edges(node_type)[at[near]]
    return edges


@dataclass(frozen=True)
class _OwnedRows:
    """Chosen rows of one owner."""

    node_type: str
    kept: ChosenRows
    owner: int
    parts: int
    source: FillSource

    async def fetch(self, slots: np.ndarray) -> int:
        """Pull the rows of ``slots`` that batches have not brought meanwhile. Returns the bytes that came."""
        slots = self.kept.absent(slots)
        if not len(slots):
            return 0
        tables, places = tuple(self.kept.tables), np.arange(len(slots))
        blocks = [np.empty((len(slots), table[:1].nbytes), dtype=np.uint8) for table in self.kept.tables.values()]
        starts = of_one_owner(self.parts, self.owner, len(slots))
        wanted = FeatureItem(self.node_type, tables, self.kept.ids[slots], places, starts)
        await self.source.owners.pull([wanted], [blocks])
        await self.source.work(self.kept.keep, tables, slots, places, blocks)
        return len(slots) * self.kept.row_bytes
