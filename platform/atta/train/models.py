"""Models by name, all of them PyG's own; what is ours is which rows each layer computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

from atta.train.config import TrainConfig

__all__ = ["SampledModel", "build_model"]


def build_model(config: TrainConfig, in_channels: int, num_classes: int) -> SampledModel:
    """The model of ``config``: one layer per hop."""
    common: dict[str, Any] = {
        "in_channels": in_channels,
        "hidden_channels": config.hidden,
        "num_layers": config.depth,
        "out_channels": num_classes,
        "dropout": config.dropout,
    }
    if config.model == "gat":
        return SampledModel(GAT(**common, heads=config.heads, v2=False))
    return SampledModel({"sage": GraphSAGE, "gcn": GCN}[config.model](**common))


class SampledModel(torch.nn.Module):
    """A PyG model that reads sampled batches.

    ``model(x, edge_index)`` would compute every layer for every vertex of the batch, although the outermost hop, by far the
    largest, is only read: what a layer adds is needed one hop less far out than what it reads. So each layer is called here on the
    pair (vertices that it reads, vertices that it computes). The weights and their names are those of the PyG model.

    Attributes:
        gnn: the PyG model.
    """

    def __init__(self, gnn: GraphSAGE | GCN | GAT) -> None:
        super().__init__()
        self.gnn: Any = gnn

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, nodes_per_hop: Sequence[int], edges_per_hop: Sequence[int]
    ) -> torch.Tensor:
        """Class scores of the seeds.

        x: [vertices, channels] features, seeds first, then hop by hop; edge_index: [2, edges] int64, hop by hop, targets ascending
        (as ``atta.NeighborLoader`` with ``frontier="new"`` delivers them); nodes_per_hop: [hops + 1], edges_per_hop: [hops].
        Returns [seeds, classes].
        """
        if isinstance(self.gnn, GCN):
            # Its weights need the degrees of vertices whose in-edges a later layer no longer reads.
            scores: torch.Tensor = self.gnn(x, edge_index)
            return scores[: nodes_per_hop[0]]
        sparse = isinstance(self.gnn, GraphSAGE) and x.device.type == "cpu"
        layers = list(self.gnn.convs)
        for done, layer in enumerate(layers):
            hops = len(layers) - done
            read, computed = sum(nodes_per_hop[: hops + 1]), sum(nodes_per_hop[:hops])
            edges = edge_index[:, : sum(edges_per_hop[:hops])]
            adjacency = _rows(edges, computed, read, x.dtype) if sparse else edges
            x = layer((x, x[:computed]), adjacency)
            if hops > 1:
                x = self.gnn.dropout(self.gnn.act(x))
        return x


def _rows(edges: torch.Tensor, targets: int, sources: int, dtype: torch.dtype) -> torch.Tensor:
    """Adjacency [targets, sources] in CSR, with which PyG sums up rows as it reads them.

    From a list of edges it would copy one row per edge first: with 4,700 features that took twice the time of everything else.
    """
    start = torch.zeros(targets + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(edges[1], minlength=targets), 0, out=start[1:])
    ones = torch.ones(edges.shape[1], dtype=dtype)
    return torch.sparse_csr_tensor(start, edges[0], ones, size=(targets, sources), check_invariants=False)
