"""The sums of rows that a batch has in place of the rows of its last hop.

A row that is at home is read where it lies: in the batch, in the partition, in the cache. Of the others ``plan_sums``
chooses by bytes which ones come as they are, and which ones their owners add up. Sums are exact (``kernels.sums``), so
they do not depend on who has which rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from atta.partition.schema import Schema
from atta.samplers.batch.items import FeatureItem, SumItem
from atta.samplers.batch.layout import BatchArrays
from atta.samplers.batch.scratch import Scratch
from atta.samplers.batch.vertices import NewVertices, TaskRows, Vertices
from atta.samplers.dag.plan import Reduce
from atta.samplers.dag.spec import Plan
from atta.samplers.kernels.sums import LastEdges, Sums, edges_in_order, plan_sums, reduce_rows, shifts_for, width_of
from atta.samplers.shard import Answer

RowsAtHome = Callable[[str, str], tuple[np.ndarray, np.ndarray | None]]
"""The rows of a node type's table that are the partition's own, and those that are kept of others'."""


@dataclass(frozen=True, slots=True)
class SumEdges:
    """The edges along which rows are summed. ``row``, ``col`` [edges]: local ids; ``weights`` float32."""

    row: np.ndarray
    col: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True, slots=True)
class WantedSums:
    """What a batch asks other owners for, of one node type: rows as they are, and sums, with the arrays that they go to."""

    raw: FeatureItem
    raw_outs: Sequence[np.ndarray] = field(repr=False)
    sums: Sequence[SumItem]
    sum_outs: Sequence[np.ndarray] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Came:
    """What has come of one node type; of each edge type, which of its raw rows are in no sum."""

    wanted: WantedSums
    positions: np.ndarray
    alone: Mapping[str, np.ndarray]


