"""Neighbour sampling over a whole graph in this process: the core without daemons.

The draws are those of the distributed loader: the same seed, epoch, batch number and user ids give the same subgraph.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.graph import LocalGraph, blaming
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.scratch import Scratch

__all__ = ["LocalBatch", "LocalSampler"]

_FRONTIERS = ("new", "all")
_MOST_ROOM = 1 << 28
"""Edges for which room is reserved at once; larger batches grow into theirs."""
_TOGETHER = 2
"""Batches that a thread makes before it hands them over."""


@dataclass(frozen=True)
class LocalBatch:
    """A sampled subgraph; vertices are numbered in the order in which they were reached, seeds first.

    Attributes:
        n_id: int64 [nodes], user ids.
        row, col: int32 [edges], local ids of sources and targets.
        e_id: int32|int64 [edges], as the graph's edge ids.
        num_sampled_nodes: new vertices per hop, the seeds first.
        num_sampled_edges: edges per hop.
    """

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]


class LocalSampler:
    """Samples batches from a ``LocalGraph``. Safe to use from several threads, each working on a batch of its own."""

    def __init__(self, graph: LocalGraph, *, edge_type: str = "node__to__node") -> None:
        """``edge_type``: the name that the graph's edges have in a dataset; part of what draws are a function of."""
        self.graph = graph
        self._edge_type = hash_string(edge_type)
        # Vertices that are their own keys need no second line of memory per row.
        self._keys = None if (graph.keys == np.arange(graph.num_nodes)).all() else graph.keys
        wide = len(graph.indices) > np.iinfo(np.int32).max
        self._edge_dtype = np.dtype(np.int64 if wide else np.int32) if graph.edge_ids is None else graph.edge_ids.dtype
        self._compactors: list[kernels.Compactor] = []
        self._scratch = Scratch()
        self._lock = threading.Lock()

    def sample(
        self,
        seeds: Any,
        num_neighbors: Sequence[int],
        *,
        seed: int = 0,
        epoch: int = 0,
        batch: int = 0,
        replace: bool = False,
        frontier: str = "new",
    ) -> LocalBatch:
        """Sample the neighbourhoods of ``seeds`` (positions in the graph, int [S], repeated ones count once).

        ``num_neighbors``: in-neighbours per vertex and hop, from the seeds outward; -1 takes all. ``frontier``: a hop expands the
        vertices that the hop before has reached (``"new"``, PyG) or all known ones (``"all"``, DGL).

        Raises:
            ConfigError: a seed outside the graph, a fan-out below -1, an unknown frontier.
        """
        if frontier not in _FRONTIERS:
            raise ConfigError(f"frontier {frontier!r}: must be one of {', '.join(_FRONTIERS)}")
        if any(int(count) < -1 for count in num_neighbors):
            raise ConfigError(f"num_neighbors {list(num_neighbors)}: must be -1 (all) or at least 0")
        known = self._take()
        try:
            with blaming():
                known.insert(np.ascontiguousarray(np.asarray(seeds)))
                keys = [stream_key(seed, epoch, batch, hop + 1, self._edge_type) for hop in range(len(num_neighbors))]
                return self._grow(known, list(num_neighbors), keys, replace=replace, frontier=frontier)
        finally:
            known.reset()
            with self._lock:
                self._compactors.append(known)

    def batches(
        self,
        seeds: Any,
        num_neighbors: Sequence[int],
        batch_size: int,
        *,
        threads: int = 1,
        **options: Any,
    ) -> Iterator[LocalBatch]:
        """Sample ``seeds`` in order, ``batch_size`` at a time; several ``threads`` work on two batches each, ahead of the consumer.

        ``options``: as for ``sample`` (``batch`` is the number of the first one). Batches come in order whatever ``threads`` is.
        """
        if batch_size < 1 or threads < 1:
            raise ConfigError(f"batch_size {batch_size}, threads {threads}: must be at least 1")
        ids, first = np.asarray(seeds), int(options.pop("batch", 0))
        starts = range(0, len(ids), batch_size)

        def make(numbers: range) -> list[LocalBatch]:
            return [
                self.sample(ids[starts[i] : starts[i] + batch_size], num_neighbors, batch=first + i, **options)
                for i in numbers
            ]

        if threads == 1:  # handing batches to a thread and back would take a tenth of a small one's time
            yield from (batch for i in range(len(starts)) for batch in make(range(i, i + 1)))
            return
        waiting: deque[Future[list[LocalBatch]]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="atta-sample") as pool:
            try:
                for at in range(0, len(starts), _TOGETHER):
                    waiting.append(pool.submit(make, range(at, min(at + _TOGETHER, len(starts)))))
                    if len(waiting) > threads:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _grow(
        self, known: kernels.Compactor, num_neighbors: list[int], keys: list[int], *, replace: bool, frontier: str
    ) -> LocalBatch:
        room = _Room(self._scratch, self._edge_dtype)
        room.reserve(_bound(known.size, num_neighbors, self.graph, frontier))
        nodes, edges, low = [known.size], [], 0
        for fan_out, key in zip(num_neighbors, keys, strict=True):
            high = known.size
            if fan_out < 0:
                room.reserve(room.used + kernels.degree_sum(self.graph.indptr, known.ids(low, high)))
            else:
                room.reserve(room.used + (high - low) * fan_out)
            row, col, e_id = room.rest()
            graph = self.graph
            count = known.sample_hop(
                graph.indptr, graph.indices, graph.edge_ids, self._keys, first=low, last=high,
                fan_out=fan_out, replace=replace, stream_key=key, out_row=row, out_col=col, out_edge_ids=e_id,
            )  # fmt: skip
            room.used += count
            nodes.append(known.size - high)
            edges.append(count)
            low = high if frontier == "new" else 0
        ids = known.ids(0, known.size)
        row, col, e_id = room.filled()
        return LocalBatch(ids if self._keys is None else self._keys[ids], row, col, e_id, nodes, edges)

    def _take(self) -> kernels.Compactor:
        with self._lock:
            return self._compactors.pop() if self._compactors else kernels.Compactor(self.graph.num_nodes)


class _Room:
    """Growing output arrays of a batch over lent memory."""

    def __init__(self, scratch: Scratch, edge_dtype: np.dtype) -> None:
        self.used = 0
        self._scratch = scratch
        self._arrays = [np.empty(0, dtype) for dtype in (np.int32, np.int32, edge_dtype)]

    def reserve(self, edges: int) -> None:
        """Make room for ``edges`` edges in all."""
        if edges <= len(self._arrays[0]):
            return
        for i, old in enumerate(self._arrays):
            self._arrays[i] = self._scratch.empty((edges,), old.dtype)
            self._arrays[i][: self.used] = old[: self.used]

    def rest(self) -> list[np.ndarray]:
        """What is not used yet."""
        return [array[self.used :] for array in self._arrays]

    def filled(self) -> list[np.ndarray]:
        """What is used."""
        return [array[: self.used] for array in self._arrays]


def _bound(seeds: int, num_neighbors: Sequence[int], graph: LocalGraph, frontier: str) -> int:
    """Edges of the largest batch, as far as the fan-outs tell."""
    known = fresh = seeds
    total = 0
    for fan_out in num_neighbors:
        if fan_out < 0:
            break
        drawn = (known if frontier == "all" else fresh) * fan_out
        total += drawn
        fresh = min(drawn, graph.num_nodes - known)
        known += fresh
    return min(total, _MOST_ROOM)
