"""Extract the graph that a server (a machine with several trainers) computes on from a local graph (GraNNDis, Song et
al., PACT 2024). ``atta.server_subgraph`` extracts the same, bit for bit, from daemons."""

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

Rule = Closure | ExpansionAware
"""The rule that says which vertices join a server's own vertices."""
DEFAULT_RULE = ExpansionAware()
"""The paper's choice for training: one hop, 15 neighbours."""


@dataclass(frozen=True)
class ServerGraph:
    """A server's subgraph: n vertices, numbered 0 ... n - 1, and the E edges among them.

    Attributes:
        n_id: int64 [n], user ids: the inner vertices as they were given, then hop by hop the admitted ones, ascending.
        hop: int32 [n], the hop that admitted a vertex; 0: inner. In a closure, its distance from the inner vertices.
        row, col: int32 [E], numbers of sources and targets, ordered by target, then by user id of the source.
        e_id: int64 [E], the users' edge ids; None if they were left out.
        degree: int64 [n], in-degrees in the whole graph.
        tables: rows of node tables by name, [n, *row shape]. ``splits``: which vertices belong to each, bool [n]."""

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
        """The subgraph as a graph of its own. Its positions are the numbers of the vertices, its keys are ``n_id``."""
        indptr = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.col, minlength=self.num_nodes), out=indptr[1:])
        return LocalGraph.from_csc(indptr, self.row, keys=self.n_id, edge_ids=self.e_id)

    def co_batch(self, targets: Any, hops: int) -> ServerGraph:
        """The part of this subgraph that ``hops`` layers over ``targets`` (numbers of vertices, int [T]), its inner
        vertices, depend on (section 4.4), with rows of tables and splits. Its degrees are still those in the whole
        graph. Raises ConfigError: a target is not a vertex of this subgraph, or ``hops`` is out of range."""
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
    """Extract the graph that a server with the vertices ``inner`` (positions, int [m]; a repeated one counts once)
    computes on. ``graph``: between vertices of one type. The result is a function of the ``seed`` of uniform choices, 0
    to 2**64 - 1, the ``rule`` and user ids. ``threads`` read edges. Raises ConfigError: an inner vertex is outside the
    graph, or the graph is between two types."""
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
    by_rank = np.empty(0, dtype=np.int64)  # no rule reads it, and sorting all user ids is slow
    batch = Batch(different.ids(0, different.size), graph.keys, by_rank, seed)
    return run(rule.run(batch), LocalAccess(graph, threads=threads))


def _server_graph(keys: np.ndarray, found: Sampled) -> ServerGraph:
    return ServerGraph(
        keys[found.vertices], found.extra["hop"], found.row, found.col, found.edge_ids, found.extra["degree"]
    )