class RowSums:
    """The sums of one batch. ``inner``: by node type, how many vertices it had before its last hop; ``shifts``: by node
    type and table, see ``kernels.sums``; ``sources``: see ``BatchState``. ``scratch`` lends memory for what comes.
    ``last``: by type, the last hop's edges that did not join the batch."""

    def __init__(
        self, plan: Plan, schema: Schema, out: BatchArrays, *, shifts: Mapping[tuple[str, str], np.ndarray],
        sources: Mapping[tuple[str, str], int], inner: Mapping[str, int], scratch: Scratch, last: Mapping[str, LastEdges],
    ) -> None:  # fmt: skip
        assert plan.summed is not None
        self._plan, self._schema, self._out, self._scratch, self._shifts = plan, schema, out, scratch, shifts
        self._reduce, self.inner, self._sources, self._last = plan.summed.reduce, dict(inner), sources, last
        self._came: dict[str, _Came] = {}

    def _edges(self, edge_type: str) -> SumEdges:
        """Those that a first layer works along: all, or, if the last hop draws for all vertices, its own."""
        row, col, hops = (self._out.filled(f"{name}/{edge_type}") for name in ("row", "col", "hops"))
        weighed = f"edge_weight/{edge_type}" in self._out.used
        first = len(row) - int(hops[-1]) if self._plan.neighborhoods[-1].frontier_all else 0
        weights = self._out.filled(f"edge_weight/{edge_type}")[first:] if weighed else None
        return SumEdges(row[first:], col[first:], weights)

    def _counted(self, edge_type: str, name: str, edges: SumEdges) -> np.ndarray:
        return shifts_for(self._shifts[self._schema.endpoints(edge_type)[0], name], edges.col, edges.weights)

    def ask(self, node_type: str, new: NewVertices, asked: TaskRows) -> WantedSums | None:
        """What to ask the owners of ``asked`` for, which are among ``new``, the last hop's vertices; None: nothing."""
        assert asked.starts is not None
        assert self._plan.summed is not None
        tables = tuple(name for owner, name in self._plan.summed.tables if owner == node_type)
        if not tables:
            return None
        versions = {name: self._sources.get((node_type, name), 0) for name in tables}
        at, count, parts = asked.positions - new.start, new.stop - new.start, len(asked.starts) - 1
        owners, ids = np.full(count, -1, np.int32), np.zeros(count, np.int64)
        owners[at], ids[at] = np.repeat(np.arange(parts, dtype=np.int32), np.diff(asked.starts)), asked.rows
        alone: dict[str, np.ndarray] = {}
        sums, outs = [], []
        for edge_type in self._plan.edge_types:
            source, target = self._schema.endpoints(edge_type)
            if source != node_type:
                continue
            edges, last = self._edges(edge_type), self._last.get(edge_type)
            shifts = {name: self._counted(edge_type, name, edges) for name in tables}
            edges = edges if last is None else SumEdges(*last.ends, None)
            ends, targets = (edges.row, edges.col), self.inner[target]
            found = plan_sums(*ends, first=new.start, targets=targets, owners=owners, parts=parts)
            alone[edge_type] = found.raw[at]
            weights = None if edges.weights is None else edges.weights[found.edges]
            rows = ids[edges.row[found.edges] - new.start]
            for name in tables:
                width = width_of(found.counts, weights)
                what = rows, found.counts, found.targets, weights, found.starts
                sums.append(SumItem(edge_type, node_type, name, *what, shifts[name], width, versions[name]))
                columns = prod(self._schema.node_tables[node_type][name].row_shape)
                outs.append(self._scratch.empty((len(found.counts), width * columns), np.uint8))
        chosen = np.flatnonzero(np.logical_or.reduce([*alone.values()]))
        starts, keep = np.searchsorted(chosen, asked.starts), None if asked.keep is None else asked.keep[chosen]
        rows, places = asked.rows[chosen], np.arange(len(chosen))
        raw = FeatureItem(node_type, tables, rows, places, starts, keep, False, max(versions.values()))
        specs = [self._schema.node_tables[node_type][name] for name in tables]
        raw_outs = [self._scratch.empty((len(chosen), *spec.row_shape), spec.dtype) for spec in specs]
        wanted = WantedSums(raw, raw_outs, sums, outs)
        alone = {edge_type: of_type[chosen] for edge_type, of_type in alone.items()}
        self._came[node_type] = _Came(wanted, asked.positions[chosen], alone)
        return wanted

    def finish(self, new: Mapping[str, NewVertices], sizes: Mapping[str, int], at_home: RowsAtHome) -> None:
        """Write the sums into the batch. ``new``: the last hop's vertices as their rows are fetched; ``sizes``: how many
        vertices the batch has."""
        for edge_type, name in self._plan.sums(self._schema):
            source, target = self._schema.endpoints(edge_type)
            out, first = self._out.append(f"sum/{edge_type}/{name}", self.inner[target]), self.inner[source]
            known = self._out.arrays.get(f"table/{source}/{name}")
            known = np.empty((0, *out.shape[1:]), np.float32) if known is None else known[:first]
            edges, parts = self._edges(edge_type), self._parts(edge_type, name, new.get(source), at_home)
            reduce_rows(
                edges.row, edges.col, edges.weights, known=known, vertices=sizes[source] - first, parts=parts,
                sums=self._sums(edge_type, name), shifts=self._counted(edge_type, name, edges), reduce=self._reduce, out=out,
                last=self._last.get(edge_type), own=at_home(source, name)[0],
            )  # fmt: skip

    def _parts(
        self, edge_type: str, name: str, new: NewVertices | None, at_home: RowsAtHome
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Tables, rows in them, and the new vertices that have these."""
        if new is None:
            return []
        node_type, others = self._schema.endpoints(edge_type)[0], int(new.starts[-1])
        own, kept = at_home(node_type, name)
        found = [(own, new.rows[others:], new.positions[others:])]
        if kept is not None and len(new.kept_rows):
            found.append((kept, new.kept_rows, new.kept_positions))
        came = self._came.get(node_type)
        if came is not None:
            at = np.flatnonzero(came.alone[edge_type])
            found.append((came.wanted.raw_outs[came.wanted.raw.tables.index(name)], at, came.positions[at]))
        return found

    def _sums(self, edge_type: str, name: str) -> list[Sums]:
        came = self._came.get(self._schema.endpoints(edge_type)[0])
        if came is None:
            return []
        both = zip(came.wanted.sums, came.wanted.sum_outs, strict=True)
        of = edge_type, name
        return [Sums(out, item.targets, item.width) for item, out in both if (item.edge_type, item.table) == of]


def leaves_last_hop(plan: Plan, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the edges and vertices of the last hop stay out of the batch: nobody asked for ids of edges, and neither
    weights nor rows of edges need them."""
    needed = plan.edge_weights or plan.edge_tables or any(name.startswith("e_id/") for name in arrays)
    return not needed and plan.summed is not None and plan.summed.reduce is not Reduce.GCN


def last_edges(
    groups: Sequence[tuple[np.ndarray, Answer]], frontier: NewVertices, own: tuple[int, int], known: Vertices
) -> LastEdges:
    """The edges into the frontier that owners have drawn. ``own``: the internal ids of the partition's vertices, which get
    no numbers; others are numbered by ``known``."""
    start, count = frontier.start, frontier.stop - frontier.start
    answers = [(positions - start, answer.counts, answer.neighbors) for positions, answer in groups]
    starts, rows, others, targets, ids = edges_in_order(answers, count, own)
    sources = known.insert(ids, None if frontier.trees is None else frontier.trees[targets])
    rows[others] = sources
    return LastEdges(start, starts, rows, (sources, (targets + start).astype(sources.dtype)))
