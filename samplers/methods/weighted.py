"""Edges are drawn by weight. An edge of weight 0 is never drawn.

With replacement the draws are independent. Without replacement edges are drawn one after another, each by its weight
among the edges that are left.
"""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers.methods.base import InEdges, NeighborMethod

__all__ = ["METHOD"]


def _prepare(edges: InEdges) -> _native.Method:
    if edges.weight is None:
        raise ConfigError("the edges have no weights to draw by")
    if edges.weight.ndim != 1:
        raise ConfigError(f"edges are drawn by one number each, not by rows of shape {list(edges.weight.shape[1:])}")
    weights = np.ascontiguousarray(edges.weight, dtype=np.float64)
    return _native.Method.weighted(edges.indptr, weights, edges.threads)


METHOD = NeighborMethod(number=1, prepare=_prepare, table="weight", needs_table=True)
