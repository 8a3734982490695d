"""A folder of DistDGL: the ``NAME.json`` that ``dgl.distributed.partition_graph`` wrote, with its parts beside it. A part's
graph is DGL's own (``part_graph``) or, where there is no such file, GraphBolt's (``part_graph_graphbolt``).

Edges return to their original order. If no file has the original numbers, the import takes DistDGL's (per type) and tells
the user. The partition of each vertex becomes the node table ``part``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.graph import EdgeAppender, GraphWriter
from atta.partition.importers.reading.dgl_tensors import (
    TypeNames,
    add_tensor,
    arrays,
    edge_tensor,
    original_edges,
    original_nodes,
    require_dgl,
    table_names,
)
from atta.partition.importers.reading.graphbolt import part_edges
from atta.partition.importers.reading.source import ImportOptions, first_line, head_of, read_description
from atta.partition.schema import TableSpec

Array = npt.NDArray[Any]
PART = "part"
"""The node table that has the partition of each vertex."""
_GRAPHBOLT = "part_graph_graphbolt"
_KEYS = (b'"part_method"', b'"part-0"')
"""What the beginning of a ``NAME.json`` has."""
_MOST_LOOKED_AT = 100
"""Number of JSON files of a folder that are looked at."""
_KNOWN = {"_ID", "_TYPE", "part_id", "orig_id", "inner_node", "inner_edge"}


def described_parts(source: Path) -> Path | None:
    """The ``NAME.json`` that a file is or a folder has; None: the file is another, or the folder has none or several."""
    files = islice(sorted(source.glob("*.json")), _MOST_LOOKED_AT) if source.is_dir() else [source]
    found = [path for path in files if path.is_file() and all(key in head_of(path) for key in _KEYS)]
    return found[0] if len(found) == 1 else None


def called_parts(path: Path) -> str:
    """What the partitions that ``path`` describes are, for people."""
    return "partitions with GraphBolt's graphs" if _of_graphbolt(_config(path)) else "partitions of DistDGL"


def read_parts(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the partition configuration ``source``, part after part."""
    if options.undirected or options.reverse:
        raise ConfigError("dgl: a partitioned graph is taken as it is, without reverse edges added")
    folder = _Folder.open(source)
    _declare_nodes(folder, out, options)
    originals = original_edges(folder, options)
    if originals is None:
        options.notes.append("edges are numbered as DistDGL has renumbered them: no eid_map beside the parts")
    sinks = {
        key: _Edges(source, out, edge_type, folder.starts(key), None if originals is None else originals[key])
        for key, edge_type in folder.names.edges.items()
    }
    tables: dict[tuple[str, str], list[Array]] = {}
    options.progress.stage("parts", folder.num_parts)
    for part in range(folder.num_parts):
        of_nodes, of_edges = folder.features(part, options)
        for key, rows in of_nodes.items():
            tables.setdefault(key, []).append(rows)
        _add_edges(folder, part, of_edges, sinks, options)
        options.progress.advance(1)
    for sink in sinks.values():
        sink.close()
    named = {
        t: table_names({name: pieces[0].dtype for (of, name), pieces in tables.items() if of == t})
        for t in folder.names.nodes
    }
    for (node_type, name), pieces in tables.items():
        mine = folder.names.nodes[node_type]
        if name == PART:
            options.refuse(source, name, "the table of this name has the partitions")
            continue
        try:
            rows = np.concatenate(pieces)
        except ValueError as error:
            raise DataError(source, f"{name!r} of {node_type!r} differs between parts: {error}") from None
        if len(rows) != out.count(mine):
            raise DataError(source, f"{name!r} of {node_type!r} has {len(rows)} rows for {out.count(mine)} vertices")
        add_tensor(source, out, mine, name, rows, named[node_type].get(name), options=options)


