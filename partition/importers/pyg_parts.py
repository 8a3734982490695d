"""A folder of PyG's ``Partitioner``: ``META.json`` with ``part_*`` beside it. Vertices and edges keep the numbers they
had before. The partition of each vertex becomes the node table ``part``. Folders that ``atta export pyg-parts`` wrote
have labels and splits as features ``y`` and ``NAME_mask``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError
from atta.observe.packages import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import PART, Scattered, add_edges, add_node_array
from atta.partition.importers.reading.pickles import as_array, load_tensor, load_torch
from atta.partition.importers.reading.source import Array, ImportOptions, read_description
from atta.partition.names import join_edge_type

_LONGEST = 255 - len(".pt")
_Key = Any  # how PyG names a type: str, (source, relation, destination) or None in homogeneous graphs


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``META.json``). Features are read part after part, never all in memory
    twice."""
    load("importing PyG's partitions", "torch")
    folder = source.parent if source.is_file() else source
    path, what = folder / "META.json", "a description of PyG's partitions"
    meta = read_description(path, what, "edge_types", "is_hetero", "node_types", "num_parts")
    if not isinstance(meta["num_parts"], int):
        raise DataError(path, f"not {what}: 'num_parts' is {meta['num_parts']!r}")
    nodes: dict[_Key, str] = {t: t for t in meta["node_types"] or ()} or {None: NODE_TYPE}
    edges: dict[_Key, str] = {tuple(e): join_edge_type(*e) for e in meta["edge_types"] or ()} or {None: EDGE_TYPE}
    counts = {}
    for key, node_type in nodes.items():
        parts = load_tensor(folder / map_file("node_map", key))
        counts[node_type] = len(parts)
        out.add_nodes(node_type, len(parts))
        out.add_table(PART, parts.astype(np.int32), node_type)
    for key in nodes:
        _add_tables(folder, meta["num_parts"], key, out, options)
    offset = 0  # PyG numbers the edges of all types together
    for key, edge_type in edges.items():
        total = len(load_tensor(folder / map_file("edge_map", key)))
        ends, tables = _edges(folder, meta["num_parts"], key, offset, total=total, options=options)
        add_edges(out, edge_type, ends, options, tables)
        offset += total


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``META.json`` and ``part_0``, or that file."""
    folder = path.parent if head else path
    return (not head or path.name == "META.json") and (folder / "META.json").is_file() and (folder / "part_0").is_dir()


def map_file(kind: str, key: _Key) -> str:
    """Where PyG keeps the partition of each vertex or edge of a type, within the folder: its name is part of the path.
    Raises ConfigError for a name that leads elsewhere."""
    if key is None:
        return f"{kind}.pt"
    name = key if isinstance(key, str) else "__".join(key)
    if any(word in {"", ".", ".."} or len(word.encode()) > _LONGEST for word in name.split("/")):
        raise ConfigError(f"the type {name!r}, which PyG makes a path, and it is none")
    return f"{kind}/{name}.pt"


def _add_tables(folder: Path, parts: int, key: _Key, out: GraphWriter, options: ImportOptions) -> None:
    node_type = NODE_TYPE if key is None else str(key)
    found, times = Scattered(out.count(node_type)), {}
    for part in range(parts):
        path, value = _value(folder, part, "node_feats.pt", key)
        found.put(path, "its tensors", as_array(path, value.get("id", value.get("global_id"))), _features(path, value))
        if "time" in value:  # every part has the times of all vertices
            times["time"] = as_array(path, value["time"])
        _refuse_unknown(path, value, {"id", "global_id", "feats", "time"}, options)
    if found.tables:
        found.check(folder, f"vertices of {node_type!r}")
    for name, values in {**found.tables, **times}.items():
        if name.endswith("_mask") and values.dtype != bool:
            out.add_table(name, values, node_type)
        else:
            add_node_array(out, node_type, name, values, options, where=folder)


def _edges(
    folder: Path, parts: int, key: _Key, offset: int, *, total: int, options: ImportOptions
) -> tuple[tuple[Array, Array], dict[str, Array]]:
    found = Scattered(total)
    for part in range(parts):
        path, value = _value(folder, part, "graph.pt", key)
        ends = {name: as_array(path, value.get(name)) for name in ("row", "col")}
        rows = as_array(path, value.get("edge_id")) - offset
        _refuse_unknown(path, value, {"edge_id", "row", "col", "size"}, options)
        path, value = _value(folder, part, "edge_feats.pt", key)
        tables = _features(path, value)
        if "edge_time" in value:
            tables["time"] = as_array(path, value["edge_time"])
        found.put(path, "its tensors", rows, {**{f"end {name}": each for name, each in ends.items()}, **tables})
        _refuse_unknown(path, value, {"global_id", "feats", "edge_time"}, options)
    found.check(folder, f"edges of {key or 'the graph'}")
    none = np.zeros(0, np.int64)
    return (found.tables.pop("end row", none), found.tables.pop("end col", none)), found.tables


def _value(folder: Path, part: int, name: str, key: _Key) -> tuple[Path, Mapping[str, Any]]:
    path = folder / f"part_{part}" / name
    value = load_torch(path)
    found = value if key is None else value.get(key, {}) if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping):
        raise DataError(path, f"says nothing about {key or 'the graph'}")
    return path, found


def _features(path: Path, value: Mapping[str, Any]) -> dict[str, Array]:
    feats = (value.get("feats") or {}).items()
    return {str(name): as_array(path, tensor) for name, tensor in feats if tensor is not None}


def _refuse_unknown(path: Path, value: Mapping[str, Any], known: set[str], options: ImportOptions) -> None:
    for name in sorted(str(key) for key in value.keys() - known if value[key] is not None):
        options.refuse(path, name, "PyG's partitions have nothing of this name")
