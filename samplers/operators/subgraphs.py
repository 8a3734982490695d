"""Subgraphs induced by vertices: Cluster-GCN's batches (Chiang et al., KDD 2019), GraphSAINT's three samplers (Zeng et
al., ICLR 2020, section 3.4) and ShaDow's, one for each seed (Zeng et al., NeurIPS 2021). Seeds come first, then the
drawn vertices in the order of draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.arguments import whole
from atta.samplers.operators.base import MAX_EDGES, MAX_VERTICES, Batch, Bounds, Sampled, first_seen
from atta.samplers.operators.draws import MAX_LENGTH, draw_edges, walk
from atta.samplers.requests import Expand, Neighbors, Program


def spans(begin: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``begin[i]``, ``begin[i] + 1``, ... (``counts[i]`` of them) for every i, one after another: int64
    [sum(counts)]."""
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(int(counts.sum())) + np.repeat(begin - before, counts))


def induced_subgraph(vertices: np.ndarray) -> Program[Sampled]:
    """``vertices`` (int64 [n], each once) with all edges among them, ordered by target and, for one target, by user
    id."""
    if not len(vertices):
        nothing = np.empty(0, dtype=np.int32)
        return Sampled(vertices, nothing, nothing, np.empty(0, dtype=np.int64))
    order = np.argsort(vertices)
    ascending = vertices[order]
    found = yield Expand(vertices, within=ascending)
    row = order[np.searchsorted(ascending, found.sources)].astype(np.int32)
    col = np.repeat(np.arange(len(vertices), dtype=np.int32), found.counts)
    return Sampled(vertices, row, col, found.edge_ids)


def best_of_seeds(
    batch: Batch, of_seed: np.ndarray, vertices: np.ndarray, weights: np.ndarray, count: int
) -> tuple[Sampled, np.ndarray]:
    """Edges to each seed from the ``count`` vertices with the largest weights for it, heaviest first, ties by user id.
    ``of_seed`` [m] are positions of seeds, ``vertices`` int64 [m] (no repeats for one seed), ``weights`` [m]. The edges
    are not edges of the graph, so their ids are -1. Returns the weights [E] too."""
    order = np.lexsort((batch.keys[vertices], -weights, of_seed))
    per_seed = np.bincount(of_seed, minlength=len(batch.seeds))
    place = spans(np.zeros(len(per_seed), dtype=np.int64), per_seed)
    kept = order[place < count]
    known = kernels.Compactor()
    known.insert(batch.seeds)
    row = known.insert(vertices[kept])
    col = of_seed[kept].astype(np.int32)
    return Sampled(known.ids(0, known.size), row, col, np.full(len(kept), -1)), weights[kept]


@dataclass(frozen=True)
class Induced:
    """The seeds and all edges among them: a batch of Cluster-GCN (section 3.2) if they are the vertices of a few clusters."""

    def run(self, batch: Batch) -> Program[Sampled]:
        return induced_subgraph(batch.seeds)

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return Bounds(min(nodes, seeds), min(edges, MAX_EDGES))


@dataclass(frozen=True)
class SaintNodes:
    """``budget`` draws of vertices with replacement; each vertex drawn joins once. The probability of a vertex is ∝ the
    sum of 1 / D_v² over its edges to vertices v, where D_v is the in-degree of v. This is the squared norm of its
    column in the row-normalised adjacency matrix. Graphs that make such draws hard may give fewer draws
    (``draw_edges``)."""

    budget: int

    def __post_init__(self) -> None:
        whole("budget", self.budget, 1, MAX_VERTICES)

    def run(self, batch: Batch) -> Program[Sampled]:
        sources, _ = yield from draw_edges(batch, self.budget, batch.key("saint-nodes"), power=2)
        return (yield from induced_subgraph(first_seen(batch.seeds, sources)))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return Bounds(min(nodes, seeds + self.budget), min(edges, MAX_EDGES))


@dataclass(frozen=True)
class SaintEdges:
    """``budget`` draws of edges with replacement. Both ends of each edge join, source before target. An edge u → v is
    drawn with probability ∝ 1 / D_v. If every edge is stored in both directions, its two ends are therefore drawn with
    probability ∝ 1 / deg(u) + 1 / deg(v). This is GraphSAINT's choice. In other graphs the sampler differs from
    GraphSAINT."""

    budget: int

    def __post_init__(self) -> None:
        whole("budget", self.budget, 1, MAX_VERTICES)

    def run(self, batch: Batch) -> Program[Sampled]:
        sources, targets = yield from draw_edges(batch, self.budget, batch.key("saint-edges"), power=1)
        return (yield from induced_subgraph(first_seen(batch.seeds, sources, targets)))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return Bounds(min(nodes, seeds + 2 * self.budget), min(edges, MAX_EDGES))


@dataclass(frozen=True)
class SaintWalks:
    """All vertices that walks touch. One walk of ``length`` steps along in-edges starts at each seed."""

    length: int

    def __post_init__(self) -> None:
        whole("length", self.length, 0, MAX_LENGTH)

    def run(self, batch: Batch) -> Program[Sampled]:
        paths = yield from walk(batch.seeds, batch.keys[batch.seeds], self.length, stream_key=batch.key("saint-walks"))
        return (yield from induced_subgraph(first_seen(batch.seeds, paths.reshape(-1))))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return Bounds(min(nodes, seeds * (self.length + 1)), min(edges, MAX_EDGES))


_MAX_DEPTH = 32
_TOGETHER = 1 << 21
"""At most this many edges are processed together, unless one vertex has more."""


@dataclass(frozen=True)
class Shadow:
    """Every seed's k-hop neighbourhood with all edges among its vertices (section 3.1; PyG's ``ShaDowKHopSampler``). A
    tree holds the vertices that its seed reaches in ``depth`` hops. From each vertex ``num_neighbors`` in-edges are
    followed (-1: all). Each tree draws its own. The seeds come first, then the other vertices, hop by hop. Tree i is
    the tree of seed i."""

    makes_trees: ClassVar[bool] = True
    depth: int = 2
    num_neighbors: int = 10
    replace: bool = False

    def __post_init__(self) -> None:
        whole("depth", self.depth, 0, _MAX_DEPTH)
        whole("num_neighbors", self.num_neighbors, -1, MAX_VERTICES)
        if self.num_neighbors == 0:
            raise ConfigError("num_neighbors 0: must be at least 1, or -1 for all")
        if not isinstance(self.replace, bool):
            raise ConfigError(f"replace {self.replace!r}: must be true or false")

    def run(self, batch: Batch) -> Program[Sampled]:
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
        """A tree may have any number of parallel edges, so there is no better bound on its edges."""
        reached = nodes if self.num_neighbors < 0 else sum(self.num_neighbors**hop for hop in range(self.depth + 1))
        return Bounds(min(seeds * min(nodes, reached), MAX_EDGES), min(seeds * edges, MAX_EDGES))


def _induced_in_trees(members: np.ndarray, nodes: int) -> Program[Sampled]:
    """All edges within each tree of ``members`` (int64 [n], tree x nodes + vertex). A vertex' in-edges are asked for
    once, even if it stands in many trees."""
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
