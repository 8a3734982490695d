"""GraphBolt's data sets: a ``metadata.yaml`` and the files that it names.

    graph: {nodes: [{type: paper, num: 3}],
            edges: [{type: "paper:cites:paper", format: csv, path: edges/cites.csv}],
            feature_data: [{domain: edge, type: "paper:cites:paper", name: weight, format: numpy, path: ...}]}
    feature_data: [{domain: node, type: paper, name: feat, format: numpy, path: data/feat.npy}]
    tasks: [{name: node_classification, num_classes: 2,
             train_set: [{type: paper, data: [{name: seeds, format: numpy, path: ...}, {name: labels, ...}]}]}]

Where only ``preprocessed/`` is left, or a file of its graph alone, that is read. GraphBolt sorts edges by destination there:
they return to their order if the original edge ids are stored. Otherwise tables of edges are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.dgl_tensors import TypeNames, add_node_tables, edge_ends, edge_table
from atta.partition.importers.reading.filling import EdgeFiles, add_edge_rows, as_labels
from atta.partition.importers.reading.pickles import Foreign, load_torch
from atta.partition.importers.reading.rows import FileRows, array_rows, csv_rows, npy_edges, npy_rows, torch_rows
from atta.partition.importers.reading.source import (
    ImportOptions,
    as_ids,
    entries,
    first_line,
    named_file,
    read_description,
    state_classes,
)

Array = npt.NDArray[Any]
_CLASSES = [
    f"dgl.graphbolt.impl.{place}.{name}"
    for place in ("fused_csc_sampling_graph", "csc_sampling_graph")
    for name in ("FusedCSCSamplingGraph", "CSCSamplingGraph")
]
_ORIGINAL = "_ORIGINAL_EDGE_ID"
_NUMBERS = "_ID"
"""The table of vertices that parts of a partitioned graph have: their numbers in the whole."""
_NODE, _EDGE = "_N", "_N:_E:_N"


@dataclass(frozen=True)
class Topology:
    """A graph whose edges are sorted by destination. ``relations``: number of each edge type (``"a:r:b"``) in ``kinds``
    [E]. ``indptr``: [V + 1] where the in-edges of each vertex begin, ``indices``: [E] sources; vertices are numbered
    through all node types. ``original``: [E] number of each edge in the raw files, within its type; None: it is not
    stored."""

    path: Path
    counts: dict[str, int]
    relations: dict[str, int]
    indptr: Array
    indices: Array
    kinds: Array | None
    original: Array | None
    node_attributes: Mapping[str, Array]
    edge_attributes: list[str]

    @property
    def ordered(self) -> bool:
        """Whether edges are given in the order of the raw files."""
        return self.original is not None

    def edges(self, key: str) -> Array:
        """The edges [E, 2] of a type, numbered within their node types; raises DataError."""
        source, _, target = edge_ends(key, self.counts)
        mine = slice(None) if self.kinds is None else np.flatnonzero(self.kinds == self.relations[key])
        dst = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))[mine]
        ends = [self.indices[mine].astype(np.int64) - self._first(source), dst - self._first(target)]
        if self.original is not None:
            places = self.original[mine]
            if not np.array_equal(np.sort(places), np.arange(len(places))):
                raise DataError(self.path, f"the original ids of the edges {key!r} are not 0 to {len(places) - 1}")
            ends = [rows[np.argsort(places)] for rows in ends]
        return np.stack(ends, axis=1)

    def node_tables(self, node_type: str) -> dict[str, FileRows]:
        """The tables of a node type."""
        lo = self._first(node_type)
        hi = lo + self.counts[node_type]
        return {name: array_rows(self.path, rows[lo:hi]) for name, rows in self.node_attributes.items()}

    def _first(self, node_type: str) -> int:
        """The number of the first vertex of a type."""
        types = list(self.counts)
        return sum(self.counts[t] for t in types[: types.index(node_type)])


def read_topology(path: Path) -> Topology:
    """Read a graph of GraphBolt; raises DataError."""
    parts = _parts(path)
    plain = parts.get("independent_tensors", {})
    try:
        indptr, indices = plain["indptr"].numpy(), plain["indices"].numpy()
        kinds = plain["type_per_edge"].numpy() if "type_per_edge" in plain else None
        relations = {str(name): int(number) for name, number in parts.get("edge_type_to_id", {_EDGE: 0}).items()}
        order = {str(name): int(number) for name, number in parts.get("node_type_to_id", {_NODE: 0}).items()}
        starts = plain["node_type_offset"].numpy() if "node_type_offset" in plain else np.array([0, len(indptr) - 1])
        counts = {t: int(starts[order[t] + 1] - starts[order[t]]) for t in sorted(order, key=lambda t: order[t])}
        of_nodes = {str(n): t.numpy() for n, t in parts.get("node_attributes", {}).items()}
        of_edges = {str(n): t.numpy() for n, t in parts.get("edge_attributes", {}).items()}
    except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
        raise DataError(path, f"not a graph of GraphBolt: {first_line(error)}") from None
    if _NUMBERS in of_nodes:
        raise DataError(path, "a part of a graph that GraphBolt partitioned: import the NAME.json of all parts")
    original = of_edges.pop(_ORIGINAL, None)
    vertices, edges = sum(counts.values()), len(indices)
    sound = len(indptr) == vertices + 1 and indptr[0] == 0 and indptr[-1] == edges and (np.diff(indptr) >= 0).all()
    if not sound or any(rows is not None and len(rows) != edges for rows in (kinds, original)):
        raise DataError(
            path, f"not a graph of GraphBolt: its {len(indptr) - 1} lists of neighbours do not fit together"
        )
    return Topology(path, counts, relations, indptr, indices, kinds, original, of_nodes, list(of_edges))


def part_edges(path: Path) -> tuple[Array, Array, Array]:
    """The edges of a part of a partitioned graph: sources, destinations and the edges' own numbers [E], in the
    numbering of the whole graph, HALO included. Raises DataError if the part is damaged, or its edges have no
    numbers."""
    parts = _parts(path)
    try:
        plain, nodes = parts["independent_tensors"], parts["node_attributes"][_NUMBERS].numpy().astype(np.int64)
        src, degrees = plain["indices"].numpy().astype(np.int64), np.diff(plain["indptr"].numpy())
        numbers = parts.get("edge_attributes", {}).get(_NUMBERS)
        ends = nodes[src], nodes[np.repeat(np.arange(len(degrees)), degrees)]
    except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
        raise DataError(path, f"not a part of a graph of GraphBolt: {first_line(error)}") from None
    if numbers is None or not len(numbers) == len(ends[0]) == len(ends[1]):
        raise DataError(path, "the edges of this part have no numbers: partition with store_eids=True")
    return ends[0], ends[1], numbers.numpy().astype(np.int64)


def _parts(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The pickled fields of the graph, by their kind."""
    load("reading GraphBolt's graphs", "torch")
    value = load_torch(path, names=("torch.ScriptObject", *_CLASSES), mapped=True)
    script = value.fields.get("_c_csc_graph") if isinstance(value, Foreign) and value.kind in _CLASSES else None
    state = (
        script.state[0] if isinstance(script, Foreign) and isinstance(script.state, tuple) and script.state else None
    )
    if not isinstance(state, Mapping) or not all(isinstance(part, Mapping) for part in state.values()):
        raise DataError(path, "not a graph of GraphBolt: it holds no FusedCSCSamplingGraph")
    return state


