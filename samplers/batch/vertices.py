"""The vertices of one node type in a batch: local ids 0, 1, 2, ... in the order in which they were first reached."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atta.samplers import kernels

__all__ = ["CompactorPool", "Vertices"]


class Vertices:
    """Numbers internal ids. With ``trees`` it numbers pairs (tree, internal id), written as tree x (vertices of the
    type) + id."""

    def __init__(self, compactor: kernels.Compactor, count: int, *, trees: bool) -> None:
        """``count``: number of vertices of the type in the whole graph."""
        self.compactor, self.count, self.in_trees = compactor, count, trees

    @property
    def size(self) -> int:
        """Number of vertices so far."""
        return self.compactor.size

    def insert(self, ids: np.ndarray, trees: np.ndarray | None = None) -> np.ndarray:
        """int32 [len(ids)]: local ids of ``ids`` (int64 internal ids, in ``trees`` if given). New vertices are appended
        in order."""
        if not self.in_trees:
            return self.compactor.insert(ids)
        assert trees is not None
        return self.compactor.insert(trees.astype(np.int64) * self.count + ids)

    def find(self, ids: np.ndarray, trees: np.ndarray | None = None) -> np.ndarray:
        """int32 [len(ids)]: local ids as ``insert`` gives them; -1: not in the batch."""
        if not self.in_trees:
            return self.compactor.find(ids)
        assert trees is not None
        return self.compactor.find(trees.astype(np.int64) * self.count + ids)

    def internal(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """int64 [stop - start]: internal ids of the vertices with these local ids; int32: their trees (None without
        trees)."""
        if self.in_trees:
            return self.compactor.in_trees(start, stop, self.count)
        return self.compactor.ids(start, stop), None


class CompactorPool:
    """Compactors that batches reuse. The direct table of a large graph has megabytes: it is slow to fill and fast to
    clean."""

    def __init__(self, node_counts: Mapping[str, int]) -> None:
        self._counts = dict(node_counts)
        self._free: dict[tuple[str, bool], list[kernels.Compactor]] = {
            (t, trees): [] for t in node_counts for trees in (False, True)
        }

    def take(self, *, trees: bool = False) -> dict[str, Vertices]:
        """Empty ``Vertices`` by node type."""
        return {t: self._one(t, trees=trees) for t in self._counts}

    def _one(self, node_type: str, *, trees: bool) -> Vertices:
        free, count = self._free[node_type, trees], self._counts[node_type]
        return Vertices(free.pop() if free else kernels.Compactor(0 if trees else count), count, trees=trees)

    def give(self, used: Mapping[str, Vertices]) -> None:
        """Take compactors back."""
        for node_type, vertices in used.items():
            vertices.compactor.reset()
            self._free[node_type, vertices.in_trees].append(vertices.compactor)
