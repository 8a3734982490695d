"""The CSV files of DGL's ``CSVDataset``: a ``meta.yaml`` and the files that it names.

    dataset_name: tiny
    separator: ","
    node_data: [{file_name: users.csv, ntype: user, node_id_field: node_id}]
    edge_data: [{file_name: follows.csv, etype: [user, follows, user], src_id_field: src_id, dst_id_field: dst_id}]

Types may be missing in a graph of one type. Each file has a heading. Columns of numbers, truth values or lists of numbers
(``"0.1, 0.2"``) become tables; ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits. Columns without a
name are left out, as DGL does. Ids are integers, which stay the users' ids, or strings, which become the table
``name``. Vertices keep the order of the file, where DGL sorts them by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.dgl.tensors import TypeNames, add_node_tables, edge_table
from atta.partition.importers.reading.cells import CsvFile
from atta.partition.importers.reading.common import name_bytes
from atta.partition.importers.reading.described import entries, named_file, read_description
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows
from atta.partition.importers.reading.stated import distinct_ids
from atta.partition.importers.reading.written import add_edge_rows

__all__ = ["describes_csv_set", "read_csv_set"]

Array = npt.NDArray[Any]
_META = "meta.yaml"
_KNOWN = {"version", "dataset_name", "separator", "node_data", "edge_data", "graph_data"}
_NODE, _EDGE = "_V", ("_V", "_E", "_V")
"""DGL's names of the only types."""
_GRAPH = "graph_id"


def describes_csv_set(source: Path) -> bool:
    """Whether a file or folder is such a data set."""
    return source.name == _META if source.is_file() else (source / _META).is_file()


def read_csv_set(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the data set of the folder or the ``meta.yaml`` ``source``."""
    path = source if source.is_file() else source / _META
    said = read_description(path, "a CSVDataset")
    separator = _separator(path, said, options)
    nodes = {str(entry.get("ntype") or _NODE): entry for entry in entries(path, said, "node_data", "file_name")}
    edges = {_relation(path, entry): entry for entry in entries(path, said, "edge_data", "file_name")}
    for kind, found in (("node_data", len(nodes)), ("edge_data", len(edges))):
        if not found or found < len(said[kind]):
            raise DataError(path, f"{kind!r} has no entries, or two of the same type")
    keys = [":".join(relation) for relation in edges]
    names = TypeNames(path, *({name: place for place, name in enumerate(found)} for found in (nodes, keys)))
    known = {}
    for theirs, entry in nodes.items():
        file = CsvFile.open(named_file(path.parent, entry["file_name"]), separator)
        known[theirs] = _add_nodes(file, entry, names.nodes[theirs], out, options)
    for key, ((source_type, _, target_type), entry) in zip(keys, edges.items(), strict=True):
        file = CsvFile.open(named_file(path.parent, entry["file_name"]), separator)
        _add_relation(file, entry, names.edges[key], (known[source_type], known[target_type]), out, options=options)


def _separator(path: Path, said: Mapping[str, Any], options: ImportOptions) -> str:
    """What separates columns. Refuse entries that are not read."""
    for name in sorted(said.keys() - _KNOWN):
        options.refuse(path, name, "a CSVDataset has no such entry")
    if said.get("graph_data"):
        options.refuse(path, "graph_data", "it is of whole graphs; only single graphs are imported")
    separator = said.get("separator", ",")
    if not isinstance(separator, str) or len(separator) != 1:
        raise DataError(path, f"'separator' is {separator!r}, wanted is one character")
    return separator


def _relation(path: Path, entry: Mapping[str, Any]) -> tuple[str, str, str]:
    said = entry.get("etype") or _EDGE
    if not isinstance(said, list | tuple) or len(said) != 3 or not all(isinstance(name, str) for name in said):
        raise DataError(path, f"'etype' is {said!r}, wanted are source, relation and target")
    return said[0], said[1], said[2]


def _add_nodes(
    file: CsvFile, entry: Mapping[str, Any], node_type: str, out: GraphWriter, options: ImportOptions
) -> Any:
    """Write a node type; returns the ids of its vertices."""
    import pyarrow as pa

    field = str(entry.get("node_id_field") or "node_id")
    ids = file.ids(field)
    if pa.types.is_integer(ids.type):
        given = distinct_ids(file.path, f"the column {field!r}", ids.to_numpy(zero_copy_only=False), len(ids))
        out.add_nodes(node_type, len(ids), ids=given)
    else:
        counted = ids.value_counts()
        if len(counted) < len(ids):
            twice = next(each["values"].as_py() for each in counted if each["counts"].as_py() > 1)
            raise DataError(file.path, f"the column {field!r} has the id {twice!r} twice")
        out.add_nodes(node_type, len(ids))
        out.add_table(NAME, name_bytes(file.path, ids.to_pylist()), node_type)
    add_node_tables(file.path, out, node_type, _tables(file, {field}, entry, options), options)
    return ids


def _tables(file: CsvFile, ids: set[str], entry: Mapping[str, Any], options: ImportOptions) -> dict[str, FileRows]:
    """The columns of a file that hold numbers."""
    graph, found = str(entry.get("graph_id_field") or _GRAPH), {}
    for name in file.names:
        if name in ids:
            continue
        if name == graph:
            if len(graphs := np.unique(file.ids(name).to_numpy(zero_copy_only=False))) > 1:
                raise DataError(file.path, f"holds {len(graphs)} graphs; only single graphs are imported")
        elif (rows := file.rows(name)) is not None:
            found[name] = rows
        else:
            options.refuse(file.path, name, "it holds text")
    return found


def _add_relation(
    file: CsvFile,
    entry: Mapping[str, Any],
    edge_type: str,
    known: tuple[Any, Any],
    out: GraphWriter,
    *,
    options: ImportOptions,
) -> None:
    """Write an edge type. ``known``: the ids of sources and of destinations."""
    fields = [str(entry.get(f"{end}_id_field") or f"{end}_id") for end in ("src", "dst")]
    ends = dict(zip(fields, known, strict=True))
    tables = _tables(file, {*ends}, entry, options)
    tables = {name: rows for name, rows in tables.items() if edge_table(file.path, name, options)}
    add_edge_rows(out, edge_type, _edges(file, ends), options, tables)


def _edges(file: CsvFile, ends: Mapping[str, Any]) -> FileRows:
    """The edges [E, 2] of a file. ``ends``: the ids of vertices by the columns of source and target."""

    def pieces() -> Iterator[Array]:
        for cells in file.cells(list(ends)):
            sides = zip(ends.items(), cells, strict=True)
            yield np.stack([_positions(file.path, name, texts, ids) for (name, ids), texts in sides], axis=1)

    return FileRows(file.path, np.dtype(np.int64), (2,), pieces)


def _positions(path: Path, name: str, texts: Any, ids: Any) -> Array:
    """Rows of the vertices that a column names; raises DataError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = texts
    if pa.types.is_integer(ids.type):
        whole = pc.match_substring_regex(texts, "^-?[0-9]{1,18}$")
        found = pc.if_else(whole, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    rows = pc.index_in(found, value_set=ids)
    if rows.null_count:
        lost = texts.filter(pc.is_null(rows))[0].as_py()
        raise DataError(path, f"the column {name!r} names the vertex {lost!r}, which is in no node file")
    return np.asarray(rows.to_numpy(zero_copy_only=False)).astype(np.int64)
