"""Edge lists: a line for each edge, of SNAP, KONECT (``out.*``), networkx and many others, and triples.

``docs/guide/importing.md`` says what is which column. If all ids in the first lines are integers, they are the users' ids, and
vertices are in their order. Otherwise ids are strings, numbered as they first come, and become the table ``name``. Edges keep
the order of lines.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError, DataError
from atta.observe.extras import load
from atta.observe.machine.threads import in_order
from atta.partition.disk.files import NpyAppender, chunks
from atta.partition.graph import NODE_TYPE, GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.edge_dialect import (
    DATE,
    INTEGER,
    UNWEIGHTED,
    Dialect,
    Roles,
    dialect_of,
    known_role,
    roles_of,
    splits_into_columns,
)
from atta.partition.importers.reading.edge_lines import FractionError, LineLayout, parsed
from atta.partition.importers.reading.filling import EdgeStream, name_bytes
from atta.partition.importers.reading.source import ImportOptions, pa, pc
from atta.partition.schema import TableSpec, join_edge_type

Array = npt.NDArray[Any]
_STAGED = {"integer": np.int32, "text": np.int32, "int64": np.int64, "float64": np.float64, "date": np.int64}
_ID = re.compile("id(:[a-z]+)?$", re.IGNORECASE)
"""How names of columns end that hold ids of something: ``userId``, ``item_id:token``."""
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
    if options.bipartite and dialect.konect and dialect.konect[0] == "sym":
        raise ConfigError(f"--bipartite: the edges of {path} have no direction (sym), so their ends are of one type")
    return _EdgeFile(path, dialect, roles)


def _check_alike(files: Sequence[_EdgeFile]) -> None:
    contents = [", ".join(sorted(file.roles.places)) for file in files]
    contents = [
        f"{c} ({f.dialect.konect[0]} of KONECT)" if f.dialect.konect else c
        for c, f in zip(contents, files, strict=True)
    ]
    for file, content in zip(files, contents, strict=True):
        if content != contents[0]:
            raise DataError(file.path, f"has {content}, but {files[0].path.name} has {contents[0]}")


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
    """What the files name: the node type of sources, the relation and the node type of destinations; ids of both ends,
    one object if they are of one type; names of relations; and the number of edges of each file."""

    types: tuple[str, str, str]
    ends: tuple[IntegerVertices | StringVertices, IntegerVertices | StringVertices]
    relations: StringVertices
    lines: list[int]


def _stage(
    files: Sequence[_EdgeFile], kinds: Mapping[str, str], edges: StagedEdges, options: ImportOptions
) -> _FoundTypes:
    make = IntegerVertices if kinds["src"] == "integer" else StringVertices
    konect = files[0].dialect.konect
    two = options.bipartite or (konect is not None and konect[0] == "bip")
    types, src = (_TWO_TYPES if two else _ONE_TYPE), make()
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
    names = [dialect.columns[place] for place in (file.roles.src, file.roles.dst)]
    if not options.bipartite and all(map(_ID.search, names)) and not any(map(known_role, names)):
        columns = " and ".join(map(repr, names))
        options.notes.append(f"{name}: {columns} hold ids of one node type; --bipartite makes them two")
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
                stream.append(piece["src"], piece["dst"], {table: piece[table] for table in specs})


def _by_relation(edges: StagedEdges, relations: StringVertices) -> Iterator[tuple[str, Array]]:
    """Each relation, and the positions of its edges."""
    number = edges.column("relation")
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(relations)))
    yield from zip(relations.known.to_pylist(), np.split(order, ends[:-1]), strict=True)


_CHUNK, _THREADS = 2 << 20, 2


class StagedEdges:
    """Columns of edges in files of a folder, all of the same length: name -> dtype. Use it as a context manager."""

    def __init__(self, folder: Path, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._files = {name: NpyAppender(folder / f"{name}.npy", dtype) for name, dtype in columns.items()}

    def __len__(self) -> int:
        return next(iter(self._files.values())).rows

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append edges; every column has a value [n] for each."""
        for name, out in self._files.items():
            out.append(columns[name])

    def column(self, name: str) -> Array:
        """Memory-map a column."""
        return self._files[name].written()

    def specs(self, names: Mapping[str, object]) -> dict[str, TableSpec]:
        """The columns ``names`` as edge tables."""
        return {name: TableSpec(self._files[name].dtype.str) for name in names}

    def pieces(self, rows: Mapping[str, Array | None], positions: Array | None = None) -> Iterator[dict[str, Array]]:
        """The edges at ``positions`` (None: all), piece by piece, in their order. ``rows``: what stands in place of
        each number of a column; None: the numbers themselves."""

        def piece(lo: int, hi: int) -> dict[str, Array]:
            chosen = slice(lo, hi) if positions is None else positions[lo:hi]
            # Nothing keeps a file mapped, which would count as memory of the process.
            columns = {name: out.written()[chosen] for name, out in self._files.items()}
            return {
                name: np.array(values) if (row := rows.get(name)) is None else row.take(values)
                for name, values in columns.items()
            }

        total = len(self) if positions is None else len(positions)
        return in_order((partial(piece, *span) for span in chunks(total, _CHUNK)), _THREADS)

    def __enter__(self) -> StagedEdges:
        return self

    def __exit__(self, *_: object) -> None:
        for out in self._files.values():
            out.discard()


Numbers = npt.NDArray[np.int32]


class IntegerVertices:
    """The ids of one node type if they are integers."""

    def __init__(self) -> None:
        self._known = _native.Numbering()

    def __len__(self) -> int:
        return len(self._known.ids())

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """A number for each id of the Arrow arrays ``columns``, which stand side by side in lines. Raises DataError if
        there are more than 2**31 - 1 ids."""
        try:
            return [self._known.number(column.to_numpy()) for column in columns]
        except ValueError as error:
            raise DataError(where, str(error)) from None

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        """Declare the node type, and return the row of each number; None: the numbers are the rows."""
        ids = self._known.ids()
        order = np.argsort(ids)
        out.add_nodes(node_type, len(ids), ids=ids[order])
        rows = np.empty(len(ids), np.int32)
        rows[order] = np.arange(len(ids), dtype=np.int32)
        return rows


class StringVertices:
    """The same if they are strings, which become the table ``name``."""

    def __init__(self) -> None:
        self.known = pa.array([], pa.large_string())

    def __len__(self) -> int:
        return len(self.known)

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """As ``IntegerVertices`` does."""
        count, width = len(columns[0]), len(columns)
        by_line = np.arange(count * width).reshape(width, count).T.reshape(-1)
        coded = pa.concat_arrays(columns).take(pa.array(by_line)).dictionary_encode()
        here = coded.dictionary.cast(pa.large_string())
        found = pc.index_in(here, value_set=self.known)
        fresh = here.filter(pc.is_null(found))
        number = found.fill_null(-1).to_numpy().copy()
        number[number < 0] = len(self.known) + np.arange(len(fresh))
        self.known = pa.concat_arrays([self.known, fresh])
        lines = number.astype(np.int32)[coded.indices.to_numpy()].reshape(count, width)
        return [np.ascontiguousarray(lines[:, side]) for side in range(width)]

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        """As ``IntegerVertices`` does; raises DataError for a string that is too long."""
        out.add_nodes(node_type, len(self.known))
        out.add_table(NAME, name_bytes(where, self.known.to_pylist()), node_type)
        return None
