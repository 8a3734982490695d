"""LABOR-0 (Balin and Catalyurek, NeurIPS 2023): each source is drawn with probability ``fan_out`` / d. All vertices of
a hop share the random number of a source, so they choose the same sources if they can. A vertex gets ``fan_out`` edges
on average."""

from __future__ import annotations

from atta import _native
from atta.samplers.methods.base import InEdges, NeighborMethod, degree_by_draws


def _prepare(edges: InEdges) -> _native.Method:
    return _native.Method.labor(edges.indices, edges.source_keys, edges.threads)


METHOD = NeighborMethod(number=4, prepare=_prepare, bounded=False, may_replace=False, weigh_vertices=degree_by_draws)
