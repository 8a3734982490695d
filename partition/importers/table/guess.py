"""A first ``schema.json``, guessed from what the columns of a folder's files look like. A node file has a column that differs
in all rows and looks like an id. An edge file has two columns whose values are ids of node files."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError, hint_of
from atta.observe.packages import load
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.edge_dialect import known_role
from atta.partition.importers.reading.source import ImportOptions, pa, parquet, pc
from atta.partition.importers.table import files as reading
from atta.partition.importers.table import schema as rules
from atta.partition.importers.table.columns import NUMBERS, TEXT
from atta.partition.importers.table.looks import ColumnLook, known
from atta.partition.importers.table.schema import kind_of
from atta.partition.names import is_table_name, join_edge_type

_MOST_ROWS = 5_000_000
"""At most this many rows of a file are looked at."""
NO_LABELS = "none"
_SPLIT = re.compile(r"(?:is_|in_)?(train|val|test|valid|validation|dev)(?:ing|ed)?(?:_?mask|_?set)?", re.I)
_SPLIT_NAMES = {"valid": "val", "validation": "val", "dev": "val"}
_LABELS = {"y", "label", "labels", "class", "target"}
_RATINGS = {"rating", "ratings", "rate", "stars", "score", "grade"}
_RELATIONS = {"type", "rel", "relation", "predicate", "edge_type", "relationship"}
_ENDS = re.compile(
    r"src|dst|source|target|from|to|head|tail|u|v|who|whom|subject|object|start|end|sender|receiver|parent|manager",
    re.I,
)
_MOST = 0.9
"""A column refers to a file if at least this share of its values are ids there."""
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Splits of vertices that have labels, if no column names them."""
_TOLD = {"scaled": "scale", "a column for each value": "onehot", "a column says which cells are known": "known"}
"""What is said of columns whose rule has a key."""
_ID = re.compile(r"_?id$", re.I)
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index", re.I)
"""Columns that pandas writes for the numbers of rows."""


