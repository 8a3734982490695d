"""Edge lists: a line for each edge, of SNAP, KONECT (``out.*``), networkx and many others, and triples.

``docs/guide/importing.md`` says what is which column. If all ids in the first lines are integers, they are the users' ids, and
vertices are in their order. Otherwise ids are strings, numbered as they first come, and become the table ``name``. Edges keep
the order of lines.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError, DataError, blaming
from atta.observe.machine.threads import in_order
from atta.observe.packages import load
from atta.partition.disk.files import NpyAppender, chunks
from atta.partition.graph import NODE_TYPE, GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.edge_dialect import (
    DATE,
    INTEGER,
    UNWEIGHTED,
    EdgeFile,
    known_role,
    look_at_edges,
    splits_into_columns,
)
from atta.partition.importers.reading.edge_lines import FractionError, LineLayout, parsed
from atta.partition.importers.reading.filling import EdgeStream, name_bytes
from atta.partition.importers.reading.source import Array, ImportOptions, pa, pc
from atta.partition.names import join_edge_type
from atta.partition.schema import TableSpec

Numbers = npt.NDArray[np.int32]
_STAGED = {"integer": np.int32, "text": np.int32, "int64": np.int64, "float64": np.float64, "date": np.int64}
_ID = re.compile("id(:[a-z]+)?$", re.IGNORECASE)
"""How names of columns end that hold ids of something: ``userId``, ``item_id:token``."""
_CHUNK, _THREADS = 2 << 20, 2


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
            with _Edges(folder, files, kinds, options) as edges:
                edges.stage()
                edges.note()
                edges.write(out)
                return
        except FractionError as error:
            kinds = {**kinds, str(error): "float64"}
        finally:
            shutil.rmtree(folder)


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first lines have the same number of columns, two or more."""
    return path.suffix != ".lgl" and splits_into_columns(path, head)  # its lines `# v` are no comments


def _opened(path: Path, options: ImportOptions) -> EdgeFile:
    file = look_at_edges(path, options.columns)
    weights = file.konect[1] if file.konect else ""
    known = {*file.places.values(), *([2] if weights == UNWEIGHTED else [])}
    unknown = [name for place, name in enumerate(file.columns) if place not in known]
    for name in unknown:
        others = [repr(other) for other in unknown if other != name and other not in options.drop]
        also = f"; nor of {', '.join(others)}" if others else ""
        options.refuse(path, name, f"nothing says what it is, as --columns weight={name} or time={name} would{also}")
    if weights == "dynamic" and "weight" in file.tables:
        options.refuse(path, weights, "the third column says whether an edge comes or goes")
    if options.bipartite and file.konect and file.konect[0] == "sym":
        raise ConfigError(f"--bipartite: the edges of {path} have no direction (sym), so their ends are of one type")
    return file


def _check_alike(files: Sequence[EdgeFile]) -> None:
    def content(file: EdgeFile) -> str:
        return ", ".join(sorted(file.places)) + (f" ({file.konect[0]} of KONECT)" if file.konect else "")

    for file in files:
        if content(file) != content(files[0]):
            raise DataError(file.path, f"has {content(file)}, but {files[0].path.name} has {content(files[0])}")


def _kinds(files: Sequence[EdgeFile], *, string_ids: bool) -> dict[str, str]:
    whole = re.compile("-?[0-9]+")

    def all_match(form: re.Pattern[str], *names: str) -> bool:
        return all(form.fullmatch(row[file.places[n]]) for file in files for row in file.rows for n in names)

    ids = "integer" if not string_ids and all_match(INTEGER, "src", "dst") else "text"
    kinds = {"src": ids, "dst": ids} | ({"relation": "text"} if "relation" in files[0].places else {})
    for name in files[0].tables:
        kinds[name] = "int64" if all_match(whole, name) else "float64"
    if "time" in kinds and all_match(DATE, "time"):
        kinds["time"] = "date"
    return kinds


