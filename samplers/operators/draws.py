"""Random draws in bulk: the ``VertexStream`` of the native code in numpy, and edges drawn without global state."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from atta.samplers import kernels
from atta.samplers.hashing import mix64
from atta.samplers.operators.base import Batch
from atta.samplers.requests import Contains, Degrees, Expand, Program, Step

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
    """Draw ``count`` edges with replacement, u → v with probability ∝ 1 / D_v**power (1 or 2), D_v the in-degree of v:
    int64 [at most count], u and v. Candidates for v are drawn uniformly, by rank of user id, and for power 2 accepted
    with probability 1 / D_v. Then u is a uniform in-neighbour of v. So the sampler needs no statistics of the graph
    beforehand. If many vertices have many in-edges, acceptance is rare: after 64 rounds there may be fewer edges than
    asked for. A graph without edges gives none."""
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


MAX_LENGTH = 1 << 12
"""At most this many steps are in a walk: each step is at least one question to all owners."""
_REJECTIONS = 256
"""Number of rejected proposals after which node2vec weighs all neighbours. Native code has the same number."""
_TOGETHER = 1 << 20
"""At most this many neighbours are weighed together, unless one vertex has more."""


@dataclass(frozen=True)
class _Bias:
    """node2vec's weights of a step back to the previous vertex (1/p) and of a step to a vertex that is not its
    neighbour (1/q)."""

    back: float
    out: float


class _Walkers:
    """Where walkers are and were (``at``, ``before``: int64 [m], -1 = nowhere), and their draws."""

    def __init__(self, starts: np.ndarray, start_keys: np.ndarray, stream_key: int) -> None:
        self.at, self.before = starts.copy(), np.full(len(starts), -1)
        self._streams = streams(np.uint64(stream_key) ^ mix64(np.arange(len(starts))), start_keys)
        self._used = np.zeros(len(starts), dtype=np.uint64)

    def draw(self, who: np.ndarray) -> np.ndarray:
        bits = draw(self._streams[who], self._used[who])
        self._used[who] += np.uint64(1)
        return bits


def walk(
    starts: np.ndarray,
    start_keys: np.ndarray,
    length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    restart: float = 0.0,
    stream_key: int,
) -> Program[np.ndarray]:
    """Walk ``length`` steps from each of ``starts`` (int64 [m] internal ids, ``start_keys`` their user ids). Returns
    int64 [m, length + 1] internal ids, -1 after a vertex without in-edges. What a walker does is a function of the
    stream key, its position in ``starts`` and the user id of its start. Options as for
    ``atta.samplers.local.walks.random_walks``."""
    walkers = _Walkers(starts, start_keys, stream_key)
    bias = None if p == 1.0 and q == 1.0 else _Bias(1.0 / p, 1.0 / q)
    paths = np.full((len(starts), length + 1), -1)
    paths[:, 0] = starts
    for i in range(1, length + 1):
        going = np.flatnonzero(walkers.at >= 0)
        if restart > 0:
            back = unit(walkers.draw(going)) < restart
            walkers.at[going[back]], walkers.before[going[back]] = starts[going[back]], -1
            going = going[~back]
        if len(going):
            then = yield from _steps(walkers, going, bias)
            walkers.before[going], walkers.at[going] = walkers.at[going], then
        paths[:, i] = walkers.at
    return paths


def _steps(walkers: _Walkers, who: np.ndarray, bias: _Bias | None) -> Program[np.ndarray]:
    """Where the walkers ``who`` go next: int64 [len(who)]. Rejection against the largest weight keeps the distribution
    exact (KnightKing, Yang et al., SOSP 2019, section 3)."""
    if bias is None:
        return np.asarray((yield Step(walkers.at[who], walkers.draw(who))))
    then, left = np.full(len(who), -1), np.arange(len(who))
    for _ in range(_REJECTIONS):
        found = yield Step(walkers.at[who[left]], walkers.draw(who[left]))
        fits = (found < 0) | (walkers.before[who[left]] < 0)  # the walk ends, or this is its unbiased first step
        biased = np.flatnonzero(~fits)
        fits[biased] = yield from _fit(walkers, who[left[biased]], found[biased], bias)
        then[left[fits]] = found[fits]
        left = left[~fits]
        if not len(left):
            return then
    then[left] = yield from _weigh_all(walkers, who[left], bias)
    return then


def _fit(walkers: _Walkers, who: np.ndarray, found: np.ndarray, bias: _Bias) -> Program[np.ndarray]:
    marks = unit(walkers.draw(who)) * max(bias.back, 1.0, bias.out)
    returning = found == walkers.before[who]
    fits = marks < np.where(returning, bias.back, min(1.0, bias.out))
    # Whether there is an edge matters only if the mark lies between the two weights.
    unsure = np.flatnonzero(~returning & ~fits & (marks < max(1.0, bias.out)))
    if len(unsure):
        near = yield Contains(walkers.before[who[unsure]], found[unsure])
        fits[unsure] = marks[unsure] < np.where(near, 1.0, bias.out)
    return np.asarray(fits)


def _weigh_all(walkers: _Walkers, who: np.ndarray, bias: _Bias) -> Program[np.ndarray]:
    degrees = yield Degrees(walkers.at[who])
    order = np.argsort(degrees, kind="stable")
    marks, then = unit(walkers.draw(who)), np.empty(len(who), dtype=np.int64)
    while len(order):
        # The table has one row per walker and is as wide as its longest row. Walkers with similar degrees share a
        # table, so little of it is wasted.
        fitting = np.arange(1, len(order) + 1) * degrees[order] <= _TOGETHER
        some = order[: max(1, int(fitting.sum()))]
        order = order[len(some) :]
        then[some] = yield from _by_sums(walkers, who[some], marks[some], bias)
    return then


def _by_sums(walkers: _Walkers, who: np.ndarray, marks: np.ndarray, bias: _Bias) -> Program[np.ndarray]:
    found = yield Expand(walkers.at[who])
    before = np.repeat(walkers.before[who], found.counts)
    near = yield Contains(before, found.sources)
    inside = np.arange(found.counts.max()) < found.counts[:, None]
    weights = np.zeros(inside.shape)
    weights[inside] = np.where(found.sources == before, bias.back, np.where(near, 1.0, bias.out))
    sums = np.cumsum(weights, axis=1)  # one addition after another, as in the native code
    passed = ((sums <= (marks * sums[:, -1])[:, None]) & inside).sum(axis=1)
    first = np.cumsum(found.counts, dtype=np.int64) - found.counts
    return np.asarray(found.sources[first + np.minimum(passed, found.counts - 1)])
