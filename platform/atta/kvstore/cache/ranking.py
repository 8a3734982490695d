"""Estimates from the daemon's own partition which remote vertices batches will ask for most. Arrays are as long as the
partition's own vertices and their HALO, never as the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from atta import _native
from atta.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset


RANKS = ("degree", "access", "recent")
"""Policies of the cache; see ``RowCache``."""


class HaloHeat:
    """How often batches are expected to ask for the HALO vertices of a partition. What has been found is kept."""

    def __init__(
        self, dataset: Dataset, part: int, rank: str = "degree", fan_outs: Sequence[int] = (15, 10, 5)
    ) -> None:
        """``rank``: one of ``RANKS``; ``fan_outs``: what ``access`` expects, and what in-edges are chosen by. Raises
        UnknownNameError: no such policy; ConfigError: the policy ``access`` has no fan-outs, or one below -1."""
        if rank not in RANKS:
            raise UnknownNameError.of("cache ranking", rank, RANKS)
        if rank == "access" and (not fan_outs or any(k < -1 for k in fan_outs)):
            raise ConfigError(f"fan-outs {list(fan_outs)} to rank the cache by: there must be some, each at least -1")
        self.dataset, self.part, self.rank, self.fan_outs = dataset, part, rank, tuple(fan_outs)
        self._edges: dict[str, np.ndarray] = {}

    def halo(self, node_type: str) -> np.ndarray:
        """int64 [HALO vertices of the type]: their internal ids, ascending."""
        return np.asarray(self.dataset.part(self.part).halo(node_type))

    def edges(self, node_type: str) -> np.ndarray:
        """uint32 [HALO vertices of the type]: the edges of each into the partition, over all edge types."""
        if node_type not in self._edges:
            halo, schema = self.halo(node_type), self.dataset.schema
            edges = np.zeros(len(halo), dtype=np.uint32)
            for edge_type in schema.edge_types:
                if schema.endpoints(edge_type)[0] == node_type and len(halo):
                    sources = self.dataset.part(self.part).csc(edge_type).indices
                    edges += _native.count_members(sources, halo, schema.node_counts[node_type])
            self._edges[node_type] = edges
        return self._edges[node_type]

    def hottest(self, node_type: str, count: int) -> np.ndarray:
        """Internal ids (int64 [count], ascending) of the HALO vertices with most visits (``access``), then with most edges
        into the partition.

        If ``count`` exceeds the HALO vertices, other remote vertices follow, of which nothing is known here. Ties go to
        lower ids, so a smaller ``count`` chooses a subset of a larger one.
        """
        halo = self.halo(node_type)
        if count > len(halo):
            others = distant(self.dataset, self.part, node_type, count - len(halo))
            return np.sort(np.concatenate([halo, others])).astype(np.int64, copy=False)
        if count == len(halo):
            return halo.astype(np.int64, copy=False)
        visited = [np.sum(self.visits(node_type), axis=0)] if self.rank == "access" else []
        at = highest([*visited, self.edges(node_type)], count)
        return np.asarray(halo[at], dtype=np.int64)

    def visits(self, node_type: str) -> list[np.ndarray]:
        """float64 [HALO vertices of the type] for hop 0 (the seeds), 1, ...: the expected visits at each when all training
        seeds of the partition are sampled with ``fan_outs``.

        Every seed is visited once. A visit at a vertex of the partition with d in-edges of a type goes on along each of
        them with probability min(1, k / d), for the fan-out k of the hop (-1: all). Exact for trees that are sampled
        independently, but for two effects: visits through vertices of other partitions are not counted, and a batch
        expands a vertex once even if it reaches it several times.
        """
        lo, hi = self.dataset.book.range(node_type, self.part)
        before = int(np.searchsorted(self.halo(node_type), lo))
        mine = slice(before, before + hi - lo)
        return [np.delete(reached[node_type], mine) for reached in self._reached]

    @cached_property
    def _reached(self) -> list[dict[str, np.ndarray]]:
        """The expected visits of each hop, float64 by node type, at the partition's own and HALO vertices by id."""
        schema, part = self.dataset.schema, self.dataset.part(self.part)
        near = {t: self._near(t) for t in schema.node_types}
        reached = {t: np.zeros(len(ids)) for t, ids in near.items()}
        for node_type, seeds in self.seeds.items():
            reached[node_type][np.searchsorted(near[node_type], seeds)] = 1.0
        found = [reached]
        for fan_out in self.fan_outs:
            following = {t: np.zeros(len(ids)) for t, ids in near.items()}
            for edge_type in sorted(schema.edge_types):
                source, target = schema.endpoints(edge_type)
                lo, hi = self.dataset.book.range(target, self.part)
                first = int(np.searchsorted(near[target], lo))
                csc = part.csc(edge_type)
                weights = found[-1][target][first : first + hi - lo] * _taken(np.diff(csc.indptr), fan_out)
                _native.spread_weights(
                    csc.indptr, csc.indices, weights, near[source], schema.node_counts[source], following[source]
                )
            found.append(following)
        return found

    def _near(self, node_type: str) -> np.ndarray:
        """Ids of the partition's own and HALO vertices, int64 ascending."""
        (lo, hi), halo = self.dataset.book.range(node_type, self.part), self.halo(node_type)
        at = int(np.searchsorted(halo, lo))
        return np.concatenate([halo[:at], np.arange(lo, hi), halo[at:]]).astype(np.int64, copy=False)

    @cached_property
    def seeds(self) -> dict[str, np.ndarray]:
        """Internal ids of the partition's training vertices. Without that split, all of its vertices of the first type."""
        schema = self.dataset.schema
        seed_type = next((t for t in schema.node_types if "train" in schema.splits[t]), schema.node_types[0])
        lo, hi = self.dataset.book.range(seed_type, self.part)
        if "train" not in schema.splits[seed_type]:
            return {seed_type: np.arange(lo, hi)}
        split = np.asarray(self.dataset.split(seed_type, "train"))
        return {seed_type: split[(split >= lo) & (split < hi)]}


