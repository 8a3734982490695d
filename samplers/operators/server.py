"""The graph that a server (a machine with several trainers) computes on: GraNNDis' shared preloading and
expansion-aware sampling. Both operators start from the batch's seeds, the server's *inner* vertices, and admit others
hop by hop along in-edges. They return the subgraph induced on all of them: the seeds in their order, then hop by hop
the admitted vertices, by ascending user id; edges by target and, for one target, by user id of the source.

``extra["hop"]``, int32 [n], is the hop that admitted a vertex, 0 for the seeds. ``extra["degree"]``, int64 [n], is its
in-degree in the whole graph: degrees within the subgraph would be wrong at its rim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from atta.errors import ConfigError, known_name
from atta.samplers import kernels
from atta.samplers.arguments import whole
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.operators.base import MAX_EDGES, MAX_VERTICES, Batch, Bounds, Sampled, first_seen
from atta.samplers.requests import Degrees, Expand, Neighbors, Program

_MAX_HOPS = 1024
"""At most this many hops. The deepest network of the paper has 112 layers; hops beyond the graph's diameter cost nothing."""
_SELECTIONS = ("uniform", "degree")


@dataclass(frozen=True)
class Closure:
    """All vertices and edges that ``hops`` layers over the seeds depend on (shared preloading; GraNNDis, Song et al.,
    PACT 2024, section 4.2): every vertex from which a path of at most ``hops`` edges leads to a seed. ``extra["hop"]``
    is the length of the shortest such path. All in-edges of vertices with hop < ``hops`` are there, and layer l of L is
    exact for the vertices with hop <= L - l. Without ``rim`` edges into the vertices of the last hop, which are not
    needed for that, are left out, and nobody reads them: with one hop, the result is a partition's own vertices with
    their HALO. Raises ConfigError for ``hops`` outside 0..1024, or a ``rim`` that is neither True nor False."""

    hops: int
    rim: bool = True

    def __post_init__(self) -> None:
        whole("hops", self.hops, 0, _MAX_HOPS)
        if not isinstance(self.rim, bool):
            raise ConfigError(f"rim {self.rim!r}: must be true or false")

    def run(self, batch: Batch) -> Program[Sampled]:
        return _grow(batch, self.hops, _everybody, rim=self.rim)

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return _bounds(min(nodes, seeds) if self.hops == 0 or not seeds else nodes, edges)


@dataclass(frozen=True)
class ExpansionAware:
    """Expansion-aware sampling: few vertices from outside the server, all edges among them (section 4.3).

    Let A(0) be the seeds. In hop h = 1 ... ``max_hop`` each vertex v that hop h - 1 has admitted (in hop 1: each seed)
    admits ``fanout`` of its candidates, or all (-1): the different in-neighbours of v outside A(h - 1). A(h) is A(h - 1)
    and all vertices that hop h admits. The vertices of a hop choose independently. All edges between vertices of the
    result are kept. ``select`` says which candidates v admits:

    - ``"uniform"``: those with the lowest hash of (seed, ``resample``, user id of v, user id of the candidate). So each
      set of ``fanout`` candidates is equally likely.
    - ``"degree"``: those with the highest in-degrees in the whole graph, ties by the lower user id. An early version of
      the paper does not say how to choose. The later version prefers candidates with many edges.

    With one hop, a larger ``fanout`` admits all vertices that a smaller one admits. The draws do not depend on epoch and
    number of the batch: as in the paper a server samples once. ``resample`` = 1, 2, ... draws anew. Raises ConfigError for
    ``max_hop`` outside 0..1024 or ``fanout`` outside -1..2**24, UnknownNameError for another ``select``."""

    max_hop: int = 1
    fanout: int = 15
    select: str = "uniform"
    resample: int = 0

    def __post_init__(self) -> None:
        whole("max_hop", self.max_hop, 0, _MAX_HOPS)
        whole("fanout", self.fanout, -1, MAX_VERTICES)
        whole("resample", self.resample, 0, (1 << 63) - 1)
        known_name("selection (select)", self.select, _SELECTIONS)

    def run(self, batch: Batch) -> Program[Sampled]:
        return _grow(batch, 0 if self.fanout == 0 else self.max_hop, _everybody if self.fanout < 0 else self._choose)

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        reached = fresh = min(nodes, seeds)
        for _ in range(self.max_hop):
            if not fresh or reached >= nodes:
                break
            fresh = nodes if self.fanout < 0 else fresh * self.fanout
            reached = min(nodes, reached + fresh)
        return _bounds(reached, edges)

    def _choose(self, grown: _Grown, frontier: np.ndarray, found: Neighbors) -> Program[np.ndarray]:
        scores = None
        if self.select == "degree":
            scores = yield from _by_degree(grown.strangers(found.sources), found.sources)
        key = stream_key(grown.batch.seed, self.resample, 0, 0, hash_string("expansion-aware"))
        keys = grown.batch.keys
        _, chosen = kernels.admit(
            grown.members, frontier, found.counts, found.sources, keys, limit=self.fanout, stream_key=key, scores=scores
        )
        return chosen


