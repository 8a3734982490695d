"""``schema.json``: what files, columns, tables and splits every type has; and what an import by it refuses."""

from __future__ import annotations

import contextlib
import difflib
import glob
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError, DiskFullError
from atta.partition.disk.files import check_tree
from atta.partition.names import split_edge_type

SCHEMA = "schema.json"
ANY = "*"
"""The relation of an edge type whose edges name their relations in the column ``type``."""
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
"""Units of times, and the nanoseconds of each."""
KINDS = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".csv.gz": "csv", ".tsv.gz": "tsv"}
"""The endings of names, and what the files hold. Folders may end so, too: Spark writes such."""
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")


def kind_of(path: Path) -> str | None:
    """``parquet``, ``csv`` or ``tsv`` by the end of the name; None for another."""
    return next((kind for ending, kind in KINDS.items() if path.name.lower().endswith(ending)), None)


@dataclass(frozen=True)
class ColumnRule:
    """How the column ``name`` becomes numbers.

    Attributes:
        fill: what empty cells get: a number, a class, or ``"mean"``; None: empty cells are refused.
        known: add a column beside that has 1 where this one has a value, and 0 where it is empty.
        time_unit: unit of dates and times; None: that of the graph.
        time_format: how texts are times, as ``strftime`` says it; or the unit (s, ms, us, ns) of numbers, also in texts,
            that count from 1970; None: texts are ISO 8601.
        classes: distinct values become the numbers 0, 1, ...: True: in their order; or the list of their names.
        onehot: each class becomes a column of its own, which has 1 in the rows of that class.
        scale: subtract the mean of the column's values, and divide by their standard deviation.
    """

    name: str
    fill: float | int | str | None = None
    known: bool = False
    time_unit: str | None = None
    time_format: str | None = None
    classes: bool | tuple[str, ...] = False
    onehot: bool = False
    scale: bool = False


@dataclass(frozen=True)
class TableRule:
    """The columns of a table, side by side. ``wide``: whether a row has an axis for the columns, also if there is one.
    ``dtype``: None: that of the columns (float32 for ``x``)."""

    columns: tuple[ColumnRule, ...]
    wide: bool
    dtype: np.dtype[Any] | None = None


