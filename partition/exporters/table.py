"""Tables: a Parquet file for every node and edge type, and the ``schema.json`` that ``importers/table`` describes. User ids
identify the vertices, or the names if they were made from string ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.packages import load
from atta.observe.progress import Progress
from atta.partition.disk.files import chunks, write_json
from atta.partition.exporters.common import lost_tables, row_chunks, split_mask
from atta.partition.graph import Graph
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.source import Array, pa, parquet, pc
from atta.partition.names import file_name
from atta.partition.schema import TableSpec

MARKER: str | None = "schema.json"
_ROWS = 1 << 18


_Columns = dict[str, Callable[[int, int], Any]]
"""By the name of a column what gives its values from a row to another as an Arrow array."""


def lost(graph: Graph) -> list[str]:
    """Name tables that are not columns of numbers or lists."""

    def held(_: str, name: str, spec: TableSpec) -> bool:
        shape = spec.row_shape
        return len(shape) <= 1 and 0 not in shape and np.dtype(spec.dtype).itemsize <= 8

    load("exporting tables", "pyarrow", "pyarrow.parquet")
    return lost_tables(graph.schema, held, held)


def write(graph: Graph, dst: Path, progress: Progress) -> None:
    """Write the folder ``dst``, row group by row group."""
    schema: dict[str, Any] = {"nodes": {}, "edges": {}}
    if graph.schema.num_classes is not None:
        schema["num_classes"] = graph.schema.num_classes
    ids = {t: _Ids(graph, t) for t in graph.schema.node_types}
    for t in graph.schema.node_types:
        progress.stage(f"nodes {t}", graph.schema.node_counts[t])
        schema["nodes"][t] = _write_nodes(graph, t, ids[t], dst, progress)
    for e in graph.schema.edge_types:
        progress.stage(f"edges {e}", graph.schema.edge_counts[e])
        schema["edges"][e] = _write_edges(graph, e, ids, dst, progress)
    write_json(dst / "schema.json", schema)


def _write_nodes(graph: Graph, node_type: str, ids: _Ids, dst: Path, progress: Progress) -> dict[str, Any]:
    specs, count = graph.schema.node_tables[node_type], graph.schema.node_counts[node_type]
    tables = {name: graph.table(node_type, name) for name in specs if name != NAME or ids.names is None}
    id_name = "id" if "id" not in tables else "_id"  # no table begins with '_'
    columns: _Columns = {id_name: ids.span, **{name: partial(_rows, rows) for name, rows in tables.items()}}
    splits = {name: f"split_{name}" for name in graph.schema.splits[node_type]}  # a name that no table has
    columns |= {column: partial(_mask, graph.split(node_type, name)) for name, column in splits.items()}
    file = f"nodes/{file_name(node_type, '.parquet')}"
    _write(dst / file, columns, count, tables.values(), progress)
    entry = {"tables": _rules(graph, node_type, tables), "splits": splits}
    return {"files": file, "id": id_name, **{key: value for key, value in entry.items() if value}}


def _write_edges(graph: Graph, edge_type: str, ids: dict[str, _Ids], dst: Path, progress: Progress) -> dict[str, Any]:
    edges = graph.edges(edge_type)
    source, target = graph.schema.endpoints(edge_type)
    columns: _Columns = {
        "src": lambda lo, hi: ids[source].of(edges.src[lo:hi]),
        "dst": lambda lo, hi: ids[target].of(edges.dst[lo:hi]),
        **{name: partial(_rows, rows) for name, rows in edges.tables.items()},
    }
    file = f"edges/{file_name(edge_type, '.parquet')}"
    _write(dst / file, columns, len(edges), edges.tables.values(), progress)
    entry = {"files": file, "src": "src", "dst": "dst"}
    return {**entry, "tables": _rules(graph, edge_type, edges.tables)} if edges.tables else entry


def _rules(graph: Graph, type_: str, tables: Iterable[str]) -> dict[str, Any]:
    """What the schema says of each table: its column, and the names of its classes."""
    names = graph.schema.classes.get(type_, {})
    return {name: {"column": name, "classes": names[name]} if name in names else name for name in tables}


class _Ids:
    """The identifiers of one type's vertices: their names, user ids or row numbers."""

    def __init__(self, graph: Graph, node_type: str) -> None:
        self._user = graph.user_ids(node_type)
        self.names: Any = None
        if self._user is None and NAME in graph.schema.node_tables[node_type]:
            self.names = _strings(graph.table(node_type, NAME))

    def span(self, lo: int, hi: int) -> Any:
        if self.names is not None:
            return self.names.slice(lo, hi - lo)
        return pa.array(np.arange(lo, hi, dtype=np.int64) if self._user is None else self._user[lo:hi])

    def of(self, rows: Array) -> Any:
        if self.names is not None:
            return self.names.take(pa.array(rows))
        return pa.array(rows.astype(np.int64) if self._user is None else self._user[rows])


def _strings(rows: Array) -> Any:
    """Return the strings of a table ``name``. None unless the importer would make the same table from distinct string
    ids."""
    if rows.dtype != np.uint8 or rows.ndim != 2:
        return None
    n, width = rows.shape
    lengths, data = np.zeros(n, np.int64), []
    for lo, hi in chunks(n, _ROWS):
        block = rows[lo:hi]
        filled = block != 0
        lengths[lo:hi] = filled.sum(axis=1)
        if (filled != (np.arange(width) < lengths[lo:hi, None])).any():
            return None  # a zero inside is not padding
        data.append(block[filled])
    if width != max(1, lengths.max(initial=0)):
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    text = np.concatenate([np.empty(0, np.uint8), *data])
    names = pa.LargeStringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(text))
    try:
        names.validate(full=True)  # UTF-8
    except pa.ArrowInvalid:
        return None
    return names if pc.count_distinct(names).as_py() == n else None


def _rows(table: Array, lo: int, hi: int) -> Any:
    values = pa.array(np.ascontiguousarray(table[lo:hi]).reshape(-1))
    return values if table.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, table.shape[1])


def _mask(chosen: Array, lo: int, hi: int) -> Any:
    return pa.array(split_mask(chosen, lo, hi))


def _write(path: Path, columns: _Columns, count: int, sized: Iterable[Array], progress: Progress) -> None:
    """Write ``count`` rows in groups. The row size of the tables ``sized`` bounds the length of a group."""
    path.parent.mkdir(exist_ok=True)
    fields = pa.schema([(name, rows(0, 0).type) for name, rows in columns.items()])
    with parquet.ParquetWriter(path, fields) as out:
        for lo, hi in row_chunks(count, *sized):
            out.write_batch(pa.record_batch([rows(lo, hi) for rows in columns.values()], schema=fields))
            progress.advance(hi - lo)
