"""Data sets of DGL that a file describes: a graph in chunks, whose ``metadata.json`` names files of csv, numpy and
parquet, and a ``CSVDataset``, whose ``meta.yaml`` names files with a heading. Columns of numbers, truth values or lists
of numbers (``"0.1, 0.2"``) become tables, ids that are strings the table ``name``. Vertices keep the order of the file,
where DGL sorts them by id."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError, hint_of
from atta.observe.packages import load
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.dgl_tensors import TypeNames, add_node_tables, edge_tables
from atta.partition.importers.reading.filling import EdgeFiles, add_edge_rows, name_bytes
from atta.partition.importers.reading.rows import FileRows, csv_rows, joined, npy_rows, parquet_rows
from atta.partition.importers.reading.source import (
    Array,
    ImportOptions,
    arrow_csv,
    distinct_ids,
    entries,
    named_file,
    open_content,
    pa,
    pc,
    read_description,
    unreadable,
)

_BLOCK = 16 << 20
"""Most bytes of a line, and of what is read at a time."""
_FORMS = {
    "bool": "^(?i:true|false)$",
    "int64": "^[-+]?[0-9]+$",
    "float64": r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?(?i:nan|inf|infinity)$",
}
"""How the values of a dtype are written."""


@dataclass(frozen=True)
class CsvFile:
    """A file with a heading, perhaps compressed by gzip, and its columns that have a name."""

    path: Path
    separator: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, separator: str = ",") -> CsvFile:
        """Read the heading. Raises DataError: a name stands there twice."""
        load("importing CSV files", "pyarrow", "pyarrow.compute", "pyarrow.csv")
        whole = cls(path, separator, ())
        with whole._reader(()) as reader:
            names = reader.schema.names
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise DataError(path, f"has two columns {twice!r}")
        return cls(path, separator, tuple(name for name in names if name))

    def cells(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Columns as strings without spaces around them, some rows at a time. Raises DataError: one is missing."""
        if lost := [name for name in names if name not in self.names]:
            raise DataError(self.path, f"has no column {lost[0]!r}{hint_of(lost[0], self.names)}")
        with self._reader(names) as reader:
            for batch in reader:
                yield [pc.utf8_trim_whitespace(batch.column(name)) for name in names]

    def ids(self, name: str) -> Any:
        """A column of ids: int64 if all are integers, otherwise strings; raises DataError for an empty one."""
        whole = pa.chunked_array([cells for (cells,) in self.cells([name])], pa.string()).combine_chunks()
        if pc.any(pc.equal(whole, "")).as_py():
            raise DataError(self.path, f"the column {name!r} has empty ids")
        plain = pc.all(pc.match_substring_regex(whole, "^(0|-?[1-9][0-9]{0,17})$")).as_py()
        return whole.cast(pa.int64()) if plain or not len(whole) else whole

    def rows(self, name: str) -> FileRows | None:
        """A column of numbers, or of lists of numbers of one length; None: it holds something else. Raises DataError: a cell is
        empty, or lists differ in length."""
        forms = {"cells": dict(_FORMS), "lists": {kind: form for kind, form in _FORMS.items() if kind != "bool"}}
        widths, count = set(), 0
        for (cells,) in self.cells([name]):
            if pc.any(pc.equal(cells, "")).as_py():
                raise DataError(self.path, f"the column {name!r} has empty cells")
            lists = _lists(cells)
            widths.update(pc.unique(pc.list_value_length(lists)).to_pylist())
            for sort, texts in (("cells", cells), ("lists", _flat(lists))):
                forms[sort] = {kind: form for kind, form in forms[sort].items() if _all_match(texts, form)}
            count += len(cells)
        plain = bool(forms["cells"])
        if not (found := forms["cells"] or forms["lists"]):
            return None
        if not plain and len(widths) > 1:
            raise DataError(self.path, f"the column {name!r} has lists of {min(widths)} to {max(widths)} numbers")
        dtype, shape = np.dtype(next(iter(found))), () if plain else (max(widths),)

        def pieces() -> Iterator[Array]:
            for (cells,) in self.cells([name]):
                yield _numbers(cells if plain else _flat(_lists(cells)), dtype).reshape(len(cells), *shape)

        return FileRows(self.path, dtype, shape, pieces, count)

    @contextlib.contextmanager
    def _reader(self, names: Sequence[str]) -> Iterator[Any]:
        # Arrow's errors are ValueErrors
        no_csv = unreadable(self.path, "not a readable csv file", (OSError, ValueError, TypeError))
        with no_csv, open_content(self.path) as content:
            yield arrow_csv.open_csv(
                content,
                read_options=arrow_csv.ReadOptions(block_size=_BLOCK),
                parse_options=arrow_csv.ParseOptions(delimiter=self.separator),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    include_columns=list(names),
                    strings_can_be_null=False,
                ),
            )


