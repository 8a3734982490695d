"""GraphSAINT's normalisation: how often batches have a vertex and an edge, counted beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.errors import ConfigError

_MOST, _NEVER = 1e4, 0.1
"""The largest weight of an edge, and the count of a vertex that never came, as in PyG."""


@dataclass(frozen=True, eq=False)
class SaintNorms:
    """Counts over the batches of some epochs (Zeng et al., ICLR 2020, section 3.2).

    Attributes:
        ids: int64 [N], user ids of all vertices, ascending.
        vertices, edges: int64 [N] and [E], number of batches that a vertex or an edge, by its id, was in; of ``batches``.
    """

    ids: np.ndarray
    vertices: np.ndarray
    edges: np.ndarray
    batches: int

    def of_vertices(self, n_id: np.ndarray) -> np.ndarray:
        """float32 [n]: the weights of vertices in the loss, 1 / (N x the share of batches that have the vertex)."""
        counts = self.vertices[np.searchsorted(self.ids, n_id)].astype(np.float32)
        return np.asarray(self.batches / np.where(counts == 0, np.float32(_NEVER), counts) / len(self.ids), np.float32)

    def of_edges(self, e_id: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """float32 [e]: the weights of edges in aggregation, batches with the source for each one with the edge.
        ``sources``: user ids."""
        of_source = self.vertices[np.searchsorted(self.ids, sources)].astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.clip(of_source / self.edges[e_id].astype(np.float32), 0, _MOST)
        return np.asarray(np.where(np.isnan(found), np.float32(_NEVER), found), np.float32)


def count_norms(ids: np.ndarray, edges: int, epochs: Iterable[Iterable[Any]], coverage: int) -> SaintNorms:
    """Count over whole epochs of ``MiniBatch`` until they had ``coverage`` vertices for each of ``ids``, repeats
    included. Raises ConfigError: the batches have no vertices, or one in several trees."""
    vertices, of_edges, batches = np.zeros(len(ids), np.int64), np.zeros(edges, np.int64), 0
    wanted = coverage * len(ids)
    for epoch in epochs:
        if (total := int(vertices.sum())) >= wanted:
            break
        for batch in epoch:
            if batch.tree_of_seed() is not None:
                raise ConfigError("sample_coverage: the operator's vertices stand in trees, GraphSAINT's do not")
            vertices[np.searchsorted(ids, batch.n_id())] += 1
            np.add.at(of_edges, batch.e_id(), 1)
            batches += 1
        if int(vertices.sum()) == total:
            raise ConfigError("sample_coverage: an epoch of batches has no vertices")
    return SaintNorms(ids, vertices, of_edges, batches)
