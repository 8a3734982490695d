"""Deep models of PyG's parts: ResGCN+ and DeeperGCN."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch_geometric.nn import DeepGCNLayer, GENConv

from atta.errors import ConfigError, known_name
from atta.train.settings.common import DEEP_MODELS, MOST_LAYERS


class DeepGNN(torch.nn.Module):
    """Layers with pre-activation residuals: norm, ReLU, dropout, convolution, add (``res+``). GraNNDis trains 3 to 112.
    ``resgcn+`` aggregates by mean, ``deepergcn`` by a softmax with a learnt temperature (Li et al., "DeeperGCN: All You
    Need to Train Deeper GCNs"). All normalisation is per row (LayerNorm), so ``CooperativeModel`` accepts it."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 28,
        *,
        kind: str = "resgcn+",
        mlp_layers: int = 2,
        dropout: float = 0.5,
        checkpointed: bool = False,
    ) -> None:
        """``mlp_layers``: linear layers after aggregation, in each layer; checkpointed: backward recomputes what a layer has
        inside. Raises UnknownNameError: no such kind; ConfigError: fewer than one layer, or more than 1000.
        """
        super().__init__()
        known_name("deep model", kind, DEEP_MODELS)
        if not 1 <= num_layers <= MOST_LAYERS:
            raise ConfigError(f"num_layers {num_layers}: must be 1 to {MOST_LAYERS}")
        aggregation: dict[str, Any] = {"aggr": "mean"} if kind == "resgcn+" else {"aggr": "softmax", "learn_t": True}
        self.dropout, self.checkpointed = dropout, checkpointed
        self.encoder = torch.nn.Linear(in_channels, hidden_channels)
        self.layers = torch.nn.ModuleList(
            DeepGCNLayer(
                GENConv(hidden_channels, hidden_channels, num_layers=mlp_layers, norm="layer", **aggregation),
                torch.nn.LayerNorm(hidden_channels),
                torch.nn.ReLU(),
                block="res+",
                dropout=dropout,
            )
            for _ in range(num_layers)
        )
        self.decoder = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        """Scores [vertices, out channels] from features [vertices, in channels]."""
        h = self.encoder(x)
        for number in range(len(self.layers)):
            h = self.layer(number, h, edge_index)
        return self.scores(h)

    def layer(self, number: int, h: torch.Tensor, edge_index: Any) -> torch.Tensor:
        """Output of layer ``number`` for ``h`` [vertices, hidden channels]; it has the same shape."""
        layer: Any = self.layers[number]
        # The first one's norm and activation come after the last layer, as in PyG.
        run = layer if number else layer.conv
        if self.checkpointed and self.training:
            # Recompute the whole layer: if it stopped early, an exchange could be started and never finished.
            with set_checkpoint_early_stop(False):
                return cast(torch.Tensor, checkpoint(run, h, edge_index, use_reentrant=False))
        return cast(torch.Tensor, run(h, edge_index))

    def scores(self, h: torch.Tensor) -> torch.Tensor:
        """Scores [vertices, out channels] from the output of the last layer."""
        first: Any = self.layers[0]
        h = F.dropout(first.act(first.norm(h)), self.dropout, self.training)
        return cast(torch.Tensor, self.decoder(h))
