"""The rows that the cache's policy has chosen, as pieces.

Rows of HALO vertices come first. The cache may have room for rows of other remote vertices, which batches reach through
other partitions. Those are filled in only once batches ask for them, because else nobody might ever use that memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from atta.daemon.filling.pieces import FillPiece
from atta.daemon.peers.answers import AskedPeers
from atta.daemon.peers.chunks import PULL_BYTES
from atta.errors import RemoteError
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.chosen import ChosenRows
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import FeatureItem

__all__ = ["row_pieces"]


def row_pieces(cache: RowCache, dataset: Dataset, part: int, peers: AskedPeers, *, halo: bool) -> Iterator[FillPiece]:
    """Chosen rows of HALO vertices of partition ``part``, or of all other vertices, one chunk of a pull each."""
    for node_type, kept in cache.chosen():
        near = np.isin(kept.ids, np.asarray(dataset.part(part).halo(node_type)), assume_unique=True)
        slots = np.flatnonzero(near == halo)
        offsets = dataset.book.offsets[node_type]
        bounds = np.searchsorted(kept.ids[slots], offsets)
        step = max(1, PULL_BYTES // kept.row_bytes)
        for owner, (low, high) in enumerate(pairwise(bounds.tolist())):
            rows = _OwnedRows(node_type, kept, owner, int(offsets[owner]), peers)
            for first in range(low, high, step):
                yield FillPiece(owner, partial(rows.fetch, slots[first : min(first + step, high)]))


@dataclass(frozen=True)
class _OwnedRows:
    """Chosen rows of one owner, whose internal ids begin with ``base``."""

    node_type: str
    kept: ChosenRows
    owner: int
    base: int
    peers: AskedPeers

    async def fetch(self, slots: np.ndarray) -> int:
        """Pull the rows of ``slots`` that batches have not brought meanwhile. Returns the bytes that came."""
        slots = self.kept.absent(slots)
        if not len(slots):
            return 0
        peer, tables, came = self.peers[self.owner], tuple(self.kept.tables), 0
        wanted = FeatureItem(self.node_type, tables, self.kept.ids[slots] - self.base, slots)
        async for _, first, count, data in peer.pull([wanted]):
            if len(data) != count * self.kept.row_bytes:
                raise RemoteError(peer.address, f"sends {len(data)} bytes for {count} rows")
            mine, blocks = slots[first : first + count], self._blocks(count, data)
            await asyncio.to_thread(self.kept.keep, tables, mine, np.arange(count), blocks)
            came += count
        if came != len(slots):
            raise RemoteError(peer.address, f"sends {came} rows of {len(slots)}")
        return came * self.kept.row_bytes

    def _blocks(self, count: int, data: memoryview) -> list[np.ndarray]:
        """The rows of a chunk by table: uint8 [count, row bytes] each."""
        widths = [table[:1].nbytes for table in self.kept.tables.values()]
        starts = count * np.cumsum([0, *widths])
        received = np.frombuffer(data, dtype=np.uint8)
        return [
            received[at : at + count * width].reshape(count, width) for at, width in zip(starts, widths, strict=False)
        ]
