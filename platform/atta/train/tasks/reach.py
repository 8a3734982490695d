"""Which types of a typed graph each layer of a model reads and computes. Pure: without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from atta.errors import ConfigError
from atta.partition.schema import Schema, split_edge_type

__all__ = ["EdgeTriple", "TypeReach"]

EdgeTriple = tuple[str, str, str]


@dataclass(frozen=True)
class TypeReach:
    """The types that ``depth`` layers over the vertices of ``target`` depend on. Layer 0 is the first one.

    Models have no weights for other types: no gradient would ever reach them.

    Attributes:
        target: node type of the seeds.
        depth: number of layers, and of hops.
        edge_types: of the graph, (source, relation, destination), sorted.
        widths: for each node type of the graph the number of its features; None: it has none.
        also: other node types of seeds.
    """

    target: str
    depth: int
    edge_types: tuple[EdgeTriple, ...]
    widths: Mapping[str, int | None]
    also: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Schema, target: str, depth: int, also: tuple[str, ...] = ()) -> TypeReach:
        """The types of a dataset.

        Raises:
            ConfigError: no edge ends at the target, or features of a type that is read are not one row per vertex.
        """
        tables = {t: schema.node_tables[t].get("x") for t in schema.node_types}
        widths = {t: None if spec is None else spec.row_shape[0] if spec.row_shape else 1 for t, spec in tables.items()}
        found = cls(target, depth, tuple(split_edge_type(e) for e in schema.edge_types), widths, also)
        if not found.edges(depth - 1):
            raise ConfigError(f"--target {target}: no edge type ends at it, so a model would see no neighbours")
        for node_type in found.read(0):
            spec = tables[node_type]
            if spec is not None and len(spec.row_shape) != 1:
                raise ConfigError(
                    f"training needs one row of features per vertex, x of {node_type} has rows of shape {spec.row_shape}"
                )
        return found

    def read(self, layer: int) -> tuple[str, ...]:
        """Node types whose rows a layer reads, sorted."""
        return self._within[self.depth - layer]

    def computed(self, layer: int) -> tuple[str, ...]:
        """Node types whose rows a layer computes, sorted."""
        return self._within[self.depth - layer - 1]

    def edges(self, layer: int) -> tuple[EdgeTriple, ...]:
        """Edge types along which a layer reads."""
        computed = self.computed(layer)
        return tuple(e for e in self.edge_types if e[2] in computed)

    @property
    def without_features(self) -> tuple[str, ...]:
        """Node types that are read and have no features."""
        return tuple(t for t in self.read(0) if self.widths[t] is None)

    @cached_property
    def _within(self) -> tuple[tuple[str, ...], ...]:
        """By number of hops: the node types that are at most so far from the seeds."""
        found: list[tuple[str, ...]] = [tuple(sorted({self.target, *self.also}))]
        for _ in range(self.depth):
            near = set(found[-1])
            found.append(tuple(sorted(near | {e[0] for e in self.edge_types if e[2] in near})))
        return tuple(found)
