"""Reads and checks ``schema.json``: what files, columns, tables and splits every type has."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.partition.disk.files import check_tree
from atta.partition.importers.table.files import KINDS, files_of, kind_of
from atta.partition.importers.table.rules import (
    ANY,
    DTYPES,
    UNITS,
    ColumnRule,
    GraphSchema,
    Refusals,
    TableRule,
    TypeEntry,
)
from atta.partition.schema import split_edge_type


def read_schema(path: Path) -> GraphSchema:
    """Read ``schema.json``; raises DataError that names everything that is wrong with it."""
    value = _object(path)
    refusals = Refusals(path)
    entries: dict[str, list[TypeEntry]] = {"nodes": [], "edges": []}
    for kind, made in entries.items():
        for name, said in value[kind].items():
            with refusals.held():
                made.append(_entry(path, kind, name, said))
    for edge_type in value["edges"]:
        with refusals.held():
            source, _, target = split_edge_type(edge_type)
            if missing := {source, target} - set(value["nodes"]):
                raise DataError(
                    path, f"edges {edge_type!r}: {', '.join(sorted(missing))} is not a node type of 'nodes'"
                )
    refusals.check()
    named = [p for kind in entries for said in value[kind].values() for p in files_of(path.parent, said["files"])]
    nodes, edges = map(tuple, entries.values())
    return GraphSchema(path, nodes, edges, tuple(named), value.get("num_classes"), value.get("time_unit", "s"))


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(path, "the file is missing (atta schema FOLDER writes a first one)") from None
    except (ValueError, RecursionError):
        raise DataError(path, "not valid JSON") from None
    known = {"nodes", "edges", "num_classes", "time_unit"}
    if not isinstance(value, dict) or not isinstance(value.get("nodes"), dict):
        raise DataError(path, "wanted is an object with 'nodes' and 'edges', and perhaps 'num_classes' and 'time_unit'")
    _check_keys(path, "beside 'nodes' and 'edges'", value, known)
    if not isinstance(value.setdefault("edges", {}), dict):
        raise DataError(path, "'edges' is not an object of edge types")
    if value.get("time_unit", "s") not in tuple(UNITS):
        raise DataError(path, f"'time_unit' is {value['time_unit']!r}, wanted is one of {', '.join(UNITS)}")
    return value


def _check_keys(path: Path, where: str, said: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there may be {', '.join(known)}"
            raise DataError(path, f"{where}: unknown key {key[:100]!r}; {hint}")


def _entry(path: Path, kind: str, name: str, said: Any) -> TypeEntry:
    where = f"{kind} {name!r}"
    needed, keys = _KEYS[kind]
    if not isinstance(said, dict) or not needed <= set(said):
        raise DataError(path, f"{where}: needs {sorted(needed)}, may have {sorted(keys)}")
    _check_keys(path, where, said, keys)
    for key, given in said.items():
        fits, wanted = _SHAPES.get(key, (_is_name, "a string"))
        if not fits(given):
            raise DataError(path, f"{where}: {key!r} is {given!r}, wanted is {wanted}")
    if kind == "edges" and (split_edge_type(name)[1] == ANY) != ("type" in said):
        raise DataError(path, f"{where}: a key 'type' and a relation '*' need each other, as in 'user__*__item'")
    tables = {table: _table(path, f"{where}: table {table!r}", rule) for table, rule in said.get("tables", {}).items()}
    return TypeEntry(
        name,
        _files(path, f"{where}: 'files' is {said['files']!r}", said["files"]),
        tuple(said[key] for key in ("id", "src", "dst") if key in said),
        tables,
        said.get("splits", {}),
        frozenset(said.get("ignore", ())),
        said.get("type"),
        said.get("delimiter"),
        said.get("decimal", "."),
        tuple(said.get("empty", ())),
        said.get("unknown") == "drop",
    )


def _files(schema: Path, what: str, pattern: str) -> tuple[Path, ...]:
    found = files_of(schema.parent, pattern)
    if not found:
        raise DataError(schema, f"{what}: no such file")
    paths = []
    for path in found:
        check_tree(path)
        if kind_of(path) is None:
            raise DataError(schema, f"{what}: {path.name} is neither {' nor '.join(KINDS)}")
        paths += _inside(path) if path.is_dir() else [path]
    if len({kind_of(path) == "parquet" for path in paths}) > 1:
        raise DataError(schema, f"{what}: some files are Parquet, others are not")
    if not paths:
        raise DataError(schema, f"{what}: the folder {found[0].name} has no files")
    return tuple(paths)


def _inside(folder: Path) -> list[Path]:
    """The files of a folder that Spark wrote; raises DataError if their rows are not all in the files."""
    paths = sorted(path for path in folder.iterdir() if path.name[0] not in "._")
    if deeper := [path for path in paths if path.is_dir()]:
        raise DataError(folder, f"has the folder {deeper[0].name}: columns in names of folders are not read")
    if strange := [path for path in paths if kind_of(path) is None]:
        raise DataError(folder, f"{strange[0].name} is neither {' nor '.join(KINDS)}")
    return [path for path in paths if path.stat().st_size] or paths[:1]


def _table(path: Path, where: str, said: Any) -> TableRule:
    common: dict[str, Any] = {}
    if isinstance(said, dict):
        _check_keys(path, where, said, _TABLE_KEYS)
        if ("column" in said) == ("columns" in said):
            raise DataError(path, f"{where}: needs either 'column' or 'columns'")
        common = {key: given for key, given in said.items() if key not in ("column", "columns", "dtype")}
        said, dtype = said.get("column", said.get("columns")), said.get("dtype")
        if dtype is not None and dtype not in DTYPES:
            raise DataError(path, f"{where}: 'dtype' is {dtype!r}, wanted is one of {', '.join(DTYPES)}")
    else:
        dtype = None
    wide = isinstance(said, list)
    columns = tuple(_column(path, where, common, one) for one in (said if wide else [said]))
    return TableRule(columns, wide or any(c.known for c in columns), None if dtype is None else np.dtype(dtype))


def _column(path: Path, where: str, common: Mapping[str, Any], said: Any) -> ColumnRule:
    given = {**common, **(said if isinstance(said, dict) else {"column": said})}
    _check_keys(path, where, given, _COLUMN_KEYS)
    for key, value in given.items():
        fits, wanted = _COLUMN_SHAPES[key]
        if not fits(value):
            raise DataError(path, f"{where}: {key!r} is {value!r}, wanted is {wanted}")
    if "column" not in given:
        raise DataError(path, f"{where}: a column needs 'column', its name")
    classes = given.get("classes", False)
    rule = {key: given[key] for key in ("fill", "known", "time_unit") if key in given}
    return ColumnRule(given["column"], classes=tuple(classes) if isinstance(classes, list) else classes, **rule)


def _is_name(said: Any) -> bool:
    return isinstance(said, str)


def _are_names(said: Any) -> bool:
    return isinstance(said, list) and all(map(_is_name, said))


def _is_fill(said: Any) -> bool:
    return isinstance(said, str) or (isinstance(said, int | float) and not isinstance(said, bool) and abs(said) < 2**63)


def _is_table(said: Any) -> bool:
    """Whether ``said`` has the shape of a table; ``_table`` checks the rest."""
    if isinstance(said, dict):
        said = said.get("columns", said.get("column", ""))
    if isinstance(said, list):
        return bool(said) and all(_is_name(one) or isinstance(one, dict) for one in said)
    return _is_name(said)


_Shape = tuple[Callable[[Any], bool], str]
_COLUMN_SHAPES: dict[str, _Shape] = {
    "column": (_is_name, "the name of a column"),
    "fill": (_is_fill, "a number, 'mean' or a class"),
    "known": (lambda said: isinstance(said, bool), "true or false"),
    "time_unit": (lambda said: isinstance(said, str) and said in UNITS, f"one of {', '.join(UNITS)}"),
    "classes": (
        lambda said: isinstance(said, bool) or (_are_names(said) and len(set(said)) == len(said) > 0),
        "true, or a list of different names",
    ),
}
"""What the schema may say under a key of a column, and how a message calls it."""
_COLUMN_KEYS = [field if field != "name" else "column" for field in (f.name for f in fields(ColumnRule))]
_TABLE_KEYS = [*_COLUMN_KEYS, "columns", "dtype"]
_SHAPES: dict[str, _Shape] = {
    "tables": (
        lambda said: isinstance(said, dict) and all(map(_is_table, said.values())),
        "an object with a column, or a list of columns, for each table",
    ),
    "splits": (
        lambda said: _is_name(said) or (isinstance(said, dict) and all(map(_is_name, said.values()))),
        "an object with a column for each split, or the column that names them",
    ),
    "ignore": (_are_names, "a list of columns"),
    "empty": (_are_names, "a list of texts"),
    "unknown": (lambda said: said == "drop", "'drop'"),
    "delimiter": (lambda said: _is_name(said) and len(said.encode()) == 1 and said not in '"\r\n', "one character"),
    "decimal": (lambda said: said in (".", ","), "'.' or ','"),
}
"""What the schema may say under a key of a type, and how a message calls it."""
_COMMON = {"files", "tables", "ignore", "delimiter", "decimal", "empty"}
_KEYS = {
    "nodes": ({"files", "id"}, _COMMON | {"id", "splits"}),
    "edges": ({"files", "src", "dst"}, _COMMON | {"src", "dst", "type", "unknown"}),
}
"""The keys that a type needs, and those that it may have."""
