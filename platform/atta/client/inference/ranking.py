"""The best targets of some sources, block of targets by block. No daemons here.

A source does not get targets that it has an edge to already, nor itself. Of two targets with the same score the smaller
id comes first. So the blocks may come in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import Floats

__all__ = ["BestTargets", "TargetBlock"]

Ids = npt.NDArray[np.int64]
_SPARE = 4
"""A block in which this many times more scores than wanted beat the ones before is thinned before it is sorted."""


@dataclass(frozen=True)
class TargetBlock:
    """A block of targets.

    Attributes:
        ids: int64 [m], user ids of the targets.
        linked: int64 [2, e], user ids of sources and places in ``ids``: edges that exist.
    """

    ids: Ids
    linked: Ids


class BestTargets:
    """The best targets of some sources so far."""

    def __init__(self, sources: Ids, count: int, *, loops: bool) -> None:
        """sources: int64 [n], user ids, each once. count: targets for each.

        loops: whether sources and targets are vertices of one type, so that a source meets itself.
        """
        self._sources, self._count, self._loops = sources, count, loops
        self._order = np.argsort(sources)
        self._rows, self._ids = np.empty(0, np.int64), np.empty(0, np.int64)
        self._scores = np.empty(0, np.float32)

    def take(self, scores: Floats, found: TargetBlock) -> None:
        """Take a block's scores [n, m]. They are overwritten where a pair does not count."""
        self._hide(scores, *found.linked)
        if self._loops:
            self._hide(scores, found.ids, np.arange(len(found.ids)))
        rows, places = self._better(scores)
        self._keep(
            np.concatenate([self._rows, rows]),
            np.concatenate([self._ids, found.ids[places]]),
            np.concatenate([self._scores, scores[rows, places]]),
        )

    def pairs(self) -> tuple[Ids, Floats]:
        """int64 [r, 2] sources and targets, and their scores [r]: source by source, the best first."""
        return np.stack([self._sources[self._rows], self._ids], axis=1), self._scores

    def _hide(self, scores: Floats, sources: Ids, places: Ids) -> None:
        """Strike out pairs of a source's id and a target's place. Ids that are not among the sources do not count."""
        at = np.searchsorted(self._sources, sources, sorter=self._order)
        rows = self._order[np.minimum(at, len(self._order) - 1)]
        here = self._sources[rows] == sources
        scores[rows[here], places[here]] = -np.inf

    def _better(self, scores: Floats) -> tuple[Ids, Ids]:
        """Rows and columns of scores that may belong to the best: equal ones do."""
        floor = self._floor()[:, None]
        better = (scores >= floor) & (scores > -np.inf)
        wide = scores.shape[1] - self._count
        if wide > 0 and int(better.sum()) > _SPARE * self._count * len(scores):
            better &= scores >= np.partition(scores, wide, axis=1)[:, wide, None]
        rows, places = np.nonzero(better)
        return rows, places

    def _floor(self) -> Floats:
        """float32 [n]: the last score of each source that has enough targets, otherwise the smallest number."""
        floor = np.full(len(self._sources), -np.inf, np.float32)
        counts = np.bincount(self._rows, minlength=len(floor))
        full = np.flatnonzero(counts == self._count)
        floor[full] = self._scores[np.cumsum(counts)[full] - 1]
        return floor

    def _keep(self, rows: Ids, ids: Ids, scores: Floats) -> None:
        """Keep the best of these per row, sorted."""
        order = np.lexsort((ids, -scores, rows))
        rows, ids, scores = rows[order], ids[order], scores[order]
        counts = np.bincount(rows, minlength=len(self._sources))
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = rank < self._count
        self._rows, self._ids, self._scores = rows[kept], ids[kept], scores[kept]