@dataclass(frozen=True)
class FileLook:
    """Files with the same columns whose names differ in numbers only, so that one ``pattern`` names them. ``count``: of
    rows that were looked at. ``options``: what the schema must say to read them. ``unnamed``: other columns of a file of
    edges, if these are vertices that only edges name."""

    name: str
    pattern: str
    columns: Mapping[str, ColumnLook]
    count: int
    options: Mapping[str, str]
    unnamed: Sequence[str] = ()

    @cached_property
    def key(self) -> str | None:
        """The column that differs in all rows and looks most like an id; None if there is none."""
        found = [name for name, column in self.columns.items() if column.is_id and not _INDEX.fullmatch(name)]

        def likeness(name: str) -> int:
            low = name.lower()
            own = low.removesuffix("id").rstrip("_")
            if low == "id" or (low.endswith("id") and own and self.name.lower().startswith(own)):
                return 4
            if low.endswith(("id", "key", "code")):
                return 3
            return 2 if name == next(iter(self.columns)) else 1 if low.endswith("name") else 0

        best = max(found, key=likeness, default=None)
        return best if best is not None and likeness(best) else None

    @property
    def has_own_ids(self) -> bool:
        """Whether the ids are called ``id``, or after the file: ``user_id`` in ``users``."""
        own = _ID.sub("", self.key or "").lower()
        return not own or (self.name.lower().startswith(own[:-1]) and len(self.name) <= len(own) + 2)

    @property
    def slips(self) -> list[str]:
        """What keeps columns from being ids that seem to be some."""
        first = next(iter(self.columns), None)
        found = {name: one.slip for name, one in self.columns.items() if name == first or _ID.search(name)}
        return [f"{name!r} would be ids, but {slip}" for name, slip in found.items() if self.columns[name].is_nearly_id]

    def tables(self, names: Sequence[str], usual: Mapping[str, str]) -> dict[str, Any]:
        """What the schema says of columns that are tables of their own, by the tables' names. ``usual``: those of
        columns in small letters."""
        tables: dict[str, Any] = {}
        for name in names:
            column = self.columns[name]
            rule = None if _INDEX.fullmatch(name) else column.rule(name)
            if rule is not None:
                wanted = usual.get(name.lower(), "time" if column.is_time else name)
                tables[_table_name(wanted, tables)] = rule
        return tables


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

    def add(self, kind: str, name: str, file: FileLook, ends: Sequence[_Reference] = (), **entry: Any) -> None:
        """Add a type, of which the schema says what ``entry`` has. ``ends``: of edges."""
        for table, rule in entry.get("tables", {}).items():
            listed = rule if isinstance(rule, list) else [rule]
            names = [one if isinstance(one, str) else one["column"] for one in listed]
            for column in (column for column in names if file.columns[column].odd):
                taken = f'and {{"column": "{column}", "fill": "mean"}} in place of its rule in {table} takes numbers'
                self.lines.append(f"    {column!r} is a category: it {file.columns[column].lapse}, {taken}")
            if table != "y":
                self.lines.append(f"  table {table}: {', '.join(names)}")
                for what, key in _TOLD.items():
                    if told := [one["column"] for one in listed if isinstance(one, dict) and key in one]:
                        self.lines.append(f"    {what}: {', '.join(told)}")
                read = {name: file.columns[name].read_as for name in names if file.columns[name].is_time}
                self.lines += [f"    read as {form}: {name}" for name, form in read.items()]
                filled: dict[str, list[str]] = {}
                for column, one in zip(names, listed, strict=True):
                    if isinstance(one, dict) and "fill" in one:
                        look = file.columns[column]
                        what = "1970-01-01" if look.is_time else one["fill"]
                        filled.setdefault(what, []).append(f"{column} ({look.slip})" if look.is_time else column)
                self.lines += [f"    empty cells become {what}: {', '.join(told)}" for what, told in filled.items()]
        if entry["ignore"] and "tables" in entry:
            self.lines.append(f"  ignored: {', '.join(map(repr, entry['ignore']))}")
            looks = {name: file.columns[name] for name in entry["ignore"] if name in file.columns}
            self.lines += [f"    {name!r} {look.doubt}" for name, look in looks.items() if look.doubt]
        if splits := entry.get("splits"):
            chance = " (by chance, 80, 10 and 10 %: no column names them)" if splits is SHARES else ""
            self.lines.append(f"  splits: {splits if isinstance(splits, str) else ', '.join(splits)}{chance}")
        if lacking := [repr(one.column) for one in ends if not one.is_whole]:
            self.lines.append(f"  edges are left out where there is no vertex for {' or '.join(lacking)}")
            entry["unknown"] = "drop"
        kept = {key: value for key, value in entry.items() if value}
        self.schema[kind][name] = {"files": file.pattern, **kept, **file.options}


