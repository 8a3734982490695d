"""The chunked graph that DGL's distributed partitioning reads: a ``metadata.json`` and the files that it names.

    {"node_type": ["user"], "num_nodes_per_type": [3], "edge_type": ["user:knows:user"], "num_edges_per_type": [4],
     "edges": {"user:knows:user": {"format": {"name": "csv", "delimiter": " "}, "data": ["edges-0.txt", ...]}},
     "node_data": {"user": {"feat": {"format": {"name": "numpy"}, "data": ["feat-0.npy", ...]}}}, "edge_data": {...}}

Older files have ``num_nodes_per_chunk`` and ``num_edges_per_chunk``, a list for each type. Formats are ``csv``,
``numpy`` and ``parquet``. Chunks are read one after another, in pieces. A path that is absolute and leads nowhere, as in
a folder that was moved, is looked for in the folder of ``metadata.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.tensors import TypeNames, add_node_tables, edge_table
from atta.partition.importers.reading.described import named_file, read_description
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows, csv_rows, joined, npy_rows, parquet_rows
from atta.partition.importers.reading.written import add_edge_rows

__all__ = ["describes_chunks", "read_chunks"]

_CHUNKS = "metadata.json"
"""The file that describes the chunks."""
_LOOKED_AT = 4 << 20
"""How much of a file is looked at to find out what it is."""
_KNOWN = {
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
    for name in sorted(graph.said.keys() - _KNOWN):
        options.refuse(path, name, "a chunked graph has no such entry")
    for theirs, count in graph.counts("node").items():
        node_type = graph.names.nodes[theirs]
        out.add_nodes(node_type, count)
        add_node_tables(path, out, node_type, graph.data("node_data", theirs), options)
    for key, count in graph.counts("edge").items():
        tables = {name: rows for name, rows in graph.data("edge_data", key).items() if edge_table(path, name, options)}
        total = add_edge_rows(out, graph.names.edges[key], graph.files("edges", key), options, tables)
        if total != count:
            raise DataError(path, f"states {count} edges {key!r}, its files have {total}")


@dataclass(frozen=True)
class _Chunked:
    """A ``metadata.json``.

    Attributes:
        path: the file.
        said: its content.
        names: names of its types.
    """

    path: Path
    said: Mapping[str, Any]
    names: TypeNames

    @classmethod
    def open(cls, path: Path) -> _Chunked:
        said = read_description(path, "a chunked graph")
        for key in ("node_type", "edge_type"):
            if not isinstance(said.get(key), list) or not all(map(_is_name, said[key])):
                raise DataError(path, f"{key!r} is no list of names: it describes no chunked graph")
        orders = [{name: place for place, name in enumerate(said[key])} for key in ("node_type", "edge_type")]
        return cls(path, said, TypeNames(path, orders[0], orders[1]))

    def counts(self, of: str) -> dict[str, int]:
        """Number of vertices (``node``) or edges (``edge``) by type; raises DataError."""
        types, key = self.said[f"{of}_type"], f"num_{of}s_per_type"
        if key not in self.said:
            key = f"num_{of}s_per_chunk"
        said = self.said.get(key)
        numbers = [sum(n) if isinstance(n, list) and all(map(_is_count, n)) else n for n in said or ()]
        if len(numbers) != len(types) or not all(map(_is_count, numbers)):
            raise DataError(self.path, f"{key!r} is {said!r}, wanted are numbers for each of {', '.join(types)}")
        return dict(zip(types, numbers, strict=True))

    def data(self, kind: str, of_type: str) -> dict[str, FileRows]:
        """The tensors of a type in ``node_data`` or ``edge_data``."""
        found = (self.said.get(kind) or {}).get(of_type) or {}
        return {str(name): self._rows(f"{name!r} of {of_type!r}", spec) for name, spec in found.items()}

    def files(self, kind: str, of_type: str) -> FileRows:
        """The rows of the files under a key."""
        return self._rows(f"{kind!r} of {of_type!r}", (self.said.get(kind) or {}).get(of_type))

    def _rows(self, what: str, spec: Any) -> FileRows:
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
    """Who reads files of a format; raises ValueError."""
    if said["name"] == "csv":
        delimiter = str(said.get("delimiter", ","))
        return lambda path: csv_rows(path, delimiter=delimiter)
    readers = {"numpy": npy_rows, "parquet": parquet_rows}
    if said["name"] not in readers:
        raise ValueError
    return readers[said["name"]]


def _is_name(said: object) -> bool:
    return isinstance(said, str)


def _is_count(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and said >= 0
