"""Random walks of a batch, and PinSAGE's neighbourhoods from them. They are the same, draw for draw, as
``atta.samplers.local.walks`` on a local graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.arguments import whole
from atta.samplers.operators.base import MAX_VERTICES, Batch, Bounds, Sampled, check_number
from atta.samplers.operators.draws import MAX_LENGTH, walk
from atta.samplers.operators.subgraphs import best_of_seeds, spans
from atta.samplers.requests import Degrees, Expand, Program

_MAX_VISITS = 1 << 16
_BIASES = 1e-9, 1e10


@dataclass(frozen=True)
class Walks:
    """A walk of ``length`` steps along in-edges from each seed, biased by ``p`` and ``q`` as in node2vec (KDD 2016,
    section 3.2). With probability ``restart`` a walker returns to its seed instead of stepping. The batch has no edges.
    ``extra["walks"]``, int64 [S, length + 1], has the vertices of each walk as positions in ``vertices``, -1 after a
    vertex without in-edges."""

    length: int
    p: float = 1.0
    q: float = 1.0
    restart: float = 0.0

    def __post_init__(self) -> None:
        whole("length", self.length, 0, MAX_LENGTH)
        check_number("p", self.p, *_BIASES)
        check_number("q", self.q, *_BIASES)
        check_number("restart", self.restart, 0.0, 1.0)

    def run(self, batch: Batch) -> Program[Sampled]:
        paths = yield from walk(
            batch.seeds,
            batch.keys[batch.seeds],
            self.length,
            p=self.p,
            q=self.q,
            restart=self.restart,
            stream_key=batch.key("walks"),
        )
        known = kernels.Compactor()
        known.insert(batch.seeds)
        positions = np.full(paths.shape, -1)
        positions[paths >= 0] = known.insert(paths[paths >= 0])
        none = np.empty(0, dtype=np.int32)
        return Sampled(known.ids(0, known.size), none, none, np.empty(0, np.int64), extra={"walks": positions})

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        places = self.length + 1
        return Bounds(min(nodes, seeds * places), 0, {"walks": ("int64", (seeds, places))})


@dataclass(frozen=True)
class PinSage:
    """The vertices that walks from each seed visit most (Ying et al., KDD 2018, section 3.1). ``walks`` walks of
    ``length`` steps start at each seed. An edge joins each of the ``count`` vertices to the seed, most visited first,
    ties by user id. The seed itself does not count. ``extra["weight"]``, int64 [E], has the visits. The edges are not
    edges of the graph, so their ids are -1."""

    count: int
    walks: int = 10
    length: int = 3
    restart: float = 0.5

    def __post_init__(self) -> None:
        whole("count", self.count, 1, MAX_VERTICES)
        whole("walks", self.walks, 1, _MAX_VISITS)
        whole("length", self.length, 1, MAX_LENGTH)
        check_number("restart", self.restart, 0.0, 1.0)
        if self.walks * self.length > _MAX_VISITS:
            raise ConfigError(f"walks {self.walks} of length {self.length}: at most {_MAX_VISITS} steps per seed")

    def run(self, batch: Batch) -> Program[Sampled]:
        starts = np.repeat(batch.seeds, self.walks)
        key = batch.key("pinsage")
        paths = yield from walk(starts, batch.keys[starts], self.length, restart=self.restart, stream_key=key)
        visited = paths[:, 1:].reshape(len(batch.seeds), self.walks * self.length)
        counted = (visited >= 0) & (visited != batch.seeds[:, None])
        nodes = max(1, len(batch.keys))
        places = np.nonzero(counted)[0] * nodes + visited[counted]
        places, visits = np.unique(places, return_counts=True)
        of_seed, vertices = np.divmod(places, nodes)
        sampled, weight = best_of_seeds(batch, of_seed, vertices, visits, self.count)
        return replace(sampled, extra={"weight": weight})

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        found = seeds * min(self.count, self.walks * self.length, nodes)
        return Bounds(min(nodes, seeds + found), found, {"weight": ("int64", (found,))})


@dataclass(frozen=True)
class PageRank:
    """The ``count`` vertices with the highest personalised PageRank of each seed (Andersen et al., FOCS 2006, section
    3). ``alpha`` is the probability of returning to the seed. A vertex keeps back mass of at most ``epsilon`` times its
    in-degree (at least 1). So a score is too low by at most the sum of these masses, and never too high. A seed costs
    at most 1 / (alpha * epsilon) edges. An edge joins each vertex found (even the seed itself) to the seed, the highest
    score first, ties by user id. ``extra["weight"]``, float64 [E], has the scores. The edges are not edges of the
    graph, so their ids are -1."""

    count: int
    alpha: float = 0.15
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        whole("count", self.count, 1, MAX_VERTICES)
        check_number("alpha", self.alpha, 1e-3, 1.0)
        check_number("epsilon", self.epsilon, 1e-12, 1.0)

    def run(self, batch: Batch) -> Program[Sampled]:
        of_seed, vertices, scores = yield from _push(batch, self.alpha, self.epsilon)
        sampled, weight = best_of_seeds(batch, of_seed, vertices, scores, self.count)
        return replace(sampled, extra={"weight": weight})

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """Each vertex with a score was pushed with a mass above epsilon, and all pushed mass is at most 1 / alpha."""
        found = seeds * min(self.count, nodes, int(1 / (self.alpha * self.epsilon)) + 1)
        return Bounds(min(nodes, seeds + found), found, {"weight": ("float64", (found,))})


def _push(batch: Batch, alpha: float, epsilon: float) -> Program[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Push in rounds: all pairs that hold too much mass when the round begins. Returns seeds' positions, vertices
    (internal ids) and scores of all pairs with a score. Mass is added up in the order in which it is sent, so rounding
    does not depend on internal ids."""
    pairs, rows = _Pairs(batch), _KnownInEdges()
    yield from pairs.insert(np.arange(len(batch.seeds)), batch.seeds, np.ones(len(batch.seeds)), epsilon)
    score = np.zeros(len(batch.seeds))
    while len(active := np.flatnonzero(pairs.mass > pairs.limit)):
        mass = pairs.mass[active]
        pairs.mass[active] = 0
        score[active] += alpha * mass
        of_seed, vertices = pairs.of_seed[active], pairs.vertices[active]
        counts, sources = yield from rows.of(vertices)
        # A walker at a vertex without in-edges returns to the seed.
        ends = counts == 0
        share = (1 - alpha) * mass / np.maximum(counts, 1)
        yield from pairs.insert(
            np.concatenate([np.repeat(of_seed, counts), of_seed[ends]]),
            np.concatenate([sources, batch.seeds[of_seed[ends]]]),
            np.concatenate([np.repeat(share, counts), share[ends]]),
            epsilon,
        )
        score = np.concatenate([score, np.zeros(len(pairs.mass) - len(score))])
    scored = score > 0
    return pairs.of_seed[scored], pairs.vertices[scored], score[scored]


