"""Divides the memory of the cache between rows and in-edges, and chooses whose in-edges to keep. Pure.

A batch of ``BATCH_SEEDS`` seeds visits a HALO vertex v times in a hop, on average. If visits are rare and independent,
the batch reaches the vertex with probability 1 - exp(-v) (Poisson). For v there are two estimates: with the ranking
``access`` it is ``HaloHeat.visits``; otherwise the visits of a hop are divided among the vertices by their edges into
the partition. A request for rows moves the rows and the row's number; one for in-edges moves min(in-degree, fan-out)
edges and the row's number and count. Memory goes to what saves most bytes per byte of memory (the greedy rule of the
fractional knapsack problem, Dantzig 1957).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from atta.kvstore.cache.ranking import HaloHeat, distant, highest

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.partition.schema import Schema


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
    """Remote vertices of one node type whose in-edges are to be kept, the one that saves most per byte first.

    ``ids`` int64 [n] internal ids, ``degrees`` int64 [n, edge types] in the order of ``edge_types_into``.
    """

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
    """Divide ``limit_bytes`` between rows and in-edges by what saves more per byte.

    In-degrees of remote vertices are not known yet, so each counts as the mean. If there is room for all, or no room at
    all, no estimate is made. ``share``: at most this share of the HALO vertices is kept.
    """
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
        if edge_types_into(schema, node_type):
            degrees = np.tile(_mean_degrees(schema, node_type), (count, 1))
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
    other one that does not fit. So at most that item's saving is missed, compared with the best choice.
    """
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
    """float64 [hops + 1, n]: expected visits of a batch by hop at the HALO vertices in the places ``at``.

    With ``access`` from the training seeds on. Otherwise every visit of a hop goes along any edge of the partition with
    equal probability.
    """
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


def _mean_degrees(schema: Schema, node_type: str) -> np.ndarray:
    counts = [schema.edge_counts[e] for e in edge_types_into(schema, node_type)]
    return np.array(counts) / max(1, schema.node_counts[node_type])


def _remote(dataset: Dataset, part: int, node_type: str) -> int:
    low, high = dataset.book.range(node_type, part)
    return int(dataset.schema.node_counts[node_type] - (high - low))


def _all_edges(dataset: Dataset, part: int) -> int:
    """Memory for the in-edges of all remote vertices."""
    schema, total = dataset.schema, 0
    for edge_type in schema.edge_types:
        edges = schema.edge_counts[edge_type] - len(dataset.part(part).csc(edge_type).indices)
        total += edges * edge_bytes(dataset, part, edge_type) + 8 * _remote(
            dataset, part, schema.endpoints(edge_type)[1]
        )
    return total + sum(VERTEX_BYTES * _remote(dataset, part, t) for t in schema.node_types)