def guess_schema(folder: Path, labels: str | None = None) -> Guess:
    """Guess a schema from the Parquet and CSV files in ``folder``. ``labels``: the column of labels, or ``TYPE/COLUMN``;
    ``none``: there are none; None: columns that are called so. Raises DataError: there are no such files, none has ids,
    or one cannot be read; ConfigError: there are no such labels."""
    load("reading tables", "pyarrow", "pyarrow.dataset")
    files = _files(folder)
    if not files:
        raise DataError(folder, "holds no Parquet or CSV files")
    files += _implied(files)
    listed = [file for file in files if file.key and not _names_others(file, files)]
    ends = {file.name: _references(file, listed) for file in files}
    # Files of edges that have ids are none of vertices if no other file uses the ids.
    used = {one.end for file in files for one in ends[file.name] if one.column != file.key}
    listed = [file for file in listed if len(ends[file.name]) < 2 or file.name in used]
    nodes = {file.name for file in listed}
    if not nodes:
        slips = [f"{file.pattern}: {slip}" for file in files for slip in file.slips]
        found = "; ".join(slips or [f"{file.pattern}: {_lack(file, files)}" for file in files])
        commands = [] if slips else [told for file in files if (told := _import_of(folder, file))]
        raise DataError(
            folder,
            f"no file has a column of different ids, so none lists vertices ({found}); "
            f"{' or '.join(commands) or 'atta import edges'} takes a file of edges alone (weight= keeps a column, --drop "
            "leaves it out), and in a schema.json of your own "
            '"distinct": true takes vertices from a file that names them again and again',
        )
    columns = [f"{file.name}/{one}" for file in files if file.name in nodes for one in file.columns]
    wanted = _wanted(labels, columns, [file for file in files if file.name not in nodes], files)
    cut = [file for file in files if file.count >= _MOST_ROWS]
    guess = Guess([f"{file.pattern}: only the first {file.count:,} rows are looked at" for file in cut])
    for file in listed:
        _add_nodes(guess, file, [one.column for one in ends[file.name] if one.column != file.key], wanted)
    for file in files:
        known = [one for one in ends[file.name] if one.end in nodes]
        if file.name in nodes:
            for one in known:
                if one.column != file.key:
                    _add_references(guess, file, one)
        elif len(known) > 1:
            _add_edges(guess, file, known)
        else:
            guess.lines.append(
                f"{file.pattern}: not in {rules.SCHEMA}: {_lack(file, files)}; add {_entry(file, listed)}"
            )
    if labels is None and not any("y" in entry.get("tables", {}) for entry in guess.schema["nodes"].values()):
        guess.lines.append(
            "no labels: --labels COLUMN (with --overwrite) names what is to be predicted; --task link needs none"
        )
        looks = [(name, column) for file in listed for name, column in file.columns.items() if name != file.key]
        guess.lines += [f"  it may be {name!r}: {why}" for name, column in looks if (why := column.may_be_labels(name))]
    return guess


def _wanted(
    labels: str | None, columns: Sequence[str], others: Sequence[FileLook], files: Sequence[FileLook]
) -> str | None:
    """Which of ``columns``, each ``TYPE/COLUMN``, has the labels; an empty text: none has; None: their names tell.
    ``others``: of ``files`` those without vertices."""
    if labels is None or labels == NO_LABELS:
        return None if labels is None else ""
    found = [one for one in columns if labels in (one, one.partition("/")[2])]
    if len(found) != 1:
        own = [one if "/" in labels else one.partition("/")[2] for one in columns]
        said = f"name one of {', '.join(found)}" if found else f"no column of vertices{hint_of(labels, own)}"
        have = [file for file in others if labels.rpartition("/")[2] in file.columns]
        told = "".join(f"; {file.pattern} has it, but lists no vertices: {_lack(file, files)}" for file in have)
        raise ConfigError(f"--labels {labels}: {said}{told}")
    return found[0]


def _implied(files: Sequence[FileLook]) -> list[FileLook]:
    """Vertices that no file lists: columns of ids of files that seem to have edges."""
    found: list[FileLook] = []
    for file in files:
        ends = [one.column for one in _references(file, files)]
        named = [name for name in file.columns if name not in ends and _ID.search(name) and file.columns[name].distinct]
        types = [_plain(_ID.sub("", name)) or name for name in named]
        listed = any(one.name.lower().startswith(kind.lower()) for kind in types for one in files)
        if file.key is None and not listed and len(ends) + len(named) == 2:
            for name, kind in zip(named, types, strict=True):
                column = replace(file.columns[name], count=file.columns[name].distinct, empty=0)
                rest = [other for other in file.columns if other != name]
                found.append(FileLook(kind, file.pattern, {name: column}, column.count, file.options, rest))
    return found


def _lack(file: FileLook, files: Sequence[FileLook]) -> str:
    """Why a file has neither vertices nor edges, by the columns that come near."""
    if not file.count:
        return "it has no rows"
    near = file.slips
    for name, column in file.columns.items():
        share, best = _nearest(column, files)
        if 0 < share < _MOST:
            near.append(f"{share:.0%} of {name!r} are ids of {best!r}")
    return f"it has neither ids nor two columns of ids{': ' if near else ''}{', '.join(near)}"


def _nearest(column: ColumnLook, files: Sequence[FileLook]) -> tuple[float, str]:
    """The largest share of a column's ids that a file of ``files`` has, and the file's name."""
    shares = [(column.share_within(other.columns[other.key]), other.name) for other in files if other.key]
    return max(shares, default=(0.0, ""))