class _Pairs:
    """Pairs of a seed (``of_seed``: its position) and a vertex that mass has reached. ``mass`` beyond ``limit`` must be
    pushed."""

    def __init__(self, batch: Batch) -> None:
        self._nodes, self._known = max(1, len(batch.keys)), kernels.Compactor()
        self.of_seed, self.vertices = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self.mass, self.limit = np.empty(0), np.empty(0)

    def insert(self, of_seed: np.ndarray, vertices: np.ndarray, mass: np.ndarray, epsilon: float) -> Program[None]:
        before = self._known.size
        local = self._known.insert(of_seed * self._nodes + vertices)
        if self._known.size > before:
            fresh_seed, fresh = np.divmod(self._known.ids(before, self._known.size), self._nodes)
            different, at = np.unique(fresh, return_inverse=True)
            degrees = yield Degrees(different)
            self.of_seed = np.concatenate([self.of_seed, fresh_seed])
            self.vertices = np.concatenate([self.vertices, fresh])
            self.limit = np.concatenate([self.limit, epsilon * np.maximum(1, degrees)[at]])
            self.mass = np.concatenate([self.mass, np.zeros(len(fresh))])
        self.mass += np.bincount(local, mass, len(self.mass))


class _KnownInEdges:
    """In-edges that have been asked for. They are kept because a vertex is pushed many times, and for many seeds."""

    def __init__(self) -> None:
        self._known = kernels.Compactor()
        self._counts, self._sources = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def of(self, vertices: np.ndarray) -> Program[tuple[np.ndarray, np.ndarray]]:
        """In-degrees of ``vertices`` (int64 [m]), and the sources of their in-edges one after another."""
        before = self._known.size
        local = self._known.insert(vertices)
        if self._known.size > before:
            found = yield Expand(self._known.ids(before, self._known.size))
            self._counts = np.concatenate([self._counts, found.counts])
            self._sources = np.concatenate([self._sources, found.sources])
        begin = np.cumsum(self._counts) - self._counts
        return self._counts[local], self._sources[spans(begin[local], self._counts[local])]
