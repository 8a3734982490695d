"""How good embeddings are at finding edges: those of validation and test are ranked among fixed candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import softplus

import atta
from atta.errors import ConfigError
from atta.train.settings.minibatch import LinkSettings
from atta.train.tasks.links.candidates import SPLITS, parse_eval_negatives, parse_shares
from atta.train.tasks.links.edges import EdgeReader
from atta.train.tasks.links.pairs import EdgeSplit, Split, TimeSplit
from atta.train.tasks.links.ranks import auc_sums, sortable
from atta.train.tasks.links.record import LINKS

__all__ = ["Decoder", "LinkRanking", "Rows"]

_NUMBERS = 1 << 22
"""Numbers of embeddings that are scored at a time, or those of one pair's candidates."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""Embeddings of the sources' node type and of the targets', float32 [vertices, width]; the same one twice if it is one."""
Decoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores of pairs from embeddings of sources and of targets, whose shapes are broadcast."""


class LinkRanking:
    """The edges of each split, and what this rank does to rank them.

    Attributes:
        pairs: of the graph.
        split: says which split an edge is of.
        keys: pairs of each split.
    """

    def __init__(
        self, cluster: atta.Cluster, settings: LinkSettings, device: torch.device, rank: int, world: int
    ) -> None:
        """Read all edges of the type that the settings name, or of the only type; every rank calls this."""
        self._count, shares = parse_eval_negatives(settings.eval_negatives), parse_shares(settings.edge_split)
        self._device, self._rank, self._world, self._task = device, rank, world, settings.task
        edge_type, timed = settings.edge_type or cluster.schema.edge_types[0], settings.split_by == "time"
        self.pairs, times = EdgeReader(cluster, rank, world, self._add_up).pairs(edge_type, timed=timed)
        pairs = self.pairs
        self.split, split = self._divided(shares, times)
        self.keys = {name: pairs.keys[split == number] for number, name in enumerate(SPLITS)}

    def _divided(self, shares: tuple[float, float, float], times: np.ndarray | None) -> tuple[Split, np.ndarray]:
        """What divides the edges, and the split of each pair, int64 [pairs]."""
        if times is not None and len(times):
            by_time = TimeSplit.by(times, shares)
            return by_time, by_time.of(times)
        by_hash = EdgeSplit(shares)
        return by_hash, by_hash.of(*map(torch.from_numpy, self.pairs.user_ids(self.pairs.keys))).numpy()

    def there(self, splits: Sequence[str]) -> list[str]:
        """Those of some splits that have edges.

        Raises ConfigError for a split in which nothing can be ranked.
        """
        found = [name for name in splits if len(self.keys[name])]
        n = len(self.pairs.target_ids)
        for name in found:
            sources = np.unique(self.keys[name] // n)
            begin, end = (
                np.searchsorted(self.pairs.keys, sources * n),
                np.searchsorted(self.pairs.keys, (sources + 1) * n),
            )
            if (end - begin >= self.pairs.most).all():
                raise ConfigError(
                    f"--task {self._task}: no candidates for edges of {name}: their sources have edges to all vertices"
                )
        return found

    def tally(self, split: str, rows: Rows, decoder: Decoder) -> torch.Tensor:
        """This rank's share of the tally of a split, which takes every ``world``-th edge; every rank calls this.

        rows: embeddings in the order of ``pairs.ids`` and of ``pairs.target_ids``. float64 [2 + metrics + 2] comes back.
        """
        keys, pairs = self.keys[split], self.pairs
        positives = torch.zeros(len(keys), device=self._device)
        mine = np.arange(self._rank, len(keys), self._world)
        widest = min(self._count or len(pairs.target_ids), len(pairs.target_ids))
        together = max(1, _NUMBERS // ((1 + widest) * rows[0].shape[1]))
        # The positive and its candidates are scored in one way, so that equal embeddings have equal scores.
        for places in np.array_split(mine, -(-len(mine) // together) or 1):
            ends = pairs.ends(keys[places])
            positives[places] = self._decoded(decoder, rows, ends[0], ends[1][:, None])[:, 0]
        dist.all_reduce(positives)
        ordered = sortable(positives, positive=True).sort().values
        tally = torch.zeros(2 + len(LINKS.metrics) + 2, dtype=torch.float64, device=self._device)
        for places in np.array_split(mine, -(-len(mine) // together) or 1):
            found = pairs.candidates(keys[places], self._count)
            some = found.there.any(1)  # an edge without any candidate has no rank
            if not some.any():
                continue
            ends = pairs.ends(keys[places][some])
            there = torch.from_numpy(found.there[some]).to(self._device)
            scores = self._decoded(decoder, rows, ends[0], np.column_stack([ends[1], found.places[some]]))
            loss = softplus(-scores[:, 0]) + (softplus(scores[:, 1:]) * there).sum(1) / there.sum(1)
            head = torch.stack([loss.double().sum() / 2, loss.new_tensor(float(len(loss))).double()])
            auc = auc_sums(ordered, sortable(scores[:, 1:][there], positive=False))
            tally += torch.cat([head, LINKS.sums(scores, there), auc])
        return tally

    def _decoded(self, decoder: Decoder, rows: Rows, sources: np.ndarray, targets: np.ndarray) -> Any:
        """float32 [n, k] of places: sources [n], targets [n, k]."""
        of_sources, of_targets = (torch.from_numpy(places).to(self._device) for places in (sources, targets))
        return decoder(rows[0][of_sources][:, None], rows[1][of_targets]).float()

    def _add_up(self, numbers: torch.Tensor) -> torch.Tensor:
        on_device = numbers.to(self._device)
        dist.all_reduce(on_device)
        return on_device.cpu()
