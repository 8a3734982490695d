"""The edges of later versions that a daemon holds, and its partition with them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atta.errors import UnknownNameError
from atta.kvstore.live.book import Rows, Sources, edges_only
from atta.samplers.batch.items import EDGES

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.samplers.shard import PartEdges, Shard

__all__ = ["HeldEdges", "LiveEdges"]


@dataclass(frozen=True)
class HeldEdges:
    """The edges of one type that a version brought. ``ids``: one more than the largest edge id, in all partitions."""

    edges: PartEdges
    ids: int


@dataclass
class LiveEdges:
    """Attributes:
    dataset, shard: the dataset and this daemon's partition, with the dataset's own edges.
    """

    dataset: Dataset
    shard: Shard
    _held: dict[Rows, HeldEdges] = field(default_factory=dict)
    _made: dict[frozenset[Rows], tuple[Dataset, Shard]] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[Rows]:
        """Which edges of later versions are here."""
        return frozenset(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        return sum(held.edges.nbytes for held in self._held.values())

    def add(self, of: Rows, held: HeldEdges) -> None:
        """Hold edges of a later version."""
        self._held[of] = held

    def drop(self, of: Rows) -> None:
        """Let go of them. Who reads them right now keeps them until it has done."""
        self._held.pop(of, None)
        self._made = {key: made for key, made in self._made.items() if of not in key}

    def of(self, sources: Sources) -> tuple[Dataset, Shard]:
        """The dataset and the partition of a version whose edges are here. ``edge_counts`` of the schema are then those
        of the ids that were given out: bounds, as removed edges count, too.

        Raises:
            UnknownNameError: they are not here.
        """
        changed = {name: self._edges(name, source) for (name, _), source in edges_only(sources).items()}
        if not changed:
            return self.dataset, self.shard
        key = frozenset((name, EDGES, source) for (name, _), source in edges_only(sources).items())
        if key not in self._made:
            self._made[key] = self._with(changed)
        return self._made[key]

    def _edges(self, edge_type: str, source: int) -> HeldEdges:
        held = self._held.get((edge_type, EDGES, source))
        if held is None:
            here = sorted(number for name, _, number in self._held if name == edge_type)
            raise UnknownNameError.of(f"version of the edges {edge_type}", source, [0, *here])
        return held

    def _with(self, changed: Mapping[str, HeldEdges]) -> tuple[Dataset, Shard]:
        dataset, schema = copy.copy(self.dataset), self.dataset.schema
        counts = {**schema.edge_counts, **{edge_type: held.ids for edge_type, held in changed.items()}}
        dataset.schema = dataclasses.replace(schema, edge_counts=counts)
        return dataset, self.shard.with_edges({edge_type: held.edges for edge_type, held in changed.items()})