@dataclass(frozen=True)
class _Folder:
    """DistDGL's partitions on disk: the partition configuration, its content, and names of its types."""

    path: Path
    config: dict[str, Any]
    names: TypeNames

    @classmethod
    def open(cls, path: Path) -> _Folder:
        config = _config(path)
        return cls(path, config, TypeNames(path, config["ntypes"], config["etypes"]))

    @property
    def num_parts(self) -> int:
        return int(self.config["num_parts"])

    def starts(self, key: str) -> Array:
        """The first number of each part within a node or edge type, then the end: [parts + 1]."""
        spans = self.config["node_map" if key in self.names.nodes else "edge_map"][key]
        try:
            table = np.array(spans, dtype=np.int64).reshape(self.num_parts, 2)
        except (TypeError, ValueError):
            raise DataError(self.path, f"the ranges of {key!r} are not those of {self.num_parts} parts") from None
        return np.concatenate([[0], np.cumsum(table[:, 1] - table[:, 0])])

    @property
    def of_graphbolt(self) -> bool:
        """Whether the parts' graphs are GraphBolt's alone."""
        return _of_graphbolt(self.config)

    def part_folder(self, part: int) -> Path:
        """The folder of a part's files."""
        return self._graph_file(part).parent

    def _graph_file(self, part: int) -> Path:
        try:
            name = self.config[f"part-{part}"][_GRAPHBOLT if self.of_graphbolt else "part_graph"]
            return self.path.parent / str(name)
        except (KeyError, TypeError):
            raise DataError(self.path, f"part {part} is not readable: the configuration lacks its part_graph") from None

    def graph(self, part: int) -> tuple[Any, Any]:
        """A part's graph and partition book."""
        distributed = require_dgl("importing DistDGL's partitions").distributed
        try:
            graph, _, _, book, *_ = distributed.load_partition(str(self.path), part, load_feats=False)
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None
        return graph, book

    def owned_edges(self, part: int, options: ImportOptions) -> tuple[Array, Array, Array, Array]:
        """The edges that a part owns: numbers of their types, and their own, their sources' and their destinations'
        numbers within the types."""
        if self.of_graphbolt:
            source, target, edges = part_edges(self._graph_file(part))
            kind, numbers, owner = self._within("edge_map", edges)
            inner = owner == part
            source, target = (self._within("node_map", rows[inner])[1] for rows in (source, target))
            return kind[inner], numbers[inner], source, target
        graph, book = self.graph(part)
        for name in sorted({*graph.ndata, *graph.edata} - _KNOWN):
            options.refuse(
                self.part_folder(part) / "graph.dgl", name, "it is a tensor of the part's graph, HALO included"
            )
        inner = graph.edata["inner_edge"].bool()
        source, target = (ends[inner] for ends in graph.edges(order="eid"))
        kind, numbers = book.map_to_per_etype(graph.edata["_ID"][inner])
        _, source = book.map_to_per_ntype(graph.ndata["_ID"][source])
        _, target = book.map_to_per_ntype(graph.ndata["_ID"][target])
        return kind.numpy(), numbers.numpy(), source.numpy(), target.numpy()

    def _ranges(self, name: str) -> Array:
        """The ranges of numbers that are not empty: rows of first, end, part, number of the type, and the first number
        within the type; ascending."""
        keys = self.names.nodes if name == "node_map" else self.names.edges
        rows = [
            (int(lo), int(hi), part, kind, int(self.starts(key)[part]))
            for kind, key in enumerate(keys)
            for part, (lo, hi) in enumerate(self.config[name][key])
        ]
        return np.array(sorted(row for row in rows if row[0] < row[1]), np.int64).reshape(-1, 5)

    def _within(self, name: str, numbers: Array) -> tuple[Array, Array, Array]:
        """Of vertices or edges: the numbers of the types, the numbers within them, and the parts; raises DataError."""
        ranges = self._ranges(name)
        places = np.searchsorted(ranges[:, 0], numbers, side="right") - 1
        if len(numbers) and (places.min() < 0 or (numbers >= ranges[places, 1]).any()):
            raise DataError(self.path, f"{name} has no range for a number of a part")
        found = ranges[places]
        return found[:, 3], numbers - found[:, 0] + found[:, 4], found[:, 2]

    def features(self, part: int, options: ImportOptions) -> tuple[dict[tuple[str, str], Array], ...]:
        """A part's node and edge tensors by (type, name)."""
        from dgl.distributed.partition import load_partition_feats

        try:
            frames = load_partition_feats(str(self.path), part)
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None
        found: list[dict[tuple[str, str], Array]] = []
        for frame, known in zip(frames, (self.names.nodes, self.names.edges), strict=True):
            found.append({})
            for key, rows in arrays(self.part_folder(part), frame or {}, options).items():
                of_type = max((t for t in known if key.startswith(f"{t}/")), key=len, default=None)
                if of_type is not None:
                    found[-1][of_type, key.removeprefix(f"{of_type}/")] = rows
                else:
                    options.refuse(self.part_folder(part), key, f"the graph has no type {key.partition('/')[0]!r}")
        return tuple(found)

    def _unreadable(self, part: int, error: Exception) -> DataError:
        return DataError(self.path, f"part {part} is not readable: {type(error).__name__}: {first_line(error)}")


def _of_graphbolt(config: dict[str, Any]) -> bool:
    part = config.get("part-0")
    return isinstance(part, dict) and _GRAPHBOLT in part and "part_graph" not in part


