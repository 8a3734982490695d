"""The ends of edges by their ids. Daemons find edges by their destinations, so ends are read in passes over vertices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.client.loaders.neighbor import NeighborLoader
from atta.errors import ConfigError

if TYPE_CHECKING:
    from atta.client.cluster import Cluster

_TOGETHER = 1 << 13
"""Vertices per batch."""


@dataclass(frozen=True)
class KnownEdges:
    """Edges with their ids and ends, int64 [E] each."""

    e_id: np.ndarray
    src: np.ndarray
    dst: np.ndarray


def in_edges(cluster: Cluster, edge_type: str, targets: np.ndarray | None) -> KnownEdges:
    """All in-edges of ``targets`` (int64, distinct); None: of every vertex, so all edges of the type."""
    schema = cluster.schema
    source, target = schema.endpoints(edge_type)
    pieces = [
        (batch.e_id(edge_type), batch.n_id(source)[row], batch.n_id(target)[col])
        for batch in _passes(cluster, edge_type, targets)
        for row, col in [batch.edge_index(edge_type)]
    ]
    if not pieces:
        return KnownEdges(*(np.empty(0, np.int64) for _ in range(3)))
    return KnownEdges(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def edge_column(cluster: Cluster, edge_type: str, name: str) -> np.ndarray:
    """All rows [E, *row shape] of an edge table by edge id."""
    spec = cluster.schema.edge_tables[edge_type][name]
    out = np.empty((cluster.schema.edge_counts[edge_type], *spec.row_shape), spec.dtype)
    for batch in _passes(cluster, edge_type, None, edge_tables={edge_type: [name]}):
        out[batch.e_id(edge_type)] = batch.edge_table(name, edge_type)
    return out


def out_degrees(cluster: Cluster, edge_type: str) -> np.ndarray:
    """int64 [vertices of the sources' type]: number of out-edges of each, in a pass over all edges."""
    source = cluster.schema.endpoints(edge_type)[0]
    degrees: np.ndarray = np.zeros(cluster.schema.node_counts[source], np.int64)
    for batch in _passes(cluster, edge_type, None):
        row, _ = batch.edge_index(edge_type)
        np.add.at(degrees, batch.n_id(source)[row], 1)
    return degrees


class EdgeEnds:
    """Finds the ends of edges. Keeps those of this trainer's part, and all once others were asked for.

    The part's take 24 bytes an edge, and all edges 24 bytes an edge of the graph.
    """

    def __init__(self, cluster: Cluster, edge_type: str, mine: Callable[[], np.ndarray]) -> None:
        """``mine()`` gives the vertices of this trainer's part."""
        self._cluster, self._edge_type, self._mine = cluster, edge_type, mine
        self._known: KnownEdges | None = None
        self._all = False

    def find(self, e_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations, int64 [n] each, of the edges ``e_id``.

        Raises:
            ConfigError: an edge does not exist.
        """
        if self._known is None:
            self._keep(in_edges(self._cluster, self._edge_type, self._mine()))
        found, at = self._look(e_id)
        if not found.all() and not self._all:
            self._keep(in_edges(self._cluster, self._edge_type, None))
            self._all = True
            found, at = self._look(e_id)
        if not found.all():
            raise ConfigError(f"{e_id[~found][0]} is not an edge of {self._edge_type}")
        assert self._known is not None
        return self._known.src[at], self._known.dst[at]

    def _keep(self, edges: KnownEdges) -> None:
        order = np.argsort(edges.e_id)
        self._known = KnownEdges(edges.e_id[order], edges.src[order], edges.dst[order])

    def _look(self, e_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._known is not None
        known = self._known.e_id
        at = np.asarray(np.searchsorted(known, e_id))
        if not len(known):
            return np.zeros(len(e_id), bool), at
        at = np.minimum(at, len(known) - 1)
        return known[at] == e_id, at


def _passes(cluster: Cluster, edge_type: str, targets: np.ndarray | None, **options: Any) -> Any:
    """Batches that together have all in-edges of ``targets``, and no node tables."""
    schema = cluster.schema
    fan_outs = {other: [-1 if other == edge_type else 0] for other in schema.edge_types}
    if targets is not None and not len(targets):
        return ()
    return NeighborLoader(
        cluster, fan_outs, (schema.endpoints(edge_type)[1], targets), batch_size=_TOGETHER, tables={}, rank=0,
        world_size=1, seed_policy="global", **options,
    )  # fmt: skip
