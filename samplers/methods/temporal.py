"""Edges are drawn uniformly among those that are not later than the time of the vertex. An edge is as late as the later
of itself and its source. If neither has times, the edges count as always present."""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.samplers.arguments import integers
from atta.samplers.methods.base import InEdges, NeighborMethod, degree_by_draws


def sorted_by_time(edges: InEdges, *, last: bool) -> _native.Method | None:
    """The native tables of both temporal methods. None means that neither edges nor their sources have times. Raises
    ConfigError: the times are not integers."""
    times = None if edges.time is None else integers("edge times", edges.time)
    if edges.source_time is not None:
        since = edges.source_time[edges.indices]
        times = since if times is None else np.maximum(since, times, out=since)
    if times is None:
        return None
    return _native.Method.temporal(edges.indptr, edges.indices, times, last, edges.threads)


def _prepare(edges: InEdges) -> _native.Method | None:
    return sorted_by_time(edges, last=False)


METHOD = NeighborMethod(number=2, prepare=_prepare, table="time", temporal=True, weigh_vertices=degree_by_draws)
