"""GraphBolt's data sets: a ``metadata.yaml`` and the files that it names. Where only ``preprocessed/`` is left, or a file of
its graph alone, that is read. GraphBolt sorts edges by destination there: they return to their order if the original edge
ids are stored. Otherwise tables of edges are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.dgl_tensors import TypeNames, add_node_tables, edge_ends, edge_tables
from atta.partition.importers.reading.filling import EdgeFiles, add_edge_rows, as_labels
from atta.partition.importers.reading.pickles import Foreign, load_tensor, load_torch
from atta.partition.importers.reading.rows import FileRows, array_rows, csv_rows, npy_edges, npy_rows
from atta.partition.importers.reading.source import (
    Array,
    ImportOptions,
    as_ids,
    entries,
    named_file,
    read_description,
    state_classes,
    unreadable,
)

_CLASSES = [
    f"dgl.graphbolt.impl.{place}.{name}"
    for place in ("fused_csc_sampling_graph", "csc_sampling_graph")
    for name in ("FusedCSCSamplingGraph", "CSCSamplingGraph")
]
_ORIGINAL = "_ORIGINAL_EDGE_ID"
_NUMBERS = "_ID"
"""The table of vertices that parts of a partitioned graph have: their numbers in the whole."""
_NODE, _EDGE = "_N", "_N:_E:_N"
_METADATA = "metadata.yaml"
_KNOWN = {"dataset_name", "graph", "graph_topology", "feature_data", "tasks", "include_original_edge_id"}
_CLASS = b"CSCSamplingGraph"
_LOOKED_AT = 64 << 10
_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_SEEDS, _LABELS = {"seeds", "seed_nodes"}, {"labels", "label"}
_OF_EDGES = {"node_pairs", "negative_srcs", "negative_dsts"}
_READERS: dict[str, Callable[[Path], FileRows]] = {
    "numpy": npy_rows,
    "torch": lambda path: array_rows(path, load_tensor(path, mapped=True)),
}
_EDGES: dict[str, Callable[[Path], FileRows]] = {"csv": lambda path: csv_rows(path, np.int64), "numpy": npy_edges}
"""Who reads the edges [E, 2] of a format."""
_WRONG = (KeyError, AttributeError, TypeError, IndexError, ValueError)
"""What a damaged pickle raises where its fields are looked up."""


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
    data = _DataSet.open(source, options)
    for name in sorted(data.said.keys() - _KNOWN):
        options.refuse(data.path, name, "GraphBolt's data sets have no such entry")
    graph = data.raw_graph() if "graph" in data.said else data.preprocessed_graph()
    if not graph.counts or not graph.edges:
        raise DataError(data.path, "the graph has no nodes or no edges")
    names, labelled = TypeNames(data.path, list(graph.counts), list(graph.edges)), set()
    for theirs, count in graph.counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DataError(data.path, f"'num' of {theirs!r} is {count!r}, wanted is a number of vertices")
        out.add_nodes(names.nodes[theirs], count)
        tables = graph.node_tables.get(theirs, {}) | data.features("node", theirs, len(graph.counts))
        if add_node_tables(data.path, out, names.nodes[theirs], tables, options):
            labelled.add(names.nodes[theirs])
    data.add_tasks(names, out, labelled)
    for key, edges in graph.edges.items():
        found = graph.edge_tables.get(key, {}) | data.features("edge", key, len(graph.edges))
        tables = edge_tables(None, found, options)
        for name in [] if graph.ordered else sorted(tables):
            options.refuse(data.path, name, "which edge a row is of, only the original edge ids would tell")
            del tables[name]
        add_edge_rows(out, names.edges[key], EdgeFiles(edges, tables), options)


@dataclass(frozen=True)
class _Graph:
    """Numbers of vertices and tables by node type, edges [E, 2] and tables by edge type (``"a:r:b"``). ``ordered``:
    whether edges are in the order of the data set's tables of edges."""

    counts: Mapping[str, Any]
    edges: Mapping[str, FileRows]
    node_tables: Mapping[str, dict[str, FileRows]]
    edge_tables: Mapping[str, dict[str, FileRows]]
    ordered: bool = True


