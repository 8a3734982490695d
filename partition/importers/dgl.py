"""A folder of DistDGL: the ``NAME.json`` that ``dgl.distributed.partition_graph`` wrote, with its parts beside it.

Vertices keep DGL's new ids (per type) as user ids. The partition of each vertex becomes the node table ``part``: ``atta partition
--method given --option table=part`` makes a dataset with the very same partitions.

A ``.bin`` file that ``dgl.save_graphs`` wrote is read as well, if it holds one graph; distinct numbers ``ndata["_ID"]`` are its
user ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, EdgeAppender, GraphWriter
from atta.partition.importers.common import add_features
from atta.partition.importers.edges import add_edges
from atta.partition.importers.options import ImportOptions
from atta.partition.importers.stated import distinct_ids, state_classes
from atta.partition.schema import is_table_name

__all__ = ["node_table", "read"]

Array = npt.NDArray[Any]
_TABLES = {"feat": "x", "label": "y", "labels": "y"}
_SCALARS = ("weight", "time")
_SPLITS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph (``.bin``) or the partition configuration ``source``."""
    if source.suffix == ".bin":
        _read_file(source, out, options)
    else:
        _read_parts(source, out, options)


def node_table(name: str) -> str | None:
    """Return the node table that the tensor ``name`` of a graph is read as."""
    if name.endswith("_mask"):
        return None
    table = _TABLES.get(name, name)
    return table if is_table_name(table) else None