def _taken(degrees: np.ndarray, fan_out: int) -> np.ndarray:
    """The probability that an in-edge of each row is drawn, float64 [rows]."""
    if fan_out == -1:
        return np.ones(len(degrees))
    return np.asarray(np.minimum(1.0, fan_out / np.maximum(1, degrees)))


def highest(scores: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Positions (int64, ascending) of the ``count`` highest of ``scores[0]``; ties by the further scores, then the first."""
    first, *further = scores
    if count >= len(first):
        return np.arange(len(first))
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(first, len(first) - count)[len(first) - count]
    above, ties = np.flatnonzero(first > least), np.flatnonzero(first == least)
    left = count - len(above)
    if further:
        ties = ties[highest([score[ties] for score in further], left)]
    return np.sort(np.concatenate([above, ties[:left]]))


def distant(dataset: Dataset, part: int, node_type: str, count: int) -> np.ndarray:
    """The first ``count`` remote vertices without an edge into the partition, or all of them: int64, ascending."""
    halo, (lo, hi) = np.asarray(dataset.part(part).halo(node_type)), dataset.book.range(node_type, part)
    at = int(np.searchsorted(halo, lo))
    # They lie between what is near: before each HALO vertex, before the partition's own range, and after the last.
    stops = np.concatenate([halo[:at], [lo], halo[at:], [dataset.schema.node_counts[node_type]]]).astype(np.int64)
    starts = np.concatenate([[0], halo[:at] + 1, [hi], halo[at:] + 1]).astype(np.int64)
    ends = np.cumsum(stops - starts)
    runs = int(np.searchsorted(ends, count)) + 1
    lengths = (stops - starts)[:runs]
    found = np.arange(int(lengths.sum())) + np.repeat(starts[:runs] - (ends[:runs] - lengths), lengths)
    return np.asarray(found[:count])