@dataclass(frozen=True)
class _DataSet:
    """A ``metadata.yaml``, the folder where the paths in it begin, and its content."""

    path: Path
    folder: Path
    said: dict[str, Any]
    options: ImportOptions

    @classmethod
    def open(cls, source: Path, options: ImportOptions) -> _DataSet:
        """The data set of a folder: as it was before preprocessing, if its files are still there."""
        if _is_graph(source):
            return cls(source, source.parent, {"graph_topology": {"path": source.name}}, options)
        found = [source] if source.is_file() else _places(source)
        for path in found:
            said = read_description(path, "a data set of GraphBolt")
            folder = path.parent.parent if "graph_topology" in said else path.parent
            edges = entries(path, said.get("graph"), "edges", "path") if path != found[-1] else []
            if all((folder / entry["path"]).exists() for entry in edges):
                return cls(path, folder, said, options)
        raise DataError(source / _METADATA, "the file is missing")

    def raw_graph(self) -> _Graph:
        graph, edges = self.said["graph"], {}
        counts = {str(e.get("type") or _NODE): e.get("num") for e in entries(self.path, graph, "nodes")}
        for entry in entries(self.path, graph, "edges", "path", "format"):
            if entry["format"] not in _EDGES:
                raise DataError(self.path, f"the edges' format {entry['format']!r} is neither csv nor numpy")
            file = named_file(self.folder, entry["path"])
            edges[str(entry.get("type") or _EDGE)] = _EDGES[entry["format"]](file)
        beside = self._features(graph)
        return _Graph(
            counts,
            edges,
            {t: self._tables(beside, "node", t, len(counts)) for t in counts},
            {key: self._tables(beside, "edge", key, len(edges)) for key in edges},
        )

    def preprocessed_graph(self) -> _Graph:
        said = self.said.get("graph_topology")
        if not isinstance(said, Mapping) or not isinstance(said.get("path"), str):
            raise DataError(self.path, "has neither 'graph' nor a 'graph_topology' with a 'path'")
        return _topology(named_file(self.folder, said["path"]), self.options)

    def features(self, domain: str, of_type: str, types: int) -> dict[str, FileRows]:
        found = self._features(self.said)
        for entry in found:
            if entry["domain"] not in ("node", "edge"):
                self.options.refuse(self.path, entry["name"], f"it is of the domain {entry['domain']!r}")
        return self._tables(found, domain, of_type, types)

    def _features(self, said: Any) -> list[dict[str, Any]]:
        return entries(self.path, said, "feature_data", "name", "domain", "format", "path")

    def _tables(self, features: list[dict[str, Any]], domain: str, of_type: str, types: int) -> dict[str, FileRows]:
        """The tables of a type. Where there is only one type, entries need not name it."""
        named = [entry for entry in features if entry["domain"] == domain]
        mine = [e for e in named if e.get("type") == of_type or (types == 1 and not e.get("type"))]
        return {entry["name"]: self._rows(entry) for entry in mine}

    def _rows(self, entry: Mapping[str, Any]) -> FileRows:
        if entry["format"] not in _READERS:
            raise DataError(self.path, f"the format {entry['format']!r} is neither numpy nor torch: {dict(entry)}")
        return _READERS[entry["format"]](named_file(self.folder, entry["path"]))

    def _data(self, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        return entries(self.path, entry, "data", "format", "path")

    def add_tasks(self, names: TypeNames, out: GraphWriter, labelled: Collection[str]) -> None:
        """Add the splits and labels of the task of vertices. A note says which sets of edges are left. ``labelled``:
        node types that have labels already."""
        taken = None
        for task in entries(self.path, self.said, "tasks"):
            name = str(task.get("name") or "task")
            sets = {split: entries(self.path, task, key) for key, split in _SETS.items()}
            if all(map(self._is_of_edges, chain(*sets.values()))):
                what = f"the sets of the task {name!r} hold edges, which are no splits of vertices and are not imported"
                self.options.notes.append(f"{what}; give them to a LinkNeighborLoader")
            elif taken is not None:
                self.options.refuse(self.path, name, f"the splits are those of the task {taken!r}")
            else:
                taken = name
                state_classes(out, self.path, task.get("num_classes"))
                self._add_sets(sets, names, out, labelled)

    def _is_of_edges(self, entry: Mapping[str, Any]) -> bool:
        data = self._data(entry)
        if ":" in str(entry.get("type")) or any(each.get("name") in _OF_EDGES for each in data):
            return True
        seeds = [each for each in data if each.get("name") in _SEEDS] or data[:1]
        return any(self._rows(each).row_shape == (2,) for each in seeds)

    def _add_sets(
        self, sets: Mapping[str, list[dict[str, Any]]], names: TypeNames, out: GraphWriter, labelled: Collection[str]
    ) -> None:
        """Write the sets by split, each a list with an entry for every node type, and the labels of all together."""
        labels: dict[str, Array] = {}
        for split, found in sets.items():
            for entry in found:
                theirs = str(entry.get("type") or next(iter(names.nodes)))
                if theirs not in names.nodes or (not entry.get("type") and len(names.nodes) > 1):
                    raise DataError(self.path, f"{split}: {entry.get('type')!r} is no node type")
                node_type = names.nodes[theirs]
                seeds, given = self._seeds_and_labels(f"{split} of {theirs!r}", entry)
                rows = as_ids(seeds.path, "seeds", seeds.column("seeds"))
                out.add_split(split, rows, node_type)
                for each in given:
                    labels[node_type] = _with_labels(labels.get(node_type), each, rows, out.count(node_type))
        for node_type, values in labels.items():
            if node_type in labelled:
                self.options.refuse(self.path, "labels", f"{node_type!r} has labels among its features")
            else:
                out.add_labels(values, node_type)

    def _seeds_and_labels(self, what: str, entry: Mapping[str, Any]) -> tuple[FileRows, list[FileRows]]:
        parts = {}
        for place, data in enumerate(self._data(entry)):
            parts[str(data.get("name") or ("seeds", "labels")[min(place, 1)])] = self._rows(data)
        for name in sorted(parts.keys() - _SEEDS - _LABELS):
            self.options.refuse(self.path, name, "the sets of vertices have seeds and labels")
        seeds = next((rows for name, rows in parts.items() if name in _SEEDS), None)
        if seeds is None:
            raise DataError(self.path, f"{what} has no seeds; there are: {', '.join(parts)}")
        return seeds, [parts[name] for name in sorted(parts.keys() & _LABELS)]


def _with_labels(labels: Array | None, given: FileRows, rows: Array, count: int) -> Array:
    values = as_labels(given.whole())
    if len(values) != len(rows):
        raise DataError(given.path, f"{len(values)} labels for {len(rows)} seeds")
    shape, empty = (count, *values.shape[1:]), np.nan if values.dtype.kind == "f" else -1
    if values.dtype.kind in "bu":
        values = values.astype(np.int64)
    if labels is None:
        labels = np.full(shape, empty, values.dtype)
    if labels.dtype != values.dtype or labels.shape != shape:
        raise DataError(given.path, f"labels {values.dtype}{list(values.shape)} differ from those of other sets")
    labels[rows] = values
    return labels


def _topology(path: Path, options: ImportOptions) -> _Graph:
    """A graph whose edges are sorted by destination; vertices are numbered through all node types."""
    parts = _parts(path)
    plain = parts.get("independent_tensors", {})
    with unreadable(path, "not a graph of GraphBolt", _WRONG):
        indptr, indices = plain["indptr"].numpy(), plain["indices"].numpy()
        kinds = plain["type_per_edge"].numpy() if "type_per_edge" in plain else None
        relations = {str(name): int(number) for name, number in parts.get("edge_type_to_id", {_EDGE: 0}).items()}
        order = {str(name): int(number) for name, number in parts.get("node_type_to_id", {_NODE: 0}).items()}
        starts = plain["node_type_offset"].numpy() if "node_type_offset" in plain else np.array([0, len(indptr) - 1])
        counts = {t: int(starts[order[t] + 1] - starts[order[t]]) for t in sorted(order, key=lambda t: order[t])}
        of_nodes = {str(n): t.numpy() for n, t in parts.get("node_attributes", {}).items()}
        of_edges = {str(n): t.numpy() for n, t in parts.get("edge_attributes", {}).items()}
    if _NUMBERS in of_nodes:
        raise DataError(path, "a part of a graph that GraphBolt partitioned: import the NAME.json of all parts")
    original = of_edges.pop(_ORIGINAL, None)
    vertices, edges = sum(counts.values()), len(indices)
    first = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    sound = len(indptr) == vertices + 1 and indptr[0] == 0 and indptr[-1] == edges and (np.diff(indptr) >= 0).all()
    if not sound or any(rows is not None and len(rows) != edges for rows in (kinds, original)):
        cause = f"not a graph of GraphBolt: its {len(indptr) - 1} lists of neighbours do not fit together"
        raise DataError(path, cause)
    for name in of_edges:
        why = "GraphBolt has sorted the edges, but not this: import the raw files, or leave it out"
        options.refuse(path, name, why)
    if original is None:
        options.notes.append("edges are numbered as GraphBolt sorts them: their original ids are not stored")

    def of_type(key: str) -> Array:
        source, _, target = edge_ends(key, counts)
        mine = slice(None) if kinds is None else np.flatnonzero(kinds == relations[key])
        ends = [indices[mine].astype(np.int64), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))[mine]]
        found: Array = np.stack(ends, axis=1) - [first[source], first[target]]
        if original is None:
            return found
        places = original[mine]
        if not np.array_equal(np.sort(places), np.arange(len(places))):
            raise DataError(path, f"the original ids of the edges {key!r} are not 0 to {len(places) - 1}")
        ordered: Array = found[np.argsort(places)]
        return ordered

    return _Graph(
        counts,
        {key: FileRows(path, np.dtype(np.int64), (2,), partial(map, of_type, [key])) for key in relations},
        {
            t: {name: array_rows(path, rows[first[t] : first[t] + count]) for name, rows in of_nodes.items()}
            for t, count in counts.items()
        },
        {},
        original is not None,
    )


