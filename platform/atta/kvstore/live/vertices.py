"""New vertices of a dataset while daemons serve: they take vertices of its room, with rows of all tables, and with edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError
from atta.kvstore.live.book import USED, TableName
from atta.kvstore.live.writing import Changes, NewEdges, NewRows, NewUse, Present
from atta.partition.graph.reading import Graph
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.partition.schema import TableSpec
from atta.samplers.batch.items import EDGES


@dataclass(frozen=True)
class AddedVertices:
    """The vertices of a ``graph`` folder that a dataset does not have, by their ids, and all edges of the folder."""

    graph: Graph

    def changes(self, present: Present) -> Changes:
        """What becomes of all tables and edges, and of the room. Raises UnknownNameError: the folder has another type;
        ConfigError: none of its vertices is new, there is no room for them, or tables, ids or edges do not fit."""
        found, ids = dict[TableName, NewRows | NewEdges | NewUse](), dict[str, np.ndarray]()
        for node_type in self.graph.schema.node_types:
            present.dataset.schema.check_node_type(node_type)
            ids[node_type], there = present.identified(self.graph, node_type)
            if len(new := np.flatnonzero(~there)):
                ids[node_type] = self._numbered(present, node_type, ids[node_type], new)
                found |= self._rows(present, node_type, ids[node_type], new)
        if not found:
            raise ConfigError(
                f"{self.graph.path}: all of its vertices are there; new edges of these: atta update edges"
            )
        for edge_type, count in self.graph.schema.edge_counts.items():
            present.dataset.schema.check_edge_type(edge_type)
            if count:
                edges, tables = self.graph.edges(edge_type), present.dataset.schema.edge_tables[edge_type]
                _check_tables(self.graph, edge_type, self.graph.schema.edge_tables[edge_type], tables)
                source, target = (ids[t] for t in self.graph.schema.endpoints(edge_type))
                found[edge_type, EDGES] = NewEdges(source[edges.src], target[edges.dst], edges.tables)
        return found

    def _numbered(self, present: Present, node_type: str, ids: np.ndarray, new: np.ndarray) -> np.ndarray:
        """The user ids ``ids`` of all vertices with those that the ``new`` rows get."""
        schema, all_ids = present.dataset.schema, present.dataset.ids(node_type)
        left, at = schema.room.get(node_type, 0), present.dataset.sorted_internal(node_type)
        if len(new) > left:
            raise ConfigError(
                f"{self.graph.path}: {len(new)} new vertices of {node_type!r}, there is room for {left}: cut the grown graph "
                "anew, atta partition --method extend"
            )
        next_ids = all_ids[at[schema.in_use(node_type) : schema.in_use(node_type) + len(new)]]
        if string_width(schema, node_type) is None:
            if np.any(wrong := np.sort(ids[new]) != next_ids):
                raise ConfigError(
                    f"{self.graph.path}: {np.sort(ids[new])[wrong][0]} is no vertex of {node_type!r}, and new ones get the "
                    f"ids from {next_ids[0]} on, without a gap"
                )
            return ids
        names, counts = np.unique(to_strings(self.graph.table(node_type, NAME)[new]), return_counts=True)
        if names[0] == "" or counts.max() > 1:
            name = str(names[0 if names[0] == "" else counts.argmax()])
            raise ConfigError(
                f"{self.graph.path}: vertices of {node_type!r} need string ids of their own, not {name!r}"
            )
        ids = ids.copy()
        ids[new] = next_ids
        return ids

    def _rows(self, present: Present, node_type: str, ids: np.ndarray, new: np.ndarray) -> Changes:
        tables = present.dataset.schema.node_tables[node_type]
        given = self.graph.schema.node_tables[node_type]
        width, longest = (
            string_width(schema, node_type) or 0 for schema in (present.dataset.schema, self.graph.schema)
        )
        if longest:
            rows = self.graph.table(node_type, NAME)[new]
            if rows[:, width:].any():
                raise ConfigError(f"{self.graph.path}: string ids of {node_type!r} have at most {width} bytes")
            given = {**given, NAME: tables[NAME]}
        _check_tables(self.graph, node_type, given, tables)
        found: dict[TableName, NewRows | NewEdges | NewUse] = {(node_type, USED): NewUse(ids[new])}
        for name, spec in tables.items():
            rows = self.graph.table(node_type, name)[new]
            if name == NAME and longest:
                rows = np.pad(rows[:, :width], ((0, 0), (0, max(0, width - longest))))
            found[node_type, name] = NewRows(rows.astype(spec.dtype, copy=False), ids[new], new=True)
        return found


def _check_tables(graph: Graph, of: str, given: Mapping[str, TableSpec], wanted: Mapping[str, TableSpec]) -> None:
    """Raise ConfigError if tables of a type are not those of the dataset."""
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            have, want = (
                "nothing" if spec is None else f"{spec.dtype}{list(spec.row_shape)}"
                for spec in (given.get(name), wanted.get(name))
            )
            raise ConfigError(f"{graph.path}: table {of}/{name}: has {have}, must have {want}")
