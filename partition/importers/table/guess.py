"""A first ``schema.json``, guessed from the files of a folder. A node file has a column that differs in all rows and looks
like an id. An edge file has two columns whose values are ids of node files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.importers.table.columns import NUMBERS, TEXT
from atta.partition.importers.table.looks import ColumnLook, FileLook, free_name, look_at, plain_name
from atta.partition.importers.table.schema import SCHEMA
from atta.partition.schema import is_table_name, join_edge_type

_SPLIT = re.compile(r"(?:is_|in_)?(train|val|test|valid|validation|dev)(?:ing|ed)?(?:_?mask|_?set)?", re.I)
_SPLIT_NAMES = {"valid": "val", "validation": "val", "dev": "val"}
_LABELS = {"y", "label", "labels", "class", "target"}
_RELATIONS = {"type", "rel", "relation", "predicate", "edge_type", "relationship"}
_ENDS = re.compile(
    r"src|dst|source|target|from|to|head|tail|u|v|who|whom|subject|object|start|end|sender|receiver|parent|manager",
    re.I,
)
_MOST = 0.9
"""A column refers to a file if at least this share of its values are ids there."""
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index", re.I)
"""Columns that pandas writes for the numbers of rows."""


@dataclass(frozen=True)
class _Reference:
    """A column whose values are ids of the file ``end``: ``is_whole``: in all cells."""

    column: str
    end: str
    is_whole: bool


@dataclass
class Guess:
    """A guessed schema, and a sentence for each thing that was guessed."""

    lines: list[str]
    schema: dict[str, Any] = field(default_factory=lambda: {"nodes": {}, "edges": {}})

    def add(self, kind: str, name: str, look: FileLook, **entry: Any) -> None:
        """Add a type, of which the schema says what ``entry`` has."""
        said = {key: value for key, value in entry.items() if value}
        self.schema[kind][name] = {"files": look.pattern, **said, **look.options}


def guess_schema(folder: Path) -> Guess:
    """Guess a schema from the Parquet and CSV files in ``folder``. Raises DataError: there are no such files, none has
    ids, or one cannot be read."""
    load("reading tables", "pyarrow", "pyarrow.dataset")
    looks = look_at(folder)
    if not looks:
        raise DataError(folder, "holds no Parquet or CSV files")
    ids = {look.name: key for look in looks if (key := _id_column(look))}
    ends = {look.name: _references(look, looks, ids) for look in looks}
    nodes = _node_files(ids, ends)
    if not nodes:
        raise DataError(
            folder,
            "no file has a column of different ids, so none lists vertices; atta import edges takes a file of edges alone",
        )
    guess = Guess(
        [f"{look.pattern}: only the first {look.count:,} rows are looked at" for look in looks if look.is_cut]
    )
    for look in looks:
        if look.name in nodes:
            others = [one.column for one in ends[look.name] if one.column != ids[look.name]]
            _add_nodes(guess, look, ids[look.name], others)
    for look in looks:
        known = [one for one in ends[look.name] if one.end in nodes]
        if look.name in nodes:
            for one in known:
                if one.column != ids[look.name]:
                    _add_references(guess, look, ids[look.name], one)
        elif len(known) > 1:
            _add_edges(guess, look, *_pair(known))
        else:
            why = "it has neither ids nor two columns of ids: add it by hand"
            guess.lines.append(f"{look.pattern}: not in {SCHEMA}: {why}")
    return guess


def _pair(known: Sequence[_Reference]) -> tuple[_Reference, _Reference]:
    named = [one for one in known if _is_end(one.column)]
    alike = [one for one in known if sum(one.end == other.end for other in known) > 1]
    first, second = next(found for found in (named, alike, known) if len(found) > 1)[:2]
    return first, second


def _node_files(ids: Mapping[str, str], ends: Mapping[str, Sequence[_Reference]]) -> set[str]:
    """The files that list vertices: those with ids, without files of edges that have ids which no other file uses.
    ``ids``: the id column by file. ``ends``: columns that are ids of a file, and that file, by file."""
    used = {one.end for name, found in ends.items() for one in found if one.column != ids.get(name)}
    return {name for name in ids if len(ends[name]) < 2 or name in used}


def _id_column(look: FileLook) -> str | None:
    """The column that differs in all rows and looks most like an id; None if there is none."""
    found = [name for name, column in look.columns.items() if column.is_id and not _INDEX.fullmatch(name)]

    def likeness(name: str) -> int:
        low = name.lower()
        own = low.removesuffix("id").rstrip("_")
        if low == "id" or (low.endswith("id") and own and look.name.lower().startswith(own)):
            return 4
        if low.endswith(("id", "key", "code")):
            return 3
        return 2 if name == next(iter(look.columns)) else 1 if low.endswith("name") else 0

    best = max(found, key=likeness, default=None)
    return best if best is not None and likeness(best) else None


def _references(look: FileLook, looks: Sequence[FileLook], ids: Mapping[str, str]) -> list[_Reference]:
    """Columns whose values are ids of a node file, all or nearly all of them."""
    found = []
    for name, column in look.columns.items():
        if column.keys is None or _INDEX.fullmatch(name):
            continue
        shares = {
            other.name: column.share_within(other.columns[ids[other.name]])
            for other in looks
            if other.name in ids and not (other is look and name == ids[look.name])
        }
        fitting = [other for other, share in shares.items() if share >= _MOST]
        likely = [other for other in fitting if _mentions(name, other)]
        if _is_end(name) or column.sort == TEXT or len(look.columns) == 2:
            likely += fitting
        if likely:
            found.append(_Reference(name, likely[0], shares[likely[0]] == 1 and not column.has_empty))
    return found


def _is_end(column: str) -> bool:
    """Whether the name of a column is that of an end of edges: ``src``, ``source_id``, ``parent``."""
    words = column.lower().split("_")
    return any(_ENDS.fullmatch(word) for word in words)


def _mentions(column: str, file: str) -> bool:
    words = [word for word in re.split(r"[^a-z0-9]+", column.lower()) if word not in ("", "id", "key", "code")]
    return any(len(word) > 2 and file.lower().startswith(word) for word in words)


def _add_nodes(guess: Guess, look: FileLook, key: str, references: Sequence[str]) -> None:
    rest = [name for name in look.columns if name not in (key, *references)]
    ignore = list(references)
    guess.lines.append(f"{look.pattern}: vertices {look.name!r}, ids {key!r} ({look.count:,} different)")
    splits = _splits(look, rest)
    taken = {splits} if isinstance(splits, str) else set(splits.values())
    tables: dict[str, Any] = {}
    label = _label(look, [name for name in rest if name not in taken])
    if label is not None:
        tables["y"] = label
        guess.lines.append(f"  table y, the labels: {label!r} ({look.columns[label].distinct:,} different values)")
    features = []
    for name in rest:
        column = look.columns[name]
        if name in taken or name == label:
            continue
        if _INDEX.fullmatch(name):
            ignore.append(name)
        elif column.sort == NUMBERS and column.fits_float32:
            features.append({"column": name, "fill": "mean", "known": True} if column.has_empty else name)
        elif (rule := _rule(name, column)) is not None:
            tables[_table_name(name if column.sort != "times" else "time", tables)] = rule
        else:
            ignore.append(name)
    if features:
        tables["x"] = features
    _say_columns(guess, tables, ignore)
    if splits:
        guess.lines.append(f"  splits: {splits if isinstance(splits, str) else ', '.join(splits)}")
    guess.add("nodes", look.name, look, id=key, tables=tables, splits=splits, ignore=ignore)


def _splits(look: FileLook, names: Sequence[str]) -> dict[str, str] | str:
    found: dict[str, str] = {}
    for name in names:
        column, match = look.columns[name], _SPLIT.fullmatch(name)
        if match and column.is_mask:
            split = match[1].lower()
            found.setdefault(_SPLIT_NAMES.get(split, split), name)
        elif column.sort == TEXT and column.values and all(_SPLIT.fullmatch(value) for value in column.values):
            return name
    return found


def _label(look: FileLook, names: Sequence[str]) -> str | None:
    few = [name for name in names if look.columns[name].is_category and look.columns[name].distinct > 1]
    named = [name for name in names if name.lower() in _LABELS and look.columns[name].sort in ("numbers", "text")]
    return named[0] if named else few[0] if len(few) == 1 else None


def _rule(name: str, column: ColumnLook) -> Any:
    if column.sort in ("lists", "others") or (column.sort == TEXT and not column.is_category):
        return None if column.sort != "lists" or column.has_empty else name
    rule: dict[str, Any] = {"column": name, **(column.time_unit or {})}
    if column.sort == TEXT:
        rule["classes"] = True
    if column.has_empty:
        rule["fill"] = "none" if column.sort == TEXT else 0
    return rule if len(rule) > 1 else name


def _table_name(name: str, taken: Mapping[str, Any]) -> str:
    """A name for a table: letters, digits, '.', '-' and single '_'; free among ``taken``."""
    plain = plain_name(name)
    plain = plain if is_table_name(plain) and plain not in ("x", "y", "name") else f"column-{plain}".rstrip("-_.")
    return free_name(plain, taken)


def _say_columns(guess: Guess, tables: Mapping[str, Any], ignore: Sequence[str]) -> None:
    for table, rule in tables.items():
        if table != "y":
            listed = rule if isinstance(rule, list) else [rule]
            names = [one if isinstance(one, str) else one["column"] for one in listed]
            filled = [one["column"] for one in listed if isinstance(one, dict) and "fill" in one]
            note = f" (empty cells are filled: {', '.join(filled)})" if filled else ""
            guess.lines.append(f"  table {table}: {', '.join(names)}{note}")
    if ignore:
        guess.lines.append(f"  ignored: {', '.join(map(repr, ignore))}")


def _add_references(guess: Guess, look: FileLook, key: str, reference: _Reference) -> None:
    column = reference.column
    others = [name for name in look.columns if name not in (key, column)]
    name = join_edge_type(look.name, _table_name(column, {}), reference.end)
    guess.lines.append(f"{look.pattern}: edges {name!r}, from {key!r} to {column!r}")
    guess.add("edges", name, look, src=key, dst=column, ignore=others, unknown=_dropping(guess, reference))


def _dropping(guess: Guess, *ends: _Reference) -> str | None:
    if not (lacking := [one.column for one in ends if not one.is_whole]):
        return None
    guess.lines.append(f"  edges are left out where there is no vertex for {' or '.join(map(repr, lacking))}")
    return "drop"


def _add_edges(guess: Guess, look: FileLook, source: _Reference, target: _Reference) -> None:
    src, dst = source.column, target.column
    tables: dict[str, Any] = {}
    ignore, kind = [], None
    for name, column in look.columns.items():
        if name in (src, dst):
            continue
        low = name.lower()
        if kind is None and low in _RELATIONS and column.sort == TEXT and column.has_type_names:
            kind = name
        elif _INDEX.fullmatch(name) or (column.is_id and low.endswith("id")):
            ignore.append(name)
        elif (rule := _rule(name, column)) is not None:
            wanted = "weight" if low in ("w", "weight") else "time" if column.sort == "times" else name
            tables[_table_name(wanted, tables)] = rule
        else:
            ignore.append(name)
    edge_type = join_edge_type(source.end, "*" if kind else look.name, target.end)
    guess.lines.append(f"{look.pattern}: edges {edge_type!r}, from {src!r} to {dst!r} ({look.count:,})")
    if kind:
        guess.lines.append(f"  relations: {kind!r}")
    _say_columns(guess, tables, ignore)
    unknown = _dropping(guess, source, target)
    guess.add("edges", edge_type, look, src=src, dst=dst, type=kind, tables=tables, ignore=ignore, unknown=unknown)
