"""The edges of a graph, as its daemons tell them, and the pairs that one of validation or test is ranked among: the
same for any number of partitions and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import atta
from atta.samplers.hashing import mix64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GraphPairs:
    """The different pairs of vertices that are edges of a graph, without loops. ids: int64 [n], user ids of all
    vertices (or sources), ascending, in which places stand for vertices; others: int64 [m], the same of targets, if
    they are of another node type; keys: int64 [pairs], source * (number of targets) + target, ascending."""

    ids: Ints
    keys: Ints
    others: Ints | None = None

    @classmethod
    def of(cls, ids: Ints, sources: Ints, targets: Ints, others: Ints | None = None) -> GraphPairs:
        """Make it from user ids: of all vertices, and of the ends of all edges."""
        empty = cls(np.sort(ids), np.empty(0, np.int64), None if others is None else np.sort(others))
        return replace(empty, keys=np.unique(empty.keys_of(sources, targets)[0]))

    def keys_of(self, sources: Ints, targets: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Keys of edges, by user ids of their ends, that are no loops, and which edges these are, bool [edges]."""
        kept = sources != targets if self.others is None else np.ones(len(sources), np.bool_)
        ends = np.searchsorted(self.ids, sources[kept]), np.searchsorted(self.target_ids, targets[kept])
        return ends[0] * len(self.target_ids) + ends[1], kept

    @property
    def target_ids(self) -> Ints:
        """User ids of the vertices that targets are among, ascending."""
        return self.ids if self.others is None else self.others

    @property
    def most(self) -> int:
        """How many targets a source may have. A vertex does not count as its own target."""
        return len(self.target_ids) - (self.others is None)

    def ends(self, keys: Ints) -> tuple[Ints, Ints]:
        """Places of the sources and of the targets of some pairs."""
        return keys // len(self.target_ids), keys % len(self.target_ids)

    def user_ids(self, keys: Ints) -> Ints:
        """int64 [2, pairs]: user ids of sources and targets."""
        sources, targets = self.ends(keys)
        return np.stack([self.ids[sources], self.target_ids[targets]])

    def candidates(self, keys: Ints, count: int | None) -> OtherTargets:
        """Targets for the sources of some pairs that are neither the source nor at the end of an edge of it: ``count``
        per pair, drawn with replacement, or all there are, each once, if they are not more; None: all."""
        n = len(self.target_ids)
        sources, of_pair = np.unique(self.ends(keys)[0], return_inverse=True)
        taken, starts = self._taken(sources)
        free = (n - np.diff(starts))[of_pair]
        width = int(free.max(initial=0)) if count is None else min(count, int(free.max(initial=0)))
        number = np.broadcast_to(np.arange(width), (len(keys), width))
        if count is not None:
            number = np.where((free > count)[:, None], self._draws(keys, free, width), number)
        # Below the i-th taken place, in order, there are as many free places as its place minus i.
        before = taken - (np.arange(len(taken)) - np.repeat(starts[:-1], np.diff(starts)))
        owner = np.repeat(np.arange(len(sources)), np.diff(starts))
        skipped = np.searchsorted(owner * (n + 1) + before, of_pair[:, None] * (n + 1) + number, side="right")
        places = number + skipped - starts[of_pair][:, None]
        there = number < free[:, None]
        return OtherTargets(np.where(there, places, 0), there)

    def _taken(self, sources: Ints) -> tuple[Ints, Ints]:
        """Places that are no candidates of each source, ascending; and where those of a source begin [sources + 1]."""
        n, own = len(self.target_ids), self.others is None
        begin, end = np.searchsorted(self.keys, sources * n), np.searchsorted(self.keys, (sources + 1) * n)
        sizes = end - begin
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        edges = self.keys[np.repeat(begin, sizes) + within]
        taken = np.sort(np.concatenate([edges, sources * n + sources] if own else [edges])) % n
        return taken, np.concatenate([[0], np.cumsum(sizes + own)])

    def _draws(self, keys: Ints, free: Ints, width: int) -> Ints:
        """int64 [pairs, width]: numbers below ``free``, a function of the pair's user ids and the column."""
        source, target = self.user_ids(keys).view(np.uint64)
        base = mix64(mix64(source) ^ target)[:, None]
        bits = mix64(base + np.arange(width, dtype=np.uint64)[None] * _GOLDEN)
        shares = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.minimum((shares * free[:, None]).astype(np.int64), free[:, None] - 1)


