"""What a server, a machine with several trainers, computes on (GraNNDis, Song et al., PACT 2024), extracted from a
local graph.

``atta.server_subgraph`` extracts the same, bit for bit, from the daemons of a partitioned graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.local.graph import LocalGraph
from atta.samplers.operators.base import Batch, Sampled
from atta.samplers.operators.server import Closure, ExpansionAware
from atta.samplers.requests import LocalAccess, run

__all__ = ["DEFAULT_RULE", "Rule", "ServerGraph", "server_subgraph"]

Rule = Closure | ExpansionAware
"""Who joins a server's own vertices."""
DEFAULT_RULE = ExpansionAware()
"""What the paper trains with: one hop, 15 neighbours."""


@dataclass(frozen=True)
class ServerGraph:
    """A server's subgraph: n vertices, numbered 0 ... n - 1, and the E edges among them.

    Attributes:
        n_id: int64 [n], user ids: the inner vertices in the order in which they were given, then hop by hop what was
            admitted, by ascending user id.
        hop: int32 [n], the hop that admitted a vertex; 0: inner. In a closure, its distance from the inner vertices.
        row, col: int32 [E], numbers of the edges' sources and targets, ordered by target, then by user id of the
            source.
        e_id: int64 [E], the users' edge ids; None where they were left out.
        degree: int64 [n], in-degrees in the whole graph.
        tables: rows of node tables by name, [n, *row shape]; none where a graph has no tables.
        splits: by name which vertices belong to a split, bool [n].
    """

    n_id: np.ndarray
    hop: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray | None
    degree: np.ndarray
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return len(self.n_id)

    @property
    def num_inner(self) -> int:
        """Number of inner vertices; they come first."""
        return int(np.searchsorted(self.hop, 1))

    @property
    def inner(self) -> np.ndarray:
        """bool [n]: which vertices are inner."""
        return np.asarray(self.hop == 0)

    def graph(self) -> LocalGraph:
        """The subgraph as a graph of its own, whose positions are the numbers of the vertices and whose keys are
        ``n_id``."""
        indptr = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.col, minlength=self.num_nodes), out=indptr[1:])
        return LocalGraph.from_csc(indptr, self.row, keys=self.n_id, edge_ids=self.e_id)

    def co_batch(self, targets: Any, hops: int) -> ServerGraph:
        """What ``hops`` layers over ``targets`` (numbers of vertices, int [T]) depend on within this subgraph (section
        4.4).

        Its inner vertices are the targets, its degrees still those of the whole graph; tables and splits come along.

        Raises:
            ConfigError: a target that is not a vertex here; ``hops`` out of range.
        """
        found = _extract(self.graph(), targets, Closure(hops), seed=0, threads=1)
        at = found.vertices
        return replace(
            _server_graph(self.n_id, found),
            e_id=None if self.e_id is None else found.edge_ids,
            degree=self.degree[at],
            tables={name: table[at] for name, table in self.tables.items()},
            splits={name: mask[at] for name, mask in self.splits.items()},
        )


def server_subgraph(
    graph: LocalGraph, inner: Any, rule: Rule = DEFAULT_RULE, *, seed: int = 0, threads: int = 1
) -> ServerGraph:
    """Extract what a server with the vertices ``inner`` computes on.

    Args:
        graph: between vertices of one type.
        inner: positions in the graph, int [m]; repeated ones count once.
        rule: ``Closure(hops)`` or ``ExpansionAware(max_hop, fanout, select, resample)``; their docstrings define who is
            admitted.
        seed: of the uniform choice, 0 to 2**64 - 1. The result is a function of it, the rule and user ids.
        threads: for reading edges; without effect on the result.

    Raises:
        ConfigError: an inner vertex outside the graph, a graph between two types.
    """
    return _server_graph(graph.keys, _extract(graph, inner, rule, seed=seed, threads=threads))


def _extract(graph: LocalGraph, inner: Any, rule: Rule, *, seed: int, threads: int) -> Sampled:
    ids = np.asarray(inner)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise ConfigError(f"vertices must be integers in one dimension, not {ids.dtype} {list(ids.shape)}")
    if len(ids) and not (ids.min() >= 0 and ids.max() < graph.num_nodes):
        raise ConfigError(f"vertices lie in {ids.min()}..{ids.max()}, the graph has {graph.num_nodes}")
    if graph.source_keys is not None:
        raise ConfigError("a server's subgraph needs edges between vertices of one type")
    different = kernels.Compactor()
    different.insert(ids.astype(np.int64))
    by_rank = np.empty(0, dtype=np.int64)  # no rule looks at it, and sorting all user ids takes its time
    batch = Batch(different.ids(0, different.size), graph.keys, by_rank, seed)
    return run(rule.run(batch), LocalAccess(graph, threads=threads))


def _server_graph(keys: np.ndarray, found: Sampled) -> ServerGraph:
    return ServerGraph(
        keys[found.vertices], found.extra["hop"], found.row, found.col, found.edge_ids, found.extra["degree"]
    )
