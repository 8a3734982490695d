"""Rows of the read-only node tables by user id, outside of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atta.client.loaders.neighbor import vertices_alone

if TYPE_CHECKING:
    from atta.client.cluster import Cluster

__all__ = ["table_rows"]

_IN_A_SESSION = 1 << 20
"""Ids in one request."""


def table_rows(cluster: Cluster, node_type: str, name: str, ids: np.ndarray | None) -> np.ndarray:
    """Rows [n, *row shape] of a node table for ``ids`` (int64 [n], may repeat); None: all, by ascending user id.

    Raises:
        ConfigError: a vertex does not exist. UnknownNameError: there is no such table.
    """
    spec = cluster.schema.table(node_type, name)
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