def _config(path: Path) -> dict[str, Any]:
    what = "a partition configuration of DistDGL"
    value = read_description(path, what, "edge_map", "etypes", "node_map", "ntypes", "num_parts")
    for name, types in (("node_map", "ntypes"), ("edge_map", "etypes")):
        if not isinstance(value[name], dict):
            raise DataError(
                path, f"{name} is not a table of ranges: parts that were not renumbered (reshuffle=False) are not read"
            )
        if not isinstance(value[types], dict) or set(value[name]) != set(value[types]):
            raise DataError(path, f"{name} and {types} name different types")
    if not isinstance(value["num_parts"], int) or value["num_parts"] < 1:
        raise DataError(path, f"num_parts {value['num_parts']!r} is not a number of parts")
    return value


def _declare_nodes(folder: _Folder, out: GraphWriter, options: ImportOptions) -> None:
    originals = original_nodes(folder, options)
    if originals is None:
        options.notes.append("vertex ids are the numbers that DistDGL has given: no nid_map beside the parts")
    for theirs, node_type in folder.names.nodes.items():
        starts = folder.starts(theirs)
        out.add_nodes(node_type, int(starts[-1]), ids=None if originals is None else originals[theirs])
        out.add_table(PART, np.repeat(np.arange(folder.num_parts, dtype=np.int32), np.diff(starts)), node_type)


class _Edges:
    """Takes the edges of one type part after part. Writes them in the order of their original numbers, if these are
    known."""

    def __init__(self, path: Path, out: GraphWriter, edge_type: str, starts: Array, original: Array | None) -> None:
        self._path, self._out, self._type = path, out, edge_type
        self._starts, self._original = starts, original
        self._appender: EdgeAppender | None = None
        self._ends: dict[str, Array] = {}
        self._whole: dict[str, Array] = {}
        self._specs: dict[str, TableSpec] | None = None

    def add(self, part: int, numbers: Array, columns: dict[str, Array], rows_of: dict[str, Array]) -> None:
        """Take a part's edges: their ``numbers`` within the type, ``src`` and ``dst`` by edge, and tables by number."""
        first, last = int(self._starts[part]), int(self._starts[part + 1])
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], np.arange(first, last)):
            raise DataError(self._path, f"part {part}: its edges {self._type!r} are not numbered {first} to {last - 1}")
        if first == last:
            return
        for name, rows in rows_of.items():
            if len(rows) != last - first:
                raise DataError(self._path, f"part {part}: {name!r} has {len(rows)} rows for {last - first} edges")
        specs = {name: TableSpec(rows.dtype.newbyteorder("<").str, rows.shape[1:]) for name, rows in rows_of.items()}
        if self._specs not in (None, specs):
            raise DataError(
                self._path, f"part {part}: the tensors of the edges {self._type!r} differ from other parts'"
            )
        self._specs = specs
        ends = {name: rows[order] for name, rows in columns.items()}
        if self._original is None:
            self._append(ends, rows_of)
        else:
            self._scatter(self._original[first:last], ends, self._ends)
            self._scatter(self._original[first:last], rows_of, self._whole)

    def _append(self, ends: dict[str, Array], tables: dict[str, Array]) -> None:
        if self._appender is None:
            self._appender = self._out.open_edges(self._type, self._specs)
        self._appender.append(ends["src"], ends["dst"], tables)

    def _scatter(self, places: Array, columns: dict[str, Array], whole: dict[str, Array]) -> None:
        for name, rows in columns.items():
            if name not in whole:
                whole[name] = np.empty((int(self._starts[-1]), *rows.shape[1:]), rows.dtype)
            whole[name][places] = rows

    def close(self) -> None:
        """Write what has been collected."""
        if self._ends:
            self._append(self._ends, self._whole)
        elif self._appender is None:
            self._out.open_edges(self._type)


def _add_edges(
    folder: _Folder,
    part: int,
    tables: Mapping[tuple[str, str], Array],
    sinks: Mapping[str, _Edges],
    options: ImportOptions,
) -> None:
    """Pass the edges that a part owns to the sinks of their types."""
    where = folder.part_folder(part)
    kind, numbers, source, target = folder.owned_edges(part, options)
    for number, (key, sink) in enumerate(sinks.items()):
        mine = kind == number
        rows_of = {}
        for (of_type, name), rows in tables.items():
            if of_type == key and (values := edge_tensor(where, name, rows, options)) is not None:
                rows_of[name] = values
        columns = {"src": source[mine], "dst": target[mine]}
        sink.add(part, numbers[mine], columns, rows_of)
