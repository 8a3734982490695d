"""The trainer of mini-batches of typed graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import atta
from atta.train.checkpoint import RankShare, RunPlace, SavedEmbeddings, load_shares
from atta.train.models.typed import TypedModel
from atta.train.reports.epochs import EpochReport
from atta.train.settings import MinibatchSettings
from atta.train.steps.embeddings import TypeEmbeddings
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.tasks.types import TypeReach, fan_outs_of, target_of

__all__ = ["TypedTrainer"]


class TypedTrainer(MinibatchTrainer):
    """Trains a model of a typed graph for the vertices of one node type.

    Attributes:
        reach: the types that its layers read and compute.
        embeddings: learnable rows of the types among these that have no features; None: all have some.
    """

    embeddings: TypeEmbeddings | None = None

    def __init__(self, config: MinibatchSettings, cluster: atta.Cluster, device: torch.device) -> None:
        """Raises UnknownNameError, too, for a type that does not exist."""
        config, self.reach = self.reach_of(config, cluster)
        super().__init__(config, cluster, device)

    @staticmethod
    def reach_of(config: MinibatchSettings, cluster: atta.Cluster) -> tuple[MinibatchSettings, TypeReach]:
        """The types that the model reads, and the settings with what they leave open."""
        target = target_of(cluster.schema, config)
        return replace(config, target=target), TypeReach.of(cluster.schema, target, config.depth)

    def begin_with(self, model: torch.nn.Module) -> None:
        """Makes the embeddings, too."""
        config, featureless = self.config, self.reach.without_features
        if featureless:
            self.embeddings = TypeEmbeddings(
                self.cluster, featureless, config.hidden,
                lr=config.embedding_lr or config.lr, seed=config.seed, rank=self.rank, world=self.world,
                device=self.device,
            )  # fmt: skip
            self.keeps_state = True
        super().begin_with(model)

    def build(self) -> torch.nn.Module:
        """The model, with new weights."""
        return TypedModel(self.config, self.reach, self.outputs)

    def seeds_in(self, data: Any) -> Any:
        return data[self.reach.target]

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        """Evaluation has the fan-outs of training, unless it has its own."""
        config, schema = self.config, self.cluster.schema
        own = None if train else config.eval_num_neighbors
        fan_outs = (
            fan_outs_of(schema, config) if own is None else dict.fromkeys(schema.edge_types, config.eval_fan_outs)
        )
        tables = {t: ["x"] for t in self.reach.read(0) if self.reach.widths[t] is not None}
        return {"num_neighbors": {name: list(hops) for name, hops in fan_outs.items()}, "tables": tables}

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        scores: torch.Tensor = model(*self.inputs(data))
        return scores

    def inputs(self, data: Any) -> tuple[Any, ...]:
        """What the model reads of a batch: rows, edges, and how many of both there are per hop."""
        edges = {e: data[e].edge_index for e in self.reach.edges(0)}
        return self._rows(data), edges, data.num_sampled_nodes, data.num_sampled_edges

    def _rows(self, data: Any) -> dict[str, torch.Tensor]:
        read, widths = self.reach.read(0), self.reach.widths
        learned: dict[str, torch.Tensor] = {}
        if self.embeddings is not None:
            learned = self.embeddings.rows({t: data[t].n_id for t in read if widths[t] is None})
        return {t: learned[t] if widths[t] is None else data[t].x.float() for t in read}

    def update_weights(self) -> None:
        """The gradient of the embeddings is this trainer's own, and is not clipped."""
        super().update_weights()
        if self.embeddings is not None:
            self.embeddings.step()

    def train_epoch(self, epoch: int) -> EpochReport:
        """Nothing is under way to the embeddings afterwards."""
        figures = super().train_epoch(epoch)
        self.settle()
        return figures

    def settle(self) -> None:
        if self.embeddings is not None:
            self.embeddings.settle()

    def fit(self) -> list[EpochReport]:
        """Gives the embeddings' memory back at the end."""
        epochs = super().fit()
        if self.embeddings is not None:
            self.embeddings.delete()
        return epochs

    def rank_state(self) -> dict[str, Any]:
        return {} if self.embeddings is None else self.embeddings.state()

    def load_rank_state(self, state: dict[str, Any]) -> None:
        if self.embeddings is not None:
            self.embeddings.load_states(str(self.config.checkpoint), [RankShare(self.rank, self.world, state)])

    def load_rank_states(self, folder: str, place: RunPlace) -> None:
        """Rows belong to vertices, so it does not matter which trainers have saved them."""
        if self.embeddings is not None:
            shares = load_shares(folder, self.rank, self.world, place, self.device)
            self.embeddings.load_states(folder, shares)

    def embedding_weights(self) -> SavedEmbeddings | None:
        return None if self.embeddings is None else self.embeddings.weights()

    def load_embedding_weights(self, saved: SavedEmbeddings) -> None:
        if self.embeddings is not None:
            self.embeddings.load_weights(saved)
        else:
            super().load_embedding_weights(saved)
