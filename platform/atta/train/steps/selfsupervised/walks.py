"""Pairs of vertices that random walks join: positive samples of more than one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import atta
from atta.errors import ConfigError
from atta.samplers.hashing import mix64
from atta.train.settings.common import epoch_seed
from atta.train.steps.selfsupervised.embedding import EmbeddingTrainer
from atta.train.steps.selfsupervised.links import EdgeBatches, edge_batches
from atta.train.tasks.links.pairs import EdgeSplit

__all__ = ["WalkBatches", "chosen_places"]

_TOGETHER = 1 << 14
"""Number of walks per request."""


def chosen_places(walks: np.ndarray, starts: np.ndarray, length: int, seed: int) -> np.ndarray:
    """int64 [walks]: a place of each walk after its start, each as likely as the others; -1 where there is none.

    walks: [walks, length + 1], -1 after the end. starts: user ids, int64 [walks]. A draw is a function of ``seed`` and the
    user id. Places where a walk is back at its start do not count.
    """
    there = (walks[:, 1:] >= 0) & (walks[:, 1:] != walks[:, :1])
    count = there.sum(1)
    bits = mix64(mix64(starts.astype(np.uint64)) ^ np.uint64(seed)) >> np.uint64(11)
    number = np.minimum((bits.astype(np.float64) * 2.0**-53 * count).astype(np.int64), count - 1)
    place = (there.cumsum(1) == number[:, None] + 1).argmax(1) + 1
    return np.where(count > 0, place, -1)


class WalkBatches:
    """Batches of pairs, one per vertex that a walk leaves, with negative samples. Each epoch has walks of its own."""

    def __init__(self, trainer: EmbeddingTrainer, length: int) -> None:
        """``length``: steps of a walk, along in-edges. Every rank makes it, and calls ``set_epoch`` alike."""
        self._trainer, self._length = trainer, length
        self._pairs: EdgeBatches | None = None

    def __len__(self) -> int:
        return len(self._of_epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of_epoch)

    @property
    def _of_epoch(self) -> EdgeBatches:
        assert self._pairs is not None, "set_epoch comes first"
        return self._pairs

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch."""
        return self._of_epoch.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """``set_epoch`` comes first, with the state's epoch."""
        self._of_epoch.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Walk from every vertex; the next iteration has these pairs."""
        trainer, config = self._trainer, self._trainer.config
        starts, ends = self.pairs(epoch)
        order = starts.argsort()
        pairs = torch.stack([starts[order], ends[order]]).cpu().numpy()
        if pairs.shape[1] < trainer.world:
            raise ConfigError(f"--task {config.task}: {pairs.shape[1]} walks for {trainer.world} trainers")
        self._pairs = edge_batches(
            trainer,
            pairs,
            train=True,
            hops=list(config.fan_outs),
            tables=["x"],
            neg_sampling=atta.NegativeSampling("triplet", config.negatives_per_edge, config.negatives),
            exclude_edges=None,
            **trainer.norms,
        )
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
        return trainer.everywhere(mine[0]), trainer.everywhere(mine[1])

    def _readable(self, walks: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Walks that end before their first step along an edge that is held out."""
        split = self._trainer.held_out
        if not isinstance(split, EdgeSplit):
            return walks
        targets, sources = (torch.from_numpy(ids[np.maximum(part, 0)]) for part in (walks[:, :-1], walks[:, 1:]))
        kept = split.messages(sources, targets).numpy() & (walks[:, 1:] >= 0)
        steps = np.where(np.logical_and.accumulate(kept, axis=1), walks[:, 1:], -1)
        return np.concatenate([walks[:, :1], steps], axis=1)
