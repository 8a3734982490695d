"""Models that learn embeddings without labels: a PyG model with what scores its embeddings in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atta.train.models import SampledModel
from atta.train.models.links import DECODER

__all__ = ["InfomaxModel", "WalkModel"]


class WalkModel(SampledModel):
    """Scores pairs of vertices by the inner product of their embeddings (GraphSAGE, NIPS 2017, section 3.2)."""

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        nodes_per_hop: Sequence[int],
        edges_per_hop: Sequence[int],
        samples: torch.Tensor | None = None,
        *,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Scores [n, k] of vertices with k samples each: ``samples``, int64 [n, 1 + k], has the places of both in the
        batch. Without these the embeddings of all of them.
        """
        rows = super().forward(x, edge_index, nodes_per_hop, edges_per_hop, edge_weight=edge_weight)
        if samples is None:
            return rows
        return (rows[samples[:, :1]] * rows[samples[:, 1:]]).sum(-1)


class InfomaxModel(SampledModel):
    """Deep Graph Infomax (Velickovic et al., ICLR 2019): tells embeddings of the graph from those of a corrupted one.

    Attributes:
        link_decoder: the bilinear discriminator. Names of its weights begin as those of all parts that only training
            needs.
    """

    def __init__(self, gnn: torch.nn.Module, width: int) -> None:
        super().__init__(gnn)
        assert DECODER == "link_decoder."
        self.link_decoder = torch.nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        nodes_per_hop: Sequence[int],
        edges_per_hop: Sequence[int],
        order: torch.Tensor | None = None,
        *,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Scores [seeds, 2]: of each seed with the graph's features, and with features in another ``order``, int64
        [vertices]. The summary, with which embeddings are compared, is that of the batch's seeds. Without an order
        embeddings.
        """
        rows = super().forward(x, edge_index, nodes_per_hop, edges_per_hop, edge_weight=edge_weight)
        if order is None:
            return rows
        corrupted = super().forward(x[order], edge_index, nodes_per_hop, edges_per_hop, edge_weight=edge_weight)
        summary = self.link_decoder(rows.mean(0).sigmoid())
        return torch.stack([rows @ summary, corrupted @ summary], dim=1)
