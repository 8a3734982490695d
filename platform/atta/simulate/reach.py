"""How many different vertices a batch reaches, for other batch sizes and fan-outs than those measured.

Smaller batches meet fewer vertices twice, so they reach more per sampled edge; larger ones reach fewer. The vertices of
the batch's own machine are treated apart from all others: own ones are met more often, so they repeat sooner.

Of N vertices whose popularity follows a gamma distribution of shape k, D draws reach this number::

    distinct(D) = N * (1 - (1 + D / (N k)) ** -k)

Few draws all reach different vertices, very many reach all N. A small k means that hubs take most draws. Every measured
hop gives the k that explains what the draws had reached by then. Between hops k is interpolated, below the first one
extrapolated.

Remote rows that batches have in common: while one batch waits for a row, others need not ask for it
(``daemon.peers.underway``).

``Expanded`` counts in measured batches what vertices draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from atta.client.loaders.minibatch import MiniBatch
from atta.partition.names import split_edge_type
from atta.simulate.profile import Draw, Profile, Side

_SHAPES = 1e-4, 1e6
_STEPS = 60


class OwnAndOther(NamedTuple):
    """Numbers for the vertices of a batch's own machine, and for those of all others."""

    own: float
    other: float


def edges_per_vertex(side: Side, fan_out: int, measured: int, degree: float) -> float:
    """Edges that an expanded vertex samples; beyond the ``measured`` fan-out estimated from the mean ``degree``."""
    known = len(side.edges)
    if measured < 0 and not 0 < fan_out <= known:
        return side.edges[-1]
    if 0 < fan_out <= known:
        return side.edges[fan_out - 1]
    wanted = degree if fan_out < 0 else min(float(fan_out), degree)
    return side.edges[-1] * max(1.0, wanted / min(float(measured), max(1.0, degree)))


@dataclass(frozen=True)
class _Curve:
    """Different vertices by draws, on one side."""

    vertices: float
    draws: np.ndarray  # at the measured hops, ascending
    shapes: np.ndarray
    factors: np.ndarray  # seeds are all different, so small graphs yield more than the formula

    @classmethod
    def through(cls, vertices: float, draws: list[float], reached: list[float]) -> _Curve:
        points = [(d, t) for d, t in zip(draws, reached, strict=True) if d > 0 and t > 0]
        shapes = [_shape(d, min(t, vertices), vertices) for d, t in points]
        factors = [t / _distinct(d, vertices, k) for (d, t), k in zip(points, shapes, strict=True)]
        return cls(vertices, np.array([d for d, _ in points]), np.array(shapes), np.array(factors))

    def at(self, draws: float, growth: float) -> float:
        if not len(self.draws) or draws <= 0:
            return 0.0
        where, known = math.log(draws), np.log(self.draws)
        factor, vertices = float(np.interp(where, known, self.factors)), growth * self.vertices
        return min(draws, vertices, factor * _distinct(draws, vertices, self._shape_at(where, known)))

    def _shape_at(self, where: float, known: np.ndarray) -> float:
        shapes = np.log(self.shapes)
        shape = float(np.interp(where, known, shapes))
        # Few draws hit mostly hubs: continue the slope between the first two hops.
        if where < known[0] and len(known) > 1:
            slope = (shapes[1] - shapes[0]) / max(1e-9, known[1] - known[0])
            shape += min(1.0, max(0.0, slope)) * (where - known[0])
        return math.exp(shape)


class Reach:
    """What batches of a profile with ``draws`` reach for other batch sizes and fan-outs. ``growth``: how many times as
    many vertices there are, of the same popularity: hubs grow with the graph."""

    def __init__(self, profile: Profile, growth: float = 1.0) -> None:
        self._profile, self._growth = profile, growth
        sizes = [OwnAndOther(hop.new * hop.home, hop.new * (1 - hop.home)) for hop in profile.hops]
        drawn = [sizes[0]]
        for number, before in enumerate(sizes[:-1]):
            own, other = profile.draws[number].own, profile.draws[number].other
            drawn.append(_led(before, OwnAndOther(own.edges[-1], other.edges[-1]), (own, other)))
        self._curves = [
            _Curve.through(
                profile.vertices[side],
                list(np.cumsum([d[side] for d in drawn]))[1:],
                list(np.cumsum([s[side] for s in sizes]))[1:],
            )
            for side in (0, 1)
        ]

    def sizes(self, batch_size: float, fan_outs: tuple[int, ...]) -> list[OwnAndOther]:
        """New vertices (of the own machine, of others): of the seeds, then of every hop."""
        profile = self._profile
        home = profile.hops[0].home
        found = [OwnAndOther(batch_size * home, batch_size * (1 - home))]
        drawn, reached = found[0], found[0]
        for number, fan_out in enumerate(fan_outs):
            hop = min(number, len(profile.draws) - 1)
            draw, measured = profile.draws[hop], profile.fan_outs[hop]
            edges = OwnAndOther(
                edges_per_vertex(draw.own, fan_out, measured, profile.degree),
                edges_per_vertex(draw.other, fan_out, measured, profile.mean_degree),
            )
            more = _led(found[-1], edges, (draw.own, draw.other))
            drawn = OwnAndOther(drawn.own + more.own, drawn.other + more.other)
            now = OwnAndOther(
                max(reached.own, self._curves[0].at(drawn.own, self._growth)),
                max(reached.other, self._curves[1].at(drawn.other, self._growth)),
            )
            found.append(OwnAndOther(now.own - reached.own, now.other - reached.other))
            reached = now
        return found


