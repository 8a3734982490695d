"""Streaming partitioning: vertices arrive one by one. Each goes to the partition with most of its neighbours that has
room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import capacities, constraints, known_balance
from atta.partition.cutting.union import Union
from atta.partition.graph import Graph

ORDERS = ("bfs", "given", "random")


@dataclass(frozen=True)
class Ldg:
    """Linear deterministic greedy (Stanton and Kliot, KDD 2012), restreamed (Nishimura and Ugander, KDD 2013).

    Attributes:
        passes: number of passes over all vertices. From the second pass on, the partitions of later vertices are known
            from the pass before.
        order: ``"random"``, ``"given"`` (rows) or ``"bfs"`` (breadth first).
        slack: how far a partition may exceed its share.
    """

    passes: int = 5
    order: str = "random"
    slack: float = 0.03

    def __post_init__(self) -> None:
        if not 1 <= self.passes <= 1000 or self.order not in ORDERS or not 0 <= self.slack <= 10:
            raise ConfigError(
                f"passes {self.passes}, order {self.order!r}, slack {self.slack}: must be 1 to 1000, "
                f"one of {', '.join(ORDERS)}, and 0 to 10"
            )

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        return dict.fromkeys(names, self.slack)

    @property
    def power(self) -> float:
        """The power of its size that a partition costs; 0: it costs nothing."""
        return 0.0

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        names = known_balance(graph, balance)
        progress.stage("union graph", None)
        union = Union.of(graph)
        n, gamma = union.num_nodes, self.power
        weights, room = limits(graph, names, parts, self.slack)
        # Fennel's alpha makes the cost of even partitions equal to the cost of a random cut (section 3 of its paper).
        alpha = np.sqrt(parts) * len(union.indices) / 2 / max(1.0, float(n) ** 1.5) if gamma else 0.0
        order, flat = _order(union, self.order, seed), weights.reshape(-1)
        owners: npt.NDArray[np.int32] | None = None
        progress.stage("streaming", self.passes)
        for _ in range(self.passes):
            placed = np.full(n, -1, np.int32)
            _native.stream_vertices(union.indptr, union.indices, order, owners, placed, parts, flat, room, alpha, gamma)
            owners = placed
            progress.advance(1)
        assert owners is not None
        # The last vertices go where room is left. This may be far from their neighbours, or may unbalance another quantity.
        union.settle(owners, parts, weights, room, 1, lambda _: None)
        return union.by_type(owners)


@dataclass(frozen=True)
class Fennel(Ldg):
    """Fennel (Tsourakakis et al., WSDM 2014): as ``Ldg``, but a partition costs its size to the power ``gamma``."""

    slack: float = 0.1
    gamma: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.gamma <= 10:
            raise ConfigError(f"gamma {self.gamma}: must lie above 1 and be at most 10")

    @property
    def power(self) -> float:
        return self.gamma


def limits(
    graph: Graph,
    names: Sequence[str],
    parts: int,
    slack: float,
    in_degrees: Mapping[str, npt.NDArray[np.int64]] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Vertex weights [N, C], with a first column that counts vertices, and how much a partition may hold, [C]."""
    weights = constraints(graph, ("nodes", *names), in_degrees)
    room = capacities(weights, parts, slack)
    if "nodes" not in names:
        room[0] = np.inf
    return weights, room


def _order(union: Union, order: str, seed: int) -> npt.NDArray[np.int64]:
    if order == "bfs":
        return _native.breadth_first(union.indptr, union.indices)
    if order == "random":
        return np.random.default_rng(seed).permutation(union.num_nodes)
    return np.arange(union.num_nodes)
