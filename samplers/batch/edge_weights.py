"""Weights of a batch's edges, made of the degrees of the whole graph.

A layer that counts the edges of a batch takes other degrees than on the graph. And the sum over the edges that were
drawn is smaller than the one over all. With these weights a layer that adds up weighed messages gives the graph's
value: exactly where all in-neighbours come, else on average over draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from atta.samplers import kernels
from atta.samplers.dag.edge_norms import EdgeNorm, EdgeWeights
from atta.samplers.methods.base import DrawnEdges
from atta.samplers.shard import Answer

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.partition.graph.part import GraphDegrees
    from atta.samplers.batch.new_vertices import NewVertices
    from atta.samplers.dag.plan import PlanOp

__all__ = ["FACTOR", "WeighedEdges"]

FACTOR = ""
"""The table of an answer that says what each drawn edge stands for. No table of a user has this name."""


@dataclass(frozen=True, eq=False)
class _HopEdges:
    """What a hop has added of a type: ``drawn`` edges and ``loops``, as places among all, of the vertices ``expanded``."""

    op: PlanOp
    drawn: slice
    loops: slice
    expanded: np.ndarray


@dataclass(eq=False)
class WeighedEdges:
    """The weights of one type's edges while a batch grows.

    Attributes:
        what: how they are weighed.
        dataset: has the degrees.
    """

    what: EdgeWeights
    dataset: Dataset
    _hops: list[_HopEdges] = field(default_factory=list)

    def loops(self, op: PlanOp, frontier: NewVertices | None) -> np.ndarray:
        """int64, ascending: local ids of the vertices that get an edge to themselves after what ``op`` has drawn."""
        return self._expanded(op, frontier) if self.what.loops else np.empty(0, np.int64)

    def _expanded(self, op: PlanOp, frontier: NewVertices | None) -> np.ndarray:
        if frontier is None or self.what.edge_type not in dict(op.fan_outs):
            return np.empty(0, np.int64)
        if len(frontier.positions) + len(frontier.kept_positions) == frontier.stop - frontier.start:
            return np.arange(frontier.start, frontier.stop)
        return np.sort(np.concatenate([frontier.positions, frontier.kept_positions]))

    def differ(self, op: PlanOp) -> bool:
        """Whether what an edge of ``op`` stands for differs among those of a vertex."""
        return self.what.unbiased and op.method.rules.weigh_edges is not None

    def factored(self, op: PlanOp, ids: np.ndarray, answer: Answer) -> Answer:
        """``answer`` for vertices with these internal ids, with what each of its edges stands for."""
        weigh = op.method.rules.weigh_edges
        assert weigh is not None
        degrees, fan_out = self.degrees, dict(op.fan_outs)[self.what.edge_type]
        assert degrees.weights is not None
        of_vertices = degrees.into[ids], answer.tables["weight"], degrees.weights[ids].astype(np.float64)
        factor = weigh(DrawnEdges(answer.counts, *of_vertices, fan_out, op.replace)).astype(np.float32)
        return replace(answer, tables={**answer.tables, FACTOR: factor})

    def restart(self) -> None:
        """All edges so far have gone."""
        self._hops.clear()

    def joined(self, op: PlanOp, frontier: NewVertices | None, first: int, drawn: int, loops: int) -> None:
        """Take note of ``drawn`` edges and then ``loops`` that ``op`` has added from the place ``first`` on."""
        stop = first + drawn
        self._hops.append(_HopEdges(op, slice(first, stop), slice(stop, stop + loops), self._expanded(op, frontier)))

    @property
    def degrees(self) -> GraphDegrees:
        """Of the whole graph."""
        return self.dataset.degrees(self.what.edge_type)

    def finish(
        self, row: np.ndarray, col: np.ndarray, sources: np.ndarray, targets: np.ndarray, out: np.ndarray
    ) -> None:
        """Write the weights to ``out`` float32 [edges]. It has what each drawn edge stands for, where these differ.

        ``row``, ``col``: local ids of the ends. ``sources``, ``targets`` int64: internal ids by local id.
        """
        degrees = self.degrees
        into = degrees.into[targets].astype(np.float32)
        left, right = _factors(self.what.norm, degrees, sources, targets, into)
        if any(hop.op.frontier_all for hop in self._hops[1:]):  # the draws of several hops are averaged
            times = np.zeros(len(targets), np.float32)
            for hop in self._hops:
                times[hop.expanded] += 1
            right /= np.maximum(times, 1)
        for hop in self._hops:
            parts = (
                (hop.drawn, self._standing(hop, into, right), not self.differ(hop.op), self.what.loops),
                (hop.loops, right, True, False),
            )
            for at, factors, fresh, no_loops in parts:
                kernels.weigh_edges(row[at], col[at], left, factors, out[at], fresh=fresh, no_loops=no_loops)

    def _standing(self, hop: _HopEdges, into: np.ndarray, right: np.ndarray) -> np.ndarray:
        """float32 [targets]: the factors of targets of drawn edges."""
        weigh = hop.op.method.rules.weigh_vertices
        if self.what.unbiased and weigh is not None:
            right = right * weigh(into, dict(hop.op.fan_outs).get(self.what.edge_type, -1), hop.op.replace)
        return right


def _factors(
    norm: EdgeNorm, degrees: GraphDegrees, sources: np.ndarray, targets: np.ndarray, into: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray]:
    """float32 [sources] or None, float32 [targets]: an edge weighs the product of those of its ends."""
    match norm:
        case EdgeNorm.ROW:
            return None, 1 / np.maximum(into, 1)
        case EdgeNorm.BOTH:
            return _roots(degrees.out[sources].astype(np.float32)), _roots(into)
        case EdgeNorm.GCN:
            roots = _roots(into + 1 if degrees.loops is None else into - degrees.loops[targets].astype(np.float32) + 1)
            return roots, roots.copy()
    return None, np.ones(len(targets), np.float32)


def _roots(counts: np.ndarray) -> np.ndarray:
    roots: np.ndarray = np.sqrt(np.maximum(counts, 1))
    np.reciprocal(roots, out=roots)
    return roots
