"""Gradients of embeddings as DGL applies them: a row makes one step per batch of all trainers, with the mean of its uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from atta.compat.dgl.job import meeting

if TYPE_CHECKING:
    from atta.client.tables.embedding import Gradients

__all__ = ["exchanged", "mean_of_uses"]


def mean_of_uses(given: Sequence[Gradients]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows int64 [n], and float32 [n, columns]: the mean of the gradients of all their uses."""
    import torch

    rows, inverse = np.unique(np.concatenate([one.rows for one in given]), return_inverse=True)
    gradients = torch.from_numpy(np.concatenate([one.sums for one in given]))
    sums = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, torch.from_numpy(inverse), gradients)
    uses = np.bincount(inverse, np.concatenate([one.uses for one in given]), len(rows))
    return rows, sums.numpy() / uses[:, None].astype(np.float32)


def exchanged(mine: Gradients, ranks: np.ndarray, world: int) -> list[Gradients]:
    """What all trainers have for this one. Every trainer calls it alike, in torch's process group.

    ranks: int64 [n], the trainer that each of ``mine`` goes to. Raises ConfigError without a process group.
    """
    import torch

    dist = meeting()
    order = np.argsort(ranks, kind="stable")
    counts = torch.from_numpy(np.bincount(ranks, minlength=world))
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    lengths = coming.tolist(), counts.tolist()

    def moved(array: np.ndarray) -> np.ndarray:
        sent = torch.from_numpy(np.ascontiguousarray(array[order]))
        received = sent.new_empty((sum(lengths[0]), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, *lengths)
        found: np.ndarray = received.numpy()
        return found

    whole = [moved(array) for array in mine]
    bounds = np.cumsum(lengths[0])[:-1]
    return [type(mine)(*parts) for parts in zip(*(np.split(array, bounds) for array in whole), strict=True)]
