"""Which edges are for training, validation and test: a function of their ends, or of their times, alone. So a batch
tells which of its edges are messages, and a pair has the same split in every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch

from atta.train.steps.masks import mixed

_SALT = 0x5EED_ED6E
Shares = tuple[float, float, float]


@dataclass(frozen=True)
class EdgeSplit:
    """The ``shares`` of edges that are for training, validation and test. All edges between two vertices, either way,
    have the same split: a model could read the answer off another. ``tables``: edge tables that batches need."""

    shares: Shares
    tables: ClassVar[tuple[str, ...]] = ()

    def of(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """int64 [edges]: 0 for training, 1 for validation, 2 for test; sources, targets: int64 [edges] user ids."""
        low, high = torch.minimum(sources, targets), torch.maximum(sources, targets)
        bits = mixed(mixed(mixed(low + _SALT)) ^ high)
        share = ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
        return (share >= self.shares[0]).long() + (share >= self.shares[0] + self.shares[1])

    def messages(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """bool [edges]: the edges that models may read, those of training."""
        return self.of(sources, targets) == 0

    def readable(self, store: Any, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """``messages`` of a batch's edges, ``store`` of PyG's data, whose ends are given as user ids."""
        return self.messages(sources, targets)


@dataclass(frozen=True)
class TimeSplit:
    """Edges for training are those up to a time, then come those of validation, then those of test. ``until``: the last
    times of training and of validation; ``tables``: edge tables that batches need."""

    until: tuple[float, float]
    tables: ClassVar[tuple[str, ...]] = ("time",)

    @classmethod
    def by(cls, times: npt.NDArray[Any], shares: Shares) -> TimeSplit:
        """Divide some edges by their times, [edges], so that shares are met as far as equal times allow."""
        ordered = np.sort(times)
        last = [max(0, math.ceil(round(share * len(ordered), 6)) - 1) for share in (shares[0], shares[0] + shares[1])]
        return cls((ordered[last[0]].item(), ordered[last[1]].item()))

    def of(self, times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """int64 [edges]: 0 for training, 1 for validation, 2 for test."""
        return (times > self.until[0]).astype(np.int64) + (times > self.until[1])

    def readable(self, store: Any, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """bool [edges]: the edges of a batch that models may read, by their own times."""
        times: torch.Tensor = store.edge_time.reshape(-1)
        # By numpy: torch 2.13 does not compare most unsigned numbers.
        return torch.from_numpy(times.cpu().numpy() <= self.until[0]).to(times.device)


Split = EdgeSplit | TimeSplit


def divided(ends: np.ndarray, times: np.ndarray | None, shares: Shares) -> tuple[Split, np.ndarray]:
    """What divides some edges, and the split of each one, int64 [edges]. ends: int64 [2, edges], user ids."""
    if times is not None and len(times):
        by_time = TimeSplit.by(times, shares)
        return by_time, by_time.of(times)
    by_hash = EdgeSplit(shares)
    return by_hash, by_hash.of(*torch.from_numpy(ends)).numpy()


def without_held_out(data: Any, split: Split, edge_types: Iterable[tuple[str, str, str]] = ()) -> Any:
    """PyG's data of a batch without the edges that models may not read: vertices get less than their fan-outs.
    ``edge_types``, of a typed graph: the one whose edges are divided, and that of their reverses."""
    for e in edge_types:
        ends = [data[t].n_id[places] for t, places in zip(e[::2], data[e].edge_index, strict=True)]
        data[e].num_sampled_edges = _leave_out(data[e], split, ends, data.num_sampled_edges[e])
        data.num_sampled_edges = {**data.num_sampled_edges, e: data[e].num_sampled_edges}
    if not edge_types:
        data.num_sampled_edges = _leave_out(data, split, data.n_id[data.edge_index], data.num_sampled_edges)
    return data


def _leave_out(store: Any, split: Split, ends: Sequence[torch.Tensor], edges_per_hop: Sequence[int]) -> list[int]:
    source, target = ends
    kept = split.readable(store, source, target)
    if "edge_weight" in store:
        kept |= source == target  # what the norm has added, or weighs nothing
        store.edge_weight = store.edge_weight[kept]
    store.edge_index = store.edge_index[:, kept]
    hops = torch.tensor(edges_per_hop, device=kept.device)
    of_hop = torch.repeat_interleave(torch.arange(len(hops), device=kept.device), hops)
    return cast(list[int], torch.bincount(of_hop[kept], minlength=len(hops)).tolist())
