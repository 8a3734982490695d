"""Tables: Parquet or CSV files for every node and edge type, described by a ``schema.json`` beside them.

    {"nodes": {"user": {"files": "users.parquet", "id": "user_id",
                        "tables": {"x": ["age", "income"], "y": "label"}, "splits": {"train": "is_train"}}},
     "edges": {"user__buys__item": {"files": "buys-*.csv", "src": "user", "dst": "item", "tables": {"weight":
     "amount"}}}}

Ids may be integers, which stay the users' ids, or strings. With strings, vertices are numbered in the order of the
file, and the strings become the table ``name`` (UTF-8 bytes, padded with zeros). In CSV, ids are integers if all of a
node type are written as such; ``007``, ``12:30``, ``12e4`` and ``1.5`` are strings. A table is a column, several columns
side by side, or a column of lists of equal length. A column of whole numbers in which some file has a fraction becomes
float64. Other columns, of any file, are refused by name, unless the list ``ignore`` beside ``files`` has them.
``num_classes`` beside ``nodes`` states the number of classes if it is larger than the labels show.
Files are read in pieces. A pattern names several files, which are read in the order of their names. It is relative to
the folder of ``schema.json``, or absolute.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.disk.files import check_tree
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.common import add_features, first_line, name_bytes
from atta.partition.importers.reading.edges import EdgeStream
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import as_masks, check_numbers, distinct_ids, state_classes
from atta.partition.schema import TableSpec, split_edge_type

__all__ = ["read", "recognises"]

Array = npt.NDArray[Any]
SCHEMA = "schema.json"
_ROWS = 1 << 18
_NODE_KEYS = {"files", "id", "tables", "splits", "ignore"}
_EDGE_KEYS = {"files", "src", "dst", "tables", "ignore"}


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``schema.json``)."""
    load("importing tables", "pyarrow", "pyarrow.dataset")
    path = source if source.is_file() else source / SCHEMA
    schema = _schema(path)
    _refuse_other_files(path.parent, schema, options)
    known: dict[str, Any] = {}  # node type -> the values of its id column, as Arrow holds them
    for node_type, entry in schema["nodes"].items():
        known[node_type] = _add_nodes(path.parent, out, node_type, entry, options)
    state_classes(out, path, schema.get("num_classes"))
    for edge_type, entry in schema["edges"].items():
        _add_edges(path.parent, out, edge_type, entry, known=known, options=options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``schema.json``, or that file."""
    return path.name == SCHEMA if head else (path / SCHEMA).is_file()


def _refuse_other_files(folder: Path, schema: Mapping[str, Any], options: ImportOptions) -> None:
    """Refuse table files in the folder that the schema does not name."""
    named = [path for kind in ("nodes", "edges") for entry in schema[kind].values() for path in _paths(folder, entry)]
    places, known = {folder, *(p.parent for p in named if p.is_relative_to(folder))}, {p.resolve() for p in named}
    for path in sorted({p for place in places for suffix in (".parquet", ".csv") for p in place.glob(f"*{suffix}")}):
        if path.resolve() not in known:
            options.refuse(folder, path.relative_to(folder).as_posix(), "schema.json does not name it")


def _schema(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (ValueError, RecursionError):
        raise DataError(path, "not valid JSON") from None
    known = {"nodes", "edges", "num_classes"}
    if not isinstance(value, dict) or not set(value) <= known or not isinstance(value.get("nodes"), dict):
        raise DataError(path, "wanted is an object with 'nodes' and 'edges', and perhaps 'num_classes'")
    if not isinstance(value.setdefault("edges", {}), dict):
        raise DataError(path, "'edges' is not an object of edge types")
    for kind, keys, needed in (("nodes", _NODE_KEYS, {"files", "id"}), ("edges", _EDGE_KEYS, {"files", "src", "dst"})):
        for name, entry in value[kind].items():
            if not isinstance(entry, dict) or not needed <= set(entry) <= keys:
                raise DataError(path, f"{kind} {name!r}: needs {sorted(needed)}, may have {sorted(keys)}")
            for key, said in entry.items():
                fits, wanted = _SHAPES.get(key, (_is_name, "a string"))
                if not fits(said):
                    raise DataError(path, f"{kind} {name!r}: {key!r} is {said!r}, wanted is {wanted}")
            _check_files(path, f"{kind} {name!r}: 'files' is {entry['files']!r}", _paths(path.parent, entry))
    for edge_type in value["edges"]:
        source, _, target = split_edge_type(edge_type)
        if missing := {source, target} - set(value["nodes"]):
            raise DataError(path, f"edges {edge_type!r}: {', '.join(sorted(missing))} is not a node type of 'nodes'")
    return value


def _check_files(schema: Path, what: str, paths: Sequence[Path]) -> None:
    """Check the files of a type; raises DataError."""
    if not paths:
        raise DataError(schema, f"{what}: no such file")
    for path in paths:
        check_tree(path)
        if path.suffix.lower() not in (".parquet", ".csv"):
            raise DataError(schema, f"{what}: {path.name} is neither .parquet nor .csv")


def _is_name(said: Any) -> bool:
    return isinstance(said, str)


def _are_names(said: Any) -> bool:
    return isinstance(said, list) and all(map(_is_name, said))


_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tables": (
        lambda said: isinstance(said, dict) and all(_is_name(v) or (v and _are_names(v)) for v in said.values()),
        "an object with a column, or a list of columns, for each table",
    ),
    "splits": (
        lambda said: isinstance(said, dict) and all(map(_is_name, said.values())),
        "an object with a column for each split",
    ),
    "ignore": (_are_names, "a list of columns"),
}
"""What the schema may say under a key of a type, and how a message calls it."""


def _add_nodes(folder: Path, out: GraphWriter, node_type: str, entry: Mapping[str, Any], options: ImportOptions) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    tables, splits = entry.get("tables", {}), entry.get("splits", {})
    options.progress.stage(f"nodes {node_type}", None)
    where = folder / str(entry["files"])
    schema = _wanted(folder, entry, [entry["id"]], [*_columns(tables), *splits.values()], options)
    kind, as_text = schema.field(entry["id"]).type, _is_csv(folder, entry)
    if as_text:
        schema = _typed(schema, entry["id"], pa.string())
    whole = pa.Table.from_batches(list(_batches(folder, entry, schema, blanks=not pa.types.is_string(kind))))
    ids = whole[entry["id"]].combine_chunks()
    if ids.null_count:
        raise DataError(where, f"the column {entry['id']!r} has empty ids")
    if as_text or pa.types.is_null(ids.type):
        ids = _integers(where, entry["id"], ids)
        whole = whole.set_column(whole.schema.get_field_index(entry["id"]), entry["id"], ids)
    strings = pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)
    if not strings and not pa.types.is_integer(ids.type):
        raise DataError(where, f"the column {entry['id']!r} holds {ids.type}, wanted are integers or strings")
    if strings and pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field(0).filter(pc.greater(counts.field(1), 1))[0].as_py()
        raise DataError(where, f"the id {twice!r} occurs twice")
    what = f"the column {entry['id']!r}"
    user = None if strings else distinct_ids(where, what, _numbers(where, entry["id"], ids), len(ids))
    out.add_nodes(node_type, len(ids), ids=user)
    for name, spec in tables.items():
        rows = _rows(where, whole, spec)
        if name == "y":
            out.add_labels(rows, node_type)
        elif name == "x":
            add_features(out, rows, node_type, options)
        else:
            out.add_table(name, rows, node_type)
    if strings:
        out.add_table(NAME, name_bytes(where, ids.to_pylist()), node_type)
    for name, column in splits.items():
        chosen = _numbers(where, column, whole[column].combine_chunks())
        for split, mask in as_masks(where, f"the column {column!r}", name, chosen).items():
            out.add_split(split, mask, node_type)
    return ids


def _add_edges(
    folder: Path,
    out: GraphWriter,
    edge_type: str,
    entry: Mapping[str, Any],
    *,
    known: Mapping[str, Any],
    options: ImportOptions,
) -> None:
    source, _, target = split_edge_type(edge_type)
    tables, where = entry.get("tables", {}), folder / str(entry["files"])
    ids = {"src": known[source], "dst": known[target]}
    schema = _wanted(folder, entry, [entry["src"], entry["dst"]], _columns(tables), options)
    if _is_csv(folder, entry):  # by itself, Arrow would read the vertex 12:30 as a time, and 22 among names as a number
        for side, values in ids.items():
            schema = _typed(schema, entry[side], values.type)

    def pieces() -> Iterator[dict[str, Array]]:
        for batch in _batches(folder, entry, schema):
            ends = {
                side: _positions(where, entry[side], batch.column(entry[side]), values) for side, values in ids.items()
            }
            yield {**ends, **{name: _rows(where, batch, spec) for name, spec in tables.items()}}

    stream = pieces()
    head = next(stream)
    specs = {name: TableSpec(head[name].dtype.str, head[name].shape[1:]) for name in tables}
    with EdgeStream(out, edge_type, options, specs) as edges:
        for piece in itertools.chain([head], stream):
            edges.append(**piece)


def _paths(folder: Path, entry: Mapping[str, Any]) -> list[Path]:
    """The files of a type, in the order in which they are read."""
    found = glob.glob(entry["files"], root_dir=folder, recursive=True, include_hidden=True)
    return sorted(folder / name for name in found)


def _is_csv(folder: Path, entry: Mapping[str, Any]) -> bool:
    return _paths(folder, entry)[0].suffix.lower() == ".csv"


@contextlib.contextmanager
def _reading(where: Path) -> Iterator[None]:
    """Raise DataError naming ``where`` for Arrow's errors."""
    try:
        yield
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise DataError(where, f"not readable: {first_line(error)}") from None


def _wanted(
    folder: Path, entry: Mapping[str, Any], ids: Sequence[str], values: Sequence[str], options: ImportOptions
) -> Any:
    """The Arrow schema of the columns ``ids`` and ``values``: the type of each is that of the first file with values in
    it. Of ``values`` that are whole numbers and fractions it is double.

    Raises DataError naming a file that lacks one of them, or has others that are not to be ignored.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    columns, numbers = [*ids, *values], set(values) - set(ids)
    fields: dict[str, Any] = {}
    kind = "csv" if _is_csv(folder, entry) else "parquet"
    for path in _paths(folder, entry):
        with _reading(path):
            found = ds.dataset(str(path), format=kind).schema
            names = found.names
        if missing := [name for name in columns if name not in names]:
            raise DataError(path, f"has no column {missing[0]!r}; there are: {', '.join(names)}")
        for name in names:
            if name not in columns and name not in entry.get("ignore", ()):
                options.refuse(path, name, "schema.json does not name the column")
        for name in columns:
            said, here = fields.get(name), found.field(name)
            if said is None or pa.types.is_null(said.type):
                fields[name] = here
            elif name in numbers and pa.types.is_integer(said.type) and pa.types.is_floating(here.type):
                fields[name] = said.with_type(pa.float64())
    schema = pa.schema(list(fields.values()))
    return _with_fractions(folder, entry, schema, sorted(numbers)) if kind == "csv" else schema


def _with_fractions(folder: Path, entry: Mapping[str, Any], schema: Any, names: Sequence[str]) -> Any:
    """``schema`` with double for those columns ``names`` of CSV files that have fractions behind their beginnings, which
    are all that Arrow looks at."""
    import pyarrow as pa

    whole = [name for name in names if pa.types.is_int64(schema.field(name).type)]
    if whole and not _fits(folder, entry, schema, whole):
        for name in whole:
            if not _fits(folder, entry, schema, [name]) and _has_fractions(folder, entry, schema, name):
                schema = _typed(schema, name, pa.float64())
    return schema


def _has_fractions(folder: Path, entry: Mapping[str, Any], schema: Any, name: str) -> bool:
    """Whether a column of CSV files has numbers that are written as fractions, with an exponent, or as NaN or infinite.

    Without them its numbers are whole ones, of which some are beyond int64: as double they would be rounded.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    with _reading(folder / str(entry["files"])):
        as_text = _dataset(folder, entry, _typed(schema, name, pa.string()))
        return any(
            pc.any(pc.match_substring_regex(batch.column(0), r"^[-+]?([0-9]*\.|[0-9]+[eE]|(?i:nan|inf))")).as_py()
            for batch in as_text.to_batches(columns=[name])
        )


def _fits(folder: Path, entry: Mapping[str, Any], schema: Any, names: list[str]) -> bool:
    """Whether all values of the columns ``names`` are of the types in ``schema``."""
    import pyarrow as pa

    with _reading(folder / str(entry["files"])):
        try:
            for _ in _dataset(folder, entry, schema).to_batches(columns=names):
                pass
        except pa.ArrowInvalid:  # of other faults, whoever reads the values will say what they are
            return False
    return True


def _typed(schema: Any, name: str, kind: Any) -> Any:
    """``schema`` with the type ``kind`` for the column ``name``."""
    import pyarrow as pa

    return schema.set(schema.get_field_index(name), pa.field(name, kind))


def _batches(folder: Path, entry: Mapping[str, Any], schema: Any, *, blanks: bool = False) -> Iterator[Any]:
    """The columns of ``schema`` of all files, piece by piece; at least one piece.

    ``blanks``: whether an empty text of a CSV file is a missing value.
    """
    import pyarrow as pa

    empty = True
    with _reading(folder / str(entry["files"])):
        for batch in _dataset(folder, entry, schema, blanks=blanks).to_batches(batch_size=_ROWS):
            if batch.num_rows:
                empty = False
                yield batch
    if empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _dataset(folder: Path, entry: Mapping[str, Any], schema: Any, *, blanks: bool = False) -> Any:
    import pyarrow.csv
    import pyarrow.dataset as ds

    kind: Any = "parquet"
    if _is_csv(folder, entry):
        kind = ds.CsvFileFormat(convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=blanks))
    return ds.dataset([str(path) for path in _paths(folder, entry)], schema=schema, format=kind)


