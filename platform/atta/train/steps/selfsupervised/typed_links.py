"""The trainer of link prediction on typed graphs: edges of one type are seeds."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.client.loaders.link import reverse_type_of
from atta.partition.schema import join_edge_type, split_edge_type
from atta.train.models.links import decoder_named
from atta.train.models.typed import TypedLinkModel
from atta.train.settings import MinibatchSettings
from atta.train.steps.selfsupervised.links import EdgeBatches, edge_batches, negatives_of
from atta.train.steps.selfsupervised.ranking import LinkRanking
from atta.train.steps.timing import Stopwatch, on_device
from atta.train.steps.typed import TypedTrainer
from atta.train.tasks.links.pairs import Split, without_held_out_types
from atta.train.tasks.objective import Objective
from atta.train.tasks.reach import TypeReach

__all__ = ["TypedLinkTrainer"]


class TypedLinkTrainer(TypedTrainer):
    """Trains embeddings of the types at both ends of an edge type, and a decoder.

    Attributes:
        held_out: the edges that the model may not read.
    """

    held_out: Split

    @staticmethod
    def reach_of(config: MinibatchSettings, cluster: atta.Cluster) -> tuple[MinibatchSettings, TypeReach]:
        assert config.edge_type is not None, "launching has found it"
        source, target = cluster.schema.endpoints(config.edge_type)
        return config, TypeReach.of(cluster.schema, target, config.depth, (source,))

    def _objective(self) -> Objective:
        self.ranking = LinkRanking(self.cluster, self.config, self.device, self.rank, self.world)
        self.held_out, self.splits = self.ranking.split, self.ranking.there(self.splits)
        return Objective(self.task, self.outputs)

    @property
    def edge_type(self) -> tuple[str, str, str]:
        """Of the edges that are predicted."""
        return split_edge_type(str(self.config.edge_type))

    @property
    def ends(self) -> tuple[str, str]:
        """Node types of sources and of targets."""
        return self.edge_type[0], self.edge_type[2]

    def build(self) -> torch.nn.Module:
        return TypedLinkModel(self.config, self.reach, self.ends, self.pair_decoder())

    def pair_decoder(self) -> torch.nn.Module:
        """What scores pairs of embeddings, with new weights."""
        return decoder_named(self.config.decoder, self.outputs, self.config.hidden)

    def edge_options(self, *, train: bool) -> dict[str, Any]:
        """What ``edge_batches`` takes of this graph."""
        options = self.loader_options(train=train)
        hops = options.pop("num_neighbors")
        return {**options, "train": train, "hops": hops, "reverse_type": self.config.reverse_type}

    def train_batches(self) -> EdgeBatches:
        """Neither edges of a batch nor their reverses are messages."""
        ends = self.ranking.pairs.user_ids(self.ranking.keys["train"])
        return edge_batches(self, ends, neg_sampling=negatives_of(self.config), **self.edge_options(train=True))

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        tables = {key: list(self.held_out.tables) for key in itertools.starmap(join_edge_type, self._both)}
        return {**super().loader_options(train=train), "edge_tables": tables}

    @property
    def _both(self) -> list[tuple[str, str, str]]:
        """The edge type, and that of the reverses, if there is one."""
        config = self.config
        reverse = reverse_type_of(self.cluster.schema, str(config.edge_type), config.reverse_type)
        return sorted({self.edge_type, *([] if reverse is None else [split_edge_type(reverse)])})

    def seeds_in(self, data: Any) -> Any:
        return data[self.edge_type]

    def targets(self, data: Any) -> torch.Tensor:
        """Whether a pair is an edge."""
        labels: torch.Tensor = data[self.edge_type].edge_label
        return labels

    def readable(self, data: Any) -> Any:
        """PyG's data without edges of validation and test, and without their reverses."""
        return without_held_out_types(data, self.held_out, self._both)

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """Of the batch's pairs."""
        pairs = data[self.edge_type].edge_label_index
        scores: torch.Tensor = model(*self.inputs(self.readable(data)), pairs)
        return scores

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        """Each rank computes embeddings of its share of both types, then ranks its edges."""
        self.parallel.eval()
        source, target = self.ends
        pairs = self.ranking.pairs
        decoder: Any = self.model.link_decoder
        found = {t: self._embeddings(t, ids) for t, ids in ((source, pairs.ids), (target, pairs.target_ids))}
        rows = found[source], found[target]
        return {split: self._sum(self.ranking.tally(split, rows, decoder).tolist()) for split in self.splits}

    def _embeddings(self, node_type: str, ids: np.ndarray) -> torch.Tensor:
        """float32 [vertices, outputs] of all vertices of a type, by ascending user ids, of all ranks."""
        config = self.config
        loader = atta.NeighborLoader(
            self.cluster, input_nodes=(node_type, None), pad=False, rank=self.rank, world_size=self.world,
            batch_size=config.eval_batch_size or config.batch_size, seed=config.seed, seed_policy=config.seed_policy,
            edge_ids=False, job=f"train-embeddings-{os.getpid()}", **self.loader_options(train=False),
        )  # fmt: skip
        found = torch.zeros(len(ids), self.outputs, device=self.device)
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {node_type}", len(loader)) as advance:
            for _, drawn in on_device(batches, self.device, Stopwatch(self.device)):
                data = self.readable(drawn)
                rows = self.model(*self.inputs(data))[node_type]
                places = np.searchsorted(ids, data[node_type].n_id[: len(rows)].cpu().numpy())
                found[torch.from_numpy(places).to(self.device)] = rows
                advance()
        dist.all_reduce(found)
        return found
