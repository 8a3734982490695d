"""Trainers of classes of edges, on graphs with one type and on typed ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from atta.train.models.links import PairClasses
from atta.train.steps.selfsupervised.links import EdgeBatches, LinkTrainer, edge_batches
from atta.train.steps.selfsupervised.typed_links import TypedLinkTrainer
from atta.train.steps.timing import Stopwatch, on_device
from atta.train.tasks.classes import UNLABELLED
from atta.train.tasks.links.candidates import SPLITS, parse_shares
from atta.train.tasks.links.classes import check_labels
from atta.train.tasks.links.edges import EdgeReader
from atta.train.tasks.links.pairs import EdgeSplit, Split, TimeSplit
from atta.train.tasks.objective import Objective

__all__ = ["EdgeClassTrainer", "TypedEdgeClassTrainer"]


@dataclass(frozen=True)
class _DividedEdges:
    """The edges with a label.

    Attributes:
        split: what divides them.
        ends, labels: by split, int64 [2, edges] user ids and int64 [edges] classes.
        classes: number of classes.
    """

    split: Split
    ends: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    classes: int

    @classmethod
    def of(cls, trainer: LinkTrainer | TypedLinkTrainer) -> _DividedEdges:
        """Read all edges; every rank calls this. Raises ConfigError for labels that nothing can be learnt from."""

        def add_up(numbers: torch.Tensor) -> torch.Tensor:
            on = numbers.to(trainer.device)
            dist.all_reduce(on)
            return on.cpu()

        config = trainer.config
        reader = EdgeReader(trainer.cluster, trainer.rank, trainer.world, add_up)
        edge_type = config.edge_type or trainer.cluster.schema.edge_types[0]
        found = reader.labelled(edge_type, timed=config.split_by == "time")
        split, of = _divided(found.ends, found.times, parse_shares(config.edge_split))
        known = found.labels != UNLABELLED
        chosen = {name: known & (of == number) for number, name in enumerate(SPLITS)}
        classes = check_labels(found.labels, found.labels[chosen["train"]])
        ends = {name: found.ends[:, mask] for name, mask in chosen.items()}
        return cls(split, ends, {name: found.labels[mask] for name, mask in chosen.items()}, classes)

    def objective(self, trainer: LinkTrainer | TypedLinkTrainer) -> Objective:
        """What a trainer learns, after it has taken what it needs from here."""
        trainer.held_out = self.split
        trainer.splits = [name for name in trainer.splits if len(self.labels[name])]
        return Objective(trainer.task, self.classes)

    def batches(self, trainer: LinkTrainer | TypedLinkTrainer, split: str) -> EdgeBatches:
        """The batches of a split."""
        return edge_batches(
            trainer, self.ends[split], labels=self.labels[split], **trainer.edge_options(train=split == "train")
        )

    @torch.no_grad()
    def tally(self, trainer: LinkTrainer | TypedLinkTrainer, split: str) -> list[float]:
        """The tally of a split over all ranks; each rank predicts its share of edges."""
        batches, total = self.batches(trainer, split), trainer.objective.empty_tally(trainer.device)
        for _, data in on_device(batches, trainer.device, Stopwatch(trainer.device)):
            total += trainer.objective.tally(trainer.scores(trainer.model, data), trainer.targets(data))
        return trainer.add_up(total.tolist())


def _divided(
    ends: np.ndarray, times: np.ndarray | None, shares: tuple[float, float, float]
) -> tuple[Split, np.ndarray]:
    """What divides some edges, and the split of each one, int64 [edges]."""
    if times is not None and len(times):
        by_time = TimeSplit.by(times, shares)
        return by_time, by_time.of(times)
    by_hash = EdgeSplit(shares)
    return by_hash, by_hash.of(*torch.from_numpy(ends)).numpy()


class EdgeClassTrainer(LinkTrainer):
    """Classes of edges on a graph with one node type and one edge type."""

    def _objective(self) -> Objective:
        self.edges = _DividedEdges.of(self)
        return self.edges.objective(self)

    def pair_decoder(self) -> torch.nn.Module:
        return PairClasses(self.outputs, self.config.hidden, self.edges.classes)

    def train_batches(self) -> EdgeBatches:
        return self.edges.batches(self, "train")

    def tallies(self) -> dict[str, list[float]]:
        self.parallel.eval()
        return {split: self.edges.tally(self, split) for split in self.splits}


class TypedEdgeClassTrainer(TypedLinkTrainer):
    """Classes of edges of one type of a typed graph."""

    def _objective(self) -> Objective:
        self.edges = _DividedEdges.of(self)
        return self.edges.objective(self)

    def pair_decoder(self) -> torch.nn.Module:
        return PairClasses(self.outputs, self.config.hidden, self.edges.classes)

    def train_batches(self) -> EdgeBatches:
        return self.edges.batches(self, "train")

    def tallies(self) -> dict[str, list[float]]:
        self.parallel.eval()
        return {split: self.edges.tally(self, split) for split in self.splits}
