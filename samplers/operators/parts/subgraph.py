"""Functions that several operators use: number vertices, find the edges among them, choose the best vertices of each
seed."""

from __future__ import annotations

import numpy as np

from atta.samplers import kernels
from atta.samplers.operators.base import Batch, Sampled
from atta.samplers.requests import Expand, Program

__all__ = ["best_of_seeds", "first_seen", "induced_subgraph", "spans"]


def first_seen(*ids: np.ndarray) -> np.ndarray:
    """``ids`` (int64 arrays) without repeats, in the order of their first occurrence. Negative ids are left out."""
    known = kernels.Compactor()
    for some in ids:
        known.insert(some[some >= 0])
    return known.ids(0, known.size)


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
    are not edges of the graph, so their ids are -1. Returns the weights [E] too.
    """
    order = np.lexsort((batch.keys[vertices], -weights, of_seed))
    per_seed = np.bincount(of_seed, minlength=len(batch.seeds))
    place = spans(np.zeros(len(per_seed), dtype=np.int64), per_seed)
    kept = order[place < count]
    known = kernels.Compactor()
    known.insert(batch.seeds)
    row = known.insert(vertices[kept])
    col = of_seed[kept].astype(np.int32)
    return Sampled(known.ids(0, known.size), row, col, np.full(len(kept), -1)), weights[kept]
