"""ShaDow's subgraphs: one for each seed (Zeng et al., NeurIPS 2021)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.operators.base import Batch, Bounds, Sampled
from atta.samplers.operators.parts.options import MAX_EDGES, MAX_VERTICES, check_whole
from atta.samplers.operators.parts.subgraph import spans
from atta.samplers.requests import Expand, Neighbors, Program

__all__ = ["Shadow"]

_MAX_DEPTH = 32
_TOGETHER = 1 << 21
"""At most this many edges are processed together, unless one vertex has more."""


@dataclass(frozen=True)
class Shadow:
    """Every seed's k-hop neighbourhood with all edges among its vertices (section 3.1; PyG's ``ShaDowKHopSampler``).

    A tree holds the vertices that its seed reaches in ``depth`` hops. From each vertex ``num_neighbors`` in-edges are
    followed (-1: all). Each tree draws its own. The seeds come first, then the other vertices, hop by hop. Tree i is
    the tree of seed i.
    """

    makes_trees: ClassVar[bool] = True
    depth: int = 2
    num_neighbors: int = 10
    replace: bool = False

    def __post_init__(self) -> None:
        check_whole("depth", self.depth, 0, _MAX_DEPTH)
        check_whole("num_neighbors", self.num_neighbors, -1, MAX_VERTICES)
        if self.num_neighbors == 0:
            raise ConfigError("num_neighbors 0: must be at least 1, or -1 for all")
        if not isinstance(self.replace, bool):
            raise ConfigError(f"replace {self.replace!r}: must be true or false")

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
        nodes = max(1, len(batch.keys))
        members = kernels.Compactor()  # numbers pairs as tree x nodes + vertex
        members.insert(np.arange(len(batch.seeds)) * nodes + batch.seeds)
        begin = 0
        for hop in range(self.depth):
            trees, vertices = np.divmod(members.ids(begin, members.size), nodes)
            if not len(vertices):
                break
            begin = members.size
            key = batch.key("shadow", hop)
            found = yield Expand(vertices, self.num_neighbors, self.replace, key, trees.astype(np.int32))
            members.insert(np.repeat(trees, found.counts) * nodes + found.sources)
        return (yield from _induced_in_trees(members.ids(0, members.size), nodes))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """See ``Operator``. A tree may have any number of parallel edges, so there is no better bound on its edges."""
        reached = nodes if self.num_neighbors < 0 else sum(self.num_neighbors**hop for hop in range(self.depth + 1))
        return Bounds(min(seeds * min(nodes, reached), MAX_EDGES), min(seeds * edges, MAX_EDGES))


def _induced_in_trees(members: np.ndarray, nodes: int) -> Program[Sampled]:
    """All edges within each tree of ``members`` (int64 [n], tree x nodes + vertex).

    A vertex' in-edges are asked for once, even if it stands in many trees.
    """
    trees, vertices = np.divmod(members, nodes)
    different, place = np.unique(vertices, return_inverse=True)
    found = Neighbors(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
    if len(different):
        found = yield Expand(different, within=different)
    order = np.argsort(members)
    ascending = members[order]
    ends = np.cumsum(found.counts, dtype=np.int64)
    counts = found.counts[place].astype(np.int64)
    begin = ends[place] - counts
    parts = []
    for first, last in _blocks(counts):
        edges = spans(begin[first:last], counts[first:last])
        col = np.repeat(np.arange(first, last, dtype=np.int32), counts[first:last])
        sources = trees[col] * nodes + found.sources[edges]
        at = np.searchsorted(ascending, sources).clip(max=len(ascending) - 1)
        inside = ascending[at] == sources
        parts.append((order[at[inside]].astype(np.int32), col[inside], found.edge_ids[edges[inside]]))
    none = np.empty(0, dtype=np.int32)
    row, col, edge_ids = (np.concatenate(part) for part in zip((none, none, found.edge_ids[:0]), *parts, strict=True))
    return Sampled(vertices, row, col, edge_ids, trees.astype(np.int32))


def _blocks(counts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about ``_TOGETHER`` edges each. The copies of a hub's edges for all trees may not fit into
    memory at once."""
    block = np.cumsum(counts) // _TOGETHER
    cuts = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(counts)]
    yield from itertools.pairwise(cuts)
