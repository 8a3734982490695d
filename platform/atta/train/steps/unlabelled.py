"""Trainers that need no labels: unsupervised GraphSAGE and Deep Graph Infomax, on sampled mini-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import atta
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import Drawing
from atta.errors import ConfigError
from atta.samplers.dag.spec import pair_spec
from atta.samplers.hashing import mix64
from atta.train.models import whole_model
from atta.train.models.links import Dot, InfomaxModel, WalkModel
from atta.train.settings.common import epoch_seed
from atta.train.steps.embedding import EdgeBatches, EmbeddingTrainer, class_tallies
from atta.train.steps.links import LinkRanking
from atta.train.tasks.edges import everywhere
from atta.train.tasks.splits import EdgeSplit
from atta.train.tasks.task import Objective
from atta.train.tasks.vertices import CLASSES

_TOGETHER = 1 << 14
"""Number of walks per request."""


class _UnlabelledTrainer(EmbeddingTrainer):
    """Learns from all vertices. Embeddings are judged by the classes of vertices, or by held-out edges."""

    ranking: LinkRanking | None = None

    def _objective(self) -> Objective:
        if self.config.evaluate_by == "links":
            self.ranking = LinkRanking(self)
            self.held_out, self.splits = self.ranking.split, self.ranking.there(self.splits)
        else:
            task, number = CLASSES, self.cluster.schema.num_classes or 0
            task.check(self.counted(task, number), number)
            self.check_judged(task, number)
        return Objective(self.task, self.outputs)

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        self.parallel.eval()
        if self.ranking is None:
            return class_tallies(self, self.node_type, self.splits)
        return self.ranking.tallies(Dot())

    def seeds(self, data: Any) -> torch.Tensor:
        """Places of a batch's seeds, int64 [seeds]: they come first."""
        return torch.arange(data.batch_size, device=data.x.device)


class WalkTrainer(_UnlabelledTrainer):
    """Unsupervised GraphSAGE: a seed's positive sample is where a random walk leads. With walks of one step batches are
    ByteGNN's DAG of three branches, whose negative samples are no in-neighbours. The pairs of longer walks, done before
    an epoch, are its seeds."""

    def build(self) -> torch.nn.Module:
        return WalkModel(whole_model(self.config, self.channels, self.outputs))

    def train_batches(self) -> DagLoader | WalkBatches:
        config, schema = self.config, self.cluster.schema
        every = schema.node_counts[self.node_type] * (schema.node_counts[self.node_type] - 1)
        if schema.edge_counts[self.edge_type] >= every == len(LinkRanking(self).pairs.keys):
            raise ConfigError(f"--task {config.task}: no negative samples: every vertex has edges from all others")
        if config.walk_length > 1:
            return WalkBatches(self, config.walk_length)
        drawing = Drawing(**self.norms, **config.drawing(train=True))
        dag = pair_spec(
            schema,
            drawing.hops(schema, list(config.fan_outs)),
            edge_type=self.edge_type,
            negatives=0 if config.negatives == "in_batch" else config.negatives_per_edge,
            tables={self.node_type: ["x"]},
        )
        given = {n: v for n, v in self.batch_options(train=True).items() if n not in self.loader_options(train=True)}
        return DagLoader(self.cluster, dag, input_nodes=None, **given)

    def targets(self, data: Any) -> torch.Tensor:
        """Whether a seed has a positive sample, which is not held out. The DAG gives the seed itself if it has none."""
        if self.config.walk_length > 1:
            return torch.ones_like(data.src_index)
        seeds, positives = self.seeds(data), data.positive[:, 0]
        there: torch.Tensor = positives != seeds
        if isinstance(self.held_out, EdgeSplit):
            there &= self.held_out.messages(data.n_id[positives], data.n_id[seeds])
        return there.long()

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the positive sample, then of the negative ones."""
        samples = self._samples(data)
        scores: torch.Tensor = self.applied(model, data, samples)
        absent = samples[:, 1:] == samples[:, :1]
        absent[:, 0] = False
        return scores.masked_fill(absent, -torch.inf)

    def _samples(self, data: Any) -> torch.Tensor:
        """int64 [seeds, 2 + negatives]: places of seeds, and of positive and negative samples, or the seed's for none."""
        if self.config.walk_length > 1:
            pairs = torch.stack([data.src_index, data.dst_pos_index], dim=1)
            return torch.cat([pairs, data.dst_neg_index.reshape(len(pairs), -1)], dim=1)
        negatives = data.get("negative")
        if negatives is None:
            negatives = in_batch(data.positive[:, 0], self.targets(data) == 1, self.config.negatives_per_edge)
        return torch.cat([self.seeds(data)[:, None], data.positive, negatives], dim=1)


