"""What the cache keeps: which remote vertices batches will ask for most, estimated from the daemon's own partition, and how
much of its memory is for rows, how much for in-edges. Pure. Arrays are as long as the partition's own vertices and their
HALO, never as the graph.

A batch of ``BATCH_SEEDS`` seeds visits a HALO vertex v times in a hop, on average. If visits are rare and independent,
the batch reaches the vertex with probability 1 - exp(-v) (Poisson). For v there are two estimates: with the ranking
``access`` it is ``HaloHeat.visits``; otherwise the visits of a hop are divided among the vertices by their edges into
the partition. A request for rows moves the rows and the row's number; one for in-edges moves min(in-degree, fan-out)
edges and the row's number and count. Memory goes to what saves most bytes per byte of memory (the greedy rule of the
fractional knapsack problem, Dantzig 1957)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from atta import _native
from atta.errors import ConfigError, known_name
from atta.partition.dataset import Dataset
from atta.partition.schema import Schema

RANKS = ("degree", "access", "recent")
"""Policies of the cache; see ``RowCache``."""


class HaloHeat:
    """How often batches are expected to ask for the HALO vertices of a partition. What has been found is kept."""

    def __init__(
        self, dataset: Dataset, part: int, rank: str = "degree", fan_outs: Sequence[int] = (15, 10, 5)
    ) -> None:
        """``rank``: one of ``RANKS``; ``fan_outs``: what ``access`` expects, and what in-edges are chosen by. Raises
        UnknownNameError: no such policy; ConfigError: the policy ``access`` has no fan-outs, or one below -1."""
        known_name("cache ranking", rank, RANKS)
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
        """Internal ids (int64 [count], ascending) of the HALO vertices with most visits (``access``), then with most
        edges into the partition. If ``count`` exceeds the HALO vertices, other remote vertices follow, of which nothing
        is known here. Ties go to lower ids, so a smaller ``count`` chooses a subset of a larger one."""
        halo = self.halo(node_type)
        if count > len(halo):
            others = distant(self.dataset, self.part, node_type, count - len(halo))
            return np.sort(np.concatenate([halo, others])).astype(np.int64, copy=False)
        if count == len(halo):
            return halo.astype(np.int64, copy=False)
        visited = [np.sum(self.visits(node_type), axis=0)] if self.rank == "access" else []
        return np.asarray(halo[highest([*visited, self.edges(node_type)], count)], dtype=np.int64)

    def visits(self, node_type: str) -> list[np.ndarray]:
        """float64 [HALO vertices of the type] for hop 0 (the seeds), 1, ...: the expected visits at each when all training
        seeds of the partition are sampled with ``fan_outs``.

        Every seed is visited once. A visit at a vertex of the partition with d in-edges of a type goes on along each of
        them with probability min(1, k / d), for the fan-out k of the hop (-1: all). Exact for trees that are sampled
        independently, but for two effects: visits through vertices of other partitions are not counted, and a batch
        expands a vertex once even if it reaches it several times."""
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


BATCH_SEEDS = 1024
"""Seeds of the batch that the model expects."""
ROW_NUMBER_BYTES = 4
"""A row's number in a request, or the number of its edges in an answer."""
ANSWER_EDGE_BYTES = 8
"""An edge in an answer: its source and its id, int32 each."""
VERTEX_BYTES = 80
"""Memory for a vertex besides its edges: at most 64 in the index, 8 for its user id, the rest for flags and slack."""
SAMPLED = 1 << 20
"""Of more HALO vertices only every n-th is looked at to divide the memory."""
MOST_DEGREE = 1 << 20
"""In-edges of vertices with more are not kept: their answer is one message."""


@dataclass(frozen=True, slots=True)
class Division:
    """Bytes of the cache for table rows, and for in-edges."""

    rows: int
    edges: int


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """Remote vertices of one node type whose in-edges may be kept, the most often expanded first.

    Attributes:
        ids: int64 [n], internal ids.
        expansions: float64 [hops, n], the expected expansions per batch by each hop that may reach them.
        fan_outs: [hops], the fan-outs of these expansions.
    """

    node_type: str
    ids: np.ndarray
    expansions: np.ndarray
    fan_outs: tuple[int, ...]

    def savings(self, degrees: np.ndarray) -> np.ndarray:
        """float64 [n]: bytes saved per batch by each vertex's in-edges. ``degrees`` [n, edge types]."""
        saved = np.zeros(len(self.ids))
        for often, fan_out in zip(self.expansions, self.fan_outs, strict=True):
            drawn = degrees if fan_out == -1 else np.minimum(degrees, fan_out)
            saved += often * (2 * ROW_NUMBER_BYTES + ANSWER_EDGE_BYTES * drawn.sum(axis=1))
        return saved