def _entry(file: FileLook, nodes: Sequence[FileLook]) -> str:
    """What to add by hand: edges between the first two columns, called like ends if some are, with ids of ``nodes``."""
    near = {name: _nearest(column, nodes) for name, column in file.columns.items()}
    ends = sorted((name for name, (share, _) in near.items() if share), key=lambda name: not _is_end(name))[:2]
    if len(ends) < 2:
        return "it by hand"
    rest = [name for name in file.columns if name not in ends]
    said = {"files": file.pattern, "src": ends[0], "dst": ends[1], "ignore": rest, "unknown": "drop", **file.options}
    name = join_edge_type(near[ends[0]][1], file.name, near[ends[1]][1])
    return f'to its "edges": {json.dumps({name: said}, ensure_ascii=False)[1:-1]}'


def _files(folder: Path) -> list[FileLook]:
    """All Parquet and CSV files directly in ``folder``, by name; raises DataError."""
    found: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if kind_of(path) is not None and path.name[0] not in "._":
            found.setdefault((re.sub(r"\d+", "*", path.name), names_of(path)), []).append(path)
    files: list[FileLook] = []
    for (pattern, names), paths in found.items():
        files.append(_look(paths, pattern if len(paths) > 1 else paths[0].name, names, {file.name for file in files}))
    return files


def _parts(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if kind_of(one) and one.name[0] not in "._" and one.stat().st_size)


def names_of(path: Path) -> tuple[str, ...]:
    """The columns of a file, or of the first in a folder; raises DataError."""
    first = (_parts(path) or [path])[0]
    if kind_of(first) == "parquet":
        with reading.reading(first):
            return tuple(parquet.read_schema(first).names)
    return tuple(next(csv.reader([reading.heading(first)], delimiter=reading.delimiter_of(first, len)), []))


def _look(paths: list[Path], pattern: str, names: tuple[str, ...], taken: Collection[str]) -> FileLook:
    parts = [part for path in paths for part in _parts(path)]
    mark = reading.delimiter_of(parts[0], len) if kind_of(parts[0]) != "parquet" else None
    rule = rules.TableRule(tuple(rules.ColumnRule(name) for name in names), wide=True)
    refusals = rules.Refusals(paths[0].parent / rules.SCHEMA)
    entry = rules.TypeEntry("", tuple(parts), (), {"all": rule}, delimiter=mark)
    reader = reading.TypeFiles(entry, ImportOptions(), refusals)
    refusals.check()
    reader.settle(())
    pieces, rows = list[reading.FilePiece](), 0
    for piece in reader.pieces():
        pieces.append(piece)
        rows += piece.rows.num_rows
        if rows >= _MOST_ROWS:
            break
    columns: dict[str, ColumnLook] = {}
    for name in names:
        with refusals.held(parts[0]):
            look = ColumnLook.of(name, pa.chunked_array([piece.rows.column(name) for piece in pieces]))
            at = _places(pieces, name, look.odd[0]) if look.odd else ""
            what, value = ("is empty", None) if look.empty else (f"has {look.repeated!r} twice", look.repeated)
            slip = f"{what}: {_places(pieces, name, value, 2)}" if look.empty or look.is_nearly_id else ""
            columns[name] = replace(look, at=at, slip=slip)
    refusals.check()
    options = {"delimiter": mark} if mark is not None and mark != reading.usual_delimiter(parts[0]) else {}
    endings = sorted(rules.KINDS, key=len, reverse=True)
    stem = next(pattern[: -len(end)] for end in endings if pattern.lower().endswith(end))
    return FileLook(_free(_plain(stem.replace("*", "")) or "table", taken), pattern, columns, rows, options)


def _places(pieces: Sequence[reading.FilePiece], name: str, value: Any, most: int = 1) -> str:
    """The first rows whose cell has a value, or is empty if that is None."""
    columns = ((piece, known(name, piece.rows.column(name))) for piece in pieces)
    found = ((piece, column.is_null() if value is None else pc.equal(column, value)) for piece, column in columns)
    rows = ((piece, at) for piece, mask in found for at in np.flatnonzero(mask.fill_null(False)))
    return " and ".join(f"row {piece.first + at} of {piece.path.name}" for piece, at in islice(rows, most))