@dataclass
class _Grown:
    """The vertices so far, hop by hop, and the in-edges of the vertices that have been expanded. ``rim``: in-degrees of
    the last hop's vertices, int64, if these are not expanded."""

    batch: Batch
    members: kernels.Compactor = field(default_factory=kernels.Compactor)
    ends: list[int] = field(default_factory=lambda: [0])
    found: list[Neighbors] = field(default_factory=list)
    rim: np.ndarray | None = None

    def admit(self, vertices: np.ndarray) -> None:
        """Add a hop: vertices without repeats that are not members yet."""
        self.members.insert(vertices)
        self.ends.append(self.members.size)

    def strangers(self, sources: np.ndarray) -> np.ndarray:
        return np.asarray(self.members.find(sources) < 0)

    def expand(self) -> Program[np.ndarray]:
        """Ask for all in-edges of the last hop's vertices; return these vertices."""
        frontier = self.members.ids(self.ends[-2], self.ends[-1])
        if len(frontier):
            found: Neighbors = yield Expand(frontier)
            self.found.append(found)
        return frontier

    def count(self) -> Program[None]:
        self.rim = yield Degrees(self.members.ids(self.ends[-2], self.ends[-1]))

    def sampled(self) -> Sampled:
        """The members, and all edges among them that end at an expanded vertex."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        degrees = [np.empty(0, dtype=np.int64)]
        first = 0
        for found in self.found:
            row = self.members.find(found.sources)
            col = np.repeat(np.arange(first, first + len(found.counts), dtype=np.int32), found.counts)
            inside = row >= 0
            parts.append((row[inside], col[inside], found.edge_ids[inside]))
            degrees.append(found.counts.astype(np.int64))
            first += len(found.counts)
        if self.rim is not None:
            degrees.append(self.rim.astype(np.int64))
        none = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        row, col, edge_ids = (np.concatenate(arrays) for arrays in zip(none, *parts, strict=True))
        hop = np.repeat(np.arange(len(self.ends) - 1, dtype=np.int32), np.diff(self.ends))
        extra: dict[str, np.ndarray] = {"hop": hop, "degree": np.concatenate(degrees)}
        return Sampled(self.members.ids(0, self.members.size), row, col, edge_ids, extra=extra)


def _grow(
    batch: Batch, hops: int, choose: Callable[[_Grown, np.ndarray, Neighbors], Program[np.ndarray]], *, rim: bool = True
) -> Program[Sampled]:
    """Admit vertices hop by hop. ``choose`` gets a frontier and its in-edges, and says which vertices to admit:
    vertices that are not members, repeats allowed. Those left out may come in a later hop, so all in-edges are kept.
    ``rim``: whether the last hop's vertices are expanded."""
    grown = _Grown(batch)
    grown.admit(batch.seeds)
    for _ in range(hops):
        frontier = yield from grown.expand()
        if not len(frontier):
            return grown.sampled()
        chosen = yield from choose(grown, frontier, grown.found[-1])
        fresh = first_seen(chosen)
        grown.admit(fresh[np.argsort(batch.keys[fresh])])
    if rim:
        yield from grown.expand()
    else:
        yield from grown.count()
    return grown.sampled()


def _everybody(grown: _Grown, frontier: np.ndarray, found: Neighbors) -> Program[np.ndarray]:
    yield from ()  # nothing to ask
    return np.asarray(found.sources[grown.strangers(found.sources)])


def _by_degree(strangers: np.ndarray, sources: np.ndarray) -> Program[np.ndarray]:
    """Scores of ``sources`` (int64 [E]): uint64 [E]. A higher in-degree gives a lower score. Only the scores of
    ``strangers`` matter."""
    different = kernels.Compactor()
    at = different.insert(sources[strangers])
    scores = np.zeros(len(sources), dtype=np.uint64)
    if different.size:
        degrees = yield Degrees(different.ids(0, different.size))
        scores[strangers] = ~degrees.astype(np.uint64)[at]
    return scores


def _bounds(vertices: int, edges: int) -> Bounds:
    extra = {"hop": ("int32", (vertices,)), "degree": ("int64", (vertices,))}
    return Bounds(vertices, min(edges, MAX_EDGES), extra)
