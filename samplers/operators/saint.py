"""GraphSAINT's three samplers (Zeng et al., ICLR 2020, section 3.4): they draw some vertices, and take all edges among
them.

A batch's vertices are its seeds, if it has any, then the drawn vertices in the order in which they were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

from atta.samplers.operators.base import Batch, Bounds, Sampled
from atta.samplers.operators.parts.draws import draw_edges
from atta.samplers.operators.parts.options import MAX_EDGES, MAX_VERTICES, check_whole
from atta.samplers.operators.parts.subgraph import first_seen, induced_subgraph
from atta.samplers.operators.parts.walking import MAX_LENGTH, walk
from atta.samplers.requests import Program

__all__ = ["SaintEdges", "SaintNodes", "SaintWalks"]


@dataclass(frozen=True)
class SaintNodes:
    """``budget`` draws of vertices with replacement; each vertex drawn joins once.

    The probability of a vertex is ∝ the sum of 1 / D_v² over its edges to vertices v, where D_v is the in-degree of v.
    This is the squared norm of its column in the row-normalised adjacency matrix. Graphs that make such draws hard may
    give fewer draws (``draw_edges``).
    """

    budget: int

    def __post_init__(self) -> None:
        check_whole("budget", self.budget, 1, MAX_VERTICES)

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
        sources, _ = yield from draw_edges(batch, self.budget, batch.key("saint-nodes"), power=2)
        return (yield from induced_subgraph(first_seen(batch.seeds, sources)))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """See ``Operator``."""
        return Bounds(min(nodes, seeds + self.budget), min(edges, MAX_EDGES))


@dataclass(frozen=True)
class SaintEdges:
    """``budget`` draws of edges with replacement. Both ends of each edge join, source before target.

    An edge u → v is drawn with probability ∝ 1 / D_v. If every edge is stored in both directions, its two ends are
    therefore drawn with probability ∝ 1 / deg(u) + 1 / deg(v). This is GraphSAINT's choice. In other graphs the sampler
    differs from GraphSAINT.
    """

    budget: int

    def __post_init__(self) -> None:
        check_whole("budget", self.budget, 1, MAX_VERTICES)

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
        sources, targets = yield from draw_edges(batch, self.budget, batch.key("saint-edges"), power=1)
        return (yield from induced_subgraph(first_seen(batch.seeds, sources, targets)))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """See ``Operator``."""
        return Bounds(min(nodes, seeds + 2 * self.budget), min(edges, MAX_EDGES))


@dataclass(frozen=True)
class SaintWalks:
    """All vertices that walks touch. One walk of ``length`` steps along in-edges starts at each seed."""

    length: int

    def __post_init__(self) -> None:
        check_whole("length", self.length, 0, MAX_LENGTH)

    def run(self, batch: Batch) -> Program[Sampled]:
        """See ``Operator``."""
        paths = yield from walk(batch.seeds, batch.keys[batch.seeds], self.length, stream_key=batch.key("saint-walks"))
        return (yield from induced_subgraph(first_seen(batch.seeds, paths.reshape(-1))))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """See ``Operator``."""
        return Bounds(min(nodes, seeds * (self.length + 1)), min(edges, MAX_EDGES))
