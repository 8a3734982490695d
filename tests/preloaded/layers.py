"""Imports what trainers need beside their own module, and does what takes each its first time, before they are forked: PyG
fills in and compiles a template for the first layer of a class; types of settings are looked up. Layers have no memory, and
draw no random numbers."""

import importlib

import torch
from torch_geometric import nn

from atta.train import TrainConfig

for name in (
    *("encodings.ascii", "grpc._channel", "atta.client.loaders.pyg_data", "atta.client.loaders.server"),
    *(f"atta.train.exchange.{name}" for name in ("budgeted", "trainer")),
    *(f"atta.train.{name}" for name in ("launching.launch", "models.exactness", "reports.run")),
    *(f"atta.train.steps.{name}" for name in ("links", "minibatch", "typed")),
):
    importlib.import_module(name)
with torch.device("meta"):
    for kind in (nn.SAGEConv, nn.GCNConv, nn.GATConv):
        kind(1, 1)
for strategy in ("minibatch", "full", "exchange", "digest"):
    TrainConfig(data="nowhere", strategy=strategy)
