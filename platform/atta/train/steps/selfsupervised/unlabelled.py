"""Trainers that need no labels: unsupervised GraphSAGE and Deep Graph Infomax, on sampled mini-batches."""

from __future__ import annotations

import os
from typing import Any

import torch

import atta
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import edge_weights_of
from atta.errors import ConfigError
from atta.samplers.dag.spec import Hops, pair_spec
from atta.train.models import whole_model
from atta.train.models.links import InfomaxModel, WalkModel
from atta.train.steps.selfsupervised.embedding import EmbeddingTrainer
from atta.train.steps.selfsupervised.probing import class_tallies
from atta.train.steps.selfsupervised.ranking import LinkRanking
from atta.train.steps.selfsupervised.walks import WalkBatches
from atta.train.tasks import classes
from atta.train.tasks.links.pairs import EdgeSplit
from atta.train.tasks.objective import Objective

__all__ = ["InfomaxTrainer", "WalkTrainer", "in_batch"]


class _UnlabelledTrainer(EmbeddingTrainer):
    """Learns from all vertices. Embeddings are judged by the classes of vertices, or by held-out edges."""

    ranking: LinkRanking | None = None

    def _objective(self) -> Objective:
        if self.config.evaluate_by == "links":
            self.ranking = LinkRanking(self.cluster, self.config, self.device, self.rank, self.world)
            self.held_out, self.splits = self.ranking.split, self.ranking.there(self.splits)
        else:
            number = self.cluster.schema.num_classes or 0
            classes.TASK.check(self.counted(classes.TASK, number), number)
            self.check_judged(classes.TASK, number)
        return Objective(self.task, self.outputs)

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        self.parallel.eval()
        if self.ranking is None:
            return class_tallies(self, self.node_type, self.splits)
        rows = self.embeddings(self.ranking.pairs.ids)
        return {split: self._sum(self.ranking.tally(split, (rows, rows), _inner).tolist()) for split in self.splits}


class WalkTrainer(_UnlabelledTrainer):
    """Unsupervised GraphSAGE: a seed's positive sample is where a random walk leads.

    With walks of one step batches are ByteGNN's DAG of three branches, whose negative samples are no in-neighbours.
    Longer walks are done before an epoch, and then their pairs are the seeds.
    """

    def build(self) -> torch.nn.Module:
        return WalkModel(whole_model(self.config, self.channels, self.outputs))

    def train_batches(self) -> DagLoader | WalkBatches:
        config, schema = self.config, self.cluster.schema
        _check_strangers(self)
        if config.walk_length > 1:
            return WalkBatches(self, config.walk_length)
        dag = pair_spec(
            schema,
            Hops(
                list(config.fan_outs),
                weights=edge_weights_of(schema, self.norms.get("edge_norm"), unbiased=bool(self.norms)),
            ),
            edge_type=schema.edge_types[0],
            negatives=0 if config.negatives == "in_batch" else config.negatives_per_edge,
            tables={self.node_type: ["x"]},
        )
        return DagLoader(self.cluster, dag, input_nodes=None, **_of_training(self))

    def targets(self, data: Any) -> torch.Tensor:
        """Whether a seed has a positive sample. The DAG gives the seed itself if it has none.

        A pair that is held out teaches nothing either.
        """
        if self.config.walk_length > 1:
            return torch.ones_like(data.src_index)
        seeds, positives = _seeds(data), data.positive[:, 0]
        there: torch.Tensor = positives != seeds
        if isinstance(self.held_out, EdgeSplit):
            there &= self.held_out.messages(data.n_id[positives], data.n_id[seeds])
        return there.long()

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the positive sample, then of the negative ones."""
        samples = self._samples(data)
        data = self.readable(data)
        scores: torch.Tensor = model(*self.inputs(data), samples, edge_weight=data.get("edge_weight"))
        absent = samples[:, 1:] == samples[:, :1]
        absent[:, 0] = False
        return scores.masked_fill(absent, -torch.inf)

    def _samples(self, data: Any) -> torch.Tensor:
        """int64 [seeds, 2 + negatives]: places of seeds, and of positive and negative samples. The seed itself stands for
        one that is not there.
        """
        if self.config.walk_length > 1:
            pairs = torch.stack([data.src_index, data.dst_pos_index], dim=1)
            return torch.cat([pairs, data.dst_neg_index.reshape(len(pairs), -1)], dim=1)
        negatives = data.get("negative")
        if negatives is None:
            negatives = in_batch(data.positive[:, 0], self.targets(data) == 1, self.config.negatives_per_edge)
        return torch.cat([_seeds(data)[:, None], data.positive, negatives], dim=1)


class InfomaxTrainer(_UnlabelledTrainer):
    """Deep Graph Infomax on sampled batches: features in another order are the corrupted graph."""

    def build(self) -> torch.nn.Module:
        return InfomaxModel(whole_model(self.config, self.channels, self.outputs), self.outputs)

    def train_batches(self) -> atta.NeighborLoader:
        return atta.NeighborLoader(
            self.cluster,
            list(self.config.fan_outs),
            None,
            tables=["x"],
            edge_tables=self.edge_tables,
            **self.norms,
            **_of_training(self),
        )

    def targets(self, data: Any) -> torch.Tensor:
        """Every seed counts."""
        return torch.ones_like(_seeds(data))

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the graph, and of the corrupted one."""
        data = self.readable(data)
        order = torch.randperm(len(data.x), device=data.x.device)
        scores: torch.Tensor = model(*self.inputs(data), order, edge_weight=data.get("edge_weight"))
        return scores


def in_batch(positives: torch.Tensor, there: torch.Tensor, count: int) -> torch.Tensor:
    """Negative samples from the batch: int64 [seeds, count], positive samples of the seeds after each one, in a circle.

    positives: int64 [seeds]; there: bool [seeds], which seeds have one. Others give none. Where fewer than two have one,
    there are no negative samples: the seed itself stands for them.
    """
    known = positives[there]
    if len(known) < 2:
        return torch.arange(len(positives), device=positives.device)[:, None].expand(-1, count)
    place = there.long().cumsum(0) - 1  # of the seed among those with a positive sample, or of the one before it
    steps = 1 + torch.arange(count, device=positives.device) % (len(known) - 1)
    return known[(place[:, None] + steps) % len(known)]


def _of_training(trainer: EmbeddingTrainer) -> dict[str, Any]:
    config = trainer.config
    return {
        **{"batch_size": config.batch_size, "shuffle": True, "rank": trainer.rank, "world_size": trainer.world},
        **{"seed": config.seed, "seed_policy": config.seed_policy, "edge_ids": False, "epochs": config.epochs},
        "job": f"train-{config.task}-{os.getpid()}",
    }


def _seeds(data: Any) -> torch.Tensor:
    """Places of a batch's seeds, int64 [seeds]: they come first."""
    return torch.arange(data.batch_size, device=data.x.device)


def _inner(sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (sources * targets).sum(-1)


def _check_strangers(trainer: EmbeddingTrainer) -> None:
    """Refuse a graph in which every vertex is a neighbour of every other one: it has no negative samples."""
    schema, (edge_type,) = trainer.cluster.schema, trainer.cluster.schema.edge_types
    n = schema.node_counts[trainer.node_type]
    if schema.edge_counts[edge_type] < n * (n - 1):
        return
    found = LinkRanking(trainer.cluster, trainer.config, trainer.device, trainer.rank, trainer.world)
    if len(found.pairs.keys) == n * (n - 1):
        raise ConfigError(f"--task {trainer.config.task}: no negative samples: every vertex has edges from all others")
