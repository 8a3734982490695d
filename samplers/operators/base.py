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
    """What an operator is given for one batch of a graph with one node type and one edge type.

    Attributes:
        seeds: int64 [S], different internal ids.
        keys: int64 [N], user ids of all vertices, by internal id. Order and randomness must depend on them, never on
            internal ids: those differ between partitionings.
        by_rank: int32|int64 [N], internal ids in ascending order of user ids.
        seed, epoch, number: what randomness is a function of, besides user ids.
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
    """What an operator returns: a subgraph, or vertices alone.

    Attributes:
        vertices: int64 [n] internal ids; the seeds come first, in their order. Different ones, unless ``trees`` is
            given.
        row, col: int32 [E], positions in ``vertices`` of the edges' sources and targets.
        edge_ids: int64 [E], the users' edge ids.
        trees: int32 [n], or None: which seed (by position) a vertex belongs to; one vertex may then stand in several
            trees.
        extra: further arrays, as declared in ``Bounds.extra``; vertices in them are positions in ``vertices``, -1 =
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
        vertices, edges: numbers of them.
        extra: further arrays: name → (numpy dtype string, largest shape); the first dimension may come out shorter.
    """

    vertices: int
    edges: int
    extra: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


class Operator(Protocol):
    """A sampler of batches. Implementations are frozen dataclasses whose fields are their options (numbers, strings,
    lists).

    A daemon makes one per session from options that came over the wire: ``__post_init__`` must refuse bad ones with
    ConfigError. One whose results have ``trees`` says so by a class variable ``makes_trees = True``.
    """

    def run(self, batch: Batch) -> Program[Sampled]:
        """Sample one batch."""

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """The largest batch of up to ``seeds`` seeds in a graph of ``nodes`` vertices and ``edges`` edges.

        No vertices for 0 seeds means that the operator needs seeds: a session without seeds is refused.
        """
