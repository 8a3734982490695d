"""Keeps the partitions of an earlier dataset, and places the vertices that have come since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import known_balance
from atta.partition.cutting.union import Union
from atta.partition.dataset import Dataset
from atta.partition.graph import Graph
from atta.partition.methods.streaming import limits


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
        weights, room = limits(graph, names, parts, self.slack)
        progress.stage("placing new vertices", None)
        new = np.flatnonzero(owners < 0)
        flat = weights.reshape(-1)
        _native.stream_vertices(union.indptr, union.indices, new, None, owners, parts, flat, room, 0.0, 0.0)
        return union.by_type(owners)


def _owners(graph: Graph, earlier: Dataset) -> list[npt.NDArray[np.int32]]:
    """The partition of each row, by node type; -1: a new vertex."""
    found = []
    for node_type, count in graph.schema.node_counts.items():
        owners = np.full(count, -1, np.int32)
        if node_type in earlier.schema.node_types:
            wanted = np.arange(count) if (ids := graph.user_ids(node_type)) is None else ids
            known, internal = earlier.sorted_ids(node_type), earlier.sorted_internal(node_type)
            at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
            there = np.flatnonzero(known[at] == wanted) if len(known) else np.empty(0, np.int64)
            owners[there] = earlier.book.owner(node_type, internal[at[there]])
        found.append(owners)
    return found