def _plain(name: str) -> str:
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9.-]", "_", name)).strip("_.-")[:80]


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def _table_name(name: str, taken: Collection[str]) -> str:
    made = _plain(name)
    return _free(
        made if is_table_name(made) and made not in ("x", "y", "name") else f"column-{made}".rstrip("-_."), taken
    )


def _names_others(file: FileLook, files: Sequence[FileLook]) -> bool:
    """Whether a file of edges has ids by chance, as each source occurs once: these are ids of another file, and so is
    a second column. They all are, unless the column is called like an end."""
    found = _references(file, [other for other in files if other is not file])
    ids = [one for one in found if one.column == file.key and (one.is_whole or _is_end(one.column))]
    return bool(ids) and len(found) > 1 and not file.has_own_ids


def _import_of(folder: Path, file: FileLook) -> str | None:
    """The command that takes a file of CSV for edges; None if there is none."""
    looks = {name: one for name, one in file.columns.items() if not (one.empty or _INDEX.fullmatch(name))}
    numbers = [name for name, one in looks.items() if one.sort == NUMBERS]
    times = [name for name, one in looks.items() if one.kind in (pa.date32(), pa.timestamp("s"))]
    times += [name for name in numbers if known_role(name) == "time"]
    weights = [name for name in numbers if name.lower() in _RATINGS or known_role(name) == "weight"]
    ids = [name for name, one in looks.items() if name not in (*times, *weights) and one.keys is not None]
    ends = sorted(ids, key=lambda name: not _is_end(name))[:2]
    if len(ends) < 2 or kind_of(folder / file.pattern) == "parquet" or "*" in file.pattern:
        return None
    told = [
        *zip(("src", "dst"), ends, strict=True),
        *(("time", n) for n in times[:1]),
        *(("weight", n) for n in weights[:1]),
    ]
    words = ["atta", "import", "edges", str(folder / file.pattern), "DST"]
    words += ["--columns", ",".join(map("=".join, told))]
    words += [word for name in file.columns if name not in dict(told).values() for word in ("--drop", name)]
    return shlex.join(words if all(map(_is_end, ends)) else [*words, "--bipartite", "--reverse"])


def _references(file: FileLook, files: Sequence[FileLook]) -> list[_Reference]:
    """Columns whose values are ids of a node file, all or nearly all of them."""
    found = []
    for name, column in file.columns.items():
        if column.keys is None or _INDEX.fullmatch(name):
            continue
        shares = {
            other.name: column.share_within(other.columns[other.key])
            for other in files
            if other.key and not (other is file and name == file.key)
        }
        fitting = [other for other, share in shares.items() if share >= _MOST]
        apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # userId
        words = [word for word in re.split(r"[^a-z0-9]+", apart) if word not in ("", "id", "key", "code")]
        likely = [one for one in fitting if any(len(word) > 2 and one.lower().startswith(word) for word in words)]
        if _is_end(name) or column.sort == TEXT or (len(file.columns) == 2 and file.key is None):
            likely += fitting
        if likely:
            found.append(_Reference(name, likely[0], shares[likely[0]] == 1 and not column.empty))
    return found


def _is_end(column: str) -> bool:
    return any(_ENDS.fullmatch(word) for word in column.lower().split("_"))


