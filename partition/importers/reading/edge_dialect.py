"""How an edge list is written, as its first lines show: what separates columns, what they are called, what they are."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from atta.errors import ConfigError, DataError, hint_of
from atta.partition.disk.files import check_regular
from atta.partition.importers.reading.source import HEAD_BYTES, head_of
from atta.partition.names import is_table_name

BLANKS = " "
"""The separator of files whose columns are apart by any number of blanks and tabs."""
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""How an integer is written. ``007`` is a string, because the number 7 would not give it back."""
UNWEIGHTED = "unweighted"
"""KONECT's files of this kind have ones for weights where times follow."""
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?")
"""How a date is written in a column of times."""
_BRACES = re.compile(r"[^\s{]+[ \t]+[^\s{]+[ \t]+(\{.*\})")
_SEPARATORS = ("\t", ",", ";", "|", BLANKS)
_SAMPLE = 100
_KONECT = re.compile(r"%\s*(sym|asym|bip)\s+(\w+)")
_STATED = {
    "nodes": re.compile(r"#.*\bnodes:\s*([0-9]+)", re.IGNORECASE),
    "edges": re.compile(r"#.*\bedges:\s*([0-9]+)|%\s*([0-9]+)(?:\s+[0-9]+){0,2}$", re.IGNORECASE),
}
_KNOWN = {
    "src": "source src from fromnodeid from_id from_node source_id src_id head subject u node1 node_1 id1 id_1",
    "dst": "target dst destination to tonodeid to_id to_node target_id dst_id tail object v node2 node_2 id2 id_2",
    "relation": "relation rel predicate",
    "weight": "weight edge_weight w",
    "time": "time timestamp unixtime ts",
}
"""What columns are called that need no ``--columns``, in capitals or not."""
_ROLE_OF = {name: role for role, names in _KNOWN.items() for name in names.split()}


@dataclass(frozen=True)
class EdgeFile:
    """A file, and how it is written: the separator of columns (of ``BLANKS`` any number); what the heading, if there is
    one, calls them (else ``"1"``, ``"2"``, ...); the first lines of data; the kind of a KONECT file and of its weights;
    numbers of ``nodes`` and ``edges`` that comments state; names of the attributes that each line has in braces, if it
    has some. ``places``: the column, from 0, of ``src``, ``dst``, perhaps ``relation``, and each edge table."""

    path: Path
    separator: str
    columns: tuple[str, ...]
    heading: bool
    rows: tuple[tuple[str, ...], ...]
    konect: tuple[str, str] | None
    stated: Mapping[str, int]
    called_undirected: bool
    braces: tuple[str, ...] | None
    places: Mapping[str, int]

    @property
    def tables(self) -> list[str]:
        """Names of the columns that become tables."""
        return [name for name in self.places if name not in ("src", "dst", "relation")]


def look_at_edges(path: Path, said: Mapping[str, str]) -> EdgeFile:
    """Look at the beginning of a file. ``said``: what is which column, as the user says. Raises DataError: it cannot be
    read, is no text, or has no line with two columns; ConfigError: the user names a column that is not there, or one
    twice, or a table that cannot be."""
    check_regular(path)
    comments, lines = _comments_and_lines(path, head_of(path))
    if not lines:
        raise DataError(path, "holds no edges, only empty lines and comments")
    konect = next((found for line in comments if (found := _KONECT.match(line))), None)
    braces = _names_in_braces(path, lines[0])
    if braces is not None:
        lines = [without_braces(line.encode(), braces).decode() for line in lines]
    separator = BLANKS if konect or braces is not None else _separator(path, lines)
    rows = [fields_of(line, separator) for line in lines]
    if braces is not None:
        columns: Sequence[str] | None = ("1", "2", *braces)
    elif _is_heading(rows, set(said.values())):
        columns = rows[0]
    else:
        columns = _heading_in(comments, separator, len(rows[0]))
    heading = columns is rows[0]
    stated = {
        word: int(next(filter(None, found.groups())))
        for word, form in _STATED.items()
        for line in comments
        if (found := form.match(line))
    }
    file = EdgeFile(
        path,
        separator,
        tuple(columns or map(str, range(1, len(rows[0]) + 1))),
        heading,
        tuple(tuple(row) for row in rows[heading:] if len(row) == len(rows[0])),
        (konect[1], konect[2]) if konect else None,
        stated,
        any("undirected graph" in line.lower() for line in comments),
        braces,
        {},
    )
    return replace(file, places=_places(file, said))


def splits_into_columns(path: Path, head: bytes) -> bool:
    """Whether the first lines have the same number of columns, two or more."""
    try:
        _, lines = _comments_and_lines(path, head)
    except DataError:
        return False
    even = any(len(widths) == 1 and min(widths) > 1 for widths in (_widths(lines, s) for s in _SEPARATORS))
    return even or (bool(lines) and all(map(_BRACES.fullmatch, lines)))


def _names_in_braces(path: Path, line: str) -> tuple[str, ...] | None:
    """The names of the attributes that networkx writes behind the ends, as in ``0 1 {'weight': 3}``; None: no braces.
    Raises DataError if a value is more than a number or a word."""
    if (found := _BRACES.fullmatch(line)) is None:
        return None
    names = tuple(re.findall(r"'([^']*)': ", found[1]))
    if _form_of_braces(names).fullmatch(found[1].encode()) is None:
        raise DataError(
            path, f"not read: {found[1][:80]!r}; networkx.write_edgelist(graph, file, data=False) leaves it out"
        )
    return names


@lru_cache(maxsize=16)
def _form_of_braces(names: tuple[str, ...]) -> re.Pattern[bytes]:
    pairs = (rb"'%s': ([^\s,{}]+)" % re.escape(name.encode()) for name in names)
    return re.compile(rb"[ \t]*\{%s\}[ \t\r]*$" % b", ".join(pairs), re.MULTILINE)


