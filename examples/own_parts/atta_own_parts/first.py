"""A neighbour method: the first ``fan_out`` in-neighbours of each vertex, by user id. It is not random."""

from __future__ import annotations

import numpy as np

from atta.samplers.methods.base import Hop, NeighborMethod, Picks


def _draw(hop: Hop) -> Picks:
    counts = hop.degree if hop.fan_out < 0 else np.minimum(hop.degree, hop.fan_out)
    before = np.cumsum(counts) - counts  # of this vertex: edges of the vertices before it
    return Picks(counts, np.arange(int(counts.sum())) + np.repeat(hop.first - before, counts))


first = NeighborMethod(draw=_draw, may_replace=False, deterministic=True)