@dataclass(frozen=True)
class TypeEntry:
    """A node type or an edge type (``"user__buys__item"``, ``"user__*__item"``).

    Attributes:
        files: paths, in the order in which they are read; folders are resolved.
        ids: the column ``id``, or ``src`` and ``dst``.
        splits: column by name of split, or the column that names the split of each vertex, or by name of split the
            share of vertices that are drawn for it.
        ignore: columns to leave out.
        distinct: whether the same id in several rows means one vertex.
        type: column that names the relation of each edge.
        delimiter: between the columns of CSV files; None: as the heading shows.
        decimal: what separates the fraction of a number in CSV files.
        empty: texts that stand for an empty cell.
        drops_unknown: whether edges are left out of which an end is empty, or in no node file.
        at_least: edges are left out whose number in a column is smaller than this one, or missing.
    """

    name: str
    files: tuple[Path, ...]
    ids: tuple[str, ...]
    tables: Mapping[str, TableRule]
    splits: Mapping[str, str] | str = field(default_factory=dict)
    ignore: frozenset[str] = frozenset()
    type: str | None = None
    delimiter: str | None = None
    decimal: str = "."
    empty: tuple[str, ...] = ()
    drops_unknown: bool = False
    distinct: bool = False
    at_least: Mapping[str, float] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Every column that is read, once."""
        rules = [rule.name for table in self.tables.values() for rule in table.columns]
        splits = [self.splits] if isinstance(self.splits, str) else filter(_is_name, self.splits.values())
        return list(dict.fromkeys([*self.ids, *([self.type] if self.type else []), *rules, *splits, *self.at_least]))


@dataclass(frozen=True)
class GraphSchema:
    """``schema.json``. ``named``: the paths that ``files`` of all types name, folders unresolved. ``num_classes``:
    unchecked."""

    path: Path
    nodes: tuple[TypeEntry, ...]
    edges: tuple[TypeEntry, ...]
    named: tuple[Path, ...]
    num_classes: Any
    time_unit: str


_MOST = 20
"""At most this many refusals are named; the others are counted."""
_ROWS = 5
"""At most this many rows of a column are named."""
VALUE = "\0"
"""Stands in a refusal for the first value that is refused."""


@dataclass
class _Refusal:
    """Rows of a file that are refused for one reason: their number, the first of them and what is there."""

    count: int = 0
    rows: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def text(self, what: str, accept: str) -> str:
        text = what.replace(VALUE, self.values[0] if self.values else "")
        if self.count == 1:
            text += f" (row {self.rows[0]})"
        elif self.count:
            shown = [f"{row}: {value}" for row, value in zip(self.rows, self.values, strict=False)] or self.rows
            dots = ", ..." if self.count > len(self.rows) else ""
            text += f" ({self.count} rows: {', '.join(map(str, shown))}{dots})"
        return f"{text}; {accept}" if accept else text


class Refusals:
    """What is refused, and where. ``check`` raises it all as one DataError. ``schema``: path of the file that says what
    is wanted."""

    def __init__(self, schema: Path) -> None:
        self._schema = schema
        self._found: dict[tuple[str, str, str], _Refusal] = {}
        self._total = 0

    def __bool__(self) -> bool:
        return self._total > 0

    def add(
        self, where: Path | str, what: str, *, rows: Sequence[int] = (), values: Sequence[Any] = (), accept: str = ""
    ) -> None:
        """Add ``rows`` (from 1) of the file ``where``. Rows with the same reason become one refusal. ``values``: what
        the first rows hold. ``accept``: a sentence about the key of the schema that accepts them."""
        key = (str(where), what, accept)
        found = self._found.get(key)
        if found is None:
            self._total += 1
            found = _Refusal()
            if len(self._found) < _MOST:
                self._found[key] = found
        found.count += len(rows)
        free = _ROWS - len(found.rows)
        found.rows += [int(row) for row in rows[:free]]
        found.values += [repr(value) for value in values[:free]]

    @contextlib.contextmanager
    def held(self, where: Path | None = None) -> Iterator[None]:
        """Keep an error about the input that is raised in the block, and go on behind it. ``where``: the file that it
        is about if it does not name one."""
        try:
            yield
        except DiskFullError:
            raise
        except DataError as error:
            self.add(error.path or where or self._schema, error.cause)
        except ConfigError as error:
            self.add(where or self._schema, str(error))

    def check(self) -> None:
        found = [(where, refusal.text(what, accept)) for (where, what, accept), refusal in self._found.items()]
        if self._total == 1:
            raise DataError(*found[0])
        if found:
            listed = "; ".join(f"({n}) {Path(where).name}: {text}" for n, (where, text) in enumerate(found, 1))
            more = f"; and {self._total - len(found)} more" if self._total > len(found) else ""
            raise DataError(self._schema, f"refused are {self._total} things: {listed}{more}")


def read_schema(path: Path) -> GraphSchema:
    """Read ``schema.json``; raises DataError that names everything that is wrong with it."""
    said = _object(path)
    refusals = Refusals(path)
    entries: dict[str, list[TypeEntry]] = {"nodes": [], "edges": []}
    for kind, made in entries.items():
        for name, entry in said[kind].items():
            with refusals.held():
                made.append(_entry(path, kind, name, entry))
    for edge_type in said["edges"]:
        with refusals.held():
            source, _, target = split_edge_type(edge_type)
            if missing := {source, target} - set(said["nodes"]):
                raise DataError(path, f"edges {edge_type!r}: {', '.join(sorted(missing))} is no node type of 'nodes'")
    refusals.check()
    named = [found for kind in entries for entry in said[kind].values() for found in paths_of(path, entry["files"])]
    nodes, edges = map(tuple, entries.values())
    return GraphSchema(path, nodes, edges, tuple(named), said.get("num_classes"), said.get("time_unit", "s"))


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises DataError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(path, "the file is missing (atta schema FOLDER writes a first one)") from None
    except (OSError, ValueError, RecursionError) as error:
        how = (
            ""
            if path.suffix == ".json"
            else " (name the folder of the tables; atta schema FOLDER describes them first)"
        )
        raise DataError(path, f"not valid JSON: {error}{how}") from None


def _object(path: Path) -> dict[str, Any]:
    said = read_json(path)
    if not isinstance(said, dict) or not isinstance(said.get("nodes"), dict):
        raise DataError(path, "wanted is an object with 'nodes' and 'edges', and perhaps 'num_classes' and 'time_unit'")
    _check_keys(path, "beside 'nodes' and 'edges'", said, {"nodes", "edges", "num_classes", "time_unit"})
    if not isinstance(said.setdefault("edges", {}), dict):
        raise DataError(path, "'edges' is not an object of edge types")
    if said.get("time_unit", "s") not in tuple(UNITS):
        raise DataError(path, f"'time_unit' is {said['time_unit']!r}, wanted is one of {', '.join(UNITS)}")
    return said


def _check_keys(path: Path, where: str, said: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there may be {', '.join(known)}"
            raise DataError(path, f"{where}: unknown key {key[:100]!r}; {hint}")


def _check_values(path: Path, where: str, said: Mapping[str, Any]) -> None:
    for key, given in said.items():
        fits, wanted = _SHAPES.get(key, (_is_name, "a string"))
        if not fits(given):
            raise DataError(path, f"{where}: {key!r} is {given!r}, wanted is {wanted}")


def _entry(path: Path, kind: str, name: str, said: Any) -> TypeEntry:
    where = f"{kind} {name!r}"
    needed, keys = _KEYS[kind]
    if not isinstance(said, dict) or not needed <= set(said):
        raise DataError(path, f"{where}: needs {sorted(needed)}, may have {sorted(keys)}")
    _check_keys(path, where, said, keys)
    _check_values(path, where, said)
    if kind == "edges" and (split_edge_type(name)[1] == ANY) != ("type" in said):
        raise DataError(path, f"{where}: a key 'type' and a relation '*' need each other, as in 'user__*__item'")
    if said.get("distinct") and (said.keys() & {"tables", "splits"}):
        raise DataError(path, f"{where}: vertices whose ids are 'distinct' have neither tables nor splits")
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
        said.get("distinct", False),
        said.get("at_least", {}),
    )


def paths_of(schema: Path, patterns: str | Sequence[str]) -> list[Path]:
    """The files and folders that a pattern or a list of them names, in the order in which they are read. A pattern is
    relative to the folder of ``schema``, or absolute."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    found = (glob.glob(one, root_dir=schema.parent, recursive=True, include_hidden=True) for one in listed)
    return list(dict.fromkeys(chain.from_iterable(sorted(schema.parent / name for name in names) for names in found)))


