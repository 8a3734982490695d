"""Tables: Parquet or CSV files for every node and edge type, described by a ``schema.json`` beside them, whose keys
``docs/guide/importing.md`` describes. Vertices with strings for ids are numbered in the order of the file."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.lastwords import counted
from atta.observe.packages import load
from atta.partition.disk.files import chunks
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.filling import EdgeStream, add_features, name_bytes
from atta.partition.importers.reading.source import Array, Ids, ImportOptions, Mask, pa, state_classes
from atta.partition.importers.table.columns import ColumnReader
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.schema import ANY, KINDS, SCHEMA, ColumnRule, GraphSchema, Refusals, read_schema
from atta.partition.importers.table.tables import TableReader, end_rows, node_ids, split_masks, split_readers
from atta.partition.names import join_edge_type, split_edge_type
from atta.partition.schema import TableSpec

__all__ = ["read", "recognises"]

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
        self._refuse_other_files()
        nodes, edges = (
            [TypeFiles(entry, self._options, self._refusals) for entry in entries]
            for entries in (self._schema.nodes, self._schema.edges)
        )
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

    def _table_readers(self, files: TypeFiles, *, nodes: bool) -> dict[str, TableReader]:
        unit = self._schema.time_unit
        return {n: TableReader(n, rule, files, unit=unit, nodes=nodes) for n, rule in files.entry.tables.items()}

    def _add_nodes(self, files: TypeFiles) -> None:
        entry = files.entry
        self._options.progress.stage(f"nodes {entry.name}", None)
        files.settle(entry.ids)
        readers = self._table_readers(files, nodes=True)
        splits: dict[str, ColumnReader] = {}
        with self._refusals.held(entry.files[0]):
            splits = split_readers(entry.splits, files)
        found: list[dict[str, Array]] = []
        chosen: list[dict[str, Array]] = []
        ids: list[FilePiece] = []
        for piece in files.pieces():
            ids.append(replace(piece, rows=piece.rows.select([entry.ids[0]])))
            found.append({name: reader.rows(piece) for name, reader in readers.items()})
            with self._refusals.held(piece.path):
                chosen.append({column: reader.values(piece)[0] for column, reader in splits.items()})
        self._note_filled(entry.name, readers)
        vertices = node_ids(files, ids)
        if vertices is not None:
            self._known[entry.name] = vertices
        if not self._refusals and vertices is not None:
            tables = {name: np.concatenate([rows[name] for rows in found]) for name in readers}
            masks: dict[str, Mask] = {}
            with self._refusals.held(entry.files[0]):
                rows = {column: np.concatenate([rows[column] for rows in chosen]) for column in splits}
                masks = split_masks(entry.files[0], entry.splits, splits, rows, len(vertices))
            self._write_nodes(files, vertices, readers, tables, masks)

    def _write_nodes(
        self,
        files: TypeFiles,
        ids: Any,
        readers: Mapping[str, TableReader],
        tables: Mapping[str, Array],
        masks: Mapping[str, Mask],
    ) -> None:
        out, node_type, where = self._out, files.entry.name, files.entry.files[0]
        are_numbers = pa.types.is_integer(ids.type)
        out.add_nodes(node_type, len(ids), ids=ids.to_numpy(zero_copy_only=False) if are_numbers else None)
        unlabelled = np.zeros(len(ids), np.bool_)
        for name, rows in tables.items():
            with self._refusals.held(where):
                self._note_classes(node_type, name, readers[name])
                if (columns := [column.rule.name for column in readers[name].columns]) != [name]:
                    out.note_columns(node_type, name, columns)
                if name == "y":
                    labels, unlabelled = readers[name].labels_of(rows)
                    out.add_labels(labels, node_type)
                    self._note_labels(node_type, readers[name])
                elif name == "x":
                    add_features(out, rows, node_type, self._options, as_given=True)
                else:
                    out.add_table(name, rows, node_type)
        if not are_numbers:
            out.add_table(NAME, name_bytes(where, ids.to_pylist()), node_type)
        for split, mask in masks.items():
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

    def _note_filled(self, type_: str, readers: Mapping[str, TableReader]) -> None:
        columns = [column for reader in readers.values() for column in reader.columns if column.filled]
        if told := ", ".join(f"{column.filled:,} of {column.rule.name!r}" for column in columns):
            self._options.notes.append(f"{type_}: empty cells are filled: {told}")

    def _note_classes(self, type_: str, table: str, reader: TableReader) -> None:
        """Keep the names of classes: under the name of the table, or of table and column if it has several."""
        for column, names in reader.classes.items():
            self._out.note_classes(type_, f"{table}/{column}" if reader.is_wide else table, names)

    def _add_edges(self, files: TypeFiles) -> None:
        """Write an edge type, or all relations of a file, if nothing of it is refused."""
        source, relation, target = split_edge_type(files.entry.name)
        if not {source, target} <= self._known.keys():
            return  # their ids are refused already
        files.settle(self._ends_as_text(files, (source, target)))
        readers = self._table_readers(files, nodes=False)
        if relation != ANY:
            self._write_edges(files, readers, {0: files.entry.name})
            return
        kinds = ColumnReader(ColumnRule(str(files.entry.type), classes=True), files)
        relations = {}
        for code, name in enumerate(kinds.names or []):
            with self._refusals.held(files.entry.files[0]):
                relations[code] = join_edge_type(source, name, target)
        for lo, hi in chunks(len(relations), _RELATIONS):
            if not self._refusals:
                self._write_edges(files, readers, {code: relations[code] for code in range(lo, hi)}, kinds)

    def _ends_as_text(self, files: TypeFiles, ends: tuple[str, str]) -> list[str]:
        """Columns that hold ends of edges and are to be read as they are written in CSV: names, and numbers like 1.0.
        By itself, Arrow would read the vertex 12:30 as a time, and 22 among names as a number."""
        return [
            column
            for column, end in zip(files.entry.ids, ends, strict=True)
            if not pa.types.is_integer(self._known[end].type)
            or any(not (pa.types.is_int64(k[column]) or pa.types.is_null(k[column])) for k in files.guessed.values())
        ]

    def _write_edges(
        self,
        files: TypeFiles,
        readers: Mapping[str, TableReader],
        names: Mapping[int, str],
        kinds: ColumnReader | None = None,
    ) -> None:
        """Write the edges of some relations: ``names`` by number of the class in ``kinds``; of one without it."""
        source, _, target = split_edge_type(files.entry.name)
        left: Counter[str] = Counter()
        lowest = [(ColumnReader(ColumnRule(name, fill=0), files), n) for name, n in files.entry.at_least.items()]
        with contextlib.ExitStack() as stack:
            streams: dict[int, EdgeStream] = {}
            for piece in files.pieces():
                src, dst = (
                    end_rows(files, column, piece, self._known[end])
                    for column, end in zip(files.entry.ids, (source, target), strict=True)
                )
                tables = {name: reader.rows(piece) for name, reader in readers.items()}
                found = np.zeros(len(src), np.int64) if kinds is None else kinds.values(piece)[0]
                if self._refusals:
                    continue
                out = {"an end is empty, or in no node file": (src < 0) | (dst < 0)}
                for reader, least in lowest:
                    values, empty = reader.values(piece)
                    below = ~(np.atleast_2d(values.T) >= least).all(0) | empty
                    out[f"{reader.rule.name!r} is not at least {least:g}"] = below
                for why, mask in out.items():
                    left[why] += int((mask & (found >= 0)).sum())
                    found = np.where(mask, -1, found)
                for code, name in names.items() if not streams else ():
                    streams[code] = stack.enter_context(self._stream(name, readers, tables))
                for code, chosen in _by_class(found):
                    if code in streams:
                        rows = {name: rows[chosen] for name, rows in tables.items()}
                        streams[code].append(src[chosen], dst[chosen], rows)
        if 0 in names:
            self._note_filled(files.entry.name, readers)
        for why, count in left.items():
            if count and 0 in names:
                self._options.notes.append(f"{files.entry.name}: {counted(count, 'edge')} left out: {why}")

    def _stream(self, name: str, readers: Mapping[str, TableReader], tables: Mapping[str, Array]) -> EdgeStream:
        specs = {table: TableSpec(rows.dtype.str, rows.shape[1:]) for table, rows in tables.items()}
        stream = EdgeStream(self._out, name, self._options, specs)
        for table, reader in readers.items():
            self._note_classes(name, table, reader)
        return stream


def _by_class(codes: Ids) -> Iterator[tuple[int, Any]]:
    """Each number in ``codes`` [n] with an index of its rows, in their order."""
    if not codes.any():
        yield 0, slice(None)
        return
    order = np.argsort(codes, kind="stable")
    found, first = np.unique(codes[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, first[1:]), strict=True)
