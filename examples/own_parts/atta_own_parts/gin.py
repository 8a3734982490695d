"""A model: graph isomorphism networks (Xu et al., ICLR 2019), whose layers add up the rows of neighbours."""

from __future__ import annotations

from typing import Any

from torch.nn import Linear, ReLU, Sequential
from torch_geometric.nn import GINConv, MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN


class Gin(BasicGNN):
    """Called with in_channels, hidden_channels, num_layers, out_channels and dropout, as all models of PyG."""

    supports_edge_weight = supports_edge_attr = supports_norm_batch = False

    def init_conv(self, in_channels: int, out_channels: int, **_: Any) -> MessagePassing:
        """Make one layer. Between two of them the model has activation and dropout."""
        return GINConv(Sequential(Linear(in_channels, out_channels), ReLU(), Linear(out_channels, out_channels)))
