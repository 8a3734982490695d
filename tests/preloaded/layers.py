"""Makes one layer of each class of PyG that trainers use most, before they are forked: for the first of a class PyG fills
in and compiles a template. The layers have no memory, and draw no random numbers."""

import torch
from torch_geometric import nn

with torch.device("meta"):
    for kind in (nn.SAGEConv, nn.GCNConv, nn.GATConv):
        kind(1, 1)
