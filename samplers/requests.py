"""The questions that a sampler may ask about the in-edges of a graph, each about many vertices at once. A sampler is a
generator: it yields a question, is sent the answer, and returns the sample at the end. The same code runs over a whole
graph in this process (``LocalAccess``) and in a daemon, where questions go to the owners of the vertices, with the same
result."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from atta.errors import ConfigError, blaming
from atta.samplers import kernels
from atta.samplers.local.graph import LocalGraph


@dataclass(frozen=True, slots=True)
class Neighbors:
    """In-edges of the vertices of a request, in the order of the request: ``counts`` int32 [m]; ``sources`` and
    ``edge_ids`` int64 [sum(counts)]. Sources are internal ids. The sources of one vertex are in the order of user ids,
    or in the order of the draws."""

    counts: np.ndarray
    sources: np.ndarray
    edge_ids: np.ndarray

    def only(self, kept: np.ndarray) -> Neighbors:
        """The edges that ``kept`` (bool [edges]) marks."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(rows[kept], minlength=len(self.counts)).astype(np.int32)
        return Neighbors(counts, self.sources[kept], self.edge_ids[kept])


@dataclass(frozen=True, slots=True)
class Expand:
    """Draw in-edges of ``vertices`` (int64 [m] internal ids, repeats allowed); answered by ``Neighbors``.

    Attributes:
        fan_out: edges per vertex, uniformly; -1 takes all.
        stream_key, trees: a draw is a function of this key, the vertex' user id and its tree (int32 [m]; None: all are in
            one).
        within: ascending internal ids int64, or None: leave out edges from other vertices. This happens after drawing,
            so use it with fan-out -1."""

    vertices: np.ndarray
    fan_out: int = -1
    replace: bool = False
    stream_key: int = 0
    trees: np.ndarray | None = None
    within: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One in-neighbour of each of ``vertices`` (int64 [m]), chosen by ``bits`` (uint64 [m]). Answered by int64 [m]: a
    vertex' d in-edges are ordered by user id, and the one at ``bits * d >> 64`` is chosen; -1 for a vertex without
    in-edges."""

    vertices: np.ndarray
    bits: np.ndarray


@dataclass(frozen=True, slots=True)
class Contains:
    """Whether the graph has an edge ``sources[i]`` → ``targets[i]`` (int64 [m] internal ids each); answered by bool
    [m]."""

    targets: np.ndarray
    sources: np.ndarray


@dataclass(frozen=True, slots=True)
class Degrees:
    """In-degrees of ``vertices`` (int64 [m]); answered by int64 [m]."""

    vertices: np.ndarray


@dataclass(frozen=True, slots=True)
class DegreeSums:
    """Running sums for drawing vertices by in-degree; answered by int64 [N], the same array every time.

    The terms are d^(3/4) in units of 1/256, one for each vertex in ascending order of user ids.

    Attributes:
        by_time: the earliest vertex comes first instead, those of one time by user id. Vertices must have times.
    """

    by_time: bool = False


Request = Expand | Step | Contains | Degrees | DegreeSums
Result = TypeVar("Result")
Program = Generator[Request, Any, Result]


class Access(Protocol):
    """An object that answers requests."""

    def answer(self, request: Request) -> Any:
        """The answer that the request's docstring describes. Raises ConfigError for a vertex that does not exist."""


def run(program: Program[Result], access: Access) -> Result:
    """Run ``program`` to its end. ``access`` answers its questions."""
    try:
        request = next(program)
        while True:
            request = program.send(access.answer(request))
    except StopIteration as done:
        result: Result = done.value
        return result


class LocalAccess:
    """Answers requests from a whole graph in this process."""

    def __init__(self, graph: LocalGraph, *, threads: int = 1) -> None:
        self._graph, self._threads = graph, threads
        self._sums: dict[bool, np.ndarray] = {}

    def answer(self, request: Request) -> Any:
        graph = self._graph
        with blaming(ConfigError, of=ValueError):
            match request:
                case Expand():
                    return self._expand(request)
                case Step():
                    read = partial(kernels.taken, graph.indices)
                    return kernels.step(graph.indptr, read, request.vertices, request.bits)
                case Contains():
                    keys = graph.keys if graph.source_keys is None else graph.source_keys
                    return kernels.has_edges(graph.indptr, graph.indices, keys, request.targets, request.sources)
                case Degrees():
                    return kernels.in_degrees(self._graph.indptr, request.vertices)
                case DegreeSums():
                    if request.by_time not in self._sums:
                        self._sums[request.by_time] = self._degree_sums(by_time=request.by_time)
                    return self._sums[request.by_time]

    def _degree_sums(self, *, by_time: bool) -> np.ndarray:
        graph, first = self._graph, self._graph.node_time if by_time else np.zeros(self._graph.num_nodes)
        if first is None:
            raise ConfigError("degree sums by time: vertices have no times")
        return degree_sums(np.diff(graph.indptr)[np.lexsort((graph.keys, first))])

    def _expand(self, request: Expand) -> Neighbors:
        graph = self._graph
        counts, sources, edge_ids = kernels.sample_neighbors(
            graph.indptr,
            graph.indices,
            graph.edge_ids if graph.edge_ids is not None else np.arange(len(graph.indices)),
            graph.keys,
            request.vertices,
            fan_out=request.fan_out,
            replace=request.replace,
            stream_key=request.stream_key,
            trees=request.trees,
            threads=self._threads,
        )
        assert edge_ids is not None
        return only_within(Neighbors(counts, sources.astype(np.int64), edge_ids.astype(np.int64)), request.within)


def degree_sums(degrees: np.ndarray) -> np.ndarray:
    """The answer to ``DegreeSums``. ``degrees`` int64 [N] are the in-degrees in its order."""
    root = np.sqrt(degrees.astype(np.float64))  # every machine rounds square roots exactly, but not powers
    return np.asarray(np.cumsum(np.rint(256 * root * np.sqrt(root)).astype(np.int64)))


def only_within(found: Neighbors, within: np.ndarray | None) -> Neighbors:
    """``found`` without the edges whose source is not in ``within`` (ascending ids)."""
    if within is None:
        return found
    at = np.searchsorted(within, found.sources)
    kept = np.zeros(len(found.sources), dtype=bool)
    inside = at < len(within)
    kept[inside] = within[at[inside]] == found.sources[inside]
    return found.only(kept)
