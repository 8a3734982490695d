"""Weights of a batch's edges, made of the degrees of the whole graph: a layer that adds up messages weighed so gives
the graph's value, exactly where all in-neighbours come, else on average over draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from atta.partition.dataset import Dataset
from atta.partition.graph.part import GraphDegrees, inverse_roots
from atta.samplers import kernels
from atta.samplers.batch.vertices import NewVertices, Vertices
from atta.samplers.dag.plan import EdgeNorm, EdgeUse, EdgeWeights, Plan, PlanOp
from atta.samplers.methods.base import DrawnEdges
from atta.samplers.shard import TIMELY, Answer

FACTOR = ""
"""The table of an answer that says what each drawn edge stands for. No table of a user has this name."""


class WeighedEdges:
    """The weights of one type's edges while a batch grows. ``dataset`` has the degrees."""

    def __init__(self, what: EdgeWeights, plan: Plan, dataset: Dataset) -> None:
        self.what, self._plan, self._dataset = what, plan, dataset
        self._source, self._target = dataset.schema.endpoints(what.edge_type)

    @cached_property
    def degrees(self) -> GraphDegrees:
        """Of the whole graph."""
        return self._dataset.degrees(self.what.edge_type)

    @cached_property
    def _sources(self) -> tuple[np.ndarray | None, int]:
        """What factors of sources are made of, by internal id, and what is added to it: see ``Weighing``. Those of a
        GCN's targets are the same."""
        match self.what.norm:
            case EdgeNorm.BOTH:
                return self.degrees.out, 0
            case EdgeNorm.GCN:
                return (self.degrees.summed_gcn_roots, 0) if self.what.summed else (self.degrees.others, 1)
        return None, 0

    def looped(self, op: PlanOp, frontier: NewVertices | None) -> np.ndarray:
        """int64, ascending: local ids of the vertices that get an edge to themselves after what ``op`` has drawn."""
        if frontier is None or not self.what.loops or self.what.edge_type not in dict(op.fan_outs):
            return np.empty(0, np.int64)
        if len(frontier.positions) + len(frontier.kept_positions) == frontier.stop - frontier.start:
            return np.arange(frontier.start, frontier.stop)
        return np.sort(np.concatenate([frontier.positions, frontier.kept_positions]))

    def factored(self, op: PlanOp, known: Mapping[str, Vertices], positions: np.ndarray, answer: Answer) -> Answer:
        """``answer`` for vertices with these local ids, with what each of its edges stands for where this differs among
        those of a vertex: by its own weight, or by how it was drawn."""
        factor = answer.tables["weight"].astype(np.float64) if self.what.summed else None
        if self.what.unbiased and (weigh := op.method.rules.weigh_edges) is not None:
            degrees, fan_out = self.degrees, dict(op.fan_outs)[self.what.edge_type]
            assert degrees.weights is not None
            ids = known[self._target].internal(0, 1 + int(positions.max(initial=-1)))[0][positions]
            of_vertices = degrees.into[ids], answer.tables["weight"], degrees.weights[ids].astype(np.float64)
            share = weigh(DrawnEdges(answer.counts, *of_vertices, fan_out, op.replace))
            factor = share if factor is None else factor * share
        elif TIMELY in answer.tables:
            share = self._share(op, answer.tables[TIMELY].astype(np.float64))
            factor = share if factor is None else factor * share
        if factor is None:
            return answer
        return replace(answer, tables={**answer.tables, FACTOR: factor.astype(np.float32)})

    def _share(self, op: PlanOp, degree: np.ndarray) -> np.ndarray:
        weigh = op.method.rules.weigh_vertices
        fan_out = dict(op.fan_outs).get(self.what.edge_type, -1)
        return np.ones_like(degree) if weigh is None else weigh(degree, fan_out, op.replace)

    def weighing(
        self, op: PlanOp, known: Mapping[str, Vertices], frontier: NewVertices, grown: np.ndarray, out: np.ndarray
    ) -> tuple[kernels.Weighing, np.ndarray]:
        """How the drawn edges of ``op`` into ``frontier`` are weighed, to be written to ``out``; and what the edges of
        its vertices to themselves weigh, float32 [frontier]. ``grown``: how many vertices the batch has had more each
        time."""
        ids, degrees = known[self._target].internal(frontier.start, frontier.stop)[0], self.degrees
        right, loops = np.ones(len(ids), np.float32), np.empty(0, np.float32)
        left, more = self._sources
        match self.what.norm:
            case EdgeNorm.ROW:
                counts = degrees.weights if self.what.summed else degrees.into
                assert counts is not None
                of_ids = counts.take(ids, mode="clip").astype(np.float32)
                right = np.divide(1, of_ids, out=np.zeros_like(of_ids), where=of_ids != 0)
            case EdgeNorm.BOTH:
                right = inverse_roots(degrees.into.take(ids, mode="clip"))
            case EdgeNorm.GCN:
                assert left is not None
                right = left.take(ids, mode="clip")
                right = right if self.what.summed else inverse_roots(right + np.float32(more))
                loops = right * right
                if self.what.summed and degrees.loops is not None and degrees.loop_weights is not None:
                    loops *= np.where(degrees.loops[ids] > 0, degrees.loop_weights[ids], np.float32(1))
        if (times := self._times(op, grown)) is not None:  # the draws of several hops are averaged
            right /= times[frontier.start : frontier.stop]
            loops /= times[frontier.start : frontier.stop] if len(loops) else 1
        if self.what.unbiased and op.method.rules.weigh_vertices is not None and not op.method.temporal:
            right *= self._share(op, degrees.into.take(ids, mode="clip").astype(np.float32))
        return kernels.Weighing(out, right, left, more, self.what.loops and degrees.loops is not None), loops

    def _times(self, op: PlanOp, grown: np.ndarray) -> np.ndarray | None:
        """float32, by local id: how many hops expand a vertex; None: one each. ``grown``: see ``weighing``."""
        if op.use is not EdgeUse.JOIN or not any(hop.frontier_all for hop in self._plan.neighborhoods[1:]):
            return None
        hops = [hop for hop in self._plan.neighborhoods if hop.use is EdgeUse.JOIN]
        first = len(grown) - op.hop  # place of what came last before the first hop
        drawn = [self.what.edge_type in dict(hop.fan_outs) for hop in hops]
        all_too = [is_drawn and hop.frontier_all for is_drawn, hop in zip(drawn, hops, strict=True)]
        times = [drawn[hop] + sum(all_too[hop + 1 :]) for hop in (max(0, i - first) for i in range(len(grown)))]
        return np.repeat(np.maximum(np.array(times, np.float32), 1), grown)
