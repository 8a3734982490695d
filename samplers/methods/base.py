"""The description of a neighbour method, the edges that a method is prepared for, and methods that are written in
numpy: one Python file, no C++. These handle all vertices of a hop at once, in a few numpy passes over vertices and
drawn edges. Native code makes one pass, which hides the latency of memory (docs/guide/own-parts.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from traceback import extract_tb
from typing import NotRequired, TypedDict, Unpack

import numpy as np

from atta import _native
from atta.errors import AttaError
from atta.samplers.hashing import GOLDEN, mix64

_BITS = (1 << 64) - 1
BY_NAME = 255
"""Number of all methods of plug-ins: messages have their names."""


class EdgeDraws(TypedDict):
    """How in-edges are drawn: keywords of all that draw, see ``Hop``. Without ``renewed`` it is 0."""

    fan_out: int
    replace: bool
    stream_key: int
    renewed: NotRequired[int]


@dataclass(frozen=True, eq=False)
class Hop:
    """The m vertices that a method expands.

    Attributes:
        first, degree: int64 [m]; the in-edges of a vertex have the positions ``first`` ... ``first + degree - 1``.
        keys: int64 [m], its user id.
        fan_out, replace: edges wanted per vertex, -1 = all; whether to draw with replacement.
        stream_key, renewed: key of the hop's random numbers, see ``hashing.stream_of``.
        trees: int32 [m], the tree that a vertex grows in; None if the batch has no trees.
        times: int64 [m], the time of a vertex: no edge may be later; None if vertices have no times.
        indices: int32|int64 [E], source of each edge: internal ids, those of one vertex by ascending user id."""

    first: np.ndarray
    degree: np.ndarray
    keys: np.ndarray
    fan_out: int
    replace: bool
    stream_key: int
    renewed: int
    trees: np.ndarray | None
    times: np.ndarray | None
    indices: np.ndarray

    def bits(self, index: int) -> np.ndarray:
        """uint64 [m]: the random number ``index`` (0, 1, ...) of each vertex. Native methods draw the same numbers.
        ``kernels.scaled(bits, degree)`` turns it into a position below ``degree``."""
        return mix64(self._streams + np.uint64(index * GOLDEN & _BITS))

    @cached_property
    def _streams(self) -> np.ndarray:
        salt = np.uint64(0) if self.trees is None else mix64(self.trees)
        mixed = mix64(self.keys.view(np.uint64))
        next_key = (self.stream_key + GOLDEN) & _BITS
        streams = np.where(mixed >> np.uint64(32) < self.renewed, np.uint64(next_key), np.uint64(self.stream_key))
        return mix64(streams ^ salt ^ mixed)


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


def numbers_of(how: EdgeDraws) -> tuple[int, bool, int, int]:
    """Fan-out, whether with replacement, stream key and ``renewed``."""
    return how["fan_out"], how["replace"], how["stream_key"], how.get("renewed", 0)


class InNumpy:
    """A method in numpy, prepared for the edges of one type. Safe to use from several threads."""

    nbytes = 0
    """Number of bytes of tables: a method in numpy has none."""

    def __init__(
        self, draw: Draw, indptr: np.ndarray, indices: np.ndarray, *, may_replace: bool, name: str = "method"
    ) -> None:
        """``name``: for errors."""
        self._draw, self._indptr, self._indices = draw, indptr, indices
        self._may_replace, self._name = may_replace, name

    def picks(
        self,
        rows: np.ndarray,
        vertex_keys: np.ndarray | None,
        *,
        trees: np.ndarray | None,
        times: np.ndarray | None,
        **how: Unpack[EdgeDraws],
    ) -> Picks:
        """Draw for ``rows`` (int [m], positions in the graph): int32 counts, int64 positions.

        ``vertex_keys`` [n] are the user ids of all rows; None: a row number is the user id.

        Raises:
            ValueError: a row is outside the graph, the fan-out is impossible, or the method drew an edge that a vertex
            does not have.
            AttaError: the method has failed.
        """
        fan_out, replace, stream_key, renewed = numbers_of(how)
        if fan_out < -1:
            raise ValueError(f"fan_out: {fan_out} must be -1 (all) or >= 0")
        if replace and not self._may_replace:
            raise ValueError("replace: this method draws no edge twice")
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(self._indptr) - 1):
            raise ValueError(f"rows: a row is outside 0..{len(self._indptr) - 2}")
        first = self._indptr[rows]
        degree = self._indptr[rows + 1] - first
        keys = rows if vertex_keys is None else vertex_keys[rows]
        keys = keys.astype(np.int64, copy=False)
        hop = Hop(first, degree, keys, fan_out, replace, stream_key, renewed, trees, times, self._indices)
        try:
            found = self._draw(hop)
        except (AttaError, MemoryError):
            raise
        except Exception as error:  # a user's code may raise anything
            raise AttaError(f"{self._name}: {type(error).__name__}: {error} ({self._place(error)})") from error
        counts, positions = found.counts.astype(np.int32, copy=False), found.positions.astype(np.int64, copy=False)
        if len(counts) != len(rows) or int(counts.sum()) != len(positions):
            raise ValueError(f"{self._name}: its counts do not fit the vertices or the edges that it drew")
        own = np.repeat(first, counts)
        if (positions < own).any() or (positions >= own + np.repeat(degree, counts)).any():
            raise ValueError(f"{self._name}: it drew edges that a vertex does not have")
        return Picks(counts, positions)

    def _place(self, error: Exception) -> str:
        """The innermost line of the method's own file that has raised ``error``."""
        frames = extract_tb(error.__traceback__)
        file = getattr(getattr(self._draw, "__code__", None), "co_filename", "")
        frame = next((f for f in reversed(frames) if f.filename == file), frames[-1])
        return f"{Path(frame.filename).name} line {frame.lineno}"