def _led(sizes: OwnAndOther, edges: OwnAndOther, sides: tuple[Side, Side]) -> OwnAndOther:
    """Edges (to vertices of the own machine, to others) that ``sizes`` expanded vertices of either side sample."""
    own, other = sizes.own * edges.own, sizes.other * edges.other
    home = own * sides[0].home + other * sides[1].home
    return OwnAndOther(home, own + other - home)


def _distinct(draws: float, vertices: float, shape: float) -> float:
    return -vertices * math.expm1(-shape * math.log1p(draws / (vertices * shape)))


def _shape(draws: float, reached: float, vertices: float) -> float:
    low, high = _SHAPES
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        if _distinct(draws, vertices, middle) < reached:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


STEPS = 4
"""Number of points per batch under way at which the curve is computed. Between them it is a line."""
MOST_OTHERS = 64
"""Largest number of other batches under way that the curve covers."""


class Overlap:
    """How much of what a batch pulls is under way already, from how often rows occurred in measured batches."""

    def __init__(self, repeats: Sequence[float], hit: float = 0.0) -> None:
        """``repeats``: entry i is the number of rows that i + 1 of ``len(repeats)`` batches wanted. The hottest rows
        make up a share ``hit`` of all wanted ones. They are in a cache and never pulled."""
        batches, numbers = len(repeats), np.arange(1, len(repeats) + 1, dtype=np.float64)
        wanted = numbers * np.asarray(repeats, dtype=np.float64)
        hotter = np.cumsum(wanted[::-1])[::-1] - wanted  # than those of an entry
        pulled = wanted - np.clip(hit * wanted.sum() - hotter, 0.0, wanted)
        self._curve = np.zeros(1)
        if batches > 1 and pulled.sum() > 0:
            others = np.arange(0, min(MOST_OTHERS, batches - 1) + 0.5 / STEPS, 1 / STEPS)
            self._curve = (1.0 - _none_has(batches, numbers[:, None], others)).T @ pulled / pulled.sum()

    def share(self, others: float) -> float:
        """Share of a batch's pulled rows that at least one of ``others`` other batches has asked for. May be a
        fraction."""
        at = min(max(0.0, others * STEPS), len(self._curve) - 1.0)
        below = int(at)
        above = min(below + 1, len(self._curve) - 1)
        return float(self._curve[below] + (at - below) * (self._curve[above] - self._curve[below]))


def _none_has(batches: int, numbers: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Probability [numbers, others] that none of ``others`` batches wants a row which one more wants, if ``numbers`` of
    ``batches`` want it: C(batches - numbers, others) / C(batches - 1, others), by the gamma function."""
    left = batches - numbers - others + 1
    log = (
        gammaln(batches - numbers + 1) - gammaln(np.maximum(left, 1e-9)) - gammaln(batches) + gammaln(batches - others)
    )
    return np.where(left > 0, np.exp(np.minimum(log, 0.0)), 0.0)


MOST_EDGES = 256
"""At most this many sampled edges of a vertex are counted. A vertex with more counts as if it had this many."""


@dataclass(frozen=True)
class Expanded:
    """The expanded vertices of one hop. Entry 0: of other machines. Entry 1: of the batch's own machine. ``counts`` [2,
    MOST_EDGES + 1]: vertices (once per edge type) by their number of sampled edges. ``home``: number of sampled edges
    with a source on the batch's own machine."""

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
            self.counts + other.counts, self.edges + other.edges, self.home + other.home, self.vertices + other.vertices
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


def draws_of(expanded: Sequence[Expanded], fan_outs: Sequence[int]) -> tuple[Draw, ...]:
    """The ``draws`` of a profile for these counts."""
    return tuple(Draw(e.side(1, k), e.side(0, k)) for e, k in zip(expanded, fan_outs, strict=False))
