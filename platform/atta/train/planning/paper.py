"""The performance model of GraNNDis (Song et al., PACT 2024, section 4), equations (3) to (9), as functions.

It needs only the numbers of vertices and edges, so it also predicts for a graph that does not exist yet. For an
existing graph, counted closures (``count``) replace the growth D^alpha, which real graphs follow for a few hops at
most.

Symbols of the paper, and how its misprints are read:

- V, E, D: vertices, edges, mean in-degree. N_s servers of N_g devices each. C, B_internal, B_external: vertices per
  second.
- The growth of L layers is printed D^alpha L; the prose ("grows at the rate of D^alpha every layer") and section 4.3
  want the exponent D^(alpha L), which is ``growth``. The worked example of equation (7) takes the product, which is
  ``growth_as_printed``.
- Equations (8) and (9) print m^alpha k. The base is the fan-out, the exponent has the hops: fanout^(alpha max_hop),
  ``sampled_growth``.
- Equation (8) prints (N_s N_g - 1) where (4) has (N_g - 1) / N_g. Sampling without bounds is preloading, so both use
  the form of (4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atta.errors import ConfigError

_SATURATED = 0.5
"""Share of the graph above which a closure grows more slowly because few vertices are left."""


@dataclass(frozen=True)
class PaperCluster:
    """A graph and the machines that train on it, in the paper's units.

    Attributes:
        vertices, edges: V and E.
        servers, devices: N_s, and N_g per server.
        compute: C, vertices per second of a device.
        internal, external: B_internal and B_external, vertices per second of a device.

    Raises ConfigError if a figure is not positive.
    """

    vertices: float
    edges: float
    servers: int
    devices: int
    compute: float
    internal: float
    external: float

    def __post_init__(self) -> None:
        if not all(value > 0 for value in vars(self).values()):
            raise ConfigError("vertices, edges, servers, devices and speeds must be positive")

    @property
    def degree(self) -> float:
        """D, the mean in-degree."""
        return self.edges / self.vertices


def previous_seconds(cluster: PaperCluster) -> float:
    """Equation (3): full-graph training where servers exchange boundary rows."""
    c = cluster
    total = c.servers * c.devices
    inside = (c.devices - 1) / total / c.internal
    outside = (1 - 1 / c.servers) / c.external
    return c.vertices / (total * c.compute) + c.edges / total * (inside + outside)


def preload_seconds(cluster: PaperCluster, grown: float) -> float:
    """Equations (4) and (8): every server computes ``grown`` times its own vertices and sends no rows.

    ``grown``: ``growth`` with shared preloading, ``sampled_growth`` with expansion-aware sampling.
    """
    c = cluster
    total = c.servers * c.devices
    inside = (c.devices - 1) / c.devices / c.internal
    return grown * (c.vertices / (total * c.compute) + c.edges / total * inside)


def growth(degree: float, alpha: float, layers: int) -> float:
    """D^(alpha L): the size of a closure after L hops, relative to the vertices that it starts from."""
    return float(degree ** (alpha * layers))


def growth_as_printed(degree: float, alpha: float, layers: int) -> float:
    """D^alpha times L, the form in which the paper works out its example."""
    return float(degree**alpha * layers)


def sampled_growth(fanout: float, alpha: float, max_hop: int) -> float:
    """fanout^(alpha max_hop): the size of an expansion-aware sample, relative to the server's vertices."""
    return float(fanout ** (alpha * max_hop))


def within_servers(cluster: PaperCluster, grown: float) -> bool:
    """Inequality (5): 1 < growth <= N_s N_g, because nothing is larger than the whole graph."""
    return 1 < grown <= cluster.servers * cluster.devices


def speed_gap(cluster: PaperCluster, grown: float) -> float:
    """C / B_external - (growth - 1) / D, the difference of the sides of (7). Above 0 shared preloading beats (3) if
    inner links are fast.
    """
    return cluster.compute / cluster.external - (grown - 1) / cluster.degree


def preloading_pays(cluster: PaperCluster, grown: float) -> bool:
    """Inequalities (6) and (7), which are equivalent: C / B_external > (growth - 1) / D.

    The paper derives them with 1 / B_internal and 1 / N_s close to 0.
    """
    return speed_gap(cluster, grown) > 0


def sampling_is_smaller(cluster: PaperCluster, sampled: float, grown: float) -> bool:
    """Inequality (9): 1 < growth of sampling < growth of preloading <= N_s N_g."""
    return 1 < sampled < grown and within_servers(cluster, grown)


def fitted_alpha(closure: Sequence[float], vertices: float, degree: float) -> float | None:
    """The alpha for which D^(alpha h) fits counted closure sizes best; None if they do not determine it.

    closure: vertices within 0, 1, ... hops, of one server; vertices: of the whole graph. Least squares of logarithms,
    over hops that reach at most half of the graph (the first hop always counts).
    """
    if degree <= 1 or len(closure) < 2 or closure[0] <= 0:
        return None
    hops = [h for h in range(1, len(closure)) if h == 1 or closure[h] <= _SATURATED * vertices]
    logs = [math.log(closure[h] / closure[0]) for h in hops]
    return sum(h * y for h, y in zip(hops, logs, strict=True)) / sum(h * h for h in hops) / math.log(degree)
