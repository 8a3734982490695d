"""The graph that a predictor sees: the rows whose past a trainer knows, and the edges among them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch_geometric.utils import add_self_loops, k_hop_subgraph, remove_self_loops, to_undirected

from atta.errors import ConfigError
from atta.train.models.matrix import adjacency

__all__ = ["HOPS", "PublishedGraph"]

HOPS = 2
"""A predictor's layers: as many hops around a row decide its prediction."""


@dataclass(frozen=True)
class PublishedGraph:
    """Own rows that others read, then HALO rows: a partition with one hop around it, less the rows without a past.

    A partition has no in-edges of HALO rows. So edges are taken in both directions. Each row has an edge to itself. The
    weights of a row's in-edges add up to 1, so hubs do not get larger rows than others.

    Attributes:
        own: how many of the rows are own ones.
        rows: number of all rows.
        edge_index: int64 [2, e], sources and targets.
        weights: [e].
    """

    own: int
    rows: int
    edge_index: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, edge_index: torch.Tensor, *, own: int, rows: int) -> PublishedGraph:
        """The graph of a partition's edges ``edge_index`` int64 [2, e] among these rows, in one direction or both.

        Raises:
            ConfigError: an edge ends outside the rows.
        """
        if not 0 <= own <= rows or (
            edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < rows
        ):
            raise ConfigError(f"predictor: edges do not fit {own} own rows of {rows}")
        both = to_undirected(remove_self_loops(edge_index)[0], num_nodes=rows)
        edges = add_self_loops(both, num_nodes=rows)[0]
        order = torch.argsort(edges[1], stable=True)
        edges = edges[:, order]
        degrees = torch.bincount(edges[1], minlength=rows)
        return cls(own, rows, edges, 1.0 / degrees[edges[1]])

    def adjacency(self, like: torch.Tensor) -> torch.Tensor:
        """CSR [targets, sources] in the dtype and on the device of ``like``; PyG multiplies rows by it."""
        sources, targets = self.edge_index
        csr = adjacency(sources, targets, self.weights, (self.rows, self.rows))
        return csr.to(device=like.device, dtype=like.dtype)

    def around(self, targets: torch.Tensor) -> tuple[PublishedGraph, torch.Tensor, torch.Tensor]:
        """What decides the predictions of ``targets`` (distinct rows): a smaller graph, its rows here, the targets
        there.

        Weights stay as they are, so predictions of the targets are those of the whole graph.
        """
        subset, edges, places, kept = k_hop_subgraph(
            targets, HOPS, self.edge_index, relabel_nodes=True, num_nodes=self.rows
        )
        return PublishedGraph(0, len(subset), edges, self.weights[kept]), subset, places