def _files(schema: Path, what: str, patterns: str | Sequence[str]) -> tuple[Path, ...]:
    found = paths_of(schema, patterns)
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
    paths = sorted(path for path in folder.iterdir() if path.name[0] not in "._")
    if deeper := [path for path in paths if path.is_dir()]:
        raise DataError(folder, f"has the folder {deeper[0].name}: columns in names of folders are not read")
    if strange := [path for path in paths if kind_of(path) is None]:
        raise DataError(folder, f"{strange[0].name} is neither {' nor '.join(KINDS)}")
    return [path for path in paths if path.stat().st_size] or paths[:1]


def _table(path: Path, where: str, said: Any) -> TableRule:
    common: dict[str, Any] = {}
    dtype = None
    if isinstance(said, dict):
        _check_keys(path, where, said, _COLUMN_KEYS | {"columns", "dtype"})
        if ("column" in said) == ("columns" in said):
            raise DataError(path, f"{where}: needs either 'column' or 'columns'")
        common = {key: given for key, given in said.items() if key not in ("column", "columns", "dtype")}
        said, dtype = said.get("column", said.get("columns")), said.get("dtype")
        if dtype is not None and dtype not in _DTYPES:
            raise DataError(path, f"{where}: 'dtype' is {dtype!r}, wanted is one of {', '.join(_DTYPES)}")
    wide = isinstance(said, list)
    columns = tuple(_column(path, where, common, one) for one in (said if wide else [said]))
    return TableRule(columns, wide or any(c.known for c in columns), None if dtype is None else np.dtype(dtype))


