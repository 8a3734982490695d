"""Neighbour methods that are written in numpy: one Python file, no C++.

A call handles all vertices of a hop at once. It makes a few numpy passes over the vertices and over the drawn edges.
Native code makes one pass, which hides the latency of memory (docs/internals/adding.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from atta.samplers.hashing import mix64

__all__ = ["Draw", "Hop", "InNumpy", "Picks"]

_GOLDEN, _BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Hop:
    """The m vertices that a method expands.

    Attributes:
        first: int64 [m], position of each vertex' first in-edge.
        degree: int64 [m], its number of in-edges; their positions are ``first`` ... ``first + degree - 1``.
        keys: int64 [m], its user id.
        fan_out: edges wanted per vertex, -1 = all.
        replace: draw with replacement.
        stream_key: key of the hop's random numbers.
        trees: int32 [m], the tree that a vertex grows in; None if the batch has no trees.
        times: int64 [m], the time of a vertex: no edge may be later; None if vertices have no times.
        indices: int32|int64 [E], source of each edge: internal ids. The sources of one vertex are ascending by user id.
    """

    first: np.ndarray
    degree: np.ndarray
    keys: np.ndarray
    fan_out: int
    replace: bool
    stream_key: int
    trees: np.ndarray | None
    times: np.ndarray | None
    indices: np.ndarray

    def bits(self, index: int) -> np.ndarray:
        """uint64 [m]: the random number ``index`` (0, 1, ...) of each vertex. Native methods draw the same numbers.

        ``kernels.scaled(bits, degree)`` turns it into a position below ``degree``.
        """
        return mix64(self._streams + np.uint64(index * _GOLDEN & _BITS))

    @cached_property
    def _streams(self) -> np.ndarray:
        salt = np.uint64(0) if self.trees is None else mix64(self.trees)
        return mix64(np.uint64(self.stream_key) ^ salt ^ mix64(self.keys.view(np.uint64)))


@dataclass(frozen=True, eq=False)
class Picks:
    """The drawn edges: ``counts`` int [m] per vertex, ``positions`` int [sum(counts)], vertex after vertex."""

    counts: np.ndarray
    positions: np.ndarray

    def within(self, room: int) -> tuple[int, int]:
        """How many of the first vertices have edges that fit into ``room``, and the number of these edges."""
        ends = np.cumsum(self.counts, dtype=np.int64)
        done = int(np.searchsorted(ends, room, side="right"))
        return done, int(ends[done - 1]) if done else 0


Draw = Callable[[Hop], Picks]


class InNumpy:
    """A method in numpy, prepared for the edges of one type. Safe to use from several threads."""

    nbytes = 0
    """Number of bytes of tables: a method in numpy has none."""

    def __init__(self, draw: Draw, indptr: np.ndarray, indices: np.ndarray, *, may_replace: bool) -> None:
        self._draw, self._indptr, self._indices, self._may_replace = draw, indptr, indices, may_replace

    def picks(
        self,
        rows: np.ndarray,
        vertex_keys: np.ndarray | None,
        *,
        fan_out: int,
        replace: bool,
        stream_key: int,
        trees: np.ndarray | None,
        times: np.ndarray | None,
    ) -> Picks:
        """Draw for ``rows`` (int [m], positions in the graph): int32 counts, int64 positions.

        ``vertex_keys`` [n] are the user ids of all rows; None: a row number is the user id.

        Raises:
            ValueError: a row is outside the graph, the fan-out is impossible, or the method drew an edge that a vertex
            does not have.
        """
        if fan_out < -1:
            raise ValueError(f"fan_out: {fan_out} must be -1 (all) or >= 0")
        if replace and not self._may_replace:
            raise ValueError("replace: this method draws no edge twice")
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(self._indptr) - 1):
            raise ValueError(f"rows: a row is outside 0..{len(self._indptr) - 2}")
        first = self._indptr[rows]
        degree = self._indptr[rows + 1] - first
        keys = rows if vertex_keys is None else vertex_keys[rows]
        found = self._draw(
            Hop(
                first,
                degree,
                keys.astype(np.int64, copy=False),
                fan_out,
                replace,
                stream_key,
                trees,
                times,
                self._indices,
            )
        )
        counts, positions = found.counts.astype(np.int32, copy=False), found.positions.astype(np.int64, copy=False)
        if len(counts) != len(rows) or int(counts.sum()) != len(positions):
            raise ValueError("method: its counts do not fit the vertices or the edges that it drew")
        own = np.repeat(first, counts)
        if (positions < own).any() or (positions >= own + np.repeat(degree, counts)).any():
            raise ValueError("method: it drew edges that a vertex does not have")
        return Picks(counts, positions)
