"""Counts the edges that the vertices of measured batches sampled, and how many of them lead to the own machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atta.client.loaders.minibatch import MiniBatch
from atta.partition.schema import split_edge_type
from atta.simulate.profile import Draw, Side

MOST_EDGES = 256
"""At most this many sampled edges of a vertex are counted. A vertex with more counts as if it had this many."""


@dataclass(frozen=True)
class Expanded:
    """The expanded vertices of one hop. Entry 0: of other machines. Entry 1: of the batch's own machine.

    ``counts`` [2, MOST_EDGES + 1]: vertices (once per edge type) by their number of sampled edges. ``home``: number of
    sampled edges with a source on the batch's own machine.
    """

    counts: np.ndarray
    edges: np.ndarray
    home: np.ndarray
    vertices: np.ndarray

    @classmethod
    def none(cls) -> Expanded:
        """Counts of zero."""
        return cls(np.zeros((2, MOST_EDGES + 1)), np.zeros(2), np.zeros(2), np.zeros(2))

    def __add__(self, other: Expanded) -> Expanded:
        return Expanded(
            self.counts + other.counts,
            self.edges + other.edges,
            self.home + other.home,
            self.vertices + other.vertices,
        )

    def side(self, place: int, fan_out: int) -> Side:
        """The edges that a vertex of one side samples: min(k, degree) for a fan-out of k."""
        at_least = self.counts[place][::-1].cumsum()[::-1][1:]  # vertices with 1 edge or more, 2 or more, ...
        known = at_least.cumsum()[: fan_out if 0 < fan_out < MOST_EDGES else MOST_EDGES] / max(
            1.0, self.vertices[place]
        )
        edges = float(self.edges[place])
        if not 0 < fan_out <= MOST_EDGES:
            known = np.append(known, edges / max(1.0, self.vertices[place]))
        return Side(tuple(map(float, known)), float(self.home[place] / edges) if edges else 0.0)


def expanded_by_hop(batch: MiniBatch, mine: Mapping[str, np.ndarray]) -> list[Expanded]:
    """The expanded vertices of one batch, by hop. ``mine``: float64 [nodes] by node type, 1 for vertices of the batch's
    own machine."""
    ends = {t: np.cumsum(batch.num_sampled_nodes(t)) for t in batch.node_types}
    hops = max((len(e) for e in ends.values()), default=1) - 1
    found = [Expanded.none() for _ in range(hops)]
    for hop, expanded in enumerate(found):
        for t, end in ends.items():
            own = mine[t][end[hop - 1] if hop else 0 : end[hop]].sum()
            expanded.vertices[:] += end[hop] - (end[hop - 1] if hop else 0) - own, own
    for edge_type in batch.edge_types:
        source, _, target = split_edge_type(edge_type)
        row, col = batch.edge_index(edge_type)
        edges = np.bincount(col, minlength=len(mine[target]))
        home = np.bincount(col, mine[source][row], minlength=len(mine[target]))
        for hop, expanded in enumerate(found):
            end = ends[target]
            part = slice(end[hop - 1] if hop else 0, end[hop])
            own = mine[target][part].astype(np.int64)
            expanded.edges[:] += np.bincount(own, edges[part], 2)
            expanded.home[:] += np.bincount(own, home[part], 2)
            bins = (MOST_EDGES + 1) * own + np.minimum(edges[part], MOST_EDGES)
            expanded.counts[:] += np.bincount(bins, minlength=2 * (MOST_EDGES + 1)).reshape(2, -1)
    return found


def together(some: Sequence[Expanded], more: Sequence[Expanded]) -> list[Expanded]:
    """The sum hop by hop; either may be empty."""
    return [a + b for a, b in zip(some, more, strict=True)] if some and more else [*some, *more]


def added(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> np.ndarray:
    """The sum of two rows of numbers. The shorter row is extended with zeros."""
    found = np.zeros(max(len(a), len(b)))
    found[: len(a)] += a
    found[: len(b)] += b
    return found


def draws_of(expanded: Sequence[Expanded], fan_outs: Sequence[int]) -> tuple[Draw, ...]:
    """The ``draws`` of a profile for these counts."""
    return tuple(Draw(e.side(1, k), e.side(0, k)) for e, k in zip(expanded, fan_outs, strict=False))
