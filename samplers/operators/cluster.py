"""Cluster-GCN's batches (Chiang et al., KDD 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from atta.samplers.operators.base import Batch, Bounds, Sampled
from atta.samplers.operators.parts.options import MAX_EDGES
from atta.samplers.operators.parts.subgraph import induced_subgraph
from atta.samplers.requests import Program

__all__ = ["Induced"]


@dataclass(frozen=True)
class Induced:
    """The seeds and all edges among them. If the seeds are the vertices of a few clusters, this is a batch of
    Cluster-GCN (section 3.2)."""

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
        return induced_subgraph(batch.seeds)

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """See ``Operator``."""
        return Bounds(min(nodes, seeds), min(edges, MAX_EDGES))
