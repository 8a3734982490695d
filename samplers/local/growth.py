"""A batch of a local graph: while it grows hop by hop, and when it is finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError
from atta.partition.names import split_edge_type
from atta.samplers import kernels
from atta.samplers.batch.scratch import Scratch
from atta.samplers.hashing import hash_string
from atta.samplers.local.graph import LocalGraph
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import InEdges, Tables

_ROOM = 1 << 20
"""Number of edges for which room is made at once if fan-outs do not bound them."""
_MOST_ROOM = 1 << 28
"""At most this many edges get room in advance. Larger batches make room as they grow."""
_BLOCK_ROWS = 32
"""Number of rows that the kernel draws together. A call needs room for the edges of all of them."""


@dataclass(frozen=True)
class LocalBatch:
    """A sampled subgraph. Vertices are numbered in the order in which they were reached, seeds first.

    Attributes:
        n_id: int64 [nodes], user ids.
        row, col: int32 [edges], local ids of sources and targets.
        e_id: int32|int64 [edges], edge ids of the graph.
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


class Keys:
    """User ids of a node type. ``ids`` is None if positions are the user ids: then no row costs a second cache line."""

    def __init__(self, ids: np.ndarray) -> None:
        self.count, self.given = len(ids), ids
        self.ids = None if (ids == np.arange(len(ids))).all() else ids


class EdgeType:
    """One edge type, ready to be sampled."""

    def __init__(self, name: str, graph: LocalGraph, method: Method, threads: int) -> None:
        source, _, target = split_edge_type(name) if name.count("__") == 2 else ("node", "to", "node")
        self.source, self.target = source, target
        self.graph, self.hash = graph, hash_string(name)
        self.keys = Keys(graph.keys)
        self.source_keys = self.keys if graph.source_keys is None else Keys(graph.source_keys)
        wide = len(graph.indices) > np.iinfo(np.int32).max
        self.edge_dtype = np.dtype(np.int64 if wide else np.int32) if graph.edge_ids is None else graph.edge_ids.dtype
        edges = InEdges(
            graph.indptr,
            graph.indices,
            weight=graph.weight,
            time=graph.time,
            source_keys=self.source_keys.ids,
            source_time=graph.times_of_sources,
            threads=threads,
        )
        self.tables: Tables | None = tables_for(method, edges)


class Growth:
    """A batch while it grows, hop by hop."""

    def __init__(
        self,
        known: Mapping[str, kernels.Compactor],
        edges: Mapping[str, EdgeType],
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
        """Make room for the largest batch that the fan-outs allow, because growing copies arrays."""
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

    def hop(
        self, fan_outs: Mapping[str, int], keys: Mapping[str, tuple[int, int]], *, replace: bool, everything: bool
    ) -> None:
        """Expand the vertices that the previous hop has reached, or all vertices (``everything``)."""
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

    def _expand(self, name: str, first: int, last: int, fan_out: int, key: tuple[int, int], *, replace: bool) -> int:
        edge, room = self._edges[name], self._rooms[name]
        before, graph = room.used, self._edges[name].graph
        room.reserve(room.used + ((last - first) * fan_out if 0 <= fan_out < _ROOM else _ROOM))
        while first < last:
            row, col, e_id = room.part(slice(room.used, None))
            count, stopped = self._known[edge.source].sample_hop(
                self._known[edge.target], graph.indptr, graph.indices, graph.edge_ids, edge.keys.ids, first=first, last=last,
                fan_out=fan_out, replace=replace, stream_key=key[0], renewed=key[1], out_row=row, out_col=col, out_edge_ids=e_id,
                sources=graph.num_sources, method=edge.tables, trees=self._trees, tree_times=self._times,
            )  # fmt: skip
            room.used += count
            first = stopped
            if first < last:  # no fan-out bounds the edges: a row may have all edges of the graph
                room.reserve(
                    max(2 * room.used, room.used + _ROOM, room.used + self._largest(name, first, last, fan_out))
                )
        return room.used - before

    def _largest(self, name: str, first: int, last: int, fan_out: int) -> int:
        edge = self._edges[name]
        ids = self._known[edge.target].ids(first, min(last, first + _BLOCK_ROWS))
        return max(_BLOCK_ROWS * fan_out, kernels.degree_sum(edge.graph.indptr, ids % edge.graph.num_nodes))

    def batch(self, keys: Mapping[str, Keys]) -> HeteroBatch:
        """The finished batch, in user ids (``keys`` by node type)."""
        n_id, tree = {}, {}
        for node_type, compactor in self._known.items():
            of = keys[node_type]
            if self._trees:
                ids, tree[node_type] = compactor.in_trees(0, compactor.size, of.count)
            else:
                ids = compactor.ids(0, compactor.size)
            n_id[node_type] = ids if of.ids is None else of.ids[ids]
        filled = {name: room.part(slice(room.used)) for name, room in self._rooms.items()}
        row, col, e_id = ({name: arrays[i] for name, arrays in filled.items()} for i in range(3))
        return HeteroBatch(n_id, row, col, e_id, self._nodes, self._counts, tree if self._trees else None)


class _Room:
    """The output arrays of one edge type. They grow, and their memory is lent."""

    def __init__(self, scratch: Scratch, edge_dtype: np.dtype) -> None:
        self.used = 0
        self._scratch = scratch
        self._arrays = [np.empty(0, dtype) for dtype in (np.int32, np.int32, edge_dtype)]

    def reserve(self, edges: int) -> None:
        if edges <= len(self._arrays[0]):
            return
        for i, old in enumerate(self._arrays):
            self._arrays[i] = self._scratch.empty((edges,), old.dtype)
            self._arrays[i][: self.used] = old[: self.used]

    def part(self, of: slice) -> list[np.ndarray]:
        return [array[of] for array in self._arrays]


def keys_by_type(edges: Iterable[EdgeType]) -> dict[str, Keys]:
    """User ids by node type. Raises ConfigError if edge types disagree about the vertices of a node type."""
    found: dict[str, Keys] = {}
    for edge in edges:
        for node_type, keys in ((edge.source, edge.source_keys), (edge.target, edge.keys)):
            _check_same("vertices", node_type, found.setdefault(node_type, keys).given, keys.given)
    return dict(sorted(found.items()))


def times_by_type(edges: Iterable[EdgeType]) -> dict[str, np.ndarray]:
    """Times of vertices by node type, of the types that have any. Raises ConfigError if edge types disagree about them."""
    found: dict[str, np.ndarray] = {}
    for edge in edges:
        ends = (edge.target, edge.graph.node_time), (edge.source, edge.graph.times_of_sources)
        for node_type, times in ends:
            if times is not None:
                _check_same("times", node_type, found.setdefault(node_type, times), times)
    return found


def _check_same(what: str, node_type: str, one: np.ndarray, other: np.ndarray) -> None:
    if one is not other and not np.array_equal(one, other):
        raise ConfigError(f"the graphs disagree about the {what} of node type {node_type!r}")
