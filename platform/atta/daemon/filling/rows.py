"""The rows that the cache's policy has chosen, as pieces.

Rows of HALO vertices come first. The cache may have room for rows of other remote vertices, which batches reach through
other partitions. Those are filled in only once batches ask for them, because else nobody might ever use that memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from atta.daemon.filling.pieces import FillPiece
from atta.daemon.filling.source import FillSource, of_one_owner
from atta.daemon.peers.chunks import PULL_BYTES
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.chosen import ChosenRows
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import FeatureItem

__all__ = ["row_pieces"]


def row_pieces(cache: RowCache, dataset: Dataset, part: int, source: FillSource, *, halo: bool) -> Iterator[FillPiece]:
    """Chosen rows of HALO vertices of partition ``part``, or of all other vertices, one chunk of a pull each."""
    for node_type, kept in cache.chosen():
        near = np.zeros(dataset.schema.node_counts[node_type], dtype=bool)
        near[np.asarray(dataset.part(part).halo(node_type))] = True
        slots = np.flatnonzero(near[kept.ids] == halo)
        offsets = dataset.book.offsets[node_type]
        bounds = np.searchsorted(kept.ids[slots], offsets)
        step = max(1, PULL_BYTES // kept.row_bytes)
        for owner, (low, high) in enumerate(pairwise(bounds.tolist())):
            rows = _OwnedRows(node_type, kept, owner, dataset.num_parts, source)
            for first in range(low, high, step):
                yield FillPiece(owner, partial(rows.fetch, slots[first : min(first + step, high)]))


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
