"""Cuts the in-edges that a daemon wants from its peers into pieces: what saves most comes first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atta.kvstore.cache.choice import HotVertices

__all__ = ["PIECE_BYTES", "Piece", "in_pieces"]

PIECE_BYTES = 1 << 20
"""About so many bytes of in-edges come at once. A single vertex may have more."""
TIER_BYTES = 8 << 20
"""Vertices that save about as much are regrouped by owner, within so many bytes."""
EDGE_BYTES, ROW_BYTES = 8, 4
"""An edge and a row of an answer on the network."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Vertices of one owner: the rows [first, stop) of ``HotVertices``; ``nbytes`` on the network."""

    tier: int
    node_type: str
    owner: int
    first: int
    stop: int
    nbytes: int


def in_pieces(hot: HotVertices, offsets: np.ndarray) -> tuple[HotVertices, list[Piece]]:
    """Reorder ``hot`` so that the vertices of a piece follow each other, in ascending order of ids.

    ``offsets`` int64 [P+1]: the partitions' ranges of ids.
    """
    sizes = ROW_BYTES + EDGE_BYTES * hot.degrees.sum(axis=1)
    tiers = (np.cumsum(sizes) - sizes) // TIER_BYTES
    order = np.lexsort((hot.ids, tiers))
    sizes, tiers, ids = sizes[order], tiers[order], hot.ids[order]
    owners = np.searchsorted(offsets, ids, side="right") - 1
    starts = np.flatnonzero(np.diff(tiers, prepend=-1) | np.diff(owners, prepend=-1))
    found = []
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        for first, end in _cut(sizes, int(start), int(stop)):
            nbytes = int(sizes[first:end].sum())
            found.append(Piece(int(tiers[first]), hot.node_type, int(owners[first]), first, end, nbytes))
    return HotVertices(hot.node_type, ids, hot.degrees[order]), found


def _cut(sizes: np.ndarray, start: int, stop: int) -> Sequence[tuple[int, int]]:
    """Cut rows [start, stop) so that no piece is much larger than ``PIECE_BYTES``."""
    done = np.cumsum(sizes[start:stop])
    found, at = [], 0
    while at < len(done):
        before = done[at - 1] if at else 0
        end = max(at + 1, int(np.searchsorted(done, before + PIECE_BYTES, side="right")))
        found.append((start + at, start + end))
        at = end
    return found
