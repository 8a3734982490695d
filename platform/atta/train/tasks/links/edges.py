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
    cluster: atta.Cluster, rank: int, world: int, add_up: Callable[[torch.Tensor], torch.Tensor]
) -> GraphPairs:
    """All pairs that are edges. Each rank asks for the in-edges of its share of vertices, then ranks exchange them.

    ``add_up``: sums an int64 tensor over all ranks, in place, and returns it. Raises RemoteError.
    """
    loader = atta.NeighborLoader(
        cluster, [-1], None, batch_size=_TOGETHER, pad=False, rank=rank, world_size=world, tables=[], edge_ids=False
    )
    seeds, ends = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)]
    for batch in loader:
        n_id = batch.n_id()
        seeds.append(n_id[: batch.batch_size].copy())
        ends.append(n_id[batch.edge_index()])
    ids = _everywhere(np.concatenate(seeds), rank, world, add_up)
    mine = np.concatenate(ends, axis=1)
    sources, targets = (_everywhere(side, rank, world, add_up) for side in mine)
    return GraphPairs.of(ids, sources, targets)


def _everywhere(mine: np.ndarray, rank: int, world: int, add_up: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """The numbers of all ranks, in the order of ranks."""
    counts = torch.zeros(world, dtype=torch.int64)
    counts[rank] = len(mine)
    ends = add_up(counts).cumsum(0).tolist()
    everything = torch.zeros(ends[-1], dtype=torch.int64)
    everything[ends[rank] - len(mine) : ends[rank]] = torch.from_numpy(mine)
    return add_up(everything).numpy()