def _read_file(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    graph, labels = _load_file(source)
    names = _names(
        source,
        {t: number for number, t in enumerate(graph.ntypes)},
        {":".join(e): number for number, e in enumerate(graph.canonical_etypes)},
    )
    for theirs, node_type in names.nodes.items():
        count, frame = graph.num_nodes(theirs), _arrays(graph.nodes[theirs].data)
        out.add_nodes(node_type, count, ids=distinct_ids(frame.pop("_ID", None), count))
        for name, rows in frame.items():
            _add_tensor(out, node_type, name, rows, options)
    state_classes(out, int(labels["num_classes"][0]) if "num_classes" in labels else None)
    for key, edge_type in names.edges.items():
        relation = tuple(key.split(":"))
        src, dst = (rows.numpy() for rows in graph.edges(etype=relation, order="eid"))
        tables = {
            name: rows.reshape(-1) if name in _SCALARS and rows.size == len(rows) else rows
            for name, rows in _arrays(graph.edges[relation].data).items()
            if is_table_name(name)
        }
        add_edges(out, edge_type, (src, dst), options, tables)


def _arrays(frame: Mapping[str, Any]) -> dict[str, Array]:
    return {str(name): rows.numpy() for name, rows in frame.items()}


def _add_tensor(out: GraphWriter, node_type: str, name: str, rows: Array, options: ImportOptions) -> None:
    table = node_table(name)
    if name.endswith("_mask"):
        split = name.removesuffix("_mask")
        columns = {split: rows} if rows.ndim == 1 else {f"{split}_{i}": rows[:, i] for i in range(rows.shape[1])}
        for column, chosen in columns.items():
            out.add_split(column, chosen.astype(bool), node_type)
    elif table == "x":
        add_features(out, rows, node_type, options)
    elif table == "y":
        out.add_labels(rows, node_type)
    elif table is not None:
        out.add_table(table, rows, node_type)


def _load_file(path: Path) -> tuple[Any, Mapping[str, Any]]:
    dgl = _dgl("graphs")
    try:
        graphs, labels = dgl.load_graphs(str(path))
    except Exception as error:  # DGL's own errors have no common base, and their messages are stack traces
        raise DataError(path, f"not readable by dgl.load_graphs: {str(error).splitlines()[0]}") from None
    if len(graphs) != 1:
        raise DataError(path, f"holds {len(graphs)} graphs; only single graphs are imported")
    return graphs[0], labels


def _read_parts(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import part after part, features never all in memory."""
    if options.undirected or options.reverse:
        raise ConfigError("dgl: a partitioned graph is taken as it is, without reverse edges added")
    config = _config(source)
    names = _names(source, config["ntypes"], config["etypes"])
    ranges = {names.nodes[t]: np.array(config["node_map"][t], dtype=np.int64) for t in config["node_map"]}
    parts = int(config["num_parts"])
    for node_type, spans in ranges.items():
        sizes = (spans[:, 1] - spans[:, 0]).tolist()
        out.add_nodes(node_type, sum(sizes))
        out.add_table("part", np.repeat(np.arange(parts, dtype=np.int32), sizes), node_type)
    edges: dict[str, EdgeAppender] = {e: out.open_edges(e) for e in names.edges.values()}
    tables: dict[tuple[str, str], list[Array]] = {}
    options.progress.stage("parts", parts)
    for part in range(parts):
        graph, features, book = _load(source, part)
        for key, rows in features.items():
            node_type, _, name = key.partition("/")
            tables.setdefault((names.nodes[node_type], name), []).append(rows.numpy())
        _append(graph, book, names, edges)
        options.progress.advance(1)
    for (node_type, name), pieces in tables.items():
        rows = np.concatenate(pieces)
        if name in _SPLITS:
            out.add_split(_SPLITS[name], rows.astype(bool), node_type)
        elif name in ("label", "labels", "y"):
            out.add_labels(rows, node_type)
        else:
            out.add_table("x" if name == "feat" else name, rows, node_type)


class _Names:
    """Atta's names of DGL's types, by DGL's names (``"a:r:b"`` for edges) and in the order of their numbers."""

    def __init__(self, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
        single = len(node_types) == 1
        self.nodes = {
            t: NODE_TYPE if single and t == "_N" else t for t in sorted(node_types, key=lambda t: node_types[t])
        }
        self.edges = {}
        for key in sorted(edge_types, key=lambda e: edge_types[e]):
            source, relation, target = key.split(":")
            plain = single and relation == "_E"
            self.edges[key] = EDGE_TYPE if plain else f"{self.nodes[source]}__{relation}__{self.nodes[target]}"


def _config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(path, f"not a partition configuration: {error}") from None
    needed = {"num_parts", "node_map", "edge_map", "ntypes", "etypes"}
    if not isinstance(value, dict) or not needed <= set(value):
        raise DataError(path, f"not a partition configuration of DistDGL: wanted are {', '.join(sorted(needed))}")
    return value


def _names(path: Path, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> _Names:
    try:
        return _Names(node_types, edge_types)
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise DataError(path, f"its types are not readable: {error}") from None


def _load(path: Path, part: int) -> tuple[Any, Mapping[str, Any], Any]:
    dgl = _dgl("DistDGL's partitions")
    try:
        graph, features, _, book, *_ = dgl.distributed.load_partition(str(path), part)
    except Exception as error:  # DGL's own errors have no common base
        raise DataError(path, f"part {part} is not readable: {type(error).__name__}: {error}") from error
    return graph, features, book


def _dgl(what: str) -> Any:
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise ConfigError(f"importing {what} needs DGL: install atta[dgl]") from error
    return dgl


def _append(graph: Any, book: Any, names: _Names, edges: Mapping[str, EdgeAppender]) -> None:
    """The edges that a part owns, by type."""
    inner = graph.edata["inner_edge"].bool()
    source, target = (ends[inner] for ends in graph.edges())
    kind, _ = book.map_to_per_etype(graph.edata["_ID"][inner])
    _, source = book.map_to_per_ntype(graph.ndata["_ID"][source])
    _, target = book.map_to_per_ntype(graph.ndata["_ID"][target])
    for number, edge_type in enumerate(names.edges.values()):
        mine = (kind == number).numpy()
        edges[edge_type].append(source.numpy()[mine], target.numpy()[mine])