_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_SEEDS, _LABELS = {"seeds", "seed_nodes"}, {"labels", "label"}
_OF_EDGES = {"node_pairs", "negative_srcs", "negative_dsts"}
_READERS = {"numpy": npy_rows, "torch": torch_rows}


def rows_of(path: Path, folder: Path, entry: Mapping[str, Any]) -> FileRows:
    """The rows of the file that an entry of the description ``path`` names; raises DataError."""
    if entry["format"] not in _READERS:
        raise DataError(path, f"the format {entry['format']!r} is neither numpy nor torch: {dict(entry)}")
    return _READERS[entry["format"]](named_file(folder, entry["path"]))


def add_tasks(  # noqa: PLR0917 - the description, and where it goes
    path: Path,
    folder: Path,
    said: Mapping[str, Any],
    names: TypeNames,
    out: GraphWriter,
    options: ImportOptions,
    *,
    labelled: Collection[str],
) -> None:
    """Add the splits and labels of the task of vertices. A note says which sets of edges are left. ``labelled``: node
    types that have labels already."""
    taken = None
    for task in entries(path, said, "tasks"):
        name = str(task.get("name") or "task")
        sets = {split: entries(path, task, key) for key, split in _SETS.items()}
        if all(_is_of_edges(path, folder, entry) for found in sets.values() for entry in found):
            what = f"the sets of the task {name!r} hold edges, which are no splits of vertices and are not imported"
            options.notes.append(f"{what}; give them to a LinkNeighborLoader")
        elif taken is not None:
            options.refuse(path, name, f"the splits are those of the task {taken!r}")
        else:
            taken = name
            state_classes(out, path, task.get("num_classes"))
            _Task(path, folder, names, out, options).add(sets, labelled)