def without_braces(lines: bytes, names: tuple[str, ...]) -> bytes:
    """``lines`` with blanks before the values that stand in braces. A line with other names stays as it is."""
    return _form_of_braces(names).sub(lambda found: b"".join(b" " + value for value in found.groups()), lines)


def fields_of(line: str, separator: str) -> list[str]:
    """The columns of a line."""
    if separator == BLANKS:
        return re.split("[ \t]+", line.strip(" \t\r"))
    if separator == "\t":
        return [field.strip() for field in line.split("\t")]
    return [field.strip() for field in next(csv.reader([line], delimiter=separator), [])]


def known_role(name: str) -> str | None:
    """What a column of this name is without ``--columns``; None: its name does not say."""
    return _ROLE_OF.get(name.lower())


def _places(file: EdgeFile, said: Mapping[str, str]) -> dict[str, int]:
    """What is which column: as the user says, as its name or KONECT's rules say, and the ends else in the first two."""
    columns = file.columns
    for role in said.keys() - {"src", "dst", "relation"}:
        if not is_table_name(role):
            raise ConfigError(f"--columns {role}={said[role]}: edge tables cannot have this name")
    found = {role: _position(file, role, column) for role, column in said.items()}
    if len(set(found.values())) < len(found):
        spelt = ",".join(f"{role}={column}" for role, column in said.items())
        raise ConfigError(f"--columns {spelt}: one column is named twice")
    for role, place in _usual_places(file, alone=not said):
        if role not in found and place not in found.values():
            found[role] = place
    free = iter([place for place in range(len(columns)) if place not in found.values()])
    ends = {end: found.pop(end) if end in found else next(free, None) for end in ("src", "dst")}
    if None in ends.values():
        raise DataError(file.path, f"has no two columns for the ends of edges; there are: {', '.join(columns)}")
    return {**{end: place for end, place in ends.items() if place is not None}, **found}


def _usual_places(file: EdgeFile, *, alone: bool) -> Iterator[tuple[str, int]]:
    """What names of columns, or KONECT's rules, say. ``alone``: whether the user says nothing, as for triples."""
    named = [(_ROLE_OF[name.lower()], at) for at, name in enumerate(file.columns) if name.lower() in _ROLE_OF]
    yield from named
    if file.konect:
        tables = [("weight", 2)] * (file.konect[1] != UNWEIGHTED) + [("time", 3)]
        yield from ((role, place) for role, place in tables if place < len(file.columns))
    elif alone and not named and file.rows and _are_triples(file):
        yield from (("src", 0), ("relation", 1), ("dst", 2))


def _comments_and_lines(path: Path, head: bytes) -> tuple[list[str], list[str]]:
    if b"\0" in head:
        raise DataError(path, "not a text of UTF-8: it has zero bytes")
    whole = head if len(head) < HEAD_BYTES else head[: head.rfind(b"\n") + 1] or head
    whole = whole.removeprefix(codecs.BOM_UTF8)
    lines = [text for number, line in enumerate(whole.split(b"\n"), 1) if (text := _text(path, number, line)).strip()]
    comments = [line for line in lines if line[0] in "#%"]
    return comments, [line for line in lines if line[0] not in "#%"][:_SAMPLE]


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode().strip("\r ")
    except UnicodeDecodeError as error:
        raise DataError(path, f"line {number}: not UTF-8: {error.reason} at byte {error.start}") from None


def _widths(lines: Sequence[str], separator: str) -> Counter[int]:
    try:
        return Counter(len(fields_of(line, separator)) for line in lines)
    except csv.Error:
        return Counter()


def _separator(path: Path, lines: Sequence[str]) -> str:
    """That by which all lines have the same number of columns, two or more; otherwise that which the first line has."""
    widths = {separator: _widths(lines, separator) for separator in _SEPARATORS}
    even = [s for s, found in widths.items() if len(found) == 1 and min(found) > 1]
    first = [s for s in _SEPARATORS if widths[s] and len(fields_of(lines[0], s)) > 1]
    if not even + first:
        raise DataError(path, f"not an edge list: {lines[0][:80]!r} has no two columns")
    return (even + first)[0]


def _is_heading(rows: Sequence[Sequence[str]], named: set[str]) -> bool:
    first, rest = rows[0], rows[1:]
    roles = {_ROLE_OF.get(name.lower()) for name in first}
    if {"src", "dst"} <= roles or named & {name for name in first if not name.isdecimal()}:
        return True
    numbers = [all(map(_is_number, column)) for column in zip(*rest, strict=False)]
    return any(numbers) and not any(map(_is_number, first))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _heading_in(comments: Sequence[str], separator: str, width: int) -> list[str] | None:
    names = fields_of(comments[-1].lstrip("#% "), separator) if comments else []
    known = {"src", "dst"} <= {_ROLE_OF.get(name.lower()) for name in names}
    return names if known and len(names) == width else None


def _are_triples(file: EdgeFile) -> bool:
    """Whether the middle of three columns is text, and the others are both text or both numbers."""
    if len(file.columns) != 3 or file.braces is not None:
        return False
    head, relation, tail = (all(map(_is_number, column)) for column in zip(*file.rows, strict=True))
    return not relation and head == tail


def _position(file: EdgeFile, role: str, column: str) -> int:
    if column in file.columns:
        return file.columns.index(column)
    if column.isdecimal() and 1 <= int(column) <= len(file.columns):
        return int(column) - 1
    hint = hint_of(column, file.columns)
    raise ConfigError(f"--columns {role}={column}: {file.path} has no such column{hint}")
