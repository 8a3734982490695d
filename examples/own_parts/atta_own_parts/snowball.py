"""An operator of your own: the seeds and, in each round, the in-neighbours with the most edges into the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError
from atta.samplers.operators import Batch, Bounds, Expand, Program, Sampled, first_seen, induced_subgraph


@dataclass(frozen=True)
class Snowball:
    """Each of ``rounds`` rounds adds ``width`` vertices. Ties: the smaller user id. The batch is the induced subgraph."""

    rounds: int = 2
    width: int = 32

    def __post_init__(self) -> None:
        if not (0 < self.rounds <= 100 and 0 < self.width <= 1 << 20):
            raise ConfigError(f"rounds {self.rounds}, width {self.width}: must lie in 1..100 and 1..{1 << 20}")

    def run(self, batch: Batch) -> Program[Sampled]:
        """Sample one batch: every ``yield`` asks the whole graph and is sent the answer."""
        members = batch.seeds
        for _ in range(self.rounds):
            found = yield Expand(members)  # all in-edges, wherever they are stored
            outside, edges = np.unique(found.sources[~np.isin(found.sources, members)], return_counts=True)
            best = np.lexsort((batch.keys[outside], -edges))[: self.width]
            members = first_seen(members, outside[best])
        return (yield from induced_subgraph(members))

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """The largest batch, for which memory is reserved."""
        vertices = min(nodes, seeds + self.rounds * self.width)
        return Bounds(vertices, min(edges, 1 << 31))
