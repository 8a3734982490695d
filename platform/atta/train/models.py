"""Models by name, all of them PyG's own."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

from atta.train.config import TrainConfig

__all__ = ["build_model", "forward"]


def build_model(config: TrainConfig, in_channels: int, num_classes: int) -> torch.nn.Module:
    """The model of ``config``: one layer per hop."""
    common: dict[str, Any] = {
        "in_channels": in_channels,
        "hidden_channels": config.hidden,
        "num_layers": config.depth,
        "out_channels": num_classes,
        "dropout": config.dropout,
    }
    model: torch.nn.Module
    if config.model == "gat":
        model = GAT(**common, heads=config.heads, v2=False)
    else:
        model = {"sage": GraphSAGE, "gcn": GCN}[config.model](**common)
    return model


def forward(model: torch.nn.Module, config: TrainConfig, data: Any) -> torch.Tensor:
    """Class scores [batch_size, classes] of the seeds.

    Each layer computes only the vertices that later layers need. Not so for GCN: its normalisation wants the degrees of vertices
    whose in-edges a later layer no longer needs.
    """
    if config.model == "gcn":
        scores = model(data.x, data.edge_index)
    else:
        scores = model(
            data.x,
            data.edge_index,
            num_sampled_nodes_per_hop=data.num_sampled_nodes,
            num_sampled_edges_per_hop=data.num_sampled_edges,
        )
    return torch.as_tensor(scores)[: data.batch_size]
