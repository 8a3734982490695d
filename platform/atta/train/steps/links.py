"""Trainers of pairs on sampled mini-batches, ``link`` and ``edge-classes``: seeds are edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import softplus

import atta
from atta.client.loaders.link import reverse_type_of
from atta.errors import ConfigError
from atta.partition.names import split_edge_type
from atta.train.models import whole_model
from atta.train.models.links import LinkModel, PairClasses, decoder_named
from atta.train.models.typed import TypedLinkModel
from atta.train.settings.minibatch import EDGE_CLASSES, SPLITS, parse_eval_negatives, parse_shares
from atta.train.steps.embedding import EdgeBatches, EmbeddingTrainer
from atta.train.steps.timing import Stopwatch, on_device
from atta.train.steps.typed import TypedTrainer
from atta.train.tasks.edges import read_edges, read_pairs
from atta.train.tasks.pairs import HITS, auc_sums, check_labels, rank_sums, sortable
from atta.train.tasks.splits import divided
from atta.train.tasks.task import Objective
from atta.train.tasks.types import EdgeTriple, TypeReach, embedded_types
from atta.train.tasks.vertices import UNLABELLED

_NUMBERS = 1 << 22
"""Numbers of embeddings that are scored at a time, or those of one pair's candidates."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""Embeddings of the sources' node type and of the targets', float32 [vertices, width]; the same one twice if it is one."""
Decoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores of pairs from embeddings of sources and of targets, whose shapes are broadcast."""


class LinkRanking:
    """The edges of each split, and what a rank does to rank them. Every rank makes it, and calls its functions alike.
    split: says which split an edge is of; keys: pairs of each split."""

    def __init__(self, trainer: EmbeddingTrainer) -> None:
        config, self._trainer = trainer.config, trainer
        timed = config.split_by == "time"
        self.pairs, times = read_pairs(trainer.cluster, trainer.edge_type, trainer.device, timed=timed)
        pairs = self.pairs
        self.split, split = divided(pairs.user_ids(pairs.keys), times, parse_shares(config.edge_split))
        self.keys = {name: pairs.keys[split == number] for number, name in enumerate(SPLITS)}

    def objective(self) -> Objective:
        """What is learnt."""
        return Objective(self._trainer.task, self._trainer.outputs)

    def decoder(self) -> torch.nn.Module:
        """What scores pairs of embeddings, with new weights."""
        config = self._trainer.config
        return decoder_named(config.decoder, self._trainer.outputs, config.hidden)

    def train_batches(self) -> EdgeBatches:
        """Neither edges of a batch nor their reverses are messages."""
        config = self._trainer.config
        negatives = atta.NegativeSampling("binary", config.negatives_per_edge, config.negatives)
        return self._trainer.edge_batches(self.pairs.user_ids(self.keys["train"]), neg_sampling=negatives)

    def there(self, splits: Sequence[str]) -> list[str]:
        """Those of some splits that have edges. Raises ConfigError for a split in which nothing can be ranked."""
        found, pairs = [name for name in splits if len(self.keys[name])], self.pairs
        n = len(pairs.target_ids)
        for name in found:
            sources = np.unique(self.keys[name] // n)
            begin, end = (np.searchsorted(pairs.keys, (sources + more) * n) for more in (0, 1))
            if (end - begin >= pairs.most).all():
                raise ConfigError(
                    f"--task {self._trainer.config.task}: no candidates for edges of {name}: their sources have edges "
                    "to all vertices"
                )
        return found

    @torch.no_grad()
    def tallies(self, decoder: Decoder) -> dict[str, list[float]]:
        """Each rank computes embeddings of its share of both types, then ranks its edges."""
        trainer, pairs = self._trainer, self.pairs
        source, target = trainer.cluster.schema.endpoints(trainer.edge_type)
        found = {t: trainer.embed_all(t, ids) for t, ids in {source: pairs.ids, target: pairs.target_ids}.items()}
        rows = found[source], found[target]
        return {split: trainer.add_up(self.tally(split, rows, decoder).tolist()) for split in trainer.splits}

    def tally(self, split: str, rows: Rows, decoder: Decoder) -> torch.Tensor:
        """This rank's share of the tally of a split, which takes every ``world``-th edge. rows: embeddings in the order
        of ``pairs.ids`` and of ``pairs.target_ids``. float64 [2 + metrics + 2] comes back."""
        keys, pairs, device = self.keys[split], self.pairs, self._trainer.device
        count = parse_eval_negatives(self._trainer.config.eval_negatives)
        positives = torch.zeros(len(keys), device=device)
        mine = np.arange(self._trainer.rank, len(keys), self._trainer.world)
        widest = min(count or len(pairs.target_ids), len(pairs.target_ids))
        together = max(1, _NUMBERS // ((1 + widest) * rows[0].shape[1]))
        parts = np.array_split(mine, -(-len(mine) // together) or 1)

        def decoded(sources: np.ndarray, targets: np.ndarray) -> torch.Tensor:
            """float32 [n, k] of places: sources [n], targets [n, k]."""
            of_sources, of_targets = (torch.from_numpy(places).to(device) for places in (sources, targets))
            return decoder(rows[0][of_sources][:, None], rows[1][of_targets]).float()

        # The positive and its candidates are scored in one way, so that equal embeddings have equal scores.
        for places in parts:
            sources, targets = pairs.ends(keys[places])
            positives[places] = decoded(sources, targets[:, None])[:, 0]
        dist.all_reduce(positives)
        ordered = sortable(positives, positive=True).sort().values
        tally = torch.zeros(4 + 2 + len(HITS), dtype=torch.float64, device=device)
        for places in parts:
            candidates = pairs.candidates(keys[places], count)
            some = candidates.there.any(1)  # an edge without any candidate has no rank
            if not some.any():
                continue
            sources, targets = pairs.ends(keys[places][some])
            there = torch.from_numpy(candidates.there[some]).to(device)
            scores = decoded(sources, np.column_stack([targets, candidates.places[some]]))
            loss = softplus(-scores[:, 0]) + (softplus(scores[:, 1:]) * there).sum(1) / there.sum(1)
            head = torch.stack([loss.double().sum() / 2, loss.new_tensor(float(len(loss))).double()])
            auc = auc_sums(ordered, sortable(scores[:, 1:][there], positive=False))
            tally += torch.cat([head, rank_sums(scores, there), auc])
        return tally


class LabelledEdges:
    """The edges with a label, by split, which ``split`` divides. Every rank makes it, and calls its functions alike."""

    def __init__(self, trainer: EmbeddingTrainer) -> None:
        """Read all edges of the trainer's type. Raises ConfigError for labels that nothing can be learnt from."""
        config, self._trainer = trainer.config, trainer
        tables = ["time", "y"] if config.split_by == "time" else ["y"]
        found = read_edges(trainer.cluster, trainer.edge_type, tables, trainer.device)
        # The same order for any number of partitions and ranks.
        order = np.lexsort((*(found.tables[name] for name in tables), *found.ends))
        ends, columns = found.ends[:, order], {name: column[order] for name, column in found.tables.items()}
        self.split, of = divided(ends, columns.get("time"), parse_shares(config.edge_split))
        labels = columns["y"]
        chosen = {name: (labels != UNLABELLED) & (of == number) for number, name in enumerate(SPLITS)}
        self._classes = check_labels(labels, labels[chosen["train"]])
        self._edges = {name: (ends[:, mask], labels[mask]) for name, mask in chosen.items()}

    def objective(self) -> Objective:
        """What is learnt."""
        return Objective(self._trainer.task, self._classes)

    def decoder(self) -> torch.nn.Module:
        """What scores classes of pairs of embeddings, with new weights."""
        return PairClasses(self._trainer.outputs, self._trainer.config.hidden, self._classes)

    def train_batches(self) -> EdgeBatches:
        """Neither edges of a batch nor their reverses are messages."""
        return self._trainer.edge_batches(*self._edges["train"])

    def there(self, splits: Sequence[str]) -> list[str]:
        """Those of some splits that have edges."""
        return [name for name in splits if len(self._edges[name][1])]

    def tallies(self, decoder: Any) -> dict[str, list[float]]:
        """Of the splits that the trainer judges."""
        return {split: self._tally(split) for split in self._trainer.splits}

    @torch.no_grad()
    def _tally(self, split: str) -> list[float]:
        """Over all ranks; each one predicts its share of edges."""
        trainer = self._trainer
        batches = trainer.edge_batches(*self._edges[split], train=False)
        total = trainer.objective.empty_tally(trainer.device)
        for _, data in on_device(batches, trainer.device, Stopwatch(trainer.device)):
            total += trainer.objective.tally(trainer.scores(trainer.model, data), trainer.targets(data))
        return trainer.add_up(total.tolist())


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

    @cached_property
    def reach(self) -> TypeReach:
        schema = self.cluster.schema
        source, target = schema.endpoints(self.edge_type)
        return TypeReach.of(schema, target, self.config.depth, (source,), embed=embedded_types(schema, self.config))

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