def _integers(where: Path, name: str, ids: Any) -> Any:
    """Ids [n] that are text as int64 if each is written as an integer is, otherwise unchanged: they are names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(ids):
        return ids.cast(pa.int64())
    plain = pc.utf8_trim_whitespace(ids)
    if not pc.all(pc.match_substring_regex(plain, "^(0|-?[1-9][0-9]*)$")).as_py():
        return ids
    try:
        return plain.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(where, f"the column {name!r} has an id that does not fit into 64 bits: {error}") from None


def _columns(tables: Mapping[str, Any]) -> list[str]:
    return [name for spec in tables.values() for name in ([spec] if isinstance(spec, str) else spec)]


def _rows(where: Path, batch: Any, spec: str | Sequence[str]) -> Array:
    """The rows of a table [n] or [n, k]."""
    if not isinstance(spec, str):
        return np.stack([_rows(where, batch, name) for name in spec], axis=1)
    column = batch.column(spec)
    return _numbers(where, spec, column.combine_chunks() if hasattr(column, "combine_chunks") else column)


def _numbers(where: Path, name: str, column: Any) -> Array:
    """A column as numpy: numbers [n], or lists of equal length [n, k]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise DataError(where, f"the column {name!r} has {column.null_count} empty values")
    kind = column.type
    if pa.types.is_null(kind):  # a heading without rows says nothing of the type
        return np.empty(0, np.float32)
    if _is_list(kind):
        if _is_list(kind.value_type):
            raise DataError(where, f"the column {name!r} holds {kind}, wanted are numbers or lists of numbers")
        lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise DataError(where, f"the column {name!r} has lists of {lengths[0]} to {lengths[-1]} values")
        width = int(lengths[0]) if len(lengths) else getattr(kind, "list_size", 0)
        return _numbers(where, name, pc.list_flatten(column)).reshape(len(column), width)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(where, f"the column {name!r} holds {kind}, wanted are numbers")
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _positions(where: Path, name: str, column: Any, ids: Any) -> npt.NDArray[np.int64]:
    """Rows of the vertices that a column names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise DataError(where, f"the column {name!r} has empty ids")
    if not len(column):
        return np.empty(0, np.int64)
    same = [pa.types.is_integer(kind) for kind in (column.type, ids.type)]
    if pa.types.is_integer(column.type):
        check_numbers(where, f"the column {name!r}", column.to_numpy(zero_copy_only=False), negative=True)
    if same[0] != same[1] or pa.types.is_floating(column.type):
        raise DataError(where, f"the column {name!r} holds {column.type}, the ids of vertices are {ids.type}")
    try:
        column = column.cast(ids.type)
    except pa.ArrowInvalid as error:  # the number does not fit into the type of the ids
        raise DataError(where, f"the column {name!r} names a vertex which is in no node file: {error}") from None
    found = pc.index_in(column, value_set=ids)
    if found.null_count:
        lost = column.filter(pc.is_null(found))[0].as_py()
        raise DataError(where, f"the column {name!r} names the vertex {lost!r}, which is in no node file")
    return found.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
