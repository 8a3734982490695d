"""Neighbour sampling over a whole graph in this process: the core without daemons.

The draws are those of the distributed loader: the same seed, epoch, batch number and user ids give the same subgraph.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from atta import _native
from atta.errors import ConfigError, UnknownNameError
from atta.samplers import kernels
from atta.samplers.graph import LocalGraph, blaming
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.methods import Method, tables_for
from atta.samplers.scratch import Scratch

__all__ = ["HeteroBatch", "LocalBatch", "LocalSampler"]

_FRONTIERS = ("new", "all")
_ROOM = 1 << 20
"""Edges for which room is made at a time where fan-outs do not bound them."""
_MOST_ROOM = 1 << 28
"""Edges for which room is reserved at once; larger batches grow into theirs."""
_BLOCK_ROWS = 32
"""Rows that the kernel draws together: a call must have room for so many."""
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
        tree: int32 [nodes], the seed (by position) that a vertex was reached from; None unless trees are disjoint.
    """

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]
    tree: np.ndarray | None = None


@dataclass(frozen=True)
class HeteroBatch:
    """As ``LocalBatch`` for several types: vertices by node type, edges by edge type."""

    n_id: dict[str, np.ndarray]
    row: dict[str, np.ndarray]
    col: dict[str, np.ndarray]
    e_id: dict[str, np.ndarray]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[str, list[int]]
    tree: dict[str, np.ndarray] | None = None

    def only(self) -> LocalBatch:
        """The batch of a graph with one edge type between vertices of one type."""
        (node,), (edge,) = self.n_id, self.row
        tree = None if self.tree is None else self.tree[node]
        sizes = self.num_sampled_nodes[node], self.num_sampled_edges[edge]
        return LocalBatch(self.n_id[node], self.row[edge], self.col[edge], self.e_id[edge], *sizes, tree)


