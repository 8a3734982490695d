"""Edges are drawn uniformly among the edges that are not later than the time of the vertex.

An edge type without times counts as always present: all its edges are drawn uniformly.
"""

from __future__ import annotations

from atta import _native
from atta.samplers.arguments import integers
from atta.samplers.methods.base import InEdges, NeighborMethod

__all__ = ["METHOD", "sorted_by_time"]


def sorted_by_time(edges: InEdges, *, last: bool) -> _native.Method | None:
    """The native tables of both temporal methods. None means that the edges have no times.

    Raises:
        ConfigError: the times are not integers.
    """
    if edges.time is None:
        return None
    times = integers("edge times", edges.time)
    return _native.Method.temporal(edges.indptr, edges.indices, times, last, edges.threads)


def _prepare(edges: InEdges) -> _native.Method | None:
    return sorted_by_time(edges, last=False)


METHOD = NeighborMethod(number=2, prepare=_prepare, table="time", temporal=True)