Tables = _native.Method | InNumpy
"""A method prepared for the edges of one type."""


@dataclass(frozen=True, eq=False)
class InEdges:
    """The in-edges of one edge type, with the data that a method may read.

    Attributes:
        indptr: int64 [n + 1]; the edges of vertex v are ``indptr[v]`` ... ``indptr[v + 1] - 1``.
        indices: int32|int64 [E], internal ids of the sources, those of one vertex by ascending user id.
        weight, time: [E]; None: the edges have none.
        source_keys: int64, user ids by internal id of the source; None: an internal id is the user id.
        source_time: int64, times by internal id of the source; None: sources have no times.
        threads: number of threads for the preparation."""

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
        counts, degree: int [m], number of edges of each vertex, and of those in the graph.
        weight: [edges], by which they were drawn. ``total``: float64 [m], sum over all its edges in the graph.
        fan_out, replace: as for ``Hop``."""

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
        number: in messages, for methods of Atta: no two share one, and it never changes. Those of plug-ins have none.
        prepare: makes the native tables for some edges, or returns None to draw them uniformly. Raises ValueError for bad
            edges.
        draw: draws in numpy, for a method without native code. With neither it draws uniformly.
        table: the edge table that the method reads (``"weight"``, ``"time"``).
        needs_table: whether an edge type without this table is refused; otherwise its edges are drawn uniformly.
        temporal: whether every seed has a time, and its tree holds no later edge, and no edge of a later source. Implies
            disjoint trees.
        bounded: whether a vertex gets at most ``fan_out`` edges. If not, room is planned for all its edges.
        may_replace: whether the method can draw with replacement.
        deterministic: whether it takes the same edges each time, so that the others never come.
        weigh_vertices: what each drawn edge of a vertex weighs so that sums over drawn edges are unbiased, from degrees,
            ``fan_out`` and ``replace``: see ``degree_by_draws``.
        weigh_edges: the same where it differs from edge to edge: float64 [edges]. With neither, sums are biased."""

    number: int = BY_NAME
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

    def tables(self, edges: InEdges, name: str) -> Tables | None:
        """Prepare for ``edges``; ``name``: for errors. None means that they are drawn uniformly."""
        if self.draw is not None:
            return InNumpy(self.draw, edges.indptr, edges.indices, may_replace=self.may_replace, name=name)
        return None if self.prepare is None else self.prepare(edges)
