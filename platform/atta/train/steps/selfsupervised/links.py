"""Trainers of pairs on sampled mini-batches, ``link`` and ``edge-classes``: seeds are edges."""

from __future__ import annotations

from typing import Any

import torch

import atta
from atta.client.loaders.link import reverse_type_of
from atta.partition.schema import split_edge_type
from atta.train.models import whole_model
from atta.train.models.links import LinkModel
from atta.train.models.typed import TypedLinkModel
from atta.train.settings import MinibatchSettings
from atta.train.settings.minibatch import EDGE_CLASSES
from atta.train.steps.selfsupervised.embedding import EdgeBatches, EmbeddingTrainer
from atta.train.steps.selfsupervised.ranking import LabelledEdges, LinkRanking
from atta.train.steps.typed import TypedTrainer
from atta.train.tasks.task import Objective
from atta.train.tasks.types import EdgeTriple, TypeReach


class LinkTrainer(EmbeddingTrainer):
    """Trains embeddings and a decoder of pairs under DDP. ``edges``: what is learnt of them."""

    edges: LinkRanking | LabelledEdges

    def _objective(self) -> Objective:
        self.edges = LabelledEdges(self) if self.config.task == EDGE_CLASSES else LinkRanking(self)
        self.held_out, self.splits = self.edges.split, self.edges.there(self.splits)
        return self.edges.objective()

    def build(self) -> torch.nn.Module:
        return LinkModel(whole_model(self.config, self.channels, self.outputs), self.edges.decoder())

    def train_batches(self) -> EdgeBatches:
        return self.edges.train_batches()

    def targets(self, data: Any) -> torch.Tensor:
        """Whether a pair is an edge, or its class."""
        labels: torch.Tensor = self.seeds_in(data).edge_label
        return labels

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the batch's pairs."""
        scores: torch.Tensor = self.applied(model, data, self.seeds_in(data).edge_label_index)
        return scores

    def tallies(self) -> dict[str, list[float]]:
        self.parallel.eval()
        return self.edges.tallies(self.model.link_decoder)  # type: ignore[arg-type]  # a module


class TypedLinkTrainer(LinkTrainer, TypedTrainer):
    """The same on a typed graph, with embeddings of the types at both ends of an edge type."""

    @staticmethod
    def reach_of(config: MinibatchSettings, cluster: atta.Cluster) -> tuple[MinibatchSettings, TypeReach]:
        assert config.edge_type is not None, "launching has found it"
        source, target = cluster.schema.endpoints(config.edge_type)
        return config, TypeReach.of(cluster.schema, target, config.depth, (source,))

    @property
    def divided(self) -> list[EdgeTriple]:  # type: ignore[override]
        """The edge type, and that of the reverses, if there is one."""
        reverse = reverse_type_of(self.cluster.schema, self.edge_type, self.config.reverse_type)
        return sorted({split_edge_type(name) for name in (self.edge_type, reverse or self.edge_type)})

    def build(self) -> torch.nn.Module:
        ends = self.cluster.schema.endpoints(self.edge_type)
        return TypedLinkModel(self.config, self.reach, ends, self.edges.decoder())

    def seeds_in(self, data: Any) -> Any:
        return data[split_edge_type(self.edge_type)]

    def applied(self, model: torch.nn.Module, data: Any, places: torch.Tensor | None = None) -> Any:
        return model(*self.inputs(self.readable(data)), places=places)