@dataclass(frozen=True, eq=False, slots=True)
class HotVertices:
    """Remote vertices of one node type whose in-edges are to be kept, the one that saves most per byte first. ``ids``
    int64 [n] internal ids, ``degrees`` int64 [n, edge types] in the order of ``edge_types_into``."""

    node_type: str
    ids: np.ndarray
    degrees: np.ndarray


def edge_types_into(schema: Schema, node_type: str) -> tuple[str, ...]:
    """The edge types that end at ``node_type``, in alphabetical order."""
    return tuple(e for e in sorted(schema.edge_types) if schema.endpoints(e)[1] == node_type)


def edge_bytes(dataset: Dataset, part: int, edge_type: str) -> int:
    """Memory for an edge that is kept: its source and its id."""
    csc = dataset.part(part).csc(edge_type)
    return int(csc.indices.dtype.itemsize + csc.edge_ids.dtype.itemsize)


def divide(heat: HaloHeat, *, limit_bytes: int, share: float | None) -> Division:
    """Divide ``limit_bytes`` between rows and in-edges by what saves more per byte. In-degrees of remote vertices are
    not known yet, so each counts as the mean. If there is room for all, or no room at all, no estimate is made.
    ``share``: at most this share of the HALO vertices is kept."""
    dataset, part = heat.dataset, heat.part
    if limit_bytes <= 0 or share == 0 or dataset.num_parts == 1:
        return Division(max(0, limit_bytes), 0)
    schema = dataset.schema
    row_bytes = {t: sum(spec.row_bytes for spec in schema.node_tables[t].values()) for t in schema.node_types}
    rows = sum(_remote(dataset, part, t) * row_bytes[t] for t in schema.node_types)
    if rows + _all_edges(dataset, part) <= limit_bytes:
        return Division(rows, limit_bytes - rows)
    saved, sizes, of_edges = [], [], []
    for node_type in schema.node_types:
        visits, each = _sampled_visits(heat, node_type, share)
        expansions, count = _expansions(visits), visits.shape[1]
        if row_bytes[node_type]:
            reached = 1 - np.exp(-visits.sum(axis=0))
            saved.append(reached * (row_bytes[node_type] + ROW_NUMBER_BYTES) * each)
            sizes.append(np.full(count, row_bytes[node_type] * each))
            of_edges.append(np.zeros(count, dtype=bool))
        if types := edge_types_into(schema, node_type):
            mean = np.array([schema.edge_counts[e] for e in types]) / max(1, schema.node_counts[node_type])
            degrees = np.tile(mean, (count, 1))
            expected = Candidates(node_type, np.arange(count), expansions, heat.fan_outs)
            saved.append(expected.savings(degrees) * each)
            sizes.append(_sizes(dataset, part, node_type, degrees) * each)
            of_edges.append(np.ones(count, dtype=bool))
    if not saved:
        return Division(limit_bytes, 0)
    size = np.concatenate(sizes)
    taken = greedy(np.concatenate(saved), size, limit_bytes) & np.concatenate(of_edges)
    edges = int(np.ceil(size[taken].sum()))
    return Division(limit_bytes - edges, edges)


def greedy(saved: np.ndarray, sizes: np.ndarray, budget: float) -> np.ndarray:
    """bool [n]: the items that save most per byte and fit into ``budget`` together; ties go to the first ones.
    ``saved`` and ``sizes`` (positive) [n]. Items that are larger than ``budget`` are left out. It stops at the first
    other one that does not fit. So at most that item's saving is missed, compared with the best choice."""
    order = np.argsort(-saved / sizes, kind="stable")
    order = order[sizes[order] <= budget]
    taken = np.zeros(len(saved), dtype=bool)
    taken[order[np.cumsum(sizes[order]) <= budget]] = True
    return taken


