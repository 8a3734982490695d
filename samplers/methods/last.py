"""A vertex gets its ``fan_out`` latest edges, among the edges that are not later than the time of the vertex."""

from __future__ import annotations

from atta import _native
from atta.samplers.methods.base import InEdges, NeighborMethod
from atta.samplers.methods.temporal import sorted_by_time


def _prepare(edges: InEdges) -> _native.Method | None:
    return sorted_by_time(edges, last=True)


METHOD = NeighborMethod(number=3, prepare=_prepare, table="time", temporal=True, may_replace=False, deterministic=True)