def _column(path: Path, where: str, common: Mapping[str, Any], said: Any) -> ColumnRule:
    given = {**common, **(said if isinstance(said, dict) else {"column": said})}
    _check_keys(path, where, given, _COLUMN_KEYS)
    _check_values(path, where, given)
    if "column" not in given:
        raise DataError(path, f"{where}: a column needs 'column', its name")
    if isinstance(given.get("classes"), list):
        given["classes"] = tuple(given["classes"])
    return ColumnRule(given.pop("column"), **given)


def _is_name(said: Any) -> bool:
    return isinstance(said, str)


def _are_names(said: Any) -> bool:
    return isinstance(said, list) and all(map(_is_name, said))


def _is_number(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and abs(said) < 2**63


def _are_splits(said: Any) -> bool:
    if not isinstance(said, dict):
        return _is_name(said)
    shares = [one for one in said.values() if isinstance(one, int | float) and 0 < one <= 1 and one is not True]
    return all(map(_is_name, said.values())) or (len(shares) == len(said) and sum(shares) <= 1 + 1e-9)


def _is_table(said: Any) -> bool:
    if isinstance(said, dict):
        said = said.get("columns", said.get("column", ""))
    if isinstance(said, list):
        return bool(said) and all(_is_name(one) or isinstance(one, dict) for one in said)
    return _is_name(said)


_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "column": (_is_name, "the name of a column"),
    "files": (lambda said: _is_name(said) or (_are_names(said) and said), "a pattern, or a list of patterns"),
    "at_least": (
        lambda said: isinstance(said, dict) and all(map(_is_number, said.values())),
        "an object with a number for each column",
    ),
    "fill": (lambda said: _is_name(said) or _is_number(said), "a number, 'mean' or a class"),
    **dict.fromkeys(("known", "onehot", "scale", "distinct"), (lambda said: isinstance(said, bool), "true or false")),
    "time_unit": (lambda said: isinstance(said, str) and said in UNITS, f"one of {', '.join(UNITS)}"),
    "classes": (
        lambda said: isinstance(said, bool) or (_are_names(said) and len(set(said)) == len(said) > 0),
        "true, or a list of different names",
    ),
    "tables": (
        lambda said: isinstance(said, dict) and all(map(_is_table, said.values())),
        "an object with a column, or a list of columns, for each table",
    ),
    "splits": (_are_splits, "an object with a column, or a share (0.8), for each split, or the column that names them"),
    "ignore": (_are_names, "a list of columns"),
    "empty": (_are_names, "a list of texts"),
    "unknown": (lambda said: said == "drop", "'drop'"),
    "delimiter": (lambda said: _is_name(said) and len(said.encode()) == 1 and said not in '"\r\n', "one character"),
    "decimal": (lambda said: said in (".", ","), "'.' or ','"),
}
"""What the schema may say under a key of a type or of a column, and how a message calls it; under others a string."""
_COLUMN_KEYS = {"column", "fill", "known", "time_unit", "time_format", "classes", "onehot", "scale"}
_COMMON = {"files", "tables", "ignore", "delimiter", "decimal", "empty"}
_KEYS = {
    "nodes": ({"files", "id"}, _COMMON | {"id", "splits", "distinct"}),
    "edges": ({"files", "src", "dst"}, _COMMON | {"src", "dst", "type", "unknown", "at_least"}),
}
"""The keys that a type needs, and those that it may have."""
