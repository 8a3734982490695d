"""Negative samples for edges: for the positive edges of a batch, pairs of vertices are drawn that are probably, or
certainly, not edges."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.arguments import number
from atta.samplers.hashing import mix64
from atta.samplers.requests import Contains, DegreeSums, Program

__all__ = ["NegativeLinks", "NegativeStrategy", "Positives", "draw_negatives", "times_of_trees"]

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
    (triplet).

    Raises ConfigError if the amount is not above 0, or if it is not whole with triplets.
    """

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
    """

    sources: np.ndarray
    targets: np.ndarray
    by_rank: tuple[np.ndarray, np.ndarray]
    same_type: bool


def draw_negatives(spec: NegativeLinks, given: Positives, key: int) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Draw negatives: int64 [count] sources and targets (internal ids). The negatives of one triplet stand next to each
    other.

    The draws are a function of ``key`` and of the positives' order.

    Raises:
        ConfigError: there is no vertex to draw, or (``EXACT``) a source has edges to all vertices.
    """
    count, positives = spec.count(len(given.sources)), len(given.sources)
    if positives == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    draws = _Draws(key, count)
    of_positive = np.arange(count) // int(spec.amount) if spec.triplet else np.arange(count) % positives
    sources = given.sources[of_positive]
    if not spec.triplet and spec.strategy in (NegativeStrategy.UNIFORM, NegativeStrategy.EXACT):
        sources = draws.vertices(0, given.by_rank[0])
    match spec.strategy:
        case NegativeStrategy.UNIFORM:
            return sources, draws.vertices(1, given.by_rank[1])
        case NegativeStrategy.DEGREE:
            sums = yield DegreeSums()
            if not len(sums) or sums[-1] == 0:
                raise ConfigError("negative samples by degree: no vertex has in-edges")
            ranks = np.searchsorted(sums, kernels.scaled(draws.bits(1), np.full(count, sums[-1])), side="right")
            return sources, given.by_rank[1][ranks].astype(np.int64)
        case NegativeStrategy.IN_BATCH:
            # Shift by 1 to P - 1 places: this never gives the positive itself. A single positive has no other to
            # choose.
            shift = 1 + kernels.scaled(draws.bits(1), np.full(count, max(1, positives - 1)))
            return sources, given.targets[(of_positive + shift) % positives]
        case NegativeStrategy.EXACT:
            return (yield from _exact(sources, given, draws, free_source=not spec.triplet))


def _exact(
    sources: np.ndarray, given: Positives, draws: _Draws, *, free_source: bool
) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Reject pairs that are edges. If this takes too long, try the targets of a source one after another."""
    sources, targets = sources.copy(), draws.vertices(1, given.by_rank[1])
    open_pairs = np.arange(len(sources))
    for attempt in range(1, _ATTEMPTS):
        taken = yield from _taken(sources[open_pairs], targets[open_pairs], given)
        open_pairs = open_pairs[taken]
        if not len(open_pairs):
            return sources, targets
        if free_source:
            sources[open_pairs] = draws.vertices(2 * attempt, given.by_rank[0])[open_pairs]
        targets[open_pairs] = draws.vertices(2 * attempt + 1, given.by_rank[1])[open_pairs]
    everything = given.by_rank[1]
    start = kernels.scaled(draws.bits(2 * _ATTEMPTS), np.full(len(sources), len(everything)))
    for pair in open_pairs.tolist():  # few pairs: their sources have edges to nearly all vertices
        targets[pair] = yield from _first_free(int(sources[pair]), int(start[pair]), given)
    return sources, targets


def _taken(sources: np.ndarray, targets: np.ndarray, given: Positives) -> Program[np.ndarray]:
    """Mark the pairs that cannot be negatives."""
    edges = yield Contains(targets, sources)
    return np.asarray(edges | (sources == targets) if given.same_type else edges, dtype=bool)


def _first_free(source: int, start: int, given: Positives) -> Program[int]:
    everything = given.by_rank[1]
    for at in range(0, len(everything), _TOGETHER):
        ranks = (start + np.arange(at, min(at + _TOGETHER, len(everything)))) % len(everything)
        targets = everything[ranks].astype(np.int64)
        taken = yield from _taken(np.full(len(targets), source), targets, given)
        if not taken.all():
            return int(targets[np.argmin(taken)])
    raise ConfigError("exact negative samples: a source has edges to all vertices")


class _Draws:
    """Random numbers of ``count`` pairs. Draw i of a pair is a function of the key, the pair's position and i."""

    def __init__(self, key: int, count: int) -> None:
        self._base = mix64(mix64(np.arange(count)) ^ np.uint64(key))

    def bits(self, index: int) -> np.ndarray:
        """uint64 [count]: draw ``index`` of each pair."""
        return mix64(self._base + np.array([index], dtype=np.uint64) * _GOLDEN)

    def vertices(self, index: int, by_rank: np.ndarray) -> np.ndarray:
        """int64 [count]: uniform vertices."""
        if not len(by_rank):
            raise ConfigError("negative samples: there are no vertices to draw from")
        ranks = kernels.scaled(self.bits(index), np.full(len(self._base), len(by_rank)))
        return np.asarray(by_rank[ranks], dtype=np.int64)


def times_of_trees(times: np.ndarray, negatives: Iterable[NegativeLinks]) -> np.ndarray:
    """int64 [trees]: the time of each tree's seed, from the ``times`` (int64) of a batch's positive edges. The ends of
    a negative edge have the time of its positive edge."""
    found = [times, times]
    for links in negatives:
        count = links.count(len(times))
        of_positive = np.arange(count) // int(links.amount) if links.triplet else np.arange(count) % max(1, len(times))
        found += [times[of_positive], times[of_positive]]
    return np.concatenate(found)
