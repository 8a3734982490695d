"""The edges of later versions that a daemon holds, the times of vertices, and its partition with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atta.errors import UnknownNameError
from atta.kvstore.live.book import Rows, Sources
from atta.samplers.batch.items import EDGES, TIME

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset, VertexTimes
    from atta.partition.graph.part import GraphDegrees
    from atta.partition.schema import Schema
    from atta.samplers.shard import PartEdges, Shard

__all__ = ["HeldEdges", "LiveEdges", "graph_rows"]


def graph_rows(schema: Schema, sources: Sources) -> set[Rows]:
    """Those of ``sources`` that say what is drawn: edges, and times of vertices."""
    of_types = schema.node_tables
    return {
        (name, kind, source)
        for (name, kind), source in sources.items()
        if kind == EDGES or (kind == TIME and name in of_types and schema.timed(name))
    }


@dataclass(frozen=True)
class HeldEdges:
    """The edges of one type that a version brought. ``ids``: one more than the largest edge id, in all partitions;
    ``degrees``: gives those of all vertices."""

    edges: PartEdges
    ids: int
    degrees: Callable[[], GraphDegrees]


@dataclass
class LiveEdges:
    """Attributes:
    dataset, shard: the dataset and this daemon's partition, with the dataset's own edges and times.
    """

    dataset: Dataset
    shard: Shard
    _held: dict[Rows, HeldEdges | VertexTimes] = field(default_factory=dict)
    _made: dict[frozenset[Rows], tuple[Dataset, Shard]] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[Rows]:
        """Which edges and times of later versions are here."""
        return frozenset(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        return sum(held.edges.nbytes if isinstance(held, HeldEdges) else held.nbytes for held in self._held.values())

    def add(self, of: Rows, held: HeldEdges | VertexTimes) -> None:
        """Hold edges, or times of vertices, of a later version."""
        self._held[of] = held

    def drop(self, of: Rows) -> None:
        """Let go of them. Who reads them right now keeps them until it has done."""
        self._held.pop(of, None)
        self._made = {key: made for key, made in self._made.items() if of not in key}

    def of(self, sources: Sources) -> tuple[Dataset, Shard]:
        """The dataset and the partition of a version whose edges and times are here. ``edge_counts`` of the schema are
        then those of the ids that were given out: bounds, as removed edges count, too.

        Raises:
            UnknownNameError: they are not here.
        """
        key = frozenset(graph_rows(self.dataset.schema, sources))
        if not key:
            return self.dataset, self.shard
        if key not in self._made:
            self._made[key] = self._with({one: self._here(one) for one in key})
        return self._made[key]

    def _here(self, of: Rows) -> HeldEdges | VertexTimes:
        name, kind, source = of
        if of not in self._held:
            here = sorted(number for known, of_kind, number in self._held if (known, of_kind) == (name, kind))
            raise UnknownNameError.of(f"version of the {kind} {name}", source, [0, *here])
        return self._held[of]

    def _with(self, changed: Mapping[Rows, HeldEdges | VertexTimes]) -> tuple[Dataset, Shard]:
        edges = {name: held for (name, _, _), held in changed.items() if isinstance(held, HeldEdges)}
        times = {name: held for (name, _, _), held in changed.items() if not isinstance(held, HeldEdges)}
        dataset, schema = self.dataset.with_times(times), self.dataset.schema
        if edges:
            dataset = dataset.with_degrees({edge_type: held.degrees for edge_type, held in edges.items()})
            counts = {**schema.edge_counts, **{edge_type: held.ids for edge_type, held in edges.items()}}
            dataset.schema = dataclasses.replace(schema, edge_counts=counts)
        return dataset, self.shard.with_changes({name: held.edges for name, held in edges.items()}, times)
