"""The trainer of link prediction on sampled mini-batches: seeds are edges, with pairs that are none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import atta
from atta.client.sessions.cursor import Cursor
from atta.errors import ConfigError
from atta.train.models import whole_model
from atta.train.models.links import LinkModel, decoder_named
from atta.train.settings.minibatch import LinkSettings
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.steps.selfsupervised.embedding import EmbeddingTrainer
from atta.train.steps.selfsupervised.ranking import LinkRanking
from atta.train.tasks.objective import Objective

__all__ = ["EdgeBatches", "LinkTrainer", "edge_batches", "negatives_of"]

_SECTION = 1 << 20
"""Most edges per session: their ends go to the daemon in one message."""


class EdgeBatches:
    """The batches of edges, one epoch per iteration. A long list is cut into sections at random."""

    def __init__(
        self,
        cluster: atta.Cluster,
        hops: Any,
        edge_type: str,
        ends: np.ndarray,
        labels: np.ndarray | None = None,
        **options: Any,
    ) -> None:
        """ends: int64 [2, edges] user ids; labels: [edges], or None; hops, options: of ``atta.LinkNeighborLoader``."""
        seed, count = int(options.pop("seed")), max(1, -(-ends.shape[1] // _SECTION))
        order = np.arange(ends.shape[1])
        if count > 1:
            order, options["epochs"] = np.random.default_rng(seed).permutation(ends.shape[1]), None
        self._first = 0  # the section that the next iteration begins with
        self._loaders = [
            atta.LinkNeighborLoader(
                cluster, hops, (edge_type, ends[:, part]), seed=(seed + number) % (1 << 63),
                edge_label=None if labels is None else labels[part], **options,
            )
            for number, part in enumerate(np.array_split(order, count))
        ]  # fmt: skip

    def __len__(self) -> int:
        return sum(map(len, self._loaders))

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        for loader in self._loaders[first:]:
            yield from loader

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch."""
        self._first = 0
        for loader in self._loaders:
            loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration is, as ``DagLoader.state_dict`` says it; batches count over all sections."""
        places = [Cursor.from_state(loader.state_dict()) for loader in self._loaders]
        epoch = min(place.epoch for place in places)
        done = (len(loader) if p.epoch > epoch else p.batch for loader, p in zip(self._loaders, places, strict=True))
        return replace(places[0], request=_digest(places), epoch=epoch, batch=sum(done), tables_version=None).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where ``state``, from ``state_dict``, says.

        Raises:
            ConfigError: it is no state, or that of other edges or arguments.
        """
        whole = Cursor.from_state(state)
        places = [Cursor.from_state(loader.state_dict()) for loader in self._loaders]
        if whole.request != _digest(places) or whole.batch > len(self):
            raise ConfigError("state of a loader: it belongs to a loader with other batches (dataset or arguments)")
        self.set_epoch(whole.epoch)
        left = whole.batch
        for number, (loader, place) in enumerate(zip(self._loaders, places, strict=True)):
            if left < len(loader):
                loader.load_state_dict(replace(place, epoch=whole.epoch, batch=left).to_state())
                return
            loader.set_epoch(whole.epoch + 1)
            left, self._first = left - len(loader), number + 1


def _digest(places: Sequence[Cursor]) -> str:
    """What decides the batches of all sections."""
    return hashlib.sha256(" ".join(place.request for place in places).encode()).hexdigest()


def edge_batches(
    trainer: MinibatchTrainer, ends: np.ndarray, *, train: bool, tables: Any, hops: Any, **options: Any
) -> EdgeBatches:
    """The batches of some edges, int64 [2, edges] user ids, of a trainer; raises ConfigError if there are too few.

    tables, hops, options: of ``atta.LinkNeighborLoader``.
    """
    config = trainer.config
    if not train:  # they are held out anyway, and what is left out must not depend on which edges share a batch
        options["exclude_edges"] = None
    if train and ends.shape[1] < trainer.world:
        raise ConfigError(f"--task {config.task}: {ends.shape[1]} training edges for {trainer.world} trainers")
    return EdgeBatches(
        trainer.cluster,
        hops,
        config.edge_type or trainer.cluster.schema.edge_types[0],
        ends,
        batch_size=config.batch_size if train else config.eval_batch_size or config.batch_size,
        shuffle=train,
        pad=train,
        rank=trainer.rank,
        world_size=trainer.world,
        seed=config.seed,
        seed_policy=config.seed_policy,
        tables=tables,
        edge_ids=False,
        job=f"train-{config.task}-{os.getpid()}",
        epochs=config.epochs if train else None,
        **options,
    )


def negatives_of(config: LinkSettings) -> atta.NegativeSampling:
    """How pairs that are no edges are drawn in training."""
    return atta.NegativeSampling("binary", config.negatives_per_edge, config.negatives)


class LinkTrainer(EmbeddingTrainer):
    """Trains embeddings and a decoder under DDP. Validation ranks edges among fixed candidates."""

    def _objective(self) -> Objective:
        self.ranking = LinkRanking(self.cluster, self.config, self.device, self.rank, self.world)
        self.held_out, self.splits = self.ranking.split, self.ranking.there(self.splits)
        return Objective(self.task, self.outputs)

    def build(self) -> torch.nn.Module:
        config = self.config
        return LinkModel(whole_model(config, self.channels, self.outputs), self.pair_decoder())

    def pair_decoder(self) -> torch.nn.Module:
        """What scores pairs of embeddings, with new weights."""
        return decoder_named(self.config.decoder, self.outputs, self.config.hidden)

    def edge_options(self, *, train: bool) -> dict[str, Any]:
        """What ``edge_batches`` takes of this graph."""
        hops = self.config.fan_outs if train else self.config.eval_fan_outs
        tables = {"tables": ["x"], "edge_tables": self.edge_tables}
        return {"train": train, "hops": list(hops), **tables, **self.norms}

    def train_batches(self) -> EdgeBatches:
        ends = self.ranking.pairs.user_ids(self.ranking.keys["train"])
        return edge_batches(self, ends, neg_sampling=negatives_of(self.config), **self.edge_options(train=True))

    def targets(self, data: Any) -> torch.Tensor:
        """Whether a pair is an edge."""
        labels: torch.Tensor = data.edge_label
        return labels

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the batch's pairs."""
        data = self.readable(data)
        weight = data.get("edge_weight")
        scores: torch.Tensor = model(*self.inputs(data), data.edge_label_index, edge_weight=weight)
        return scores

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        """Each rank computes embeddings of its share of all vertices, then ranks its edges."""
        self.parallel.eval()
        rows = self.embeddings(self.ranking.pairs.ids)
        decoder: Any = self.model.link_decoder
        return {split: self._sum(self.ranking.tally(split, (rows, rows), decoder).tolist()) for split in self.splits}
