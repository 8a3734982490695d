"""The edges of a graph, as its daemons tell them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import atta
from atta.train.tasks.links.candidates import GraphPairs

__all__ = ["read_pairs"]

_TOGETHER = 1 << 14
"""Number of vertices whose in-edges a batch has."""


def read_pairs(
    cluster: atta.Cluster, edge_type: str, rank: int, world: int, add_up: Callable[[torch.Tensor], torch.Tensor]
) -> GraphPairs:
    """All pairs that are edges of a type. Each rank asks for the in-edges of its share of vertices, then ranks exchange
    them.

    ``add_up``: sums an int64 tensor over all ranks, in place, and returns it. Raises RemoteError.
    """
    schema = cluster.schema
    source, target = schema.endpoints(edge_type)
    seeds, ends = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)]
    for batch in _batches(cluster, target, {e: [-1 if e == edge_type else 0] for e in schema.edge_types}, rank, world):
        n_id = batch.n_id(target)
        seeds.append(n_id[: batch.batch_size].copy())
        from_places, to_places = batch.edge_index(edge_type)
        ends.append(np.stack([batch.n_id(source)[from_places], n_id[to_places]]))
    ids = _everywhere(np.concatenate(seeds), rank, world, add_up)
    sources, targets = (_everywhere(side, rank, world, add_up) for side in np.concatenate(ends, axis=1))
    if source == target:
        return GraphPairs.of(ids, sources, targets)
    found = [
        np.empty(0, np.int64),
        *(batch.n_id(source).copy() for batch in _batches(cluster, source, [], rank, world)),
    ]
    return GraphPairs.of(_everywhere(np.concatenate(found), rank, world, add_up), sources, targets, ids)


def _batches(
    cluster: atta.Cluster, node_type: str, hops: list[int] | dict[str, list[int]], rank: int, world: int
) -> atta.NeighborLoader:
    """A rank's share of all vertices of a type."""
    return atta.NeighborLoader(
        cluster, hops, (node_type, None), batch_size=_TOGETHER, pad=False, rank=rank, world_size=world, tables=[],
        edge_ids=False,
    )  # fmt: skip


def _everywhere(mine: np.ndarray, rank: int, world: int, add_up: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """The numbers of all ranks, in the order of ranks."""
    counts = torch.zeros(world, dtype=torch.int64)
    counts[rank] = len(mine)
    ends = add_up(counts).cumsum(0).tolist()
    everything = torch.zeros(ends[-1], dtype=torch.int64)
    everything[ends[rank] - len(mine) : ends[rank]] = torch.from_numpy(mine)
    return add_up(everything).numpy()