class LocalSampler:
    """Samples batches from local graphs. Safe to use from several threads, each working on a batch of its own."""

    def __init__(
        self,
        graph: LocalGraph | Mapping[str, LocalGraph],
        *,
        edge_type: str = "node__to__node",
        method: Method | str = Method.UNIFORM,
        threads: int = 1,
    ) -> None:
        """Prepare to sample ``graph``, or several by edge type (``"src__rel__dst"``).

        Args:
            graph: batches are ``LocalBatch`` for one graph, ``HeteroBatch`` for a mapping.
            edge_type: the name that the edges of a single graph have in a dataset; part of what draws are a function of.
            method: how edges are drawn; see ``Method``.
            threads: for making the method's tables.

        Raises:
            ConfigError: unknown method, no weights or times to draw by, graphs that contradict each other.
        """
        self._single = isinstance(graph, LocalGraph)
        graphs = {edge_type: graph} if isinstance(graph, LocalGraph) else dict(sorted(graph.items()))
        try:
            self.method = Method(method)
        except ValueError:
            raise UnknownNameError.of("method", str(method), [m.value for m in Method]) from None
        self._edges = {name: _EdgeType(name, g, self.method, threads) for name, g in graphs.items()}
        if self.method.temporal and not any(g.time is not None for g in graphs.values()):
            raise ConfigError("the edges have no times to draw by")
        self._keys = _keys_by_type(self._edges.values())
        self._pools: dict[tuple[str, bool], list[kernels.Compactor]] = {}
        self._scratch = Scratch()
        self._lock = threading.Lock()

    @cached_property
    def table_bytes(self) -> int:
        """Bytes of what the method has precomputed."""
        return sum(0 if e.tables is None else e.tables.nbytes for e in self._edges.values())

    def sample(
        self,
        seeds: Any,
        num_neighbors: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        seed_type: str | None = None,
        input_time: Any = None,
        disjoint: bool = False,
        seed: int = 0,
        epoch: int = 0,
        batch: int = 0,
        replace: bool = False,
        frontier: str = "new",
    ) -> Any:
        """Sample the neighbourhoods of ``seeds`` (positions in the graph, int [S], repeated ones count once).

        Args:
            seeds: of node type ``seed_type`` (the only one by default).
            num_neighbors: in-neighbours per vertex and hop, from the seeds outward; -1 takes all; a mapping gives them by edge
                type.
            seed_type: node type of the seeds.
            input_time: int [S], the seeds' times for a temporal method: no edge of a seed's tree is later. Implies ``disjoint``.
            disjoint: every seed grows a tree of its own, repeated seeds too.
            seed, epoch, batch: what randomness is a function of, besides user ids.
            replace: draw with replacement.
            frontier: a hop expands the vertices that the hop before has reached (``"new"``, PyG) or all known ones (``"all"``,
                DGL).

        Raises:
            ConfigError: a seed outside the graph, a fan-out below -1, an unknown frontier, missing times.
        """
        if frontier not in _FRONTIERS:
            raise ConfigError(f"frontier {frontier!r}: must be one of {', '.join(_FRONTIERS)}")
        fan_outs = self._fan_outs(num_neighbors)
        start = self._seed_type(seed_type)
        ids = np.ascontiguousarray(np.asarray(seeds))
        times = self._times(input_time, len(ids))
        trees = disjoint or times is not None
        known = {t: self._take(t, hashed=trees) for t in self._keys}
        try:
            with blaming():
                if trees:
                    nodes = self._keys[start].count
                    if len(ids) and not (ids.min() >= 0 and ids.max() < nodes):
                        raise ConfigError(f"seeds: outside 0..{nodes - 1}")
                    ids = np.arange(len(ids)) * nodes + ids
                known[start].insert(ids)
                grown = _Growth(known, self._edges, self._scratch, trees=trees, times=times)
                grown.reserve(fan_outs, everything=frontier == "all")
                for hop, by_type in enumerate(fan_outs, start=1):
                    keys = {name: stream_key(seed, epoch, batch, hop, self._edges[name].hash) for name in by_type}
                    grown.hop(by_type, keys, replace=replace, everything=frontier == "all")
                found = grown.batch(self._keys)
                return found.only() if self._single else found
        finally:
            self._give(known, hashed=trees)

    def batches(
        self,
        seeds: Any,
        num_neighbors: Sequence[int] | Mapping[str, Sequence[int]],
        batch_size: int,
        *,
        threads: int = 1,
        **options: Any,
    ) -> Iterator[Any]:
        """Sample ``seeds`` in order, ``batch_size`` at a time; several ``threads`` work on two batches each, ahead of the consumer.

        ``options``: as for ``sample`` (``batch`` is the number of the first one, ``input_time`` belongs to all seeds). Batches come
        in order whatever ``threads`` is.
        """
        if batch_size < 1 or threads < 1:
            raise ConfigError(f"batch_size {batch_size}, threads {threads}: must be at least 1")
        ids, first, times = np.asarray(seeds), int(options.pop("batch", 0)), options.pop("input_time", None)
        starts = range(0, len(ids), batch_size)

        def make(numbers: range) -> list[Any]:
            made = []
            for i in numbers:
                part = slice(starts[i], starts[i] + batch_size)
                of_seeds = None if times is None else np.asarray(times)[part]
                made.append(self.sample(ids[part], num_neighbors, batch=first + i, input_time=of_seeds, **options))
            return made

        if threads == 1:  # handing batches to a thread and back would take a tenth of a small one's time
            yield from (batch for i in range(len(starts)) for batch in make(range(i, i + 1)))
            return
        waiting: deque[Future[list[Any]]] = deque()
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

    def _fan_outs(self, num_neighbors: Sequence[int] | Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
        """Fan-outs per hop and edge type, zeros left out."""
        given = num_neighbors if isinstance(num_neighbors, Mapping) else dict.fromkeys(self._edges, num_neighbors)
        for name in given:
            if name not in self._edges:
                raise UnknownNameError.of("edge type", name, self._edges)
        if len(given) < len(self._edges) or len({len(counts) for counts in given.values()}) > 1:
            raise ConfigError("num_neighbors: give one fan-out per hop for every edge type")
        if any(int(count) < -1 for counts in given.values() for count in counts):
            raise ConfigError(f"num_neighbors {num_neighbors}: must be -1 (all) or at least 0")
        hops = len(next(iter(given.values())))
        return [{name: int(given[name][hop]) for name in self._edges if given[name][hop] != 0} for hop in range(hops)]

    def _seed_type(self, name: str | None) -> str:
        if name is None and len(self._keys) > 1:
            raise ConfigError(f"seed_type: name one of {', '.join(self._keys)}")
        if name is not None and name not in self._keys:
            raise UnknownNameError.of("node type", name, self._keys)
        return next(iter(self._keys)) if name is None else name

    def _times(self, input_time: Any, seeds: int) -> np.ndarray | None:
        if self.method.temporal != (input_time is not None):
            raise ConfigError(
                "input_time: a temporal method needs the seeds' times, and no other one has a use for them"
            )
        if input_time is None:
            return None
        times = np.ascontiguousarray(input_time, dtype=np.int64)
        if times.shape != (seeds,):
            raise ConfigError(f"input_time: {times.shape} for {seeds} seeds")
        return times

    def _take(self, node_type: str, *, hashed: bool) -> kernels.Compactor:
        with self._lock:
            free = self._pools.setdefault((node_type, hashed), [])
            return free.pop() if free else kernels.Compactor(0 if hashed else self._keys[node_type].count)

    def _give(self, used: Mapping[str, kernels.Compactor], *, hashed: bool) -> None:
        for node_type, compactor in used.items():
            compactor.reset()
            with self._lock:
                self._pools[node_type, hashed].append(compactor)


class _Keys:
    """User ids of a node type; ``ids`` is None where vertices are their own: they need no second line of memory per row."""

    def __init__(self, ids: np.ndarray) -> None:
        self.count = len(ids)
        self.ids = None if (ids == np.arange(len(ids))).all() else ids

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Keys)
            and self.count == other.count
            and (self.ids is other.ids or np.array_equal(_some(self.ids), _some(other.ids)))
        )

    __hash__ = None  # type: ignore[assignment]