class InfomaxTrainer(_UnlabelledTrainer):
    """Deep Graph Infomax on sampled batches: features in another order are the corrupted graph."""

    def build(self) -> torch.nn.Module:
        return InfomaxModel(whole_model(self.config, self.channels, self.outputs), self.outputs)

    def train_batches(self) -> atta.NeighborLoader:
        return atta.NeighborLoader(self.cluster, input_nodes=None, **self.batch_options(train=True))

    def targets(self, data: Any) -> torch.Tensor:
        """Every seed counts."""
        return torch.ones_like(self.seeds(data))

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the graph, and of the corrupted one."""
        scores: torch.Tensor = self.applied(model, data, torch.randperm(len(data.x), device=data.x.device))
        return scores


def in_batch(positives: torch.Tensor, there: torch.Tensor, count: int) -> torch.Tensor:
    """Negative samples from the batch: int64 [seeds, count], the positive samples of the seeds after each one, in a circle.
    ``there``: bool [seeds], which seeds have one. Where fewer than two have, the seed itself stands for its negatives.
    """
    known = positives[there]
    if len(known) < 2:
        return torch.arange(len(positives), device=positives.device)[:, None].expand(-1, count)
    place = there.long().cumsum(0) - 1  # of the seed among those with a positive sample, or of the one before it
    steps = 1 + torch.arange(count, device=positives.device) % (len(known) - 1)
    return known[(place[:, None] + steps) % len(known)]


def chosen_places(walks: np.ndarray, starts: np.ndarray, length: int, seed: int) -> np.ndarray:
    """int64 [walks]: a place of each walk after its start and not back there, each as likely as the others; -1: there
    is none. walks: [walks, length + 1], -1 after the end. A draw is a function of ``seed`` and of ``starts``, user ids
    [walks]."""
    there = (walks[:, 1:] >= 0) & (walks[:, 1:] != walks[:, :1])
    count = there.sum(1)
    bits = mix64(mix64(starts.astype(np.uint64)) ^ np.uint64(seed)) >> np.uint64(11)
    number = np.minimum((bits.astype(np.float64) * 2.0**-53 * count).astype(np.int64), count - 1)
    place = (there.cumsum(1) == number[:, None] + 1).argmax(1) + 1
    return np.where(count > 0, place, -1)


class WalkBatches:
    """Batches of pairs, one per vertex that a walk leaves, with negative samples. Each epoch has walks of its own."""

    def __init__(self, trainer: WalkTrainer, length: int) -> None:
        """``length``: steps of a walk, along in-edges. Every rank makes it, and calls ``set_epoch`` alike, first of all."""
        self._trainer, self._length = trainer, length
        self._pairs: EdgeBatches

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pairs)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands, for ``load_state_dict``."""
        return self._pairs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """``set_epoch`` comes first, with the state's epoch."""
        self._pairs.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Walk from every vertex; the next iteration has these pairs."""
        trainer, config = self._trainer, self._trainer.config
        starts, ends = self.pairs(epoch)
        order = starts.argsort()
        pairs = torch.stack([starts[order], ends[order]]).cpu().numpy()
        if pairs.shape[1] < trainer.world:
            raise ConfigError(f"--task {config.task}: {pairs.shape[1]} walks for {trainer.world} trainers")
        negatives = atta.NegativeSampling("triplet", config.negatives_per_edge, config.negatives)
        self._pairs = trainer.edge_batches(pairs, neg_sampling=negatives, exclude_edges=None)
        self._pairs.set_epoch(epoch)

    def pairs(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """User ids of starts and of positive samples, int64 [pairs], of all ranks; every rank calls this."""
        trainer = self._trainer
        loader = atta.BatchLoader(
            trainer.cluster, "walks", {"length": self._length}, input_nodes=(trainer.node_type, None), tables=[],
            batch_size=_TOGETHER, pad=False, rank=trainer.rank, world_size=trainer.world, seed=trainer.config.seed,
            edge_ids=False,
        )  # fmt: skip
        loader.set_epoch(epoch)
        found = [np.empty((2, 0), np.int64)]
        for batch in loader:
            walks, ids = batch.extra["walks"], batch.n_id()
            readable = self._readable(walks, ids)
            starts = ids[readable[:, 0]]
            places = chosen_places(readable, starts, self._length, epoch_seed(trainer.config.seed, epoch))
            some = places > 0
            found.append(np.stack([starts[some], ids[readable[some, places[some]]]]))
        mine = torch.from_numpy(np.concatenate(found, axis=1)).to(trainer.device)
        return everywhere(mine[0]), everywhere(mine[1])

    def _readable(self, walks: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Walks that end before their first step along an edge that is held out."""
        split = self._trainer.held_out
        if not isinstance(split, EdgeSplit):
            return walks
        targets, sources = (torch.from_numpy(ids[np.maximum(part, 0)]) for part in (walks[:, :-1], walks[:, 1:]))
        kept = split.messages(sources, targets).numpy() & (walks[:, 1:] >= 0)
        steps = np.where(np.logical_and.accumulate(kept, axis=1), walks[:, 1:], -1)
        return np.concatenate([walks[:, :1], steps], axis=1)
