"""Edges are drawn by weight, never those of weight 0. With replacement draws are independent; without, edges are drawn
one after another, each by its weight among the edges that are left."""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers.methods.base import DrawnEdges, InEdges, NeighborMethod

_ROUNDING = 1e-6
"""Sums of weights that differ by less, relatively, are the same."""


def _prepare(edges: InEdges) -> _native.Method:
    if edges.weight is None:
        raise ConfigError("the edges have no weights to draw by")
    if edges.weight.ndim != 1:
        raise ConfigError(f"edges are drawn by one number each, not by rows of shape {list(edges.weight.shape[1:])}")
    weights = np.ascontiguousarray(edges.weight, dtype=np.float64)
    return _native.Method.weighted(edges.indptr, weights, edges.threads)


def _unbiased(drawn: DrawnEdges) -> np.ndarray:
    """Without replacement the estimator of Des Raj ("Some estimators in sampling with varying probabilities without
    replacement", 1956): the mean of one unbiased estimate for each draw, which knows all the draws before."""
    counts, fan_out = drawn.counts.astype(np.int64), drawn.fan_out
    of = np.repeat(np.arange(len(counts)), counts)
    share = drawn.weight / drawn.total[of]
    if fan_out < 0:
        return np.ones(len(share))
    if drawn.replace:
        return np.asarray(1 / (fan_out * share))
    ends = np.cumsum(counts)
    at = np.arange(len(share)) - (ends - counts)[of]
    # Vertex by vertex, as sums over several would round differently with other vertices before.
    until = np.zeros((len(counts), 1 + int(counts.max(initial=0))))
    until[of, at + 1] = share
    before = np.cumsum(until, axis=1)[of, at]
    later = counts[of] - 1 - at
    # Who gets all of its edges gets them in no order of draws. Edges of weight 0 never come.
    most = np.bincount(of, weights=drawn.weight, minlength=len(counts))
    every = (counts < fan_out) | (drawn.degree <= fan_out) | (most >= drawn.total * (1 - _ROUNDING))
    return np.where(every[of], 1.0, ((1 - before) / share + later) / fan_out)


METHOD = NeighborMethod(number=1, prepare=_prepare, table="weight", needs_table=True, weigh_edges=_unbiased)
