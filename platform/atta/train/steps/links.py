"""The trainer of link prediction on sampled mini-batches: seeds are edges, with pairs that are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import softplus

import atta
from atta.errors import ConfigError
from atta.train.models import whole_model
from atta.train.models.links import LinkModel, decoder_named
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.steps.timing import Stopwatch
from atta.train.steps.transfer import on_device
from atta.train.tasks.links.candidates import parse_eval_negatives
from atta.train.tasks.links.edges import read_pairs
from atta.train.tasks.links.pairs import EdgeSplit, without_held_out
from atta.train.tasks.links.ranks import auc_sums, sortable
from atta.train.tasks.objective import Objective

__all__ = ["EdgeBatches", "LinkTrainer"]

_SECTION = 1 << 20
"""Most edges per session: their ends go to the daemon in one message."""
_NUMBERS = 1 << 22
"""Numbers of embeddings that are scored at a time, or those of one pair's candidates."""


class EdgeBatches:
    """The batches of training edges, one epoch per iteration. A long list is cut into sections at random."""

    def __init__(self, cluster: atta.Cluster, hops: list[int], ends: np.ndarray, **options: Any) -> None:
        """ends: int64 [2, edges] user ids; options: of ``atta.LinkNeighborLoader``."""
        seed, count = int(options.pop("seed")), -(-ends.shape[1] // _SECTION)
        if count > 1:
            ends, options["epochs"] = ends[:, np.random.default_rng(seed).permutation(ends.shape[1])], None
        self._loaders = [
            atta.LinkNeighborLoader(cluster, hops, part, seed=(seed + number) % (1 << 63), **options)
            for number, part in enumerate(np.array_split(ends, count, axis=1))
        ]

    def __len__(self) -> int:
        return sum(map(len, self._loaders))

    def __iter__(self) -> Iterator[Any]:
        for loader in self._loaders:
            yield from loader

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch."""
        for loader in self._loaders:
            loader.set_epoch(epoch)


class LinkTrainer(MinibatchTrainer):
    """Trains embeddings and a decoder under DDP. Validation ranks edges among fixed candidates."""

    def _objective(self) -> Objective:
        config = self.config
        self._split, self._count = EdgeSplit.parse(config.edge_split), parse_eval_negatives(config.eval_negatives)
        self._pairs = pairs = read_pairs(self.cluster, self.rank, self.world, self._add_up)
        split = self._split.of(*map(torch.from_numpy, pairs.user_ids(pairs.keys))).numpy()
        self._keys = {name: pairs.keys[split == number] for number, name in enumerate(("train", "val", "test"))}
        self.splits = [name for name in self.splits if len(self._keys[name])]
        self._check_candidates()
        return Objective(self.task, self.outputs)

    def _check_candidates(self) -> None:
        """Refuse a graph in which nothing can be ranked."""
        n = len(self._pairs.ids)
        for name in self.splits:
            sources = np.unique(self._keys[name] // n)
            begin, end = (
                np.searchsorted(self._pairs.keys, sources * n),
                np.searchsorted(self._pairs.keys, (sources + 1) * n),
            )
            if (end - begin >= n - 1).all():
                raise ConfigError(
                    f"--task link: no candidates for edges of {name}: their sources have edges to all vertices"
                )

    def build(self) -> torch.nn.Module:
        """See ``MinibatchTrainer``."""
        config = self.config
        decoder = decoder_named(config.decoder, self.outputs, config.hidden)
        return LinkModel(whole_model(config, self.channels, self.outputs), decoder)

    def train_batches(self) -> EdgeBatches:
        """See ``MinibatchTrainer``."""
        config, keys = self.config, self._keys["train"]
        if len(keys) < self.world:
            raise ConfigError(f"--task link: {len(keys)} training edges for {self.world} trainers")
        negatives = atta.NegativeSampling("binary", config.negatives_per_edge, config.negatives)
        return EdgeBatches(
            self.cluster,
            list(config.fan_outs),
            self._pairs.user_ids(keys),
            neg_sampling=negatives,
            batch_size=config.batch_size,
            shuffle=True,
            rank=self.rank,
            world_size=self.world,
            seed=config.seed,
            seed_policy=config.seed_policy,
            tables=["x"],
            edge_ids=False,
            job=f"train-links-{os.getpid()}",
            epochs=config.epochs,
        )

    def targets(self, data: Any) -> torch.Tensor:
        """See ``MinibatchTrainer``: whether a pair is an edge."""
        labels: torch.Tensor = data.edge_label
        return labels

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """See ``MinibatchTrainer``: of the batch's pairs."""
        data = without_held_out(data, self._split)
        scores: torch.Tensor = model(
            data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges, data.edge_label_index
        )
        return scores

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        """See ``EpochLoop``. Each rank computes embeddings of its share of all vertices, then ranks its edges."""
        self.parallel.eval()
        rows = self._embeddings()
        return {split: self._ranked(split, rows) for split in self.splits}

    def _embeddings(self) -> torch.Tensor:
        """float32 [vertices, outputs] of all ranks, on this rank's device."""
        config, ids = self.config, self._pairs.ids
        loader = atta.NeighborLoader(
            self.cluster, list(config.eval_fan_outs), None, pad=False, rank=self.rank, world_size=self.world,
            batch_size=config.eval_batch_size or config.batch_size, seed=config.seed, seed_policy=config.seed_policy,
            tables=["x"], edge_ids=False, job=f"train-embeddings-{os.getpid()}",
        )  # fmt: skip
        found = torch.zeros(len(ids), self.outputs, device=self.device)
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches("  embeddings", len(loader)) as advance:
            for _, drawn in on_device(batches, self.device, Stopwatch(self.device)):
                data = without_held_out(drawn, self._split)
                rows = self.model(data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges)
                places = np.searchsorted(ids, data.n_id[: len(rows)].cpu().numpy())
                found[torch.from_numpy(places).to(self.device)] = rows
                advance()
        dist.all_reduce(found)
        return found

    def _ranked(self, split: str, rows: torch.Tensor) -> list[float]:
        """The tally of a split: this rank takes every ``world``-th edge; ranks add up their tallies."""
        keys, pairs = self._keys[split], self._pairs
        positives = torch.zeros(len(keys), device=self.device)
        mine = np.arange(self.rank, len(keys), self.world)
        widest = min(self._count or len(pairs.ids), len(pairs.ids))
        together = max(1, _NUMBERS // ((1 + widest) * self.outputs))
        # The positive and its candidates are scored in one way, so that equal embeddings have equal scores.
        for places in np.array_split(mine, -(-len(mine) // together) or 1):
            ends = pairs.ends(keys[places])
            positives[places] = self._decoded(rows, ends[0], ends[1][:, None])[:, 0]
        dist.all_reduce(positives)
        ordered = sortable(positives, positive=True).sort().values
        tally = torch.zeros(2 + len(self.task.metrics) + 2, dtype=torch.float64, device=self.device)
        for places in np.array_split(mine, -(-len(mine) // together) or 1):
            found = pairs.candidates(keys[places], self._count)
            some = found.there.any(1)  # an edge without any candidate has no rank
            if not some.any():
                continue
            ends = pairs.ends(keys[places][some])
            there = torch.from_numpy(found.there[some]).to(self.device)
            scores = self._decoded(rows, ends[0], np.column_stack([ends[1], found.places[some]]))
            loss = softplus(-scores[:, 0]) + (softplus(scores[:, 1:]) * there).sum(1) / there.sum(1)
            head = torch.stack([loss.double().sum() / 2, loss.new_tensor(float(len(loss))).double()])
            auc = auc_sums(ordered, sortable(scores[:, 1:][there], positive=False))
            tally += torch.cat([head, self.task.sums(scores, there), auc])
        return self._sum(tally.tolist())

    def _decoded(self, rows: torch.Tensor, sources: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        """float32 [n, k] of places: sources [n], targets [n, k]."""
        of_sources, of_targets = (torch.from_numpy(places).to(self.device) for places in (sources, targets))
        decoder: Any = self.model.link_decoder
        scores: torch.Tensor = decoder(rows[of_sources][:, None], rows[of_targets])
        return scores.float()

    def _add_up(self, numbers: torch.Tensor) -> torch.Tensor:
        on_device = numbers.to(self.device)
        dist.all_reduce(on_device)
        return on_device.cpu()
