"""The interface of operators: samplers of whole batches, written as programs over ``atta.samplers.requests``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.requests import Program

__all__ = ["Batch", "Bounds", "Operator", "Sampled"]


@dataclass(frozen=True)
class Batch:
    """The input of an operator for one batch of a graph with one node type and one edge type.

    Attributes:
        seeds: int64 [S], different internal ids.
        keys: int64 [N], user ids of all vertices, by internal id. Order and randomness must depend on user ids, never
            on internal ids, which differ between partitionings.
        by_rank: int32|int64 [N], internal ids in ascending order of user ids.
        seed, epoch, number: the draws are a function of these numbers and of user ids.
    """

    seeds: np.ndarray
    keys: np.ndarray
    by_rank: np.ndarray
    seed: int = 0
    epoch: int = 0
    number: int = 0

    def key(self, name: str, step: int = 0) -> int:
        """A stream key (64 bits) for one purpose of this batch."""
        return stream_key(self.seed, self.epoch, self.number, step, hash_string(name))


@dataclass(frozen=True)
class Sampled:
    """The output of an operator: a subgraph, or vertices alone.

    Attributes:
        vertices: int64 [n] internal ids; the seeds come first, in their order. No vertex is repeated unless ``trees``
            is given.
        row, col: int32 [E], positions in ``vertices`` of the edges' sources and targets.
        edge_ids: int64 [E], the users' edge ids.
        trees: int32 [n], or None: the seed (by position) that a vertex belongs to. With trees, one vertex may stand in
            several of them.
        extra: further arrays, as declared in ``Bounds.extra``. A vertex in them is a position in ``vertices``, -1 =
            none.
    """

    vertices: np.ndarray
    row: np.ndarray
    col: np.ndarray
    edge_ids: np.ndarray
    trees: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """The largest size of a batch. Memory is reserved for it, but only the part that a batch fills is touched.

    Attributes:
        vertices, edges: largest number of each.
        extra: further arrays: name → (numpy dtype string, largest shape). The first dimension of a result may be
            shorter.
    """

    vertices: int
    edges: int
    extra: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


class Operator(Protocol):
    """A sampler of batches. Implementations are frozen dataclasses whose fields are their options (numbers, strings,
    lists).

    A daemon makes one operator per session from options that came over the wire: ``__post_init__`` must refuse bad
    options with ConfigError. An operator whose results have ``trees`` sets a class variable ``makes_trees = True``.
    """

    def run(self, batch: Batch) -> Program[Sampled]:
        """Sample one batch."""

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """The largest batch of up to ``seeds`` seeds in a graph of ``nodes`` vertices and ``edges`` edges.

        If it returns no vertices for 0 seeds, the operator needs seeds: a session without seeds is refused.
        """
