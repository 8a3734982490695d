"""Estimates from the daemon's own partition which remote vertices batches will ask for most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset

__all__ = ["RANKS", "edges_into", "expected_visits", "hottest", "seeds_of", "visits_by_hop", "visits_for"]

RANKS = ("degree", "access", "recent")
"""Policies of the cache; see ``RowCache``."""


def hottest(dataset: Dataset, part: int, node_type: str, count: int, visits: np.ndarray | None = None) -> np.ndarray:
    """Internal ids (int64 [count], ascending) of the HALO vertices with the most visits, then with the most edges into
    the partition.

    If ``count`` exceeds the HALO vertices, other remote vertices follow. Batches reach them through other partitions,
    so nothing is known of them here, and all are equally good.

    ``visits`` float64 [vertices of the type]; None: rank by edges only. Ties go to lower ids, so the choice depends
    only on the dataset, and a smaller ``count`` chooses a subset of a larger one.
    """
    halo = np.asarray(dataset.part(part).halo(node_type))
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if count > len(halo):
        distant = np.ones(dataset.schema.node_counts[node_type], dtype=bool)
        distant[slice(*dataset.book.range(node_type, part))] = False
        distant[halo] = False
        return np.sort(np.concatenate([halo, np.flatnonzero(distant)[: count - len(halo)]])).astype(np.int64)
    edges = edges_into(dataset, part, node_type)
    keys = (-edges,) if visits is None else (-edges, -visits[halo])
    return np.sort(halo[np.lexsort(keys)[:count]]).astype(np.int64)


def edges_into(dataset: Dataset, part: int, node_type: str) -> np.ndarray:
    """int64 [HALO vertices of the type]: the edges of each into the partition, over all edge types."""
    halo = np.asarray(dataset.part(part).halo(node_type))
    edges = np.zeros(len(halo), dtype=np.int64)
    for edge_type in dataset.schema.edge_types:
        if dataset.schema.endpoints(edge_type)[0] == node_type:
            sources = dataset.part(part).csc(edge_type).indices
            edges += kernels.count_ids(sources, dataset.schema.node_counts[node_type])[halo]
    return edges


def visits_for(dataset: Dataset, part: int, rank: str, fan_outs: Sequence[int]) -> dict[str, np.ndarray] | None:
    """``expected_visits`` if the policy ``rank`` needs them."""
    return expected_visits(dataset, part, fan_outs) if rank == "access" else None


def expected_visits(dataset: Dataset, part: int, fan_outs: Sequence[int]) -> dict[str, np.ndarray]:
    """The expected number of visits at each vertex when all training seeds of ``part`` are sampled: float64 [vertices]
    by node type. The sum of ``visits_by_hop``, and the same errors."""
    total = _zeros(dataset)
    for reached in visits_by_hop(dataset, part, fan_outs):
        for node_type, visits in reached.items():
            total[node_type] += visits
    return total


def visits_by_hop(dataset: Dataset, part: int, fan_outs: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the expected visits of hop 0 (the seeds), 1, ... when all training seeds of ``part`` are sampled: float64
    [vertices] by node type.

    Every seed is visited once. A visit at a vertex of the partition with d in-edges of a type goes on along each of
    them with probability min(1, k / d), for the fan-out k of the hop (-1: all). Expectations add up, so one pass over
    the edges per hop gives them exactly for trees that are sampled independently. Two effects are left out. Vertices of
    other partitions are not expanded, because their in-edges are elsewhere, so visits through them are not counted. A
    batch expands a vertex once even if it reaches it several times, so batches ask for vertices behind hubs somewhat
    less often than this says.

    Raises:
        ConfigError: no fan-outs, or one below -1.
    """
    if not fan_outs or any(k < -1 for k in fan_outs):
        raise ConfigError(f"fan-outs {list(fan_outs)} to rank the cache by: there must be some, each at least -1")
    schema, reached = dataset.schema, seeds_of(dataset, part)
    for fan_out in fan_outs:
        yield reached
        following = _zeros(dataset)
        for edge_type in sorted(schema.edge_types):
            source, target = schema.endpoints(edge_type)
            lo, hi = dataset.book.range(target, part)
            csc = dataset.part(part).csc(edge_type)
            weights = reached[target][lo:hi] * _taken(np.diff(csc.indptr), fan_out)
            _native.spread_weights(csc.indptr, csc.indices, weights, following[source])
        reached = following
    yield reached


def _taken(degrees: np.ndarray, fan_out: int) -> np.ndarray:
    """The probability that an in-edge of each row is drawn, float64 [rows]."""
    if fan_out == -1:
        return np.ones(len(degrees))
    return np.asarray(np.minimum(1.0, fan_out / np.maximum(1, degrees)))


def _zeros(dataset: Dataset) -> dict[str, np.ndarray]:
    return {node_type: np.zeros(dataset.schema.node_counts[node_type]) for node_type in dataset.schema.node_types}


def seeds_of(dataset: Dataset, part: int) -> dict[str, np.ndarray]:
    """One visit at each of the partition's training vertices. Without that split, at each vertex of the first type."""
    schema, visits = dataset.schema, _zeros(dataset)
    seed_type = next((t for t in schema.node_types if "train" in schema.splits[t]), schema.node_types[0])
    lo, hi = dataset.book.range(seed_type, part)
    seeds = np.arange(lo, hi)
    if "train" in schema.splits[seed_type]:
        split = np.asarray(dataset.split(seed_type, "train"))
        seeds = split[(split >= lo) & (split < hi)]
    visits[seed_type][seeds] = 1.0
    return visits
