"""What a neighbour method says about itself, and the edges that it is prepared for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atta import _native
from atta.samplers.methods.in_numpy import Draw, InNumpy

__all__ = ["InEdges", "NeighborMethod", "Tables"]

Tables = _native.Method | InNumpy
"""A method prepared for the edges of one type."""


@dataclass(frozen=True, eq=False)
class InEdges:
    """The in-edges of one edge type, and what a method may read of them.

    Attributes:
        indptr: int64 [n + 1]; the edges of vertex v are ``indptr[v]`` ... ``indptr[v + 1] - 1``.
        indices: int32|int64 [E], internal ids of the sources. Those of one vertex are in ascending order of their user ids.
        weight: [E], or None where the edges have none.
        time: [E], or None where the edges have none.
        source_keys: int64, user ids by internal id of the source; None: an internal id is the user id.
        threads: for the preparation.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None = None
    time: np.ndarray | None = None
    source_keys: np.ndarray | None = None
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class NeighborMethod:
    """A description of a neighbour method; the rest of Atta knows no more of it.

    Attributes:
        number: stands for the method in messages. No two methods share one, and it never changes.
        prepare: makes the native tables for some edges; None where they are drawn uniformly. ValueError for bad edges.
        draw: draws in numpy, for a method without native code. A method has ``prepare`` or ``draw``, or neither: uniform.
        table: the edge table that the method reads (``"weight"``, ``"time"``).
        needs_table: refuse an edge type without this table. If not, such edges are drawn uniformly.
        temporal: every seed has a time, and its tree holds no later edge. Implies disjoint trees.
        bounded: a vertex gets at most ``fan_out`` edges. If not, messages and memory are planned for all its edges.
        may_replace: the method can draw with replacement.
    """

    number: int
    prepare: Callable[[InEdges], _native.Method | None] | None = None
    draw: Draw | None = None
    table: str | None = None
    needs_table: bool = False
    temporal: bool = False
    bounded: bool = True
    may_replace: bool = True

    def tables(self, edges: InEdges) -> Tables | None:
        """Prepare for ``edges``; None where they are drawn uniformly."""
        if self.draw is not None:
            return InNumpy(self.draw, edges.indptr, edges.indices, may_replace=self.may_replace)
        return None if self.prepare is None else self.prepare(edges)
