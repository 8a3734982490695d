"""Edge lists: a line for each edge, of SNAP, KONECT (``out.*``), networkx and many others, and triples.

Columns are apart by tabs, commas, semicolons, ``|``, or blanks; a heading may name them. Lines that begin with ``#`` or
``%`` are comments. Files may be compressed by gzip. Several are read in the given order, as one.

The ends are the columns with a known name (``source``, ``from``, ``head``, ...) or the first two. So are ``relation``,
``weight`` and ``time``. ``--columns`` says it for others; ``NAME=COLUMN`` makes the edge table NAME. Columns without a
meaning are refused by name. Three columns with text in the middle are triples: each relation is an edge type.

In KONECT's files, the third column is the weight and the fourth the time. ``sym``: the reverse of each edge follows
after all edges; ``bip``: sources and destinations are the node types ``left`` and ``right``.

If all ids in the first lines are integers, they are the users' ids, and vertices are in their order. Otherwise ids are
strings, numbered as they first come, and become the table ``name``. Edges keep the order of lines.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.graph import NODE_TYPE, GraphWriter
from atta.partition.importers.edges.dialect import (
    DATE,
    INTEGER,
    UNWEIGHTED,
    Dialect,
    Roles,
    dialect_of,
    roles_of,
    splits_into_columns,
)
from atta.partition.importers.edges.parsing import FractionError, LineLayout, parsed
from atta.partition.importers.edges.staged import StagedEdges
from atta.partition.importers.edges.vertices import FoundVertices, IntegerVertices, StringVertices
from atta.partition.importers.reading.edges import EdgeStream
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.schema import join_edge_type

__all__ = ["read", "recognises"]

Array = npt.NDArray[Any]
_STAGED = {"integer": np.int32, "text": np.int32, "int64": np.int64, "float64": np.float64, "date": np.int64}
_ONE_TYPE, _TWO_TYPES = (NODE_TYPE, "to", NODE_TYPE), ("left", "to", "right")


@dataclass(frozen=True)
class _EdgeFile:
    """A file, how it is written, and what is which column."""

    path: Path
    dialect: Dialect
    roles: Roles


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the edge list ``source`` and the files after it."""
    load("importing edge lists", "pyarrow", "pyarrow.compute", "pyarrow.csv")
    files = [_opened(path, options) for path in (source, *options.more)]
    _check_alike(files)
    kinds = _kinds(files, string_ids=options.string_ids)
    folder = out.path / "work"
    while True:
        folder.mkdir()
        try:
            with StagedEdges(folder, {name: _STAGED[kind] for name, kind in kinds.items()}) as edges:
                found = _stage(files, kinds, edges, options)
                _note(files, found, kinds, options)
                _write(files, edges, found, out, options)
                return
        except FractionError as error:
            kinds = {**kinds, str(error): "float64"}
        finally:
            shutil.rmtree(folder)


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first lines have the same number of columns, two or more."""
    return splits_into_columns(path, head)


def _opened(path: Path, options: ImportOptions) -> _EdgeFile:
    """Look at a file; refuse columns that have no meaning."""
    dialect = dialect_of(path, options.columns.values())
    roles = roles_of(path, dialect, options.columns)
    weights = dialect.konect[1] if dialect.konect else ""
    known = {*roles.places.values(), *([2] if weights == UNWEIGHTED else [])}
    unknown = [name for place, name in enumerate(dialect.columns) if place not in known]
    for name in unknown:
        others = [repr(other) for other in unknown if other != name and other not in options.drop]
        also = f"; nor of {', '.join(others)}" if others else ""
        options.refuse(path, name, f"nothing says what it is, as --columns weight={name} or time={name} would{also}")
    if weights == "dynamic" and "weight" in roles.tables:
        options.refuse(path, weights, "the third column says whether an edge comes or goes")
    return _EdgeFile(path, dialect, roles)


def _check_alike(files: Sequence[_EdgeFile]) -> None:
    """Check that all files have the same contents; raises DataError."""
    first = files[0]
    for file in files[1:]:
        if _contents(file) != _contents(first):
            raise DataError(file.path, f"has {_contents(file)}, but {first.path.name} has {_contents(first)}")


def _contents(file: _EdgeFile) -> str:
    """What the columns of a file are, for people."""
    return ", ".join(sorted(file.roles.places)) + (
        f" ({file.dialect.konect[0]} of KONECT)" if file.dialect.konect else ""
    )


def _kinds(files: Sequence[_EdgeFile], *, string_ids: bool) -> dict[str, str]:
    """The kind of all that is read, as the first lines of all files show it."""
    whole = re.compile("-?[0-9]+")

    def all_match(form: re.Pattern[str], names: Sequence[str]) -> bool:
        return all(form.fullmatch(row[f.roles.places[n]]) for f in files for row in f.dialect.rows for n in names)

    ids = "integer" if not string_ids and all_match(INTEGER, ["src", "dst"]) else "text"
    tables = {name: "int64" if all_match(whole, [name]) else "float64" for name in files[0].roles.tables}
    if "time" in tables and all_match(DATE, ["time"]):
        tables["time"] = "date"
    relation = {} if files[0].roles.relation is None else {"relation": "text"}
    return {"src": ids, "dst": ids, **relation, **tables}


@dataclass(frozen=True)
class _FoundTypes:
    """What the files name.

    Attributes:
        types: node type of sources, relation, node type of destinations.
        ends: ids of sources and of destinations; the same object if they are of one type.
        relations: names of relations, if a column has them.
        lines: number of edges of each file.
    """

    types: tuple[str, str, str]
    ends: tuple[FoundVertices, FoundVertices]
    relations: StringVertices
    lines: list[int]


def _stage(
    files: Sequence[_EdgeFile], kinds: Mapping[str, str], edges: StagedEdges, options: ImportOptions
) -> _FoundTypes:
    """Write the edges of all files to ``edges``; return what they name."""
    make = IntegerVertices if kinds["src"] == "integer" else StringVertices
    konect = files[0].dialect.konect
    types, src = (_TWO_TYPES if konect and konect[0] == "bip" else _ONE_TYPE), make()
    found = _FoundTypes(types, (src, src if types is _ONE_TYPE else make()), StringVertices(), [])
    for file in files:
        options.progress.stage(f"reading {file.path.name}", None)
        before = len(edges)
        for size, columns in parsed(file.path, LineLayout(file.dialect, file.roles.places, kinds)):
            if columns:
                edges.append(_numbered(file.path, columns, found))
            options.progress.advance(size)
        found.lines.append(len(edges) - before)
    return found


def _numbered(where: Path, columns: Mapping[str, Any], found: _FoundTypes) -> dict[str, Array]:
    """The columns of a block with numbers in place of ids and relations."""
    (one, other), ends = found.ends, [columns["src"], columns["dst"]]
    src, dst = (
        one.numbers(where, ends)
        if one is other
        else (one.numbers(where, ends[:1])[0], other.numbers(where, ends[1:])[0])
    )
    rows = {name: values.to_numpy() for name, values in columns.items() if name not in ("src", "dst", "relation")}
    if "relation" in columns:
        rows["relation"] = found.relations.numbers(where, [columns["relation"]])[0]
    return {"src": src, "dst": dst, **rows}


def _note(files: Sequence[_EdgeFile], found: _FoundTypes, kinds: Mapping[str, str], options: ImportOptions) -> None:
    """Note what the user may want otherwise, and where comments say something else than the lines."""
    for file in files:
        _note_doubts(file, options)
    if kinds.get("time") == "date":
        options.notes.append("times are dates: the edge table time has seconds since 1970 (UTC)")
    counts = [("edges", file, lines) for file, lines in zip(files, found.lines, strict=True)]
    if len(files) == 1 and found.ends[0] is found.ends[1]:
        counts.append(("nodes", files[0], len(found.ends[0])))
    for what, file, count in counts:
        if (stated := file.dialect.stated.get(what, count)) != count:
            options.notes.append(f"{file.path.name}: its comments say {stated} {what}, its lines have {count}")


def _note_doubts(file: _EdgeFile, options: ImportOptions) -> None:
    """Note what the beginning of a file was taken for where it may be something else."""
    dialect, name = file.dialect, file.path.name
    ends = [row[place] for row in dialect.rows for place in (file.roles.src, file.roles.dst)]
    words = [field for field in ends if not INTEGER.fullmatch(field)]
    if words and len(words) < len(ends):
        options.notes.append(f"{name}: ids are taken as strings, because {words[0]!r} is no integer")
    if words and not dialect.heading and dialect.separator in ",;|":
        columns = ",".join(f"{end}={dialect.rows[0][getattr(file.roles, end)]}" for end in ("src", "dst"))
        options.notes.append(f"{name}: the first line is taken for an edge; --columns {columns} makes it a heading")
    if dialect.called_undirected and not options.undirected:
        options.notes.append(f"{name}: a comment calls the graph undirected; --undirected adds reverses that it lacks")


def _write(
    files: Sequence[_EdgeFile], edges: StagedEdges, found: _FoundTypes, out: GraphWriter, options: ImportOptions
) -> None:
    """Write the graph folder from the staged edges."""
    where, (source, relation, target), konect = files[0].path, found.types, files[0].dialect.konect
    src = found.ends[0].add_nodes(out, where, source)
    rows = {"src": src, "dst": src if source == target else found.ends[1].add_nodes(out, where, target)}
    specs = edges.specs(files[0].roles.tables)
    several = "relation" in files[0].roles.places
    both = konect is not None and konect[0] == "sym"
    for name, positions in _by_relation(edges, found.relations) if several else [(relation, None)]:
        total = len(edges) if positions is None else len(positions)
        edge_type = join_edge_type(source, name, target)
        with EdgeStream(out, edge_type, options, specs, total=total, both=both) as stream:
            for piece in edges.pieces(rows, positions):
                stream.append(piece["src"], piece["dst"], **{table: piece[table] for table in specs})


def _by_relation(edges: StagedEdges, relations: StringVertices) -> Iterator[tuple[str, Array]]:
    """Each relation, and the positions of its edges."""
    number = edges.column("relation")
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(relations)))
    yield from zip(relations.known.to_pylist(), np.split(order, ends[:-1]), strict=True)