def _is_of_edges(path: Path, folder: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a set is one of edges: its type is one of edges, or its seeds are pairs of vertices."""
    data = entries(path, entry, "data", "format", "path")
    if ":" in str(entry.get("type")) or any(each.get("name") in _OF_EDGES for each in data):
        return True
    seeds = [each for each in data if each.get("name") in _SEEDS] or data[:1]
    return any(rows_of(path, folder, each).row_shape == (2,) for each in seeds)


class _Task:
    """Writes the sets of a task, and the labels of all sets together."""

    def __init__(self, path: Path, folder: Path, names: TypeNames, out: GraphWriter, options: ImportOptions) -> None:
        self._path, self._folder, self._names = path, folder, names
        self._out, self._options = out, options
        self._labels: dict[str, Array] = {}

    def add(self, sets: Mapping[str, list[dict[str, Any]]], labelled: Collection[str]) -> None:
        """Write the sets by split, each a list with an entry for every node type."""
        for split, found in sets.items():
            for entry in found:
                self._add_set(split, entry)
        for node_type, values in self._labels.items():
            if node_type in labelled:
                self._options.refuse(self._path, "labels", f"{node_type!r} has labels among its features")
            else:
                self._out.add_labels(values, node_type)

    def _add_set(self, split: str, entry: dict[str, Any]) -> None:
        theirs = str(entry.get("type") or next(iter(self._names.nodes)))
        if theirs not in self._names.nodes or (not entry.get("type") and len(self._names.nodes) > 1):
            raise DataError(self._path, f"{split}: {entry.get('type')!r} is no node type")
        node_type, parts = self._names.nodes[theirs], {}
        for place, data in enumerate(entries(self._path, entry, "data", "format", "path")):
            name = str(data.get("name") or ("seeds", "labels")[min(place, 1)])
            parts[name] = rows_of(self._path, self._folder, data)
        for name in sorted(parts.keys() - _SEEDS - _LABELS):
            self._options.refuse(self._path, name, "the sets of vertices have seeds and labels")
        seeds = next((rows for name, rows in parts.items() if name in _SEEDS), None)
        if seeds is None:
            raise DataError(self._path, f"{split} of {theirs!r} has no seeds; there are: {', '.join(parts)}")
        rows = as_ids(seeds.path, "seeds", seeds.column("seeds"))
        self._out.add_split(split, rows, node_type)
        for name in sorted(parts.keys() & _LABELS):
            self._keep(parts[name], rows, node_type)

    def _keep(self, given: FileRows, rows: Array, node_type: str) -> None:
        """Put the labels of a set's vertices in their places."""
        values = as_labels(given.whole())
        if len(values) != len(rows):
            raise DataError(given.path, f"{len(values)} labels for {len(rows)} seeds")
        shape, empty = (self._out.count(node_type), *values.shape[1:]), np.nan if values.dtype.kind == "f" else -1
        if values.dtype.kind in "bu":
            values = values.astype(np.int64)
        labels = self._labels.setdefault(node_type, np.full(shape, empty, values.dtype))
        if labels.dtype != values.dtype or labels.shape != shape:
            raise DataError(given.path, f"labels {values.dtype}{list(values.shape)} differ from those of other sets")
        labels[rows] = values


_METADATA = "metadata.yaml"
_KNOWN = {"dataset_name", "graph", "graph_topology", "feature_data", "tasks", "include_original_edge_id"}
_CLASS = b"CSCSamplingGraph"
_LOOKED_AT = 64 << 10
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
    names, labelled = TypeNames(data.path, list(graph.counts), list(graph.edges)), set()
    for theirs, count in graph.counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DataError(data.path, f"'num' of {theirs!r} is {count!r}, wanted is a number of vertices")
        out.add_nodes(names.nodes[theirs], count)
        tables = graph.node_tables[theirs] | data.tables("node", theirs, len(graph.counts), options)
        if add_node_tables(data.path, out, names.nodes[theirs], tables, options):
            labelled.add(names.nodes[theirs])
    add_tasks(data.path, data.folder, data.said, names, out, options, labelled=labelled)
    for key, edges in graph.edges.items():
        add_edge_rows(out, names.edges[key], EdgeFiles(edges, _edge_tables(data, graph, key, options)), options)


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
    """Numbers of vertices and tables by node type, edges [E, 2] and tables by edge type. ``ordered``: whether edges are
    in the order of the data set's tables of edges."""

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