class _EdgeType:
    """One edge type, ready to be sampled."""

    def __init__(self, name: str, graph: LocalGraph, method: Method, threads: int) -> None:
        source, _, target = name.split("__") if name.count("__") == 2 else ("node", "to", "node")
        self.source, self.target = source, target
        self.graph, self.hash = graph, hash_string(name)
        self.keys = _Keys(graph.keys)
        self.source_keys = self.keys if graph.source_keys is None else _Keys(graph.source_keys)
        wide = len(graph.indices) > np.iinfo(np.int32).max
        self.edge_dtype = np.dtype(np.int64 if wide else np.int32) if graph.edge_ids is None else graph.edge_ids.dtype
        self.tables: _native.Method | None = tables_for(
            method,
            graph.indptr,
            graph.indices,
            weight=graph.weight,
            time=graph.time,
            source_keys=self.source_keys.ids,
            threads=threads,
        )


class _Growth:
    """A batch while it grows, hop by hop."""

    def __init__(
        self,
        known: Mapping[str, kernels.Compactor],
        edges: Mapping[str, _EdgeType],
        scratch: Scratch,
        *,
        trees: bool,
        times: np.ndarray | None,
    ) -> None:
        self._known, self._edges, self._trees, self._times = known, edges, trees, times
        self._rooms = {name: _Room(scratch, e.edge_dtype) for name, e in edges.items()}
        self._low = dict.fromkeys(known, 0)
        self._nodes = {t: [c.size] for t, c in known.items()}
        self._counts: dict[str, list[int]] = {name: [] for name in edges}

    def reserve(self, fan_outs: Sequence[Mapping[str, int]], *, everything: bool) -> None:
        """Make room for the largest batch, as far as the fan-outs tell: arrays that grow are copied."""
        fresh = {t: c.size for t, c in self._known.items()}
        known, wanted = dict(fresh), dict.fromkeys(self._edges, 0)
        for by_type in fan_outs:
            before, fresh = dict(known) if everything else fresh, dict.fromkeys(known, 0)
            for name, fan_out in by_type.items():
                edge = self._edges[name]
                drawn = before[edge.target] * max(0, fan_out)
                wanted[name] += drawn
                fresh[edge.source] += drawn if self._trees else min(drawn, edge.source_keys.count)
            for node_type, count in fresh.items():
                known[node_type] += count
        for name, room in self._rooms.items():
            room.reserve(min(wanted[name], _MOST_ROOM))

    def hop(self, fan_outs: Mapping[str, int], keys: Mapping[str, int], *, replace: bool, everything: bool) -> None:
        """Expand what the hop before has reached, or ``everything``."""
        high = {t: c.size for t, c in self._known.items()}
        for name in self._edges:
            count = 0
            if name in fan_outs:
                target = self._edges[name].target
                count = self._expand(name, self._low[target], high[target], fan_outs[name], keys[name], replace=replace)
            self._counts[name].append(count)
        for node_type, compactor in self._known.items():
            self._nodes[node_type].append(compactor.size - high[node_type])
            self._low[node_type] = 0 if everything else high[node_type]

    def _expand(self, name: str, first: int, last: int, fan_out: int, key: int, *, replace: bool) -> int:
        edge, room = self._edges[name], self._rooms[name]
        before, graph = room.used, self._edges[name].graph
        room.reserve(room.used + ((last - first) * fan_out if 0 <= fan_out < _ROOM else _ROOM))
        while first < last:
            row, col, e_id = room.rest()
            count, stopped = self._known[edge.source].sample_hop(
                self._known[edge.target], graph.indptr, graph.indices, graph.edge_ids, edge.keys.ids, first=first, last=last,
                fan_out=fan_out, replace=replace, stream_key=key, out_row=row, out_col=col, out_edge_ids=e_id,
                sources=graph.num_sources, method=edge.tables, trees=self._trees, tree_times=self._times,
            )  # fmt: skip
            room.used += count
            first = stopped
            if first < last:  # no fan-out bounds the edges: a row may bring as many as the graph has
                room.reserve(
                    max(2 * room.used, room.used + _ROOM, room.used + self._largest(name, first, last, fan_out))
                )
        return room.used - before

    def _largest(self, name: str, first: int, last: int, fan_out: int) -> int:
        """Edges of the next rows: enough for a block of them to fit."""
        edge = self._edges[name]
        ids = self._known[edge.target].ids(first, min(last, first + _BLOCK_ROWS))
        return max(_BLOCK_ROWS * fan_out, kernels.degree_sum(edge.graph.indptr, ids % edge.graph.num_nodes))

    def batch(self, keys: Mapping[str, _Keys]) -> HeteroBatch:
        """What has grown, in user ids (``keys`` by node type)."""
        n_id, tree = {}, {}
        for node_type, compactor in self._known.items():
            of = keys[node_type]
            if self._trees:
                ids, tree[node_type] = compactor.in_trees(0, compactor.size, of.count)
            else:
                ids = compactor.ids(0, compactor.size)
            n_id[node_type] = ids if of.ids is None else of.ids[ids]
        filled = {name: room.filled() for name, room in self._rooms.items()}
        row, col, e_id = ({name: arrays[i] for name, arrays in filled.items()} for i in range(3))
        return HeteroBatch(n_id, row, col, e_id, self._nodes, self._counts, tree if self._trees else None)


class _Room:
    """Growing output arrays of one edge type over lent memory."""

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


def _keys_by_type(edges: Iterable[_EdgeType]) -> dict[str, _Keys]:
    """User ids by node type; every edge type must mean the same vertices."""
    found: dict[str, _Keys] = {}
    for edge in edges:
        for node_type, keys in ((edge.source, edge.source_keys), (edge.target, edge.keys)):
            if found.setdefault(node_type, keys) != keys:
                raise ConfigError(f"the graphs disagree about the vertices of node type {node_type!r}")
    return dict(sorted(found.items()))


def _some(ids: np.ndarray | None) -> np.ndarray:
    return np.empty(0, dtype=np.int64) if ids is None else ids
