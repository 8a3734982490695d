"""GraphBolt's data sets: a ``metadata.yaml`` and the files that it names.

    graph: {nodes: [{type: paper, num: 3}],
            edges: [{type: "paper:cites:paper", format: csv, path: edges/cites.csv}],
            feature_data: [{domain: edge, type: "paper:cites:paper", name: weight, format: numpy, path: ...}]}
    feature_data: [{domain: node, type: paper, name: feat, format: numpy, path: data/feat.npy}]
    tasks: [{name: node_classification, num_classes: 2,
             train_set: [{type: paper, data: [{name: seeds, format: numpy, path: ...}, {name: labels, ...}]}]}]

Types may be missing in a graph of one type. ``train_set``, ``validation_set`` and ``test_set`` become splits, ``labels``
the table ``y``; labels of vertices in no set are -1 (in fractions: NaN). Sets of edges stay behind, and a note says so.

Where only ``preprocessed/`` is left, or a file of its graph alone, that is read (``topology.py``). GraphBolt sorts edges
by destination there. They return to their order if the original edge ids are stored. Otherwise their order is
GraphBolt's, a note says so, and tables of edges are refused. Attributes of edges beside the graph are refused, too:
GraphBolt leaves them in the order of the raw files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.tasks import add_tasks, rows_of
from atta.partition.importers.dgl.tensors import TypeNames, add_node_tables, edge_table
from atta.partition.importers.dgl.topology import Topology, read_topology
from atta.partition.importers.reading.described import entries, named_file, read_description
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows, csv_rows, npy_edges
from atta.partition.importers.reading.written import add_edge_rows

__all__ = ["describes_graphbolt", "read_graphbolt"]

_METADATA = "metadata.yaml"
_KNOWN = {"dataset_name", "graph", "graph_topology", "feature_data", "tasks", "include_original_edge_id"}
_CLASS = b"CSCSamplingGraph"
_LOOKED_AT = 64 << 10
_NODE, _EDGE = "_N", "_N:_E:_N"
"""DGL's names of the only types."""
_EDGES: dict[str, Callable[[Path], FileRows]] = {"csv": lambda path: csv_rows(path, np.int64), "numpy": npy_edges}
"""Who reads the edges [E, 2] of a format."""


def describes_graphbolt(source: Path) -> bool:
    """Whether a file or folder is such a data set, or the graph of a preprocessed one."""
    return source.name == _METADATA or _is_graph(source) if source.is_file() else bool(_places(source))


def _is_graph(source: Path) -> bool:
    if source.suffix != ".pt":
        return False
    with open_regular(source) as file:
        return _CLASS in file.read(_LOOKED_AT)


def _places(folder: Path) -> list[Path]:
    return [path for path in (folder / _METADATA, folder / "preprocessed" / _METADATA) if path.is_file()]


