"""Divides a trainer's vertices into intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError

__all__ = ["interval_rows"]

Longs = npt.NDArray[np.int64]


def interval_rows(edge_index: Longs, vertices: int, intervals: int) -> list[Longs]:
    """The vertices of each interval, int64, ascending.

    Intervals differ by at most one vertex. Their numbers of edges differ by at most the largest degree: vertices are
    dealt by falling degree, and the direction of dealing turns after each round. So the edges between an interval and
    the others are nearly as many for all intervals (Dorylus, section 4).

    edge_index: int64 [2, e], sources and targets; ends from ``vertices`` on are of other trainers. They count for the
    end that is here.

    Raises:
        ConfigError: there are more intervals than vertices, or none of either.
    """
    if intervals < 1:
        raise ConfigError(f"intervals={intervals}: must be at least 1")
    if not vertices:
        raise ConfigError(
            "a partition has no vertices, so there is nothing to divide into intervals; take fewer partitions"
        )
    if intervals > vertices:
        raise ConfigError(f"intervals={intervals}: a trainer has only {vertices} vertices; take fewer intervals")
    source, target = edge_index
    between = source != target
    ends = np.concatenate([source[between], target[between]])
    degrees = np.bincount(ends[ends < vertices], minlength=vertices)
    order = np.argsort(-degrees, kind="stable")
    rounds, place = np.divmod(np.arange(vertices), intervals)
    dealt = np.empty(vertices, np.int64)
    dealt[order] = np.where(rounds % 2 == 0, place, intervals - 1 - place)
    by_interval = np.argsort(dealt, kind="stable")
    return np.split(by_interval, np.cumsum(np.bincount(dealt, minlength=intervals))[:-1])
