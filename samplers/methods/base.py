"""The description of a neighbour method, and the edges that a method is prepared for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atta import _native
from atta.samplers.methods.in_numpy import Draw, InNumpy

__all__ = ["DrawnEdges", "InEdges", "NeighborMethod", "Tables", "degree_by_draws"]

Tables = _native.Method | InNumpy
"""A method prepared for the edges of one type."""


@dataclass(frozen=True, eq=False)
class InEdges:
    """The in-edges of one edge type, with the data that a method may read.

    Attributes:
        indptr: int64 [n + 1]; the edges of vertex v are ``indptr[v]`` ... ``indptr[v + 1] - 1``.
        indices: int32|int64 [E], internal ids of the sources. The sources of one vertex are in ascending order of their
            user ids.
        weight: [E], or None if the edges have no weights.
        time: [E], or None if the edges have no times.
        source_keys: int64, user ids by internal id of the source; None: an internal id is the user id.
        source_time: int64, times by internal id of the source; None: sources have no times.
        threads: number of threads for the preparation.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None = None
    time: np.ndarray | None = None
    source_keys: np.ndarray | None = None
    source_time: np.ndarray | None = None
    threads: int = 1


@dataclass(frozen=True, eq=False)
class DrawnEdges:
    """The edges that a method drew for m vertices, vertex after vertex in the order of draws.

    Attributes:
        counts: int [m], number of edges of each vertex.
        degree: int [m], number of its edges in the graph.
        weight: [edges], by which they were drawn.
        total: float64 [m], sum of the weights of all its edges in the graph.
        fan_out, replace: as for ``Hop``.
    """

    counts: np.ndarray
    degree: np.ndarray
    weight: np.ndarray
    total: np.ndarray
    fan_out: int
    replace: bool


def degree_by_draws(degree: np.ndarray, fan_out: int, replace: bool) -> np.ndarray:
    """[m]: what a drawn edge of a vertex with ``degree`` (float [m]) edges weighs, where all are as likely."""
    if fan_out < 0:
        return np.ones_like(degree)
    shares: np.ndarray = degree / degree.dtype.type(max(1, fan_out))
    return shares if replace else np.maximum(shares, 1)


@dataclass(frozen=True, kw_only=True)
class NeighborMethod:
    """A description of a neighbour method. The rest of Atta knows a method by this description only.

    Attributes:
        number: the method's number in messages. No two methods share a number, and it never changes.
        prepare: makes the native tables for some edges, or returns None to draw them uniformly. Raises ValueError for
            bad edges.
        draw: draws in numpy, for a method without native code. A method has ``prepare`` or ``draw``; with neither it
            draws uniformly.
        table: the edge table that the method reads (``"weight"``, ``"time"``).
        needs_table: whether to refuse an edge type without this table. If not, such edges are drawn uniformly.
        temporal: whether every seed has a time, and its tree holds no later edge, and no edge of a later source. Implies
            disjoint trees.
        bounded: whether a vertex gets at most ``fan_out`` edges. If not, messages and memory are planned for all its
            edges.
        may_replace: whether the method can draw with replacement.
        deterministic: whether it takes the same edges each time, so that the others never come.
        weigh_vertices: gives what each drawn edge of a vertex weighs so that sums over drawn edges are unbiased, from
            degrees, ``fan_out`` and ``replace``: see ``degree_by_draws``.
        weigh_edges: the same where it differs from edge to edge: float64 [edges]. With neither, sums are biased.
    """

    number: int
    prepare: Callable[[InEdges], _native.Method | None] | None = None
    draw: Draw | None = None
    table: str | None = None
    needs_table: bool = False
    temporal: bool = False
    bounded: bool = True
    may_replace: bool = True
    deterministic: bool = False
    weigh_vertices: Callable[[np.ndarray, int, bool], np.ndarray] | None = None
    weigh_edges: Callable[[DrawnEdges], np.ndarray] | None = None

    def tables(self, edges: InEdges) -> Tables | None:
        """Prepare for ``edges``. None means that they are drawn uniformly."""
        if self.draw is not None:
            return InNumpy(self.draw, edges.indptr, edges.indices, may_replace=self.may_replace)
        return None if self.prepare is None else self.prepare(edges)