def _add_nodes(guess: Guess, file: FileLook, references: Sequence[str], wanted: str | None) -> None:
    """Add vertices. ``wanted``: as ``_wanted`` gives it."""
    rest = [name for name in file.columns if name not in (file.key, *references)]
    guess.lines.append(f"{file.pattern}: vertices {file.name!r}, ids {file.key!r} ({file.count:,} different)")
    splits: Any = _splits(file, rest)
    rest = [name for name in rest if name not in ({splits} if isinstance(splits, str) else splits.values())]
    tables: dict[str, Any] = {}
    labels = [name for name in rest if name.lower() in _LABELS and file.columns[name].sort in (NUMBERS, TEXT)][:1]
    if wanted is not None:
        labels = [name for name in rest if f"{file.name}/{name}" == wanted]
    if labels:
        (tables["y"],) = labels
        distinct = file.columns[labels[0]].distinct
        moved = "; no feature: move it to x to make it one" if wanted is None else ""
        guess.lines.append(f"  table y, the labels: {labels[0]!r} ({distinct:,} different values{moved})")
        splits = splits or SHARES
    rest = [name for name in rest if name not in labels]
    features = [name for name in rest if not _INDEX.fullmatch(name) and file.columns[name].sort == NUMBERS]
    features = [name for name in features if not inexact(file.columns[name].numbers, np.dtype(np.float32)).any()]
    features += [name for name in rest if file.columns[name].sort == TEXT and file.columns[name].is_category]
    tables |= file.tables([name for name in rest if name not in features], {})
    ignore = [*references, *_unused(rest, tables, features)]
    if features:
        tables["x"] = [file.columns[name].feature(name) for name in features]
    more: dict[str, Any] = {"ignore": file.unnamed, "distinct": True} if file.unnamed else {"ignore": ignore}
    guess.add("nodes", file.name, file, id=file.key, tables=tables, splits=splits, **more)


def _unused(names: Sequence[str], tables: Mapping[str, Any], others: Collection[str]) -> list[str]:
    used = {rule if isinstance(rule, str) else rule["column"] for rule in tables.values()}
    return [name for name in names if name not in used and name not in others]


def _splits(file: FileLook, names: Sequence[str]) -> dict[str, str] | str:
    found: dict[str, str] = {}
    for name in names:
        column, match = file.columns[name], _SPLIT.fullmatch(name)
        if match and column.is_mask:
            split = match[1].lower()
            found.setdefault(_SPLIT_NAMES.get(split, split), name)
        elif column.words and all(map(_SPLIT.fullmatch, column.words)):
            return name
    return found


def _add_references(guess: Guess, file: FileLook, reference: _Reference) -> None:
    column = reference.column
    others = [name for name in file.columns if name not in (file.key, column)]
    name = join_edge_type(file.name, _table_name(column, ()), reference.end)
    guess.lines.append(f"{file.pattern}: edges {name!r}, from {file.key!r} to {column!r}")
    guess.add("edges", name, file, [reference], src=file.key, dst=column, ignore=others)


def _add_edges(guess: Guess, file: FileLook, known: Sequence[_Reference]) -> None:
    """Add edges. Their ends are columns that are called like ends, or refer to the same file, or the first two."""
    called = [one for one in known if _is_end(one.column)]
    alike = [one for one in known if sum(one.end == other.end for other in known) > 1]
    source, target = ends = next(found for found in (called, alike, known) if len(found) > 1)[:2]
    rest = [name for name in file.columns if name not in (source.column, target.column)]
    relations = [n for n in rest if n.lower() in _RELATIONS and file.columns[n].has_type_names]
    kind = relations[0] if relations else None
    rest = [name for name in rest if name != kind]
    plain_ones = [name for name in rest if not (file.columns[name].is_id and name.lower().endswith("id"))]
    tables = file.tables(plain_ones, {"w": "weight", "timestamp": "time", "ts": "time"})
    edge_type = join_edge_type(source.end, "*" if kind else file.name, target.end)
    ends_said = f"from {source.column!r} to {target.column!r} ({file.count:,})"
    guess.lines.append(f"{file.pattern}: edges {edge_type!r}, {ends_said}")
    if kind:
        guess.lines.append(f"  relations: {kind!r}")
    for name in (name for name in rest if name.lower() in _RATINGS and file.columns[name].distinct > 1):
        low, high = file.columns[name].numbers.min(), file.columns[name].numbers.max()
        least = f'"at_least": {{"{name}": {(low + high) / 2:g}}}'
        guess.lines.append(
            f"  an edge counts whatever its {name!r} ({low:g} to {high:g}): {least} in {rules.SCHEMA}, beside the 'files' "
            "of these edges, leaves out lower ones"
        )
    ignore = _unused(rest, tables, ())
    columns = {"src": source.column, "dst": target.column, "type": kind}
    guess.add("edges", edge_type, file, ends, **columns, tables=tables, ignore=ignore)
