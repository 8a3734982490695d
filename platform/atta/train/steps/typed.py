"""The trainer of mini-batches of typed graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import atta
from atta.errors import ConfigError
from atta.train.models.typed import TypedModel
from atta.train.settings import MinibatchSettings
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.tasks.reach import TypeReach
from atta.train.tasks.target import fan_outs_of, target_of

__all__ = ["TypedTrainer"]


class TypedTrainer(MinibatchTrainer):
    """Trains a model of a typed graph for the vertices of one node type.

    Attributes:
        reach: the types that its layers read and compute.
    """

    def __init__(self, config: MinibatchSettings, cluster: atta.Cluster, device: torch.device) -> None:
        """See ``MinibatchTrainer``; raises UnknownNameError, too, for a type that does not exist."""
        config = replace(config, target=target_of(cluster.schema, config))
        assert config.target is not None, "it was just found"
        self.reach = TypeReach.of(cluster.schema, config.target, config.depth)
        super().__init__(config, cluster, device)

    def build(self) -> torch.nn.Module:
        """The model, with new weights."""
        if missing := self.reach.without_features:
            raise ConfigError(f"training needs table x (features) of node type {', '.join(missing)}")
        return TypedModel(self.config, self.reach, self.outputs)

    def seeds_in(self, data: Any) -> Any:
        """See ``MinibatchTrainer``."""
        return data[self.reach.target]

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        """See ``MinibatchTrainer``. Evaluation has the fan-outs of training, unless it has its own."""
        config, schema = self.config, self.cluster.schema
        own = None if train else config.eval_num_neighbors
        fan_outs = (
            fan_outs_of(schema, config) if own is None else dict.fromkeys(schema.edge_types, config.eval_fan_outs)
        )
        tables = {t: ["x"] for t in self.reach.read(0) if self.reach.widths[t] is not None}
        return {"num_neighbors": {name: list(hops) for name, hops in fan_outs.items()}, "tables": tables}

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """See ``MinibatchTrainer``."""
        x = {t: data[t].x.float() for t in self.reach.read(0)}
        edges = {e: data[e].edge_index for e in self.reach.edges(0)}
        scores: torch.Tensor = model(x, edges, data.num_sampled_nodes, data.num_sampled_edges)
        return scores