@dataclass(frozen=True)
class OtherTargets:
    """Candidates of n pairs: places, int64 [n, k]; ``there``: bool [n, k], false where a pair has fewer."""

    places: Ints
    there: npt.NDArray[np.bool_]


_TOGETHER = 1 << 14
"""Number of vertices whose in-edges a batch has."""


class GraphEdges(NamedTuple):
    """All edges of a type: user ``ids`` of the targets' node type, ``ends`` [2, edges], int64, and edge tables [edges]."""

    ids: np.ndarray
    ends: np.ndarray
    tables: dict[str, np.ndarray]


def everywhere(mine: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks."""
    rank, counts = dist.get_rank(), torch.zeros(dist.get_world_size(), dtype=torch.int64, device=mine.device)
    counts[rank] = len(mine)
    dist.all_reduce(counts)
    ends = counts.cumsum(0).tolist()
    found = torch.zeros(ends[-1], *mine.shape[1:], dtype=mine.dtype, device=mine.device)
    found[ends[rank] - len(mine) : ends[rank]] = mine
    dist.all_reduce(found)
    return found


def read_edges(cluster: atta.Cluster, edge_type: str, tables: Sequence[str], device: torch.device) -> GraphEdges:
    """All edges of a type, with tables of a number per edge: every rank asks for those into its share of vertices, then
    ranks exchange them within the process group. Raises RemoteError."""
    schema = cluster.schema
    source, target = schema.endpoints(edge_type)
    specs = {name: schema.edge_tables[edge_type][name] for name in tables}
    kinds: dict[str, Any] = {name: np.float64 if spec.dtype[1] == "f" else np.int64 for name, spec in specs.items()}
    seeds, ends = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)]
    rows = {name: [np.empty(0, kind)] for name, kind in kinds.items()}
    hops = {e: [-1 if e == edge_type else 0] for e in schema.edge_types}
    for batch in _batches(cluster, target, hops, edge_tables={edge_type: [*tables]} if tables else {}):
        n_id = batch.n_id(target)
        seeds.append(n_id[: batch.batch_size].copy())
        from_places, to_places = batch.edge_index(edge_type)
        ends.append(np.stack([batch.n_id(source)[from_places], n_id[to_places]]))
        for name, kind in kinds.items():
            rows[name].append(batch.edge_table(name, edge_type).reshape(-1).astype(kind))
    return GraphEdges(
        _of_all(seeds, device),
        np.stack([_of_all([side], device) for side in np.concatenate(ends, axis=1)]),
        {name: _of_all(parts, device) for name, parts in rows.items()},
    )


def read_pairs(
    cluster: atta.Cluster, edge_type: str, device: torch.device, *, timed: bool
) -> tuple[GraphPairs, np.ndarray | None]:
    """All pairs that are edges of a type, and if ``timed`` the ``time`` of each one's first edge [pairs]."""
    edges = read_edges(cluster, edge_type, ["time"] if timed else [], device)
    sources, targets = edges.ends
    source, target = cluster.schema.endpoints(edge_type)
    if source == target:
        pairs = GraphPairs.of(edges.ids, sources, targets)
    else:
        found = [np.empty(0, np.int64), *(batch.n_id(source).copy() for batch in _batches(cluster, source, []))]
        pairs = GraphPairs.of(_of_all(found, device), sources, targets, edges.ids)
    if not timed:
        return pairs, None
    keys, kept = pairs.keys_of(sources, targets)
    times = edges.tables["time"][kept]
    order = np.lexsort((times, keys))
    return pairs, times[order][np.unique(keys[order], return_index=True)[1]]


def _batches(cluster: atta.Cluster, node_type: str, hops: Any, **options: Any) -> atta.NeighborLoader:
    return atta.NeighborLoader(
        cluster, hops, (node_type, None), batch_size=_TOGETHER, pad=False, rank=dist.get_rank(),
        world_size=dist.get_world_size(), tables=[], edge_ids=False, **options,
    )  # fmt: skip


def _of_all(parts: Sequence[np.ndarray], device: torch.device) -> np.ndarray:
    return everywhere(torch.from_numpy(np.concatenate(parts)).to(device)).cpu().numpy()
