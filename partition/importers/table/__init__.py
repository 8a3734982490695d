"""Tables: Parquet or CSV files for every node and edge type, described by a ``schema.json`` beside them.

    {"nodes": {"user": {"files": "users.parquet", "id": "user_id",
                        "tables": {"x": ["age", {"column": "income", "fill": "mean"}], "y": "segment"},
                        "splits": {"train": "is_train"}}},
     "edges": {"user__buys__item": {"files": "buys-*.csv", "src": "user", "dst": "item", "tables": {"weight":
     "amount", "time": "bought_at"}}}}

``docs/guide/importing.md`` describes all keys. A pattern of ``files`` is relative to the folder of ``schema.json``, or absolute.
Ids are integers or strings: with strings, vertices are numbered in the order of the file, and the strings become the table
``name``. Files are read in the order of their names, in pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.observe.extras import load
from atta.partition.disk.files import chunks
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.filling import EdgeStream, add_features, name_bytes
from atta.partition.importers.reading.source import ImportOptions, pa, state_classes
from atta.partition.importers.table.columns import ColumnReader
from atta.partition.importers.table.files import KINDS, FilePiece, TypeFiles
from atta.partition.importers.table.rules import ANY, SCHEMA, ColumnRule, GraphSchema, Refusals, TypeEntry, is_integer
from atta.partition.importers.table.schema import read_schema
from atta.partition.importers.table.tables import SplitReader, TableReader, end_rows, labels_of, node_ids
from atta.partition.schema import TableSpec, join_edge_type, split_edge_type

__all__ = ["read", "recognises"]

Array = npt.NDArray[Any]
_SHOWN = 8
"""At most this many classes are named in a note."""
_RELATIONS = 128
"""At most this many relations are written at a time: their files are open."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``schema.json``)."""
    load("importing tables", "pyarrow", "pyarrow.dataset")
    schema = read_schema(source if source.is_file() else source / SCHEMA)
    _Import(schema, out, options).run()


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``schema.json``, or that file."""
    return path.name == SCHEMA if head else (path / SCHEMA).is_file()


class _Import:
    """One import: the files of all types are looked at first, then read one after another."""

    def __init__(self, schema: GraphSchema, out: GraphWriter, options: ImportOptions) -> None:
        self._schema, self._out, self._options = schema, out, options
        self._refusals = Refusals(schema.path)
        self._known: dict[str, Any] = {}  # node type -> the ids of its vertices, as Arrow holds them

    def run(self) -> None:
        """Write the graph; raises DataError that names all that is refused."""
        self._refuse_other_files()
        nodes = [self._files(entry, entry.ids) for entry in self._schema.nodes]
        edges = [self._files(entry, entry.ids) for entry in self._schema.edges]
        self._refusals.check()
        for files in nodes:
            with self._refusals.held(files.entry.files[0]):
                self._add_nodes(files)
        with self._refusals.held():
            state_classes(self._out, self._schema.path, self._schema.num_classes)
        for files in edges:
            with self._refusals.held(files.entry.files[0]):
                self._add_edges(files)
        self._refusals.check()

    def _refuse_other_files(self) -> None:
        """Refuse table files in the folder that the schema does not name."""
        folder, named = self._schema.path.parent, self._schema.named
        places = {folder, *(path.parent for path in named if path.is_relative_to(folder))}
        known = {path.resolve() for path in named}
        endings = {".parquet", ".csv"} | {end for path in named for end in KINDS if path.name.lower().endswith(end)}
        others = {path for place in places for path in place.iterdir() if path.name.endswith(tuple(endings))}
        for path in sorted(others):
            if path.resolve() not in known:
                with self._refusals.held():
                    name = path.relative_to(folder).as_posix()
                    self._options.refuse(folder, name, "schema.json does not name it")

    def _files(self, entry: TypeEntry, texts: tuple[str, ...]) -> TypeFiles:
        return TypeFiles(entry, texts, self._options, self._refusals)

    def _table_readers(self, files: TypeFiles, *, nodes: bool) -> dict[str, TableReader]:
        unit = self._schema.time_unit
        return {
            name: TableReader(name, rule, files, self._refusals, unit=unit, nodes=nodes)
            for name, rule in files.entry.tables.items()
        }

    def _add_nodes(self, files: TypeFiles) -> None:
        """Write a node type if nothing of it is refused."""
        entry = files.entry
        self._options.progress.stage(f"nodes {entry.name}", None)
        files.settle()
        readers = self._table_readers(files, nodes=True)
        splits = None
        with self._refusals.held(entry.files[0]):
            splits = SplitReader(entry.splits, files, self._refusals)
        rows: dict[str, list[Array]] = {name: [] for name in readers}
        ids: list[FilePiece] = []
        for piece in files.pieces():
            ids.append(FilePiece(piece.path, piece.first, piece.rows.select([entry.ids[0]])))
            for name, reader in readers.items():
                rows[name].append(reader.rows(piece))
            if splits is not None:
                with self._refusals.held(piece.path):
                    splits.read(piece)
        vertices = node_ids(files, ids, self._refusals)
        if vertices is not None:
            self._known[entry.name] = vertices
        if not self._refusals and vertices is not None and splits is not None:
            tables = {name: np.concatenate(found) for name, found in rows.items()}
            self._write_nodes(files, vertices, readers, tables, splits)

    def _write_nodes(
        self,
        files: TypeFiles,
        ids: Any,
        readers: Mapping[str, TableReader],
        tables: Mapping[str, Array],
        splits: SplitReader,
    ) -> None:
        out, node_type, where = self._out, files.entry.name, files.entry.files[0]
        are_numbers = is_integer(ids)
        out.add_nodes(node_type, len(ids), ids=ids.to_numpy(zero_copy_only=False) if are_numbers else None)
        unlabelled = np.zeros(len(ids), np.bool_)
        for name, rows in tables.items():
            with self._refusals.held(where):
                self._note_classes(node_type, name, readers[name])
                if name == "y":
                    labels, unlabelled = labels_of(readers[name], rows)
                    out.add_labels(labels, node_type)
                    self._note_labels(node_type, readers[name])
                elif name == "x":
                    add_features(out, rows, node_type, self._options, as_given=True)
                else:
                    out.add_table(name, rows, node_type)
        if not are_numbers:
            out.add_table(NAME, name_bytes(where, ids.to_pylist()), node_type)
        for split, mask in splits.masks(where).items():
            with self._refusals.held(where):
                out.add_split(split, mask & ~unlabelled, node_type)
        if count := int(unlabelled.sum()):
            note = f"{node_type}: {count:,} of {len(ids):,} vertices have no label, so they are in no split"
            self._options.notes.append(note)

    def _note_labels(self, node_type: str, reader: TableReader) -> None:
        for column in reader.columns:
            if column.names is not None and not isinstance(column.rule.classes, tuple):
                shown = ", ".join(map(repr, column.names[:_SHOWN])) + (", ..." if len(column.names) > _SHOWN else "")
                self._options.notes.append(f"{node_type}: the labels y are {len(column.names)} classes: {shown}")

    def _note_classes(self, type_: str, table: str, reader: TableReader) -> None:
        """Keep the names of classes: under the name of the table, or of table and column if it has several."""
        for column, names in reader.classes.items():
            self._out.note_classes(type_, f"{table}/{column}" if reader.is_wide else table, names)

    def _add_edges(self, files: TypeFiles) -> None:
        """Write an edge type, or all relations of a file, if nothing of it is refused."""
        source, relation, target = split_edge_type(files.entry.name)
        if not {source, target} <= self._known.keys():
            return  # their ids are refused already
        files.texts = self._ends_as_text(files, (source, target))
        files.settle()
        readers = self._table_readers(files, nodes=False)
        if relation != ANY:
            self._write_edges(files, readers, {0: files.entry.name})
            return
        rule = ColumnRule(str(files.entry.type), classes=True)
        kinds = ColumnReader(rule, files, self._refusals)
        kinds.learn(files.pieces([rule.name]))
        relations = {}
        for code, name in enumerate(kinds.names or []):
            with self._refusals.held(files.entry.files[0]):
                relations[code] = join_edge_type(source, name, target)
        for lo, hi in chunks(len(relations), _RELATIONS):
            if not self._refusals:
                self._write_edges(files, readers, {code: relations[code] for code in range(lo, hi)}, kinds)

    def _ends_as_text(self, files: TypeFiles, ends: tuple[str, str]) -> frozenset[str]:
        """Columns of CSV that hold ends of edges and are to be read as they are written: names, and numbers like 1.0.
        By itself, Arrow would read the vertex 12:30 as a time, and 22 among names as a number."""
        if not files.is_csv:
            return frozenset()
        return frozenset(
            column
            for column, end in zip(files.entry.ids, ends, strict=True)
            if not is_integer(self._known[end])
            or any(not (pa.types.is_int64(k[column]) or pa.types.is_null(k[column])) for k in files.guessed.values())
        )

    def _write_edges(
        self,
        files: TypeFiles,
        readers: Mapping[str, TableReader],
        names: Mapping[int, str],
        kinds: ColumnReader | None = None,
    ) -> None:
        """Write the edges of some relations: ``names`` by number of the class in ``kinds``; of one without it."""
        with contextlib.ExitStack() as stack:
            streams: dict[int, EdgeStream] = {}
            dropped = 0
            for piece in files.pieces():
                ends = self._ends(files, piece, next(iter(names.values())))
                tables = {name: reader.rows(piece) for name, reader in readers.items()}
                found = np.zeros(len(ends[0]), np.int64) if kinds is None else kinds.values(piece)[0]
                if self._refusals:
                    continue
                strange = (ends[0] < 0) | (ends[1] < 0)
                if files.entry.drops_unknown and strange.any():
                    found = np.where(strange, -1, found)
                    dropped += int(strange.sum())
                for code, name in names.items() if not streams else ():
                    streams[code] = stack.enter_context(self._stream(name, readers, tables))
                for code, chosen in _by_class(found):
                    if code in streams:
                        rows = {name: rows[chosen] for name, rows in tables.items()}
                        streams[code].append(ends[0][chosen], ends[1][chosen], rows)
        if dropped and 0 in names:
            note = f"{files.entry.name}: {dropped:,} edges are left out: an end is empty, or in no node file"
            self._options.notes.append(note)

    def _ends(self, files: TypeFiles, piece: FilePiece, edge_type: str) -> list[npt.NDArray[np.int64]]:
        """Rows of the sources and of the destinations of a piece."""
        source, _, target = split_edge_type(edge_type)
        return [
            end_rows(files, column, piece, self._known[end], self._refusals)
            for column, end in zip(files.entry.ids, (source, target), strict=True)
        ]

    def _stream(self, name: str, readers: Mapping[str, TableReader], tables: Mapping[str, Array]) -> EdgeStream:
        """Begin an edge type with the tables of its first piece."""
        specs = {table: TableSpec(rows.dtype.str, rows.shape[1:]) for table, rows in tables.items()}
        stream = EdgeStream(self._out, name, self._options, specs)
        for table, reader in readers.items():
            self._note_classes(name, table, reader)
        return stream


def _by_class(codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Each number in ``codes`` [n] with an index of its rows, in their order."""
    if not codes.any():
        yield 0, slice(None)
        return
    order = np.argsort(codes, kind="stable")
    found, first = np.unique(codes[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, first[1:]), strict=True)
