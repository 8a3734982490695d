"""Random draws in bulk: the ``VertexStream`` of the native code in numpy, and edges drawn without global state."""

from __future__ import annotations

from math import ceil

import numpy as np

from atta.samplers import kernels
from atta.samplers.hashing import mix64
from atta.samplers.operators.base import Batch
from atta.samplers.requests import Degrees, Program, Step

__all__ = ["draw", "draw_edges", "streams", "unit"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 64
_FEWEST, _MOST = 64, 1 << 16  # number of candidates of one round: at least, at most


def streams(keys: int | np.ndarray, ids: np.ndarray) -> np.ndarray:
    """One stream of draws for each of ``ids`` (int64 [m]) under ``keys`` (one, or uint64 [m]): uint64 [m]."""
    return mix64(np.asarray(keys, dtype=np.uint64) ^ mix64(ids))


def draw(streams: np.ndarray, index: int | np.ndarray) -> np.ndarray:
    """Draw number ``index`` (one, or [m]) of each stream: 64 random bits, uint64 [m]."""
    return mix64(streams + np.atleast_1d(np.asarray(index, dtype=np.uint64)) * _GOLDEN)


def unit(bits: np.ndarray) -> np.ndarray:
    """Random bits (uint64 [m]) as float64 [m] in [0, 1)."""
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def draw_edges(batch: Batch, count: int, key: int, *, power: int) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Draw ``count`` edges with replacement, u → v with probability ∝ 1 / D_v**power (1 or 2). D_v is the in-degree of
    v.

    Candidates for v are drawn uniformly, by rank of user id. For power 2 a candidate is accepted with probability 1 /
    D_v. Then u is a uniform in-neighbour of v. So the sampler needs no statistics of the graph beforehand. If many
    vertices have many in-edges, acceptance is rare: after 64 rounds there may be fewer edges than asked for. A graph
    without edges gives none.

    Returns u and v, int64 [at most count] each.
    """
    sources, targets = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    tried, most = 0, max(4 * count, min(_MOST, _FEWEST * len(batch.by_rank)))
    for _ in range(_ROUNDS if len(batch.by_rank) else 0):
        missing = count - len(sources)
        if missing <= 0:
            break
        # The accepted candidates decide only how large the next round is. A candidate depends on its number alone.
        wanted = min(most, max(_FEWEST, ceil(1.25 * missing * (tried + 1) / (len(sources) + 1))))
        found = yield from _candidates(batch, streams(key, np.arange(tried, tried + wanted)), power)
        sources, targets = np.concatenate([sources, found[0]]), np.concatenate([targets, found[1]])
        tried += wanted
    return sources[:count], targets[:count]


def _candidates(batch: Batch, numbers: np.ndarray, power: int) -> Program[tuple[np.ndarray, np.ndarray]]:
    """The edges of the accepted candidates. Candidates are given by their streams (``numbers``), and a rejected one
    gives no edge."""
    ranks = kernels.scaled(draw(numbers, 0), np.full(len(numbers), len(batch.by_rank)))
    targets = batch.by_rank[ranks].astype(np.int64)
    if power == 2:
        degrees = yield Degrees(targets)
        accepted = (degrees > 0) & (kernels.scaled(draw(numbers, 1), np.maximum(degrees, 1)) == 0)
        targets, numbers = targets[accepted], numbers[accepted]
    if not len(targets):
        return targets, targets
    sources = yield Step(targets, draw(numbers, 2))
    return sources[sources >= 0], targets[sources >= 0]
