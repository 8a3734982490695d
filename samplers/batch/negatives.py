"""Negative samples: for the positive edges of a batch, pairs of vertices that are probably, or certainly, not edges."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from atta.errors import ConfigError
from atta.partition.dataset import VertexTimes
from atta.samplers import kernels
from atta.samplers.arguments import number
from atta.samplers.hashing import mix64
from atta.samplers.requests import Contains, DegreeSums, Program

_ATTEMPTS = 64
"""At most this many draws per pair. After them all targets of the pair's source are tried in turn."""
_TOGETHER = 1 << 16
"""Number of targets that are tried at once."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class NegativeStrategy(enum.Enum):
    """Where the ends of negative edges come from."""

    UNIFORM = "uniform"
    """Any vertices, as in PyG. Some pairs may be edges by chance."""
    DEGREE = "degree"
    """Sources of positives; targets in proportion to their in-degree to the power of 3/4 (word2vec's choice)."""
    IN_BATCH = "in_batch"
    """Sources of positives; targets of other positives of the batch, whose rows are needed anyway."""
    EXACT = "exact"
    """As ``UNIFORM``, but a pair is never an edge of the graph, and never a vertex with itself."""


@dataclass(frozen=True)
class NegativeLinks:
    """How many negatives a positive edge gets: ``amount`` pairs (binary), or ``amount`` other targets for its source
    (triplet). Raises ConfigError if the amount is not above 0, or if it is not whole with triplets."""

    triplet: bool = False
    amount: float = 1.0
    strategy: NegativeStrategy = NegativeStrategy.UNIFORM

    def __post_init__(self) -> None:
        number("amount of negatives", self.amount, "a number above 0", above=0)
        if self.triplet and self.amount != int(self.amount):
            raise ConfigError(f"amount of negatives {self.amount:g}: triplets need a whole number")

    def count(self, positives: int) -> int:
        """Number of negative pairs for this many positives."""
        return positives * int(self.amount) if self.triplet else ceil(positives * self.amount)


@dataclass(frozen=True)
class Positives:
    """The positive edges of a batch.

    Attributes:
        sources, targets: int64 [P] internal ids.
        by_rank: internal ids of all sources, and of all targets, in ascending order of user ids.
        same_type: sources and targets are vertices of one type.
        times: int64 [P]; None: they have no times.
        since: when sources and targets begin to exist; None: always. Only with ``times``.
    """

    sources: np.ndarray
    targets: np.ndarray
    by_rank: tuple[np.ndarray, np.ndarray]
    same_type: bool
    times: np.ndarray | None = None
    since: tuple[VertexTimes | None, VertexTimes | None] = (None, None)

    def ends(self, end: int, of_pairs: np.ndarray) -> _Candidates:
        """What sources (``end`` 0) or targets (1) of pairs are drawn from; ``of_pairs`` int64: their positives."""
        since = self.since[end]
        if since is None or self.times is None:
            return _Candidates(self.by_rank[end], np.full(len(of_pairs), len(self.by_rank[end])))
        return _Candidates(since.order, np.maximum(1, since.existing(self.times[of_pairs])))


class _Candidates(NamedTuple):
    """For each pair the first ``counts`` (int64) of the internal ids ``order``. They are all vertices, or those that
    exist at the time of the pair. If none does, it is the earliest one."""

    order: np.ndarray
    counts: np.ndarray


def draw_negatives(spec: NegativeLinks, given: Positives, key: int) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Draw negatives: int64 [count] sources and targets (internal ids). The negatives of one triplet stand next to each
    other. The draws are a function of ``key`` and of the positives' order. An end that is drawn is never later than the
    positive, unless every vertex is: then it is the earliest. Raises ConfigError: there is no vertex to draw, or
    (``EXACT``) a source has edges to all vertices."""
    count, positives = spec.count(len(given.sources)), len(given.sources)
    if positives == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    draws = _Draws(key, count)
    of_positive = np.arange(count) // int(spec.amount) if spec.triplet else np.arange(count) % positives
    sources = given.sources[of_positive]
    if not spec.triplet and spec.strategy in (NegativeStrategy.UNIFORM, NegativeStrategy.EXACT):
        sources = draws.vertices(0, given.ends(0, of_positive))
    match spec.strategy:
        case NegativeStrategy.UNIFORM:
            return sources, draws.vertices(1, given.ends(1, of_positive))
        case NegativeStrategy.DEGREE:
            sums = yield DegreeSums(by_time=given.since[1] is not None)
            if not len(sums) or sums[-1] == 0:
                raise ConfigError("negative samples by degree: no vertex has in-edges")
            ends = given.ends(1, of_positive)
            most = sums[ends.counts - 1]
            ranks = np.searchsorted(sums, kernels.scaled(draws.bits(1), most), side="right")
            drawn = ends.order[np.minimum(ranks, len(sums) - 1)].astype(np.int64)
            # Where no vertex that exists has in-edges, each of them is as likely.
            return sources, np.where(most > 0, drawn, draws.vertices(1, ends))
        case NegativeStrategy.IN_BATCH:
            return sources, given.targets[_others(given, of_positive, draws)]
        case NegativeStrategy.EXACT:
            free = None if spec.triplet else given.ends(0, of_positive)
            return (yield from _exact(sources, given, draws, given.ends(1, of_positive), free))


def _others(given: Positives, of_positive: np.ndarray, draws: _Draws) -> np.ndarray:
    """int64: for each pair another positive, whose target it gets. If there is no other, it is the pair's own. With
    times, it is one of the positives whose targets exist at the time of the pair's."""
    count, since, mine, order = len(given.targets), given.since[1], of_positive, None
    those = np.full(len(of_positive), count)
    if since is not None and given.times is not None:
        begins = since.times[given.targets]
        order = np.argsort(begins, kind="stable")
        mine = np.argsort(order)[of_positive]
        those = np.searchsorted(begins[order], given.times[of_positive], side="right")
    # Among the others that may come, shift by 1 to n - 1 places: this never gives the positive itself.
    inside = mine < those
    shift = kernels.scaled(draws.bits(1), np.maximum(1, those - inside))
    found = np.where(inside, (mine + 1 + shift) % np.maximum(1, those), shift)
    found = np.where(those > inside, found, mine)
    return found if order is None else order[found]


def _exact(
    sources: np.ndarray, given: Positives, draws: _Draws, ends: _Candidates, free: _Candidates | None
) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Reject pairs that are edges. If this takes too long, try the targets of a source one after another. ``free``:
    what sources may be drawn from; None: they stay."""
    sources, targets = sources.copy(), draws.vertices(1, ends)
    open_pairs = np.arange(len(sources))
    for attempt in range(1, _ATTEMPTS):
        taken = yield from _taken(sources[open_pairs], targets[open_pairs], given)
        open_pairs = open_pairs[taken]
        if not len(open_pairs):
            return sources, targets
        if free is not None:
            sources[open_pairs] = draws.vertices(2 * attempt, free)[open_pairs]
        targets[open_pairs] = draws.vertices(2 * attempt + 1, ends)[open_pairs]
    start = kernels.scaled(draws.bits(2 * _ATTEMPTS), ends.counts)
    for pair in open_pairs.tolist():  # few pairs: their sources have edges to nearly all vertices
        those = ends.order[: int(ends.counts[pair])]
        targets[pair] = yield from _first_free(int(sources[pair]), int(start[pair]), those, given)
    return sources, targets


def _taken(sources: np.ndarray, targets: np.ndarray, given: Positives) -> Program[np.ndarray]:
    edges = yield Contains(targets, sources)
    return np.asarray(edges | (sources == targets) if given.same_type else edges, dtype=bool)


def _first_free(source: int, start: int, everything: np.ndarray, given: Positives) -> Program[int]:
    for at in range(0, len(everything), _TOGETHER):
        ranks = (start + np.arange(at, min(at + _TOGETHER, len(everything)))) % len(everything)
        targets = everything[ranks].astype(np.int64)
        taken = yield from _taken(np.full(len(targets), source), targets, given)
        if not taken.all():
            return int(targets[np.argmin(taken)])
    then = "" if given.since[1] is None else " that exist at the time of its edge"
    raise ConfigError(f"exact negative samples: a source has edges to all vertices{then}")


class _Draws:
    """Random numbers of ``count`` pairs. Draw i of a pair is a function of the key, the pair's position and i."""

    def __init__(self, key: int, count: int) -> None:
        self._base = mix64(mix64(np.arange(count)) ^ np.uint64(key))

    def bits(self, index: int) -> np.ndarray:
        return mix64(self._base + np.array([index], dtype=np.uint64) * _GOLDEN)

    def vertices(self, index: int, ends: _Candidates) -> np.ndarray:
        if not len(ends.order):
            raise ConfigError("negative samples: there are no vertices to draw from")
        return np.asarray(ends.order[kernels.scaled(self.bits(index), ends.counts)], dtype=np.int64)


def times_of_trees(times: np.ndarray, negatives: Iterable[NegativeLinks]) -> np.ndarray:
    """int64 [trees]: the time of each tree's seed, from the ``times`` (int64) of a batch's positive edges. The ends of
    a negative edge have the time of its positive edge; the sources of triplets have no trees of their own."""
    found = [times, times]
    for links in negatives:
        of_pairs = times[np.arange(links.count(len(times))) % max(1, len(times))]
        found += [of_pairs] if links.triplet else [of_pairs, of_pairs]
    return np.concatenate(found)