def candidates(heat: HaloHeat, *, limit_bytes: int, share: float | None) -> list[Candidates]:
    """Whose in-degrees to ask for: the HALO vertices that are expanded most often, as many as ``limit_bytes`` could
    hold if they had one edge each. Without a ``share``, other remote vertices follow."""
    found, most = [], int(limit_bytes // (VERTEX_BYTES + 16))
    for node_type in heat.dataset.schema.node_types:
        halo = heat.halo(node_type)
        if not len(halo) or not edge_types_into(heat.dataset.schema, node_type):
            continue
        count = most if share is None else min(most, int(share * len(halo)))
        at = highest([_expanded(heat, node_type)], count)
        expansions = _expansions(_visits(heat, node_type, at))
        order = np.argsort(-expansions.sum(axis=0), kind="stable")
        ids, expansions = np.asarray(halo[at[order]], dtype=np.int64), expansions[:, order]
        if share is None:
            others = distant(heat.dataset, heat.part, node_type, most - len(ids))
            ids = np.concatenate([ids, others])
            expansions = np.pad(expansions, ((0, 0), (0, len(others))))
        found.append(Candidates(node_type, ids, expansions, heat.fan_outs))
    return found


def choose(
    dataset: Dataset, part: int, asked: Sequence[Candidates], degrees: Sequence[np.ndarray], limit_bytes: int
) -> list[HotVertices]:
    """Those of ``asked`` whose in-edges to keep. ``degrees``: for each of ``asked`` int64 [n, edge types]."""
    if not asked:
        return []
    saved = [of_type.savings(d) for of_type, d in zip(asked, degrees, strict=True)]
    sizes = [_sizes(dataset, part, of_type.node_type, d) for of_type, d in zip(asked, degrees, strict=True)]
    huge = np.concatenate([(d > MOST_DEGREE).any(axis=1) for d in degrees])
    size = np.where(huge, np.inf, np.concatenate(sizes))
    taken = greedy(np.concatenate(saved), size, limit_bytes)
    found, at = [], 0
    for of_type, d, s in zip(asked, degrees, saved, strict=True):
        mine = np.flatnonzero(taken[at : at + len(s)])
        order = mine[np.argsort(-s[mine] / size[at + mine], kind="stable")]
        found.append(HotVertices(of_type.node_type, of_type.ids[order], d[order]))
        at += len(s)
    return [hot for hot in found if len(hot.ids)]


def _visits(heat: HaloHeat, node_type: str, at: np.ndarray | slice) -> np.ndarray:
    """float64 [hops + 1, n]: expected visits of a batch by hop at the HALO vertices in the places ``at``. With
    ``access`` from the training seeds on. Otherwise every visit of a hop goes along any edge of the partition with
    equal probability."""
    if heat.rank == "access":
        seeds = max(1, sum(map(len, heat.seeds.values())))
        return np.stack([BATCH_SEEDS / seeds * visits[at] for visits in heat.visits(node_type)])
    schema, part = heat.dataset.schema, heat.dataset.part(heat.part)
    edges = sum(len(part.csc(e).indices) for e in schema.edge_types)
    targets = sum(len(part.csc(e).indptr) - 1 for e in schema.edge_types)
    taken = [edges / max(1, targets) if k == -1 else k for k in heat.fan_outs]
    along = [0.0, *(BATCH_SEEDS * prod(taken[:hop]) / max(1, edges) for hop in range(1, len(taken) + 1))]
    return np.asarray(np.multiply.outer(along, heat.edges(node_type)[at]))


def _expansions(visits: np.ndarray) -> np.ndarray:
    """float64 [hops, n]: the expected expansions by each hop. Nothing expands what the last hop reaches."""
    return np.asarray(1 - np.exp(-visits[:-1]))


def _expanded(heat: HaloHeat, node_type: str) -> np.ndarray:
    """A score of all HALO vertices that ascends with their expected expansions."""
    if heat.rank != "access":
        return heat.edges(node_type)
    return np.asarray(_expansions(_visits(heat, node_type, slice(None))).sum(axis=0))


def _sampled_visits(heat: HaloHeat, node_type: str, share: float | None) -> tuple[np.ndarray, int]:
    """``_visits`` of every n-th HALO vertex, those with most visits first; ``share``: no more than that. And n."""
    each = -(-len(heat.halo(node_type)) // SAMPLED) or 1
    visits = _visits(heat, node_type, slice(None, None, each))
    order = np.argsort(-visits.sum(axis=0), kind="stable")
    return visits[:, order if share is None else order[: int(share * len(order))]], each


def _sizes(dataset: Dataset, part: int, node_type: str, degrees: np.ndarray) -> np.ndarray:
    """Memory for the in-edges of vertices with ``degrees`` [n, edge types]."""
    types = edge_types_into(dataset.schema, node_type)
    per_edge = np.array([edge_bytes(dataset, part, e) for e in types])
    return np.asarray(VERTEX_BYTES + 8 * len(types) + degrees @ per_edge, dtype=np.float64)


def _remote(dataset: Dataset, part: int, node_type: str) -> int:
    low, high = dataset.book.range(node_type, part)
    return int(dataset.schema.node_counts[node_type] - (high - low))


def _all_edges(dataset: Dataset, part: int) -> int:
    schema, total = dataset.schema, 0
    for edge_type in schema.edge_types:
        edges = schema.edge_counts[edge_type] - len(dataset.part(part).csc(edge_type).indices)
        total += edges * edge_bytes(dataset, part, edge_type) + 8 * _remote(
            dataset, part, schema.endpoints(edge_type)[1]
        )
    return total + sum(VERTEX_BYTES * _remote(dataset, part, t) for t in schema.node_types)
