"""All vertices of a type, and rows of the read-only node tables, by user id, outside of batches."""

from __future__ import annotations

import numpy as np

from atta.client.cluster import Cluster
from atta.client.loaders.neighbor import row_ids, vertex_ids, vertices_alone
from atta.errors import ConfigError

_IN_A_SESSION = 1 << 20
"""Ids in one request."""


def ascending_ids(cluster: Cluster, policy: str) -> np.ndarray | None:
    """int64 [n], ascending: the ids of all rows of a table of this policy; None: they are 0, 1, 2, ..."""
    kind, _, name = policy.partition(":")
    if kind != "nodes" or _are_numbered(cluster, policy, cluster.schema.node_counts[name]):
        return None
    return row_ids(cluster, name)


def rows_of_all(cluster: Cluster, policy: str, count: int, ids: np.ndarray | None) -> np.ndarray:
    """int64 [n]: where a table of this policy has the rows of ``ids`` (None: 0 to n - 1), some of ``count`` in all.
    Raises ConfigError: there are more or fewer vertices or edges than ``count``, or one of ``ids`` is none of them."""
    kind, _, name = policy.partition(":")
    known = {"nodes": cluster.schema.node_counts, "edges": cluster.schema.edge_counts}.get(kind, {}).get(name, count)
    if known != count:
        raise ConfigError(f"there are {known} {kind} of type {name!r}, not {count}")
    return cluster.tables.locate(policy, np.arange(count) if ids is None else ids)


def _are_numbered(cluster: Cluster, policy: str, count: int) -> bool:
    """Whether the ids are 0 to ``count`` - 1."""
    try:
        for first in range(0, count, _IN_A_SESSION):
            cluster.tables.locate(policy, np.arange(first, min(first + _IN_A_SESSION, count)))
    except ConfigError:
        return False
    return True


def table_rows(cluster: Cluster, node_type: str, name: str, ids: np.ndarray | None) -> np.ndarray:
    """Rows [n, *row shape] of a node table for ``ids`` (int64 [n], may repeat); None: all, by ascending user id. Raises
    ConfigError: a vertex does not exist. UnknownNameError: there is no such table."""
    spec = cluster.schema.table(node_type, name)
    if ids is None and cluster.schema.room.get(node_type):  # more of it may be in use by now
        ids = vertex_ids(cluster, node_type)
    count = cluster.schema.node_counts[node_type] if ids is None else len(ids)
    out = np.empty((count, *spec.row_shape), np.dtype(spec.dtype))
    if not count:
        return out
    if ids is None:
        _fill(cluster, node_type, name, None, out)
        return out
    unique, inverse = np.unique(ids, return_inverse=True)
    same = len(unique) == len(ids) and bool((unique == ids).all())
    rows = out if same else np.empty((len(unique), *spec.row_shape), out.dtype)
    for first in range(0, len(unique), _IN_A_SESSION):
        piece = slice(first, first + _IN_A_SESSION)
        _fill(cluster, node_type, name, unique[piece], rows[piece])
    if not same:
        np.take(rows, inverse, axis=0, out=out)
    return out


def _fill(cluster: Cluster, node_type: str, name: str, ids: np.ndarray | None, out: np.ndarray) -> None:
    for batch in vertices_alone(cluster, node_type, ids, [name]):
        out[batch.input_id] = batch.table(name, node_type)