def read_graphbolt(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the data set of the folder or the ``metadata.yaml`` ``source``."""
    data = _DataSet.open(source)
    for name in sorted(data.said.keys() - _KNOWN):
        options.refuse(data.path, name, "GraphBolt's data sets have no such entry")
    graph = data.raw_graph() if "graph" in data.said else data.preprocessed_graph(options)
    if not graph.counts or not graph.edges:
        raise DataError(data.path, "the graph has no nodes or no edges")
    orders = [{name: place for place, name in enumerate(types)} for types in (graph.counts, graph.edges)]
    names, labelled = TypeNames(data.path, orders[0], orders[1]), set()
    for theirs, count in graph.counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DataError(data.path, f"'num' of {theirs!r} is {count!r}, wanted is a number of vertices")
        out.add_nodes(names.nodes[theirs], count)
        tables = graph.node_tables[theirs] | data.tables("node", theirs, len(graph.counts), options)
        if add_node_tables(data.path, out, names.nodes[theirs], tables, options):
            labelled.add(names.nodes[theirs])
    add_tasks(data.path, data.folder, data.said, names, out, options, labelled=labelled)
    for key, edges in graph.edges.items():
        add_edge_rows(out, names.edges[key], edges, options, _edge_tables(data, graph, key, options))


def _edge_tables(data: _DataSet, graph: _Graph, key: str, options: ImportOptions) -> dict[str, FileRows]:
    """The tables of an edge type. Refuse them where their order is not that of the edges."""
    tables = graph.edge_tables[key] | data.tables("edge", key, len(graph.edges), options)
    tables = {name: rows for name, rows in tables.items() if edge_table(rows.path, name, options)}
    for name in [] if graph.ordered else sorted(tables):
        options.refuse(data.path, name, "which edge a row is of, only the original edge ids would tell")
        del tables[name]
    return tables


@dataclass(frozen=True)
class _Graph:
    """The graph of a data set.

    Attributes:
        counts: number of vertices by node type.
        edges: [E, 2] by edge type.
        node_tables: beside the graph, by type and name.
        edge_tables: beside the graph, by type and name.
        ordered: whether edges are in the order of the data set's tables of edges.
    """

    counts: Mapping[str, Any]
    edges: Mapping[str, FileRows]
    node_tables: Mapping[str, dict[str, FileRows]]
    edge_tables: Mapping[str, dict[str, FileRows]]
    ordered: bool = True


@dataclass(frozen=True)
class _DataSet:
    """A ``metadata.yaml``.

    Attributes:
        path: the file.
        folder: where the paths in it begin.
        said: its content.
    """

    path: Path
    folder: Path
    said: dict[str, Any]

    @classmethod
    def open(cls, source: Path) -> _DataSet:
        """The data set of a folder: as it was before preprocessing, if its files are still there."""
        if _is_graph(source):
            return cls(source, source.parent, {"graph_topology": {"path": source.name}})
        found = [source] if source.is_file() else _places(source)
        for path in found:
            said = read_description(path, "a data set of GraphBolt")
            data = cls(path, path.parent.parent if "graph_topology" in said else path.parent, said)
            if path == found[-1] or data._has_edges():
                return data
        raise DataError(source / _METADATA, "the file is missing")

    def _has_edges(self) -> bool:
        edges = entries(self.path, self.said.get("graph"), "edges", "path")
        return all((self.folder / entry["path"]).exists() for entry in edges)

    def raw_graph(self) -> _Graph:
        """The graph of the files under ``graph``."""
        graph, edges = self.said["graph"], {}
        counts = {str(e.get("type") or _NODE): e.get("num") for e in entries(self.path, graph, "nodes")}
        for entry in entries(self.path, graph, "edges", "path", "format"):
            if entry["format"] not in _EDGES:
                raise DataError(self.path, f"the edges' format {entry['format']!r} is neither csv nor numpy")
            file = named_file(self.folder, entry["path"])
            edges[str(entry.get("type") or _EDGE)] = _EDGES[entry["format"]](file)
        beside = _features(self.path, graph)
        return _Graph(
            counts,
            edges,
            {t: self._tables(beside, "node", t, len(counts)) for t in counts},
            {key: self._tables(beside, "edge", key, len(edges)) for key in edges},
        )

    def preprocessed_graph(self, options: ImportOptions) -> _Graph:
        """The graph under ``graph_topology``."""
        said = self.said.get("graph_topology")
        if not isinstance(said, Mapping) or not isinstance(said.get("path"), str):
            raise DataError(self.path, "has neither 'graph' nor a 'graph_topology' with a 'path'")
        found = read_topology(named_file(self.folder, said["path"]))
        for name in found.edge_attributes:
            why = "GraphBolt has sorted the edges, but not this: import the raw files, or leave it out"
            options.refuse(found.path, name, why)
        if not found.ordered:
            options.notes.append("edges are numbered as GraphBolt sorts them: their original ids are not stored")
        edges = {key: _edges(found, key) for key in found.relations}
        nodes = {t: found.node_tables(t) for t in found.counts}
        return _Graph(found.counts, edges, nodes, {key: {} for key in edges}, found.ordered)

    def tables(self, domain: str, of_type: str, types: int, options: ImportOptions) -> dict[str, FileRows]:
        """The tables of a type under ``feature_data``. ``types``: number of types of the domain."""
        features = _features(self.path, self.said)
        for entry in features:
            if entry["domain"] not in ("node", "edge"):
                options.refuse(self.path, entry["name"], f"it is of the domain {entry['domain']!r}")
        return self._tables(features, domain, of_type, types)

    def _tables(self, features: list[dict[str, Any]], domain: str, of_type: str, types: int) -> dict[str, FileRows]:
        """The tables of a type. Where there is only one type, entries need not name it."""
        named = [entry for entry in features if entry["domain"] == domain]
        mine = [e for e in named if e.get("type") == of_type or (types == 1 and not e.get("type"))]
        return {entry["name"]: rows_of(self.path, self.folder, entry) for entry in mine}


def _features(path: Path, said: Any) -> list[dict[str, Any]]:
    return entries(path, said, "feature_data", "name", "domain", "format", "path")


def _edges(topology: Topology, key: str) -> FileRows:
    """The edges [E, 2] of a type."""
    return FileRows(topology.path, np.dtype(np.int64), (2,), lambda: iter([topology.edges(key)]))
