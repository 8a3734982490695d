"""Random walks of a batch, and PinSAGE's neighbourhoods from them. They are the same, draw for draw, as
``atta.samplers.local.walks`` on a local graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.operators.base import Batch, Bounds, Sampled
from atta.samplers.operators.parts.options import MAX_VERTICES, check_number, check_whole
from atta.samplers.operators.parts.subgraph import best_of_seeds
from atta.samplers.operators.parts.walking import MAX_LENGTH, walk
from atta.samplers.requests import Program

__all__ = ["PinSage", "Walks"]

_MAX_VISITS = 1 << 16
_BIASES = 1e-9, 1e10


@dataclass(frozen=True)
class Walks:
    """A walk of ``length`` steps along in-edges from each seed, biased by ``p`` and ``q`` as in node2vec (KDD 2016,
    section 3.2).

    With probability ``restart`` a walker returns to its seed instead of stepping. The batch has no edges.
    ``extra["walks"]``, int64 [S, length + 1], has the vertices of each walk as positions in ``vertices``, -1 after a
    vertex without in-edges.
    """

    length: int
    p: float = 1.0
    q: float = 1.0
    restart: float = 0.0

    def __post_init__(self) -> None:
        check_whole("length", self.length, 0, MAX_LENGTH)
        check_number("p", self.p, *_BIASES)
        check_number("q", self.q, *_BIASES)
        check_number("restart", self.restart, 0.0, 1.0)

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
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
        """See ``Operator``."""
        places = self.length + 1
        return Bounds(min(nodes, seeds * places), 0, {"walks": ("int64", (seeds, places))})


@dataclass(frozen=True)
class PinSage:
    """The vertices that walks from each seed visit most (Ying et al., KDD 2018, section 3.1).

    ``walks`` walks of ``length`` steps start at each seed. An edge joins each of the ``count`` vertices to the seed,
    most visited first, ties by user id. The seed itself does not count. ``extra["weight"]``, int64 [E], has the visits.
    The edges are not edges of the graph, so their ids are -1.
    """

    count: int
    walks: int = 10
    length: int = 3
    restart: float = 0.5

    def __post_init__(self) -> None:
        check_whole("count", self.count, 1, MAX_VERTICES)
        check_whole("walks", self.walks, 1, _MAX_VISITS)
        check_whole("length", self.length, 1, MAX_LENGTH)
        check_number("restart", self.restart, 0.0, 1.0)
        if self.walks * self.length > _MAX_VISITS:
            raise ConfigError(f"walks {self.walks} of length {self.length}: at most {_MAX_VISITS} steps per seed")

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
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
        """See ``Operator``."""
        found = seeds * min(self.count, self.walks * self.length, nodes)
        return Bounds(min(nodes, seeds + found), found, {"weight": ("int64", (found,))})
