"""The edges of a graph, as its daemons tell them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

import atta
from atta.train.tasks.links.candidates import GraphPairs

__all__ = ["EdgeReader", "LabelledEdges", "TimedPairs"]

_TOGETHER = 1 << 14
"""Number of vertices whose in-edges a batch has."""


class TimedPairs(NamedTuple):
    """The pairs that are edges, and the time of each one's first edge, int64 or float64 [pairs] (None: not asked for)."""

    pairs: GraphPairs
    times: np.ndarray | None


class LabelledEdges(NamedTuple):
    """All edges of a type: user ids int64 [2, edges], labels int64 [edges], times (None: not asked for)."""

    ends: np.ndarray
    labels: np.ndarray
    times: np.ndarray | None


@dataclass(frozen=True)
class EdgeReader:
    """What one of several ranks asks daemons for.

    Attributes:
        cluster: the daemons.
        rank, world: number of this rank, and of all.
        add_up: sums a tensor over all ranks, in place, and returns it.
    """

    cluster: atta.Cluster
    rank: int
    world: int
    add_up: Callable[[torch.Tensor], torch.Tensor]

    def pairs(self, edge_type: str, *, timed: bool = False) -> TimedPairs:
        """All pairs that are edges of a type; ``timed``: and their times, from the edge table ``time``.

        Each rank asks for the in-edges of its share of vertices, then ranks exchange them. Raises RemoteError.
        """
        schema = self.cluster.schema
        source, target = schema.endpoints(edge_type)
        seeds, ends = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)]
        kind = self._clock(edge_type) if timed else np.int64
        clocks = [np.empty(0, kind)]
        hops = {e: [-1 if e == edge_type else 0] for e in schema.edge_types}
        for batch in self._batches(target, hops, edge_tables={edge_type: ["time"]} if timed else {}):
            n_id = batch.n_id(target)
            seeds.append(n_id[: batch.batch_size].copy())
            from_places, to_places = batch.edge_index(edge_type)
            ends.append(np.stack([batch.n_id(source)[from_places], n_id[to_places]]))
            if timed:
                clocks.append(batch.edge_table("time", edge_type).reshape(-1).astype(kind))
        ids = self._everywhere(np.concatenate(seeds))
        sources, targets = (self._everywhere(side) for side in np.concatenate(ends, axis=1))
        times = self._everywhere(np.concatenate(clocks)) if timed else None
        if source == target:
            return _timed(GraphPairs.of(ids, sources, targets), sources, targets, times)
        found = [np.empty(0, np.int64), *(batch.n_id(source).copy() for batch in self._batches(source, []))]
        source_ids = self._everywhere(np.concatenate(found))
        return _timed(GraphPairs.of(source_ids, sources, targets, ids), sources, targets, times)

    def labelled(self, edge_type: str, *, timed: bool) -> LabelledEdges:
        """All edges of a type with their rows of the edge table ``y``; ``timed``: and their times. Raises RemoteError."""
        schema = self.cluster.schema
        source, target = schema.endpoints(edge_type)
        tables = {"y": np.int64, **({"time": self._clock(edge_type)} if timed else {})}
        ends, rows = [np.empty((2, 0), np.int64)], {name: [np.empty(0, kind)] for name, kind in tables.items()}
        hops = {e: [-1 if e == edge_type else 0] for e in schema.edge_types}
        for batch in self._batches(target, hops, edge_tables={edge_type: list(tables)}):
            from_places, to_places = batch.edge_index(edge_type)
            ends.append(np.stack([batch.n_id(source)[from_places], batch.n_id(target)[to_places]]))
            for name, kind in tables.items():
                rows[name].append(batch.edge_table(name, edge_type).reshape(-1).astype(kind))
        found = np.stack([self._everywhere(side) for side in np.concatenate(ends, axis=1)])
        columns = {name: self._everywhere(np.concatenate(parts)) for name, parts in rows.items()}
        # The same order for any number of partitions and ranks.
        order = np.lexsort((*(columns[name] for name in sorted(columns)), found[0], found[1]))
        columns = {name: column[order] for name, column in columns.items()}
        return LabelledEdges(found[:, order], columns["y"], columns.get("time"))

    def _clock(self, edge_type: str) -> type[np.float64] | type[np.int64]:
        """The type of numbers that times are read as."""
        return np.float64 if self.cluster.schema.edge_tables[edge_type]["time"].dtype[1] == "f" else np.int64

    def _batches(self, node_type: str, hops: Any, **options: Any) -> atta.NeighborLoader:
        """This rank's share of all vertices of a type."""
        return atta.NeighborLoader(
            self.cluster, hops, (node_type, None), batch_size=_TOGETHER, pad=False, rank=self.rank,
            world_size=self.world, tables=[], edge_ids=False, **options,
        )  # fmt: skip

    def _everywhere(self, mine: np.ndarray) -> np.ndarray:
        """The numbers of all ranks, in the order of ranks."""
        counts = torch.zeros(self.world, dtype=torch.int64)
        counts[self.rank] = len(mine)
        ends = self.add_up(counts).cumsum(0).tolist()
        everything = torch.zeros(ends[-1], dtype=torch.from_numpy(mine).dtype)
        everything[ends[self.rank] - len(mine) : ends[self.rank]] = torch.from_numpy(mine)
        return self.add_up(everything).numpy()


def _timed(pairs: GraphPairs, sources: np.ndarray, targets: np.ndarray, times: np.ndarray | None) -> TimedPairs:
    """Each pair with the time of its first edge."""
    if times is None:
        return TimedPairs(pairs, None)
    keys, kept = pairs.keys_of(sources, targets)
    order = np.lexsort((times[kept], keys))
    first = np.unique(keys[order], return_index=True)[1]
    return TimedPairs(pairs, times[kept][order][first])