def _all_match(cells: Any, form: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(cells, form)).as_py() is not False)


def _lists(cells: Any) -> Any:
    return pc.split_pattern(pc.replace_substring_regex(cells, r"^[\[(]|,?\s*[\])]$", ""), ",")


def _flat(items: Any) -> Any:
    return pc.utf8_trim_whitespace(pc.list_flatten(items))


def _numbers(cells: Any, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        cells = pc.equal(pc.utf8_lower(cells), "true")
    else:
        cells = pc.replace_substring_regex(cells, r"^\+", "").cast(pa.from_numpy_dtype(dtype))
    return np.asarray(cells.to_numpy(zero_copy_only=False))


_CHUNKS = "metadata.json"
"""The file that describes the chunks."""
_LOOKED_AT = 4 << 20
"""How much of a file is looked at to find out what it is."""
_CHUNK_KEYS = {
    "graph_name", "node_type", "num_nodes_per_type", "num_nodes_per_chunk", "edge_type", "num_edges_per_type",
    "num_edges_per_chunk", "edges", "node_data", "edge_data",
}  # fmt: skip


def describes_chunks(source: Path) -> bool:
    """Whether a file or folder is a chunked graph."""
    path = source / _CHUNKS if source.is_dir() else source
    if path.suffix != ".json" or not path.is_file():
        return False
    with open_regular(path) as file:
        content = file.read(_LOOKED_AT)
    return all(key in content for key in (b'"node_type"', b'"edge_type"', b'"edges"'))


def read_chunks(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the graph of the folder or the ``metadata.json`` ``source``."""
    path = source / _CHUNKS if source.is_dir() else source
    graph = _Chunked.open(path)
    for name in sorted(graph.said.keys() - _CHUNK_KEYS):
        options.refuse(path, name, "a chunked graph has no such entry")
    for theirs, count in graph.counts("node").items():
        node_type = graph.names.nodes[theirs]
        out.add_nodes(node_type, count)
        add_node_tables(path, out, node_type, graph.data("node_data", theirs), options)
    for key, count in graph.counts("edge").items():
        tables = edge_tables(path, graph.data("edge_data", key), options)
        files = graph.rows(f"'edges' of {key!r}", (graph.said.get("edges") or {}).get(key))
        found = EdgeFiles(files, tables)
        if (total := add_edge_rows(out, graph.names.edges[key], found, options)) != count:
            raise DataError(path, f"states {count} edges {key!r}, its files have {total}")


@dataclass(frozen=True)
class _Chunked:
    """A ``metadata.json``, its content, and names of its types."""

    path: Path
    said: Mapping[str, Any]
    names: TypeNames

    @classmethod
    def open(cls, path: Path) -> _Chunked:
        said = read_description(path, "a chunked graph")
        for key in ("node_type", "edge_type"):
            if not isinstance(said.get(key), list) or not all(isinstance(one, str) for one in said[key]):
                raise DataError(path, f"{key!r} is no list of names: it describes no chunked graph")
        return cls(path, said, TypeNames(path, said["node_type"], said["edge_type"]))

    def counts(self, of: str) -> dict[str, int]:
        types, key = self.said[f"{of}_type"], f"num_{of}s_per_type"
        if key not in self.said:
            key = f"num_{of}s_per_chunk"
        said = self.said.get(key)
        numbers = [sum(n) if isinstance(n, list) and all(map(_is_count, n)) else n for n in said or ()]
        if len(numbers) != len(types) or not all(map(_is_count, numbers)):
            raise DataError(self.path, f"{key!r} is {said!r}, wanted are numbers for each of {', '.join(types)}")
        return dict(zip(types, numbers, strict=True))

    def data(self, kind: str, of_type: str) -> dict[str, FileRows]:
        found = (self.said.get(kind) or {}).get(of_type) or {}
        return {str(name): self.rows(f"{name!r} of {of_type!r}", spec) for name, spec in found.items()}

    def rows(self, what: str, spec: Any) -> FileRows:
        try:
            reader, paths = _reader(spec["format"]), [str(name) for name in spec["data"]]
        except (KeyError, TypeError, ValueError):
            raise DataError(
                self.path, f"{what}: {spec!r} has not the 'format' csv, numpy or parquet and a list of files 'data'"
            ) from None
        if not paths:
            raise DataError(self.path, f"{what}: 'data' names no files")
        return joined([reader(named_file(self.path.parent, name)) for name in paths])


def _reader(said: Mapping[str, Any]) -> Callable[[Path], FileRows]:
    if said["name"] == "csv":
        delimiter = str(said.get("delimiter", ","))
        return lambda path: csv_rows(path, delimiter=delimiter)
    readers = {"numpy": npy_rows, "parquet": parquet_rows}
    if said["name"] not in readers:
        raise ValueError
    return readers[said["name"]]


def _is_count(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and said >= 0


_CSV_SET = "meta.yaml"
_CSV_KEYS = {"version", "dataset_name", "separator", "node_data", "edge_data", "graph_data"}
_NODE, _EDGE = "_V", ("_V", "_E", "_V")
"""DGL's names of the only types."""
_GRAPH = "graph_id"


def describes_csv_set(source: Path) -> bool:
    """Whether a file or folder is such a data set."""
    return source.name == _CSV_SET if source.is_file() else (source / _CSV_SET).is_file()


def read_csv_set(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the data set of the folder or the ``meta.yaml`` ``source``."""
    path = source if source.is_file() else source / _CSV_SET
    said = read_description(path, "a CSVDataset")
    separator = _separator(path, said, options)
    nodes = {str(entry.get("ntype") or _NODE): entry for entry in entries(path, said, "node_data", "file_name")}
    edges = {_relation(path, entry): entry for entry in entries(path, said, "edge_data", "file_name")}
    for kind, found in (("node_data", len(nodes)), ("edge_data", len(edges))):
        if not found or found < len(said[kind]):
            raise DataError(path, f"{kind!r} has no entries, or two of the same type")
    keys = [":".join(relation) for relation in edges]
    names = TypeNames(path, list(nodes), keys)
    known = {}
    for theirs, entry in nodes.items():
        file = CsvFile.open(named_file(path.parent, entry["file_name"]), separator)
        known[theirs] = _add_nodes(file, entry, names.nodes[theirs], out, options)
    for key, ((source_type, _, target_type), entry) in zip(keys, edges.items(), strict=True):
        file = CsvFile.open(named_file(path.parent, entry["file_name"]), separator)
        fields = [str(entry.get(f"{end}_id_field") or f"{end}_id") for end in ("src", "dst")]
        ends = dict(zip(fields, (known[source_type], known[target_type]), strict=True))
        tables = edge_tables(file.path, _tables(file, {*ends}, entry, options), options)
        add_edge_rows(out, names.edges[key], EdgeFiles(_edges(file, ends), tables), options)


def _separator(path: Path, said: Mapping[str, Any], options: ImportOptions) -> str:
    for name in sorted(said.keys() - _CSV_KEYS):
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


def _edges(file: CsvFile, ends: Mapping[str, Any]) -> FileRows:

    def pieces() -> Iterator[Array]:
        for cells in file.cells(list(ends)):
            sides = zip(ends.items(), cells, strict=True)
            yield np.stack([_positions(file.path, name, texts, ids) for (name, ids), texts in sides], axis=1)

    return FileRows(file.path, np.dtype(np.int64), (2,), pieces)


def _positions(path: Path, name: str, texts: Any, ids: Any) -> Array:
    found = texts
    if pa.types.is_integer(ids.type):
        whole = pc.match_substring_regex(texts, "^-?[0-9]{1,18}$")
        found = pc.if_else(whole, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    rows = pc.index_in(found, value_set=ids)
    if rows.null_count:
        lost = texts.filter(pc.is_null(rows))[0].as_py()
        raise DataError(path, f"the column {name!r} names the vertex {lost!r}, which is in no node file")
    return np.asarray(rows.to_numpy(zero_copy_only=False)).astype(np.int64)
