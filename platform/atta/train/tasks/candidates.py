"""The pairs that an edge of validation or test is ranked among: the same for any number of partitions and trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atta.samplers.hashing import mix64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GraphPairs:
    """The different pairs of vertices that are edges of a graph, without loops.

    Attributes:
        ids: int64 [n], user ids of all vertices, ascending. A vertex' place in it stands for the vertex below. Those of
            sources, if targets are of another node type.
        keys: int64 [pairs], source * (number of targets) + target, ascending.
        others: int64 [m], user ids of the targets' node type, ascending; None: it is that of the sources.
    """

    ids: Ints
    keys: Ints
    others: Ints | None = None

    @classmethod
    def of(cls, ids: Ints, sources: Ints, targets: Ints, others: Ints | None = None) -> GraphPairs:
        """Make it from user ids: of all vertices (in any order), and of the ends of all edges."""
        empty = cls(np.sort(ids), np.empty(0, np.int64), None if others is None else np.sort(others))
        return replace(empty, keys=np.unique(empty.keys_of(sources, targets)[0]))

    def keys_of(self, sources: Ints, targets: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Keys of edges that are no loops, and which edges these are, bool [edges]; ends are given as user ids."""
        kept = sources != targets if self.others is None else np.ones(len(sources), np.bool_)
        ends = np.searchsorted(self.ids, sources[kept]), np.searchsorted(self.target_ids, targets[kept])
        return ends[0] * len(self.target_ids) + ends[1], kept

    @property
    def target_ids(self) -> Ints:
        """User ids of the vertices that targets are among, ascending."""
        return self.ids if self.others is None else self.others

    @property
    def most(self) -> int:
        """How many targets a source may have. A vertex is no target of its own."""
        return len(self.target_ids) - (self.others is None)

    def ends(self, keys: Ints) -> tuple[Ints, Ints]:
        """Places of the sources and of the targets of some pairs."""
        return keys // len(self.target_ids), keys % len(self.target_ids)

    def user_ids(self, keys: Ints) -> Ints:
        """int64 [2, pairs]: user ids of sources and targets."""
        sources, targets = self.ends(keys)
        return np.stack([self.ids[sources], self.target_ids[targets]])

    def candidates(self, keys: Ints, count: int | None) -> OtherTargets:
        """Other targets for the sources of some pairs: vertices that are neither the source nor at the end of an edge of it.

        count: how many per pair, drawn uniformly with replacement; None: all of them. A pair that has at most ``count``
        of them gets each once.
        """
        n = len(self.target_ids)
        sources, of_pair = np.unique(self.ends(keys)[0], return_inverse=True)
        taken, starts = self._taken(sources)
        free = (n - np.diff(starts))[of_pair]
        width = int(free.max(initial=0)) if count is None else min(count, int(free.max(initial=0)))
        number = np.broadcast_to(np.arange(width), (len(keys), width))
        if count is not None:
            number = np.where((free > count)[:, None], self._draws(keys, free, width), number)
        # Below the i-th taken place, in order, there are as many free places as its place minus i.
        before = taken - (np.arange(len(taken)) - np.repeat(starts[:-1], np.diff(starts)))
        owner = np.repeat(np.arange(len(sources)), np.diff(starts))
        skipped = np.searchsorted(owner * (n + 1) + before, of_pair[:, None] * (n + 1) + number, side="right")
        places = number + skipped - starts[of_pair][:, None]
        there = number < free[:, None]
        return OtherTargets(np.where(there, places, 0), there)

    def _taken(self, sources: Ints) -> tuple[Ints, Ints]:
        """Places that are no candidates of each source, ascending; and where those of a source begin [sources + 1]."""
        n, own = len(self.target_ids), self.others is None
        begin, end = np.searchsorted(self.keys, sources * n), np.searchsorted(self.keys, (sources + 1) * n)
        sizes = end - begin
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        edges = self.keys[np.repeat(begin, sizes) + within]
        taken = np.sort(np.concatenate([edges, sources * n + sources] if own else [edges])) % n
        return taken, np.concatenate([[0], np.cumsum(sizes + own)])

    def _draws(self, keys: Ints, free: Ints, width: int) -> Ints:
        """int64 [pairs, width]: numbers below ``free``, a function of the pair's user ids and the column."""
        source, target = self.user_ids(keys).view(np.uint64)
        base = mix64(mix64(source) ^ target)[:, None]
        bits = mix64(base + np.arange(width, dtype=np.uint64)[None] * _GOLDEN)
        shares = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.minimum((shares * free[:, None]).astype(np.int64), free[:, None] - 1)


@dataclass(frozen=True)
class OtherTargets:
    """Candidates of n pairs.

    places: int64 [n, k], places of other targets; there: bool [n, k], false where a pair has fewer.
    """

    places: Ints
    there: npt.NDArray[np.bool_]
