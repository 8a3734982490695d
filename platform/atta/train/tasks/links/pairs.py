"""Which edges are for training, validation and test: a function of their ends, or of their times, alone.

Daemons, trainers and partitions are not asked. So a batch can tell at once which of its sampled edges are message
edges, and a pair has the same split in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from atta.train.tasks.links.candidates import parse_shares

__all__ = ["EdgeSplit", "Split", "TimeSplit", "mixed", "shifted", "without_held_out", "without_held_out_types"]

_SALT = 0x5EED_ED6E
_ADDED, _FIRST, _SECOND = (
    n - (1 << 64) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of splitmix64, as signed numbers: torch has no unsigned ones


def shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int64, shifted right without its sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def mixed(values: torch.Tensor) -> torch.Tensor:
    """splitmix64's finaliser of int64, as ``atta.samplers.hashing.mix64``: the bits of the unsigned result."""
    x = values + _ADDED
    x = (x ^ shifted(x, 30)) * _FIRST
    x = (x ^ shifted(x, 27)) * _SECOND
    return x ^ shifted(x, 31)


@dataclass(frozen=True)
class EdgeSplit:
    """The shares of edges that are for training, validation and test.

    An edge and its reverse have the same split, and so have several edges between the same two vertices. Otherwise a
    model could read the answer off the other edge.

    Attributes:
        shares: three numbers that add up to 1.
        tables: edge tables that batches need.
    """

    shares: tuple[float, float, float]
    tables: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def parse(cls, text: str) -> EdgeSplit:
        """Read ``0.8,0.1,0.1``; raises ConfigError."""
        return cls(parse_shares(text))

    def of(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """int64 [edges]: 0 for training, 1 for validation, 2 for test; sources, targets: int64 [edges] user ids."""
        low, high = torch.minimum(sources, targets), torch.maximum(sources, targets)
        share = shifted(mixed(mixed(mixed(low + _SALT)) ^ high), 11).double() * 2.0**-53
        return (share >= self.shares[0]).long() + (share >= self.shares[0] + self.shares[1])

    def messages(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """bool [edges]: the edges that models may read. Those of validation and test are not among them."""
        return self.of(sources, targets) == 0

    def readable(self, store: Any, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The same of a batch's edges, ``store`` of PyG's data, whose ends are given as user ids."""
        return self.messages(sources, targets)


@dataclass(frozen=True)
class TimeSplit:
    """Edges for training are those up to a time, then come those of validation, then those of test.

    Attributes:
        until: the last times of training and of validation.
        tables: edge tables that batches need.
    """

    until: tuple[float, float]
    tables: ClassVar[tuple[str, ...]] = ("time",)

    @classmethod
    def by(cls, times: npt.NDArray[Any], shares: tuple[float, float, float]) -> TimeSplit:
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


def without_held_out(data: Any, split: Split) -> Any:
    """A batch without the edges that models may not read: PyG's data, with ``edge_index`` and ``num_sampled_edges``.

    They are left out after drawing, so vertices get less than their fan-outs.
    """
    source, target = data.n_id[data.edge_index]
    kept = split.readable(data, source, target)
    if "edge_weight" in data:
        kept |= source == target  # what the norm has added, or weighs nothing
        data.edge_weight = data.edge_weight[kept]
    data.num_sampled_edges = _by_hop(data.num_sampled_edges, kept)
    data.edge_index = data.edge_index[:, kept]
    return data


def without_held_out_types(data: Any, split: Split, edge_types: Iterable[tuple[str, str, str]]) -> Any:
    """The same of a typed graph: ``edge_types`` are the one whose edges are divided and that of their reverses."""
    for edge_type in edge_types:
        store = data[edge_type]
        source, target = (data[t].n_id[places] for t, places in zip(edge_type[::2], store.edge_index, strict=True))
        kept = split.readable(store, source, target)
        by_hop = _by_hop(data.num_sampled_edges[edge_type], kept)
        store.edge_index, store.num_sampled_edges = store.edge_index[:, kept], by_hop
        data.num_sampled_edges = {**data.num_sampled_edges, edge_type: by_hop}
    return data


def _by_hop(edges_per_hop: Sequence[int], kept: torch.Tensor) -> list[int]:
    """How many of the edges of each hop are kept; ``kept``: bool [edges], hop by hop."""
    hops = torch.tensor(edges_per_hop, device=kept.device)
    of_hop = torch.repeat_interleave(torch.arange(len(hops), device=kept.device), hops)
    found: list[int] = torch.bincount(of_hop[kept], minlength=len(hops)).tolist()
    return found
