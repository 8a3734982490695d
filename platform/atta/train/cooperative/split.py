"""Who computes which vertex: a server's vertices divided among its trainers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.partition.balance import capacities
from atta.partition.methods.metis_child import part_graph
from atta.train.cooperative.graph import Longs, TrainingGraph

__all__ = ["boundary_sizes", "split_vertices"]

TINY = 16
"""Vertices per trainer below which METIS is not asked: what it does with so few depends on luck."""

_SLACK = np.array([0.03, 0.08])  # vertices, in-edges; a hub is hard to place
_PASSES = 3

Rows = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]
"""Starts of the rows, and neighbours without direction."""


def split_vertices(graph: TrainingGraph, trainers: int, *, seed: int = 0, tries: int = 3) -> npt.NDArray[np.int32]:
    """Trainer of each vertex, int32 [n] (GraNNDis section 4.4, "fetch then split").

    METIS cuts few edges while vertices and in-edges, which is what computing a layer takes, are both even; then vertices are moved
    until that holds within 3 and 8 %, or within one vertex. An even boundary cannot be asked of METIS, since only its result has
    one: so of ``tries`` results the one is taken whose busiest trainer exchanges the fewest rows. The same arguments give the same
    result. A trainer may get no vertex when there are few.

    Raises:
        ConfigError: fewer than one trainer or try.
    """
    if trainers < 1 or tries < 1:
        raise ConfigError(f"trainers {trainers}, tries {tries}: must be at least 1")
    if trainers == 1 or not len(graph):
        return np.zeros(len(graph), np.int32)
    source, target = graph.edges
    rows = _native.union_rows([(source, target, 0, 0)], len(graph), True)
    weights = np.stack([np.ones(len(graph), np.int64), np.bincount(target, minlength=len(graph))], axis=1)
    weights = np.ascontiguousarray(weights[:, weights.any(axis=0)])  # METIS takes no constraint that says nothing
    if len(graph) < TINY * trainers or not len(rows[1]):
        return _evened(rows, _in_order(len(graph), trainers), weights, trainers)
    found = [_by_metis(rows, weights, trainers, seed + attempt) for attempt in range(tries)]
    return min(found, key=lambda owner: int(boundary_sizes(graph, owner, trainers).max()))


def boundary_sizes(graph: TrainingGraph, owner: npt.NDArray[np.integer], trainers: int) -> Longs:
    """Rows that each trainer receives and sends before a layer, int64 [trainers]."""
    source, target = graph.edges
    cut = owner[source] != owner[target]
    pairs = np.unique(owner[target[cut]].astype(np.int64) * max(1, len(graph)) + source[cut])
    reader, row = np.divmod(pairs, max(1, len(graph)))
    sizes: Longs = np.bincount(reader, minlength=trainers) + np.bincount(owner[row], minlength=trainers)
    return sizes


def _by_metis(rows: Rows, weights: Longs, trainers: int, seed: int) -> npt.NDArray[np.int32]:
    starts, neighbours, counts = _native.merge_rows(*rows)
    owner = part_graph(starts, neighbours, weights, counts, parts=trainers, seed=seed)
    return _evened(rows, owner.astype(np.int32), weights, trainers)


def _in_order(vertices: int, trainers: int) -> npt.NDArray[np.int32]:
    return (np.arange(vertices, dtype=np.int64) * trainers // vertices).astype(np.int32)


def _evened(rows: Rows, owner: npt.NDArray[np.int32], weights: Longs, trainers: int) -> npt.NDArray[np.int32]:
    room = capacities(weights, trainers, _SLACK[: weights.shape[1]])
    _native.even_owners(*rows, owner, trainers, weights.reshape(-1), room)
    for _ in range(_PASSES):
        if not _native.refine_owners(*rows, owner, trainers, weights.reshape(-1), room):
            break
    return owner