class _Edges(AbstractContextManager["_Edges"]):
    """The edges of some files, whose columns are staged in files of a folder, with numbers in place of ids. Use it as a
    context manager."""

    def __init__(
        self, folder: Path, files: Sequence[EdgeFile], kinds: Mapping[str, str], options: ImportOptions
    ) -> None:
        self._files, self._kinds, self._options = files, kinds, options
        self._konect = files[0].konect[0] if files[0].konect else ""
        make: type[_Vertices] = _Vertices if kinds["src"] == "integer" else _Names
        self._src = self._dst = make()
        self._types = (NODE_TYPE, NODE_TYPE)
        if options.bipartite or self._konect == "bip":
            self._dst, self._types = make(), ("left", "right")
        self._relations = _Names()
        self._lines: list[int] = []  # number of edges by file
        self._staged = {name: NpyAppender(folder / f"{name}.npy", _STAGED[kind]) for name, kind in kinds.items()}

    def __exit__(self, *_: object) -> None:
        for column in self._staged.values():
            column.discard()

    def __len__(self) -> int:
        return self._staged["src"].rows

    def stage(self) -> None:
        for file in self._files:
            self._options.progress.stage(f"reading {file.path.name}", None)
            before = len(self)
            for size, columns in parsed(LineLayout(file, self._kinds)):
                if columns:
                    self._stage_block(file.path, columns)
                self._options.progress.advance(size)
            self._lines.append(len(self) - before)

    def _stage_block(self, where: Path, columns: dict[str, Any]) -> None:
        src, dst = columns.pop("src"), columns.pop("dst")
        if self._src is self._dst:
            rows = dict(zip(("src", "dst"), self._src.numbers(where, [src, dst]), strict=True))
        else:
            rows = {"src": self._src.numbers(where, [src])[0], "dst": self._dst.numbers(where, [dst])[0]}
        if "relation" in columns:
            rows["relation"] = self._relations.numbers(where, [columns.pop("relation")])[0]
        rows |= {name: values.to_numpy() for name, values in columns.items()}
        for name, column in self._staged.items():
            column.append(rows[name])

    def note(self) -> None:
        """Note what the user may want otherwise, and where comments say something else than the lines."""
        for file in self._files:
            _note_doubts(file, self._options)
        if self._kinds.get("time") == "date":
            self._options.notes.append("times are dates: the edge table time has seconds since 1970 (UTC)")
        counts = [("edges", file, lines) for file, lines in zip(self._files, self._lines, strict=True)]
        if len(self._files) == 1 and self._src is self._dst:
            counts.append(("nodes", self._files[0], len(self._src)))
        for what, file, count in counts:
            if (stated := file.stated.get(what, count)) != count:
                self._options.notes.append(
                    f"{file.path.name}: its comments say {stated} {what}, its lines have {count}"
                )

    def write(self, out: GraphWriter) -> None:
        where, (source, target) = self._files[0].path, self._types
        src = self._src.add_nodes(out, where, source)
        rows = {"src": src, "dst": src if source == target else self._dst.add_nodes(out, where, target)}
        specs = {name: TableSpec(self._staged[name].dtype.str) for name in self._files[0].tables}
        for relation, positions in self._by_relation():
            total = len(self) if positions is None else len(positions)
            edge_type, both = join_edge_type(source, relation, target), self._konect == "sym"
            with EdgeStream(out, edge_type, self._options, specs, total=total, both=both) as stream:
                jobs = (partial(self._piece, span, rows, positions) for span in chunks(total, _CHUNK))
                for piece in in_order(jobs, _THREADS):
                    stream.append(piece["src"], piece["dst"], {table: piece[table] for table in specs})

    def _by_relation(self) -> Iterator[tuple[str, Array | None]]:
        if "relation" not in self._staged:
            yield "to", None
            return
        number = self._staged["relation"].written()
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=len(self._relations)))
        yield from zip(self._relations.known.to_pylist(), np.split(order, ends[:-1]), strict=True)

    def _piece(
        self, span: tuple[int, int], rows: Mapping[str, Array | None], positions: Array | None
    ) -> dict[str, Array]:
        chosen = slice(*span) if positions is None else positions[slice(*span)]
        # Nothing keeps a file mapped, which would count as memory of the process.
        columns = {name: column.written()[chosen] for name, column in self._staged.items()}
        return {
            name: np.array(values) if (row := rows.get(name)) is None else row.take(values)
            for name, values in columns.items()
        }


def _note_doubts(file: EdgeFile, options: ImportOptions) -> None:
    name, places = file.path.name, [file.places[end] for end in ("src", "dst")]
    ends = [row[place] for row in file.rows for place in places]
    names = [file.columns[place] for place in places]
    if not options.bipartite and all(map(_ID.search, names)) and not any(map(known_role, names)):
        columns = " and ".join(map(repr, names))
        options.notes.append(f"{name}: {columns} hold ids of one node type; --bipartite makes them two")
    words = [field for field in ends if not INTEGER.fullmatch(field)]
    if words and len(words) < len(ends):
        options.notes.append(f"{name}: ids are taken as strings, because {words[0]!r} is no integer")
    if words and not file.heading and file.separator in ",;|":
        columns = ",".join(f"{end}={file.rows[0][file.places[end]]}" for end in ("src", "dst"))
        options.notes.append(f"{name}: the first line is taken for an edge; --columns {columns} makes it a heading")
    if file.called_undirected and not options.undirected:
        options.notes.append(f"{name}: a comment calls the graph undirected; --undirected adds reverses that it lacks")


class _Vertices:
    """The ids of one node type, which are integers."""

    def __init__(self) -> None:
        self._known = _native.Numbering()

    def __len__(self) -> int:
        return len(self._known.ids())

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """A number for each id of the Arrow arrays ``columns``, which stand side by side in lines. Raises DataError if
        there are more than 2**31 - 1 ids."""
        with blaming(DataError, where, of=ValueError):
            return [self._known.number(column.to_numpy()) for column in columns]

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        ids = self._known.ids()
        order = np.argsort(ids)
        out.add_nodes(node_type, len(ids), ids=ids[order])
        rows = np.empty(len(ids), np.int32)
        rows[order] = np.arange(len(ids), dtype=np.int32)
        return rows


class _Names(_Vertices):
    """The same if they are strings, which become the table ``name``."""

    def __init__(self) -> None:
        self.known = pa.array([], pa.large_string())

    def __len__(self) -> int:
        return len(self.known)

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
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
        out.add_nodes(node_type, len(self.known))
        out.add_table(NAME, name_bytes(where, self.known.to_pylist()), node_type)
        return None
