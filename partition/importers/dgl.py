"""A file of one graph that ``dgl.save_graphs`` wrote, the ``NAME.json`` of DistDGL's partitions, the ``metadata.json``
of a graph in chunks, the ``meta.yaml`` of a ``CSVDataset``, or the ``metadata.yaml`` of GraphBolt's data sets; of all but the
first also their folder. ``reading/dgl_sets.py`` and ``reading/graphbolt.py`` describe the last three.

A process of its own loads a file of ``dgl.save_graphs``, because a damaged one can end the process that calls DGL.
``ndata["_ID"]`` has the user ids if its numbers are distinct. Edges of DistDGL's parts return to their original order. If no
file has the original numbers, the import takes DistDGL's (per type) and tells the user. The partition of each vertex becomes
the node table ``part``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError, blaming
from atta.observe.packages import need
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.dgl_sets import describes_chunks, describes_csv_set, read_chunks, read_csv_set
from atta.partition.importers.reading.dgl_tensors import (
    TypeNames,
    add_tensors,
    arrays,
    edge_tables,
    read_file,
    require_dgl,
)
from atta.partition.importers.reading.filling import PART, Scattered, add_edges
from atta.partition.importers.reading.graphbolt import describes_graphbolt, part_edges, read_graphbolt
from atta.partition.importers.reading.pickles import load_torch
from atta.partition.importers.reading.rows import load_array, load_npz
from atta.partition.importers.reading.source import (
    Array,
    Ids,
    ImportOptions,
    as_ids,
    distinct_ids,
    first_line,
    head_of,
    read_description,
)

_GRAPHS = 0xDD2E4FF046B4A13F.to_bytes(8, "little")
"""What files of ``dgl.save_graphs`` begin with."""
_DESCRIBED: dict[Callable[[Path, GraphWriter, ImportOptions], None], Callable[[Path], bool]] = {
    read_chunks: describes_chunks,
    read_csv_set: describes_csv_set,
    read_graphbolt: describes_graphbolt,
}
"""Who reads descriptions of graphs, and whether one is of its kind. None of them needs DGL."""
_Tensors = dict[tuple[str, str], Array]  # by type and name
_GRAPHBOLT = "part_graph_graphbolt"
_KEYS = (b'"part_method"', b'"part-0"')
"""What the beginning of a ``NAME.json`` has."""
_MOST_LOOKED_AT = 100
"""Number of JSON files of a folder that are looked at."""
_KNOWN = {"_ID", "_TYPE", "part_id", "orig_id", "inner_node", "inner_edge"}
_SUFFIXES = (".npy", ".npz", ".pt", ".dgl", ".bin")


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file or folder of one graph."""
    for reader, recognised in _DESCRIBED.items():
        if recognised(source):
            reader(source, out, options)
            return
    need("importing DGL's graphs", "dgl", "torch")
    if source.is_file() and (source.suffix == ".bin" or head_of(source).startswith(_GRAPHS)):
        read_file(source, out, options)
    else:
        _read_parts(_described_parts(source) or source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``dgl.save_graphs``, or the description of DistDGL's partitions or of a data set."""
    if head.startswith(_GRAPHS) or any(recognised(path) for recognised in _DESCRIBED.values()):
        return True
    return _described_parts(path) is not None


def _described_parts(source: Path) -> Path | None:
    """The ``NAME.json`` that a file is or a folder has; None: the file is another, or the folder has none or several."""
    files = islice(sorted(source.glob("*.json")), _MOST_LOOKED_AT) if source.is_dir() else [source]
    found = [path for path in files if path.is_file() and all(key in head_of(path) for key in _KEYS)]
    return found[0] if len(found) == 1 else None


def called(path: Path) -> str | None:
    """What ``path`` is, for people, where the sign of the format says less."""
    if (parts := _described_parts(path)) is None:
        return None
    return "partitions with GraphBolt's graphs" if _of_graphbolt(_config(parts)) else "partitions of DistDGL"


def _read_parts(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    if options.undirected or options.reverse:
        raise ConfigError("dgl: a partitioned graph is taken as it is, without reverse edges added")
    config = _config(source)
    folder = _Folder(source, config, TypeNames(source, config["ntypes"], config["etypes"]), options)
    originals = folder.original_nodes()
    if originals is None:
        options.notes.append("vertex ids are the numbers that DistDGL has given: no nid_map beside the parts")
    for theirs, node_type in folder.names.nodes.items():
        starts = folder.starts(theirs)
        out.add_nodes(node_type, int(starts[-1]), ids=None if originals is None else originals[theirs])
        out.add_table(PART, np.repeat(np.arange(folder.num_parts, dtype=np.int32), np.diff(starts)), node_type)
    places = folder.original_edges()
    if places is None:
        options.notes.append("edges are numbered as DistDGL has renumbered them: no eid_map beside the parts")
        places = {key: np.arange(folder.starts(key)[-1]) for key in folder.names.edges}
    edges = {key: Scattered(len(rows)) for key, rows in places.items()}
    tables: dict[tuple[str, str], list[Array]] = {}
    options.progress.stage("parts", folder.num_parts)
    for part in range(folder.num_parts):
        of_nodes, of_edges = folder.features(part)
        for named, rows in of_nodes.items():
            tables.setdefault(named, []).append(rows)
        folder.put_edges(part, of_edges, places, edges)
        options.progress.advance(1)
    for key, edge_type in folder.names.edges.items():
        found, none = edges[key].tables, np.zeros(0, np.int64)
        ends = found.pop("end src", none), found.pop("end dst", none)
        add_edges(out, edge_type, ends, options, found)
    for theirs, node_type in folder.names.nodes.items():
        mine = {name: pieces for (of_type, name), pieces in tables.items() if of_type == theirs}
        _add_tables(source, out, node_type, theirs, mine, options)


def _add_tables(  # noqa: PLR0917 - the tables, and where they go
    source: Path,
    out: GraphWriter,
    node_type: str,
    theirs: str,
    tables: Mapping[str, list[Array]],
    options: ImportOptions,
) -> None:
    whole = {}
    for name, pieces in tables.items():
        if name == PART:
            options.refuse(source, name, "the table of this name has the partitions")
            continue
        with blaming(DataError, source, f"{name!r} of {theirs!r} differs between parts", of=ValueError):
            whole[name] = np.concatenate(pieces)
        if (rows := len(whole[name])) != out.count(node_type):
            raise DataError(source, f"{name!r} of {theirs!r} has {rows} rows for {out.count(node_type)} vertices")
    add_tensors(source, out, node_type, whole, options)


@dataclass(frozen=True)
class _Folder:
    """DistDGL's partitions on disk: the partition configuration, its content, and names of its types."""

    path: Path
    config: dict[str, Any]
    names: TypeNames
    options: ImportOptions

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

    def _graph_file(self, part: int) -> Path:
        try:
            name = self.config[f"part-{part}"][_GRAPHBOLT if _of_graphbolt(self.config) else "part_graph"]
            return self.path.parent / str(name)
        except (KeyError, TypeError):
            raise DataError(self.path, f"part {part} is not readable: the configuration lacks its part_graph") from None

    def _graph(self, part: int) -> Any:
        distributed = require_dgl("importing DistDGL's partitions").distributed
        try:
            return distributed.load_partition(str(self.path), part, load_feats=False)[0]
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None

    def put_edges(
        self, part: int, tables: _Tensors, places: Mapping[str, Array], edges: Mapping[str, Scattered]
    ) -> None:
        """Put the edges that a part owns at the ``places`` of their types' edges, with the part's ``tables``."""
        where = self._graph_file(part).parent
        if _of_graphbolt(self.config):
            source, target, numbers = part_edges(self._graph_file(part))
        else:
            graph = self._graph(part)
            for name in sorted({*graph.ndata, *graph.edata} - _KNOWN):
                self.options.refuse(where / "graph.dgl", name, "it is a tensor of the part's graph, HALO included")
            ids = graph.ndata["_ID"].numpy()
            source, target = (ids[ends.numpy()] for ends in graph.edges(order="eid"))
            numbers = graph.edata["_ID"].numpy()
        kind, numbers, owner = self._within("edge_map", numbers)
        source, target = (self._within("node_map", rows)[1] for rows in (source, target))
        for number, key in enumerate(self.names.edges):
            mine = np.flatnonzero((owner == part) & (kind == number))
            order = mine[np.argsort(numbers[mine], kind="stable")]
            first, last = self.starts(key)[part : part + 2]
            if not np.array_equal(numbers[order], np.arange(first, last)):
                name = self.names.edges[key]
                raise DataError(self.path, f"part {part}: its edges {name!r} are not numbered {first} to {last - 1}")
            found = {name: rows for (of_type, name), rows in tables.items() if of_type == key}
            found = edge_tables(where, found, self.options)
            what = f"part {part}: the tensors of the edges {self.names.edges[key]!r}"
            rows = {"end src": source[order], "end dst": target[order], **found}
            edges[key].put(self.path, what, places[key][first:last], rows)

    def _within(self, name: str, numbers: Array) -> tuple[Array, Array, Array]:
        """Of vertices or edges: the numbers of the types, the numbers within them, and the parts; raises DataError."""
        keys = self.names.nodes if name == "node_map" else self.names.edges
        rows = [  # the ranges that are not empty, ascending
            (int(lo), int(hi), part, kind, int(self.starts(key)[part]))
            for kind, key in enumerate(keys)
            for part, (lo, hi) in enumerate(self.config[name][key])
            if lo < hi
        ]
        ranges = np.array(sorted(rows), np.int64).reshape(-1, 5)
        at = np.searchsorted(ranges[:, 0], numbers, side="right") - 1
        if len(numbers) and (at.min() < 0 or (numbers >= ranges[at, 1]).any()):
            raise DataError(self.path, f"{name} has no range for a number of a part")
        found = ranges[at]
        return found[:, 3], numbers - found[:, 0] + found[:, 4], found[:, 2]

    def features(self, part: int) -> tuple[_Tensors, _Tensors]:
        from dgl.distributed.partition import load_partition_feats

        where = self._graph_file(part).parent
        try:
            frames = load_partition_feats(str(self.path), part)
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None
        of_nodes: _Tensors = {}
        of_edges: _Tensors = {}
        for frame, known, found in zip(frames, (self.names.nodes, self.names.edges), (of_nodes, of_edges), strict=True):
            for key, rows in arrays(where, frame or {}, self.options).items():
                of_type = max((t for t in known if key.startswith(f"{t}/")), key=len, default=None)
                if of_type is not None:
                    found[of_type, key.removeprefix(f"{of_type}/")] = rows
                else:
                    self.options.refuse(where, key, f"the graph has no type {key.partition('/')[0]!r}")
        return of_nodes, of_edges

    def _unreadable(self, part: int, error: Exception) -> DataError:
        return DataError(self.path, f"part {part} is not readable: {type(error).__name__}: {first_line(error)}")

    def original_nodes(self) -> dict[str, Ids] | None:
        """The original number of every vertex by DGL's types, None if they are not stated; raises DataError."""
        where, found = self._find("nid_map", "orig_nids.dgl", self.names.nodes)
        return found and {
            t: distinct_ids(where, f"the original ids of {t!r}", values, int(self.starts(t)[-1]))
            for t, values in found.items()
        }

    def original_edges(self) -> dict[str, Ids] | None:
        """The original number of every edge by DGL's types, None if they are not stated. Raises DataError for numbers that
        are not positions: edges in graph folders are identified by their positions."""
        where, found = self._find("eid_map", "orig_eids.dgl", self.names.edges)
        places = {}
        for key, values in (found or {}).items():
            total = int(self.starts(key)[-1])
            ids = distinct_ids(where, f"the original edge ids of {key!r}", values, total)
            if total and (ids.min() < 0 or ids.max() >= total):
                why = f"the original edge ids of {key!r} are not 0 to {total - 1}, and edges have no ids but positions"
                self.options.refuse(where, where.name, why)
                return None
            places[key] = ids
        return found and places

    def _find(self, name: str, in_parts: str, known: Mapping[str, str]) -> tuple[Path, dict[str, Array] | None]:
        folder = self.path.parent
        beside = [path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").exists()]
        folders = [self._graph_file(part).parent for part in range(self.num_parts)]
        parts = [path for part in folders if (path := part / in_parts).exists()]
        if len(beside) > 1 or (beside and parts):
            raise DataError(folder, f"holds {', '.join(p.name for p in (*beside, *parts[:1]))}; leave one of them")
        if parts and len(parts) < self.num_parts:
            raise DataError(folder, f"{in_parts} is missing in some parts")
        if files := beside or parts:
            pieces = [_by_type(path, _load(path), known) for path in files]
            return files[0], {key: np.concatenate([piece[key] for piece in pieces]) for key in known}
        if _of_graphbolt(self.config):
            return self.path, None
        return self.path, self._in_graphs(known, of_nodes="nid" in name)

    def _in_graphs(self, known: Mapping[str, str], *, of_nodes: bool) -> dict[str, Array] | None:
        found = {key: np.zeros(int(self.starts(key)[-1]), np.int64) for key in known}
        for part in range(self.num_parts):
            graph = self._graph(part)
            frame = graph.ndata if of_nodes else graph.edata
            if "orig_id" not in frame:
                return None
            kind, rows, owner = self._within("node_map" if of_nodes else "edge_map", frame["_ID"].numpy())
            values = as_ids(self._graph_file(part).parent / "graph.dgl", "orig_id", frame["orig_id"].numpy())
            for number, key in enumerate(known):
                mine = (owner == part) & (kind == number)
                found[key][rows[mine]] = values[mine]
        return _per_type(found)


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


def _load(path: Path) -> Any:
    if reader := {".npy": load_array, ".npz": load_npz, ".pt": load_torch}.get(path.suffix):
        return reader(path)
    try:
        return require_dgl("importing DistDGL's partitions").data.utils.load_tensors(str(path))
    except ConfigError:
        raise
    except Exception as error:  # torch and DGL raise many unrelated types
        raise DataError(path, f"not readable: {first_line(error)}") from None


def _by_type(path: Path, value: Any, known: Iterable[str]) -> dict[str, Array]:
    types = list(known)
    if not isinstance(value, Mapping):
        value = {types[0]: value} if len(types) == 1 else {}
    elif len(types) == 1 == len(value):
        value = {types[0]: next(iter(value.values()))}
    found: dict[str, Array] = {}
    for key, tensor in value.items():
        name = ":".join(key) if isinstance(key, tuple) else str(key)
        if name not in types:  # a relation alone
            name = next((t for t in types if f":{name}:" in t), name)
        found[name] = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    if set(found) != set(types):
        raise DataError(path, f"holds numbers of {', '.join(found) or 'no type'}; the graph has {', '.join(types)}")
    return found


def _per_type(numbers: dict[str, Array]) -> dict[str, Array]:
    """Count from 0 in each type. With several types, DGL numbers the vertices (or edges) of all types together."""
    starts = np.concatenate([[0], np.cumsum([len(values) for values in numbers.values()])])
    spans = list(zip(numbers.items(), starts, starts[1:], strict=False))
    if not all(((values >= lo) & (values < hi)).all() for (_, values), lo, hi in spans):
        return numbers
    return {key: values - lo for (key, values), lo, _ in spans}