def part_edges(path: Path) -> tuple[Array, Array, Array]:
    """The edges of a part of a partitioned graph: sources, destinations and the edges' own numbers [E], in the
    numbering of the whole graph, HALO included. Raises DataError if the part is damaged, or its edges have no
    numbers."""
    parts = _parts(path)
    with unreadable(path, "not a part of a graph of GraphBolt", _WRONG):
        plain, nodes = parts["independent_tensors"], parts["node_attributes"][_NUMBERS].numpy().astype(np.int64)
        src, degrees = plain["indices"].numpy().astype(np.int64), np.diff(plain["indptr"].numpy())
        numbers = parts.get("edge_attributes", {}).get(_NUMBERS)
        ends = nodes[src], nodes[np.repeat(np.arange(len(degrees)), degrees)]
    if numbers is None or not len(numbers) == len(ends[0]) == len(ends[1]):
        raise DataError(path, "the edges of this part have no numbers: partition with store_eids=True")
    return ends[0], ends[1], numbers.numpy().astype(np.int64)


def _parts(path: Path) -> Mapping[str, Mapping[str, Any]]:
    value = load_torch(path, names=("torch.ScriptObject", *_CLASSES), mapped=True)
    script = value.fields.get("_c_csc_graph") if isinstance(value, Foreign) and value.kind in _CLASSES else None
    state = getattr(script, "state", None)
    state = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(state, Mapping) or not all(isinstance(part, Mapping) for part in state.values()):
        raise DataError(path, "not a graph of GraphBolt: it holds no FusedCSCSamplingGraph")
    return state
