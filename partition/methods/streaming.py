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
from atta.partition.cutting.tasks import thread_count
from atta.partition.cutting.union import Union
from atta.partition.dataset import Dataset
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
        weights, room = limits(graph, names, parts, self.slack, union.by_type(union.in_degrees))
        # Fennel's alpha makes the cost of even partitions equal to the cost of a random cut (section 3 of its paper).
        alpha = np.sqrt(parts) * len(union.indices) / 2 / max(1.0, float(n) ** 1.5) if gamma else 0.0
        order, flat = _order(union, self.order, seed), weights.reshape(-1)
        owners: npt.NDArray[np.int32] | None = None
        progress.stage("streaming", self.passes)
        for _ in range(self.passes):
            placed = np.full(n, -1, np.int32)
            given = order, owners, placed, parts, flat, room, alpha, gamma, thread_count()
            _native.stream_vertices(union.indptr, union.indices, *given)
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


@dataclass(frozen=True)
class Extend:
    """Vertices stay where they are; new ones go, one by one, to the partition with most of their neighbours that has
    room, as in ``Ldg``.

    Attributes:
        data: folder of the earlier dataset. Vertices are the same if their user ids are.
        slack: how far a partition may exceed its share before new vertices go elsewhere.
    """

    data: str
    slack: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.slack <= 10:
            raise ConfigError(f"slack {self.slack}: must be 0 to 10")

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        """Vertices that stay may exceed them."""
        return dict.fromkeys(names, self.slack)

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        """New vertices are placed in the order of their rows. Raises ConfigError: the earlier dataset has another
        number of partitions. DataError: it cannot be read."""
        progress.stage("reading the earlier partitions", None)
        earlier = Dataset.described(self.data)
        if earlier.num_parts != parts:
            raise ConfigError(f"--parts {parts}: {self.data} has {earlier.num_parts} partitions, which stay")
        names, owners = known_balance(graph, balance), np.concatenate(_owners(graph, earlier))
        progress.stage("union graph", None)
        union = Union.of(graph)
        weights, room = limits(graph, names, parts, self.slack, union.by_type(union.in_degrees))
        progress.stage("placing new vertices", None)
        new = np.flatnonzero(owners < 0)
        flat = weights.reshape(-1)
        given = new, None, owners, parts, flat, room, 0.0, 0.0, thread_count()
        _native.stream_vertices(union.indptr, union.indices, *given)
        return union.by_type(owners)


def _owners(graph: Graph, earlier: Dataset) -> list[npt.NDArray[np.int32]]:
    found = []
    for node_type, count in graph.schema.node_counts.items():
        owners = np.full(count, -1, np.int32)
        if node_type in earlier.schema.node_types:
            wanted = np.arange(count) if (ids := graph.user_ids(node_type)) is None else ids
            internal = earlier.used(node_type)  # vertices of its room join their neighbours
            known = earlier.sorted_ids(node_type)[: len(internal)]
            at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
            there = np.flatnonzero(known[at] == wanted) if len(known) else np.empty(0, np.int64)
            owners[there] = earlier.book.owner(node_type, internal[at[there]])
        found.append(owners)
    return found
