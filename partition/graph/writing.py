"""Writing a graph folder in a stream, with the names that ``--rename`` asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, UnknownNameError
from atta.partition.disk.files import NpyAppender, chunks, describe_file, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph.exact import as_float32
from atta.partition.graph.reading import FORMAT, MANIFEST, VERSION, index_dtype
from atta.partition.names import (
    check_name,
    check_type_name,
    edge_folder,
    join_edge_type,
    node_folder,
    reverse_relation,
    split_edge_type,
)
from atta.partition.schema import EDGE_TYPE, NODE_TYPE, Schema, TableSpec


class Renaming:
    """New names by old ones. An old name is that of node types, relations and tables alike, wherever it occurs;
    ``SRC__REL__DST`` is the relation of one edge type, and ``TYPE/TABLE`` the table of one type. Types are asked for by
    their old names. Two of a kind that would get one name are refused."""

    def __init__(self, wanted: Mapping[str, str] | None = None) -> None:
        self._wanted = dict(wanted or {})
        self._unused = set(self._wanted)
        self._seen: set[str] = set()
        self._taken: dict[tuple[str, str], str] = {}

    def node_type(self, name: str) -> str:
        """The new name of a node type; raises ConfigError if it cannot be one, or another type has it."""
        new = check_type_name("node type", self._new(name))
        return self._claimed("node types", new, name)

    def edge_type(self, edge_type: str) -> str:
        """An edge type with the new names of its relation and of the types at its ends; errors as ``node_type``."""
        source, relation, target = split_edge_type(edge_type)
        ends = self.node_type(source), self.node_type(target)
        new = join_edge_type(ends[0], self._new(edge_type, relation), ends[1])
        return self._claimed("edge types", new, edge_type)

    def table(self, owner: str, name: str) -> str:
        """The new name of a table of the (old) node type or edge type ``owner``; errors as ``node_type``."""
        new = check_name("table", self._new(f"{owner}/{name}", name))
        return self._claimed(f"tables of {owner!r},", new, name)

    def check_used(self) -> None:
        """Raise UnknownNameError if an old name has not occurred."""
        for name in sorted(self._unused):
            raise UnknownNameError.of("old name of --rename", name, self._seen)

    def _new(self, *names: str) -> str:
        """The new name of what is called by each of ``names``, of which the last is the plain one."""
        self._seen.update(names)
        found = next((name for name in names if name in self._wanted), None)
        self._unused.difference_update(names)
        return names[-1] if found is None else self._wanted[found]

    def _claimed(self, kind: str, new: str, old: str) -> str:
        if (other := self._taken.setdefault((kind, new), old)) != old:
            raise ConfigError(f"--rename: {kind} {other!r} and {old!r} would both be called {new!r}")
        return new


_CHUNK = 4 << 20
"""Number of elements of a table that are copied at a time."""
_LARGEST = 2**63 - 1
_MAX_NAMES_BYTES = 2 << 20
"""At most this many bytes of names of classes and columns."""

Array = npt.NDArray[Any]


class EdgeAppender:
    """Writes the edges of one type in a stream."""

    def __init__(
        self, folder: Path, counts: tuple[int, int], tables: Mapping[str, TableSpec], names: Mapping[str, str]
    ) -> None:
        self._counts, self._names = counts, names
        self._src = NpyAppender(folder / "src.npy", index_dtype(counts[0]))
        self._dst = NpyAppender(folder / "dst.npy", index_dtype(counts[1]))
        self._tables = {n: NpyAppender(folder / f"{names[n]}.npy", t.dtype, t.row_shape) for n, t in tables.items()}

    @property
    def count(self) -> int:
        """Number of edges appended so far."""
        return self._src.rows

    @property
    def specs(self) -> dict[str, TableSpec]:
        """Specs of the edge tables."""
        return {self._names[n]: TableSpec(t.dtype.str, t.row_shape) for n, t in self._tables.items()}

    def append(self, src: npt.ArrayLike, dst: npt.ArrayLike, tables: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Append edges, given as rows of their end points; raises ConfigError for a row that does not exist."""
        ends, tables = (np.asarray(src), np.asarray(dst)), tables or {}
        if len(ends[0]) != len(ends[1]) or tables.keys() != self._tables.keys():
            raise ValueError("every edge needs a source, a destination and a value in each edge table")
        for rows, count, what in zip(ends, self._counts, ("source", "destination"), strict=True):
            if len(rows) and rows.dtype.kind not in "iu":
                raise ConfigError(f"an edge has the {what} {rows[0]}: ids are integers, not {rows.dtype}")
            if len(rows) and (rows.min() < 0 or rows.max() >= count):
                bad = rows[(rows < 0) | (rows >= count)][0]
                raise ConfigError(f"an edge has the {what} {bad}, but there are only {count} vertices of its type")
        self._src.append(ends[0])
        self._dst.append(ends[1])
        for name, values in tables.items():
            self._tables[name].append(values)

    def written(self) -> tuple[Array, Array, dict[str, Array]]:
        """Memory-map the edges appended so far: sources, destinations and edge tables."""
        return self._src.written(), self._dst.written(), {name: out.written() for name, out in self._tables.items()}

    def close(self) -> None:
        """Complete the files."""
        for out in self.files:
            out.close()

    @property
    def files(self) -> tuple[NpyAppender, ...]:
        """Every file that is being written."""
        return self._src, self._dst, *self._tables.values()


def _integers(what: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return ``values`` as int64; raises ConfigError naming the first one that does not fit."""
    numbers = np.asarray(values)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ConfigError(f"{what} are integers, not {numbers.dtype}")
    if numbers.dtype.kind == "u" and numbers.size and int(numbers.max()) > _LARGEST:
        place = int(np.argmax(numbers > np.uint64(_LARGEST)))
        raise ConfigError(f"{what}: {numbers.reshape(-1)[place]} at position {place} does not fit into int64")
    return numbers.astype(np.int64)


class GraphWriter:
    """Writes a graph folder in a stream. It appears under its name only when complete. Use it as a context manager:
    declare node types first, then append. Leaving the block without an exception completes the folder; an exception
    removes everything. Its methods take the names of types and tables as their source has them; ``rename`` says what
    they become. Raises ConfigError: ``dst`` exists and is not empty (and ``overwrite`` is not set), or a name is
    unsuitable."""

    def __init__(
        self,
        dst: str | Path,
        *,
        overwrite: bool = False,
        provenance: dict[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        self._staging = Staging(dst, MANIFEST, overwrite=overwrite)
        self.path = self._staging.path
        self.provenance = dict(provenance or {})
        self.num_classes: int | None = None
        self.schema: Schema | None = None  # of the complete folder
        self._renaming = Renaming(rename)
        self._names: dict[str, dict[str, dict[str, list[str]]]] = {"classes": {}, "columns": {}}
        self._counts: dict[str, int] = {}
        self._tables: dict[str, dict[str, NpyAppender]] = {}
        self._splits: dict[str, dict[str, int]] = {}
        self._edges: dict[str, EdgeAppender] = {}
        self._plain: list[Path] = []

    def add_nodes(
        self,
        node_type: str,
        count: int,
        *,
        ids: npt.ArrayLike | None = None,
        tables: Mapping[str, Array] | None = None,
        splits: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Declare a node type of ``count`` vertices. ``ids`` are their distinct int64 user ids (default: row numbers).
        ``tables`` (``y``: labels) and ``splits`` are added as the methods below do it."""
        self._declare(node_type, count, ids)
        for name, rows in (tables or {}).items():
            self.add_table(name, rows, node_type)
        for name, chosen in (splits or {}).items():
            self.add_split(name, chosen, node_type)

    def _declare(self, node_type: str, count: int, ids: npt.ArrayLike | None) -> None:
        name = self._renaming.node_type(node_type)
        if name in self._counts:
            raise ConfigError(f"node type {node_type!r} is declared twice")
        self._counts[name] = int(count)
        self._tables[name], self._splits[name] = {}, {}
        if ids is None:
            return
        user = _integers(f"node type {node_type!r}: ids", ids)
        if len(user) != count:
            raise ConfigError(f"node type {node_type!r}: {len(user)} ids for {count} vertices")
        ordered = np.sort(user)
        if len(twice := np.flatnonzero(ordered[1:] == ordered[:-1])):
            raise ConfigError(f"node type {node_type!r}: the vertex id {ordered[twice[0]]} occurs twice")
        if not np.array_equal(user, np.arange(count)):
            self._write(f"{node_folder(name)}/ids.npy", user)

    def open_table(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = (), node_type: str = NODE_TYPE
    ) -> NpyAppender:
        """Begin a node table; append its rows in order."""
        owner, table = self._declared(node_type), self._renaming.table(node_type, name)
        if table in self._tables[owner]:
            raise ConfigError(f"table {name!r} of {node_type!r} is given twice")
        out = NpyAppender(self.path / node_folder(owner) / f"{table}.npy", np.dtype(dtype).newbyteorder("<"), row_shape)
        self._tables[owner][table] = out
        return out

    def add_table(self, name: str, rows: Array, node_type: str = NODE_TYPE) -> None:
        """Add a whole node table. It is copied chunk by chunk, so it may be memory-mapped. Otherwise as ``add_rows``."""
        rows = np.asarray(rows)
        if self._renaming.table(node_type, name) == "y":
            rows = self._labels(node_type, rows)  # whole, as an error names the position
        step = max(1, _CHUNK // max(1, int(np.prod(rows.shape[1:]))))
        blocks = (rows[lo:hi] for lo, hi in chunks(len(rows), step))
        self.add_rows(name, rows.dtype, rows.shape[1:], blocks, node_type)

    def add_rows(
        self,
        name: str,
        dtype: npt.DTypeLike,
        row_shape: tuple[int, ...],
        blocks: Iterable[Array],
        node_type: str = NODE_TYPE,
    ) -> None:
        """Add a node table block by block. The table ``y`` is one of labels, see ``add_labels``. What ``rename`` makes
        ``x`` becomes float32; raises ConfigError for whole numbers that float32 does not hold."""
        new = self._renaming.table(node_type, name)
        converted: Callable[[Array], Array] = np.asarray
        if new == "y":
            converted = partial(self._labels, node_type)
        elif new == "x" != name:
            converted = partial(as_float32, f"table {name!r} of {node_type!r}")
        out = self.open_table(name, converted(np.empty((0, *row_shape), dtype)).dtype, row_shape, node_type)
        for block in blocks:
            out.append(converted(block))

    def add_labels(self, labels: npt.ArrayLike, node_type: str = NODE_TYPE) -> None:
        """Add the table ``y``. Labels of one integer per vertex become int64 and raise the number of classes to theirs
        (-1: unlabelled); rows of several keep their dtype. Raises ConfigError for the one integer of a vertex if it
        does not fit into int64."""
        self.add_table("y", np.asarray(labels), node_type)

    def _labels(self, node_type: str, y: Array) -> Array:
        if y.dtype.kind in "biu" and y.shape[1:] in ((), (1,)):
            y = y.astype(np.int64) if y.dtype == bool else _integers(f"labels of {node_type!r}", y)
            self.num_classes = max(self.num_classes or 0, int(y.max(initial=-1)) + 1)
        return y

    def note_classes(self, type_: str, table: str, names: list[str]) -> None:
        """Keep the names of the classes that a table of a node or edge type holds by their numbers. Those of ``y``
        count. ``table``: its name; of a table of several columns, ``"table/column"``. Raises as ``note_columns``."""
        owner, name = self._note("classes", type_, table, names)
        if owner in self._counts and name == "y":
            self.num_classes = max(self.num_classes or 0, len(names))

    def note_columns(self, node_type: str, table: str, names: list[str]) -> None:
        """Keep the names of a table's columns. Raises ConfigError: all names, which every client reads, are too long."""
        self._note("columns", node_type, table, names)

    def _note(self, what: str, type_: str, table: str, names: list[str]) -> tuple[str, str]:
        # Returns the new names of the type and of the table.
        is_node_type = self._renaming.node_type(type_) in self._counts
        owner = self._renaming.node_type(type_) if is_node_type else self._renaming.edge_type(type_)
        old, slash, column = table.partition("/")
        name = self._renaming.table(type_, old)
        self._names[what].setdefault(owner, {})[f"{name}{slash}{column}"] = names
        if len(json.dumps(self._names)) > _MAX_NAMES_BYTES:
            raise ConfigError(f"the names of all classes and columns take more than {_MAX_NAMES_BYTES >> 20} MiB")
        return owner, name

    def add_split(self, name: str, rows: npt.ArrayLike, node_type: str = NODE_TYPE) -> None:
        """Add a split from row numbers (any order, duplicates dropped) or a boolean mask [n]."""
        check_name("split", name)
        values = np.asarray(rows)
        if values.ndim != 1:
            raise ConfigError(f"split {name!r}: {list(values.shape)} is the shape of neither row numbers nor a mask")
        chosen = (
            np.flatnonzero(values) if values.dtype == bool else np.unique(_integers(f"split {name!r}: rows", values))
        )
        count = self.count(node_type)
        splits = self._splits[self._declared(node_type)]
        if name in splits:
            raise ConfigError(f"split {name!r} of {node_type!r} is given twice")
        if (values.dtype == bool and len(values) != count) or (len(chosen) and (chosen[0] < 0 or chosen[-1] >= count)):
            raise ConfigError(f"split {name!r}: refers to vertices outside the {count} of type {node_type!r}")
        splits[name] = len(chosen)
        self._write(f"{node_folder(self._declared(node_type))}/split_{name}.npy", chosen.astype(np.int64))

    def open_edges(self, edge_type: str = EDGE_TYPE, tables: Mapping[str, TableSpec] | None = None) -> EdgeAppender:
        """Begin an edge type between declared node types. Every append brings rows of the edge ``tables``."""
        return self._opened(edge_type, self._renaming.edge_type(edge_type), tables or {})

    def open_reverses(self, edge_type: str, tables: Mapping[str, TableSpec] | None = None) -> EdgeAppender:
        """Begin the edge type ``dst__rev_<relation>__src``, as it is called after ``edge_type`` got its new name."""
        return self._opened(edge_type, reverse_relation(self._renaming.edge_type(edge_type)), tables or {})

    def _opened(self, old: str, new: str, tables: Mapping[str, TableSpec]) -> EdgeAppender:
        if new in self._edges:
            raise ConfigError(f"edge type {new!r} is declared twice")
        source, _, target = split_edge_type(new)
        for node_type in (source, target):
            if node_type not in self._counts:
                raise ConfigError(f"node type {node_type!r} is not declared")
        counts, names = (self._counts[source], self._counts[target]), {n: self._renaming.table(old, n) for n in tables}
        self._edges[new] = EdgeAppender(self.path / edge_folder(new), counts, tables, names)
        return self._edges[new]

    def add_edges(
        self,
        edge_type: str,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        *,
        tables: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Add a whole edge type. ``tables``: [E, *row_shape] each. ``weight`` and ``time`` have their usual meanings;
        other names are free."""
        rows = {name: np.asarray(values) for name, values in (tables or {}).items()}
        specs = {name: TableSpec(values.dtype.str, values.shape[1:]) for name, values in rows.items()}
        self.open_edges(edge_type, specs).append(src, dst, rows)

    def count(self, node_type: str = NODE_TYPE) -> int:
        """The number of vertices of a declared node type; raises ConfigError."""
        return self._counts[self._declared(node_type)]

    def check_renamed(self) -> None:
        """Raise UnknownNameError if ``rename`` names something that the source has not brought."""
        self._renaming.check_used()

    def _declared(self, node_type: str) -> str:
        if (name := self._renaming.node_type(node_type)) not in self._counts:
            raise ConfigError(f"node type {node_type!r} is not declared")
        return name

    def _write(self, name: str, array: Array) -> None:
        with NpyAppender(self.path / name, array.dtype) as out:
            out.append(array)
        self._plain.append(self.path / name)

    def _schema(self) -> Schema:
        for node_type, tables in self._tables.items():
            for name, out in tables.items():
                if out.rows != self._counts[node_type]:
                    n = self._counts[node_type]
                    raise ConfigError(f"table {name!r} of {node_type!r}: {out.rows} rows for {n} vertices")
        return Schema(
            node_types=tuple(sorted(self._counts)),
            edge_types=tuple(sorted(self._edges)),
            node_counts=self._counts,
            edge_counts={e: out.count for e, out in self._edges.items()},
            node_tables={
                t: {name: TableSpec(out.dtype.str, out.row_shape) for name, out in sorted(tables.items())}
                for t, tables in self._tables.items()
            },
            edge_tables={e: out.specs for e, out in self._edges.items()},
            splits={t: dict(sorted(s.items())) for t, s in self._splits.items()},
            num_classes=self.num_classes,
            classes=self._names["classes"],
            columns=self._names["columns"],
        )

    def _files(self) -> list[NpyAppender]:
        tables = [out for named in self._tables.values() for out in named.values()]
        return [*tables, *(out for edges in self._edges.values() for out in edges.files)]

    def _finish(self) -> None:
        for out in self._files():
            out.close()
        self.schema = schema = self._schema()
        paths = sorted(self.path.rglob("*.npy"))
        files = {p.relative_to(self.path).as_posix(): describe_file(p).to_json() for p in paths}
        manifest = {"format": FORMAT, "version": VERSION, "schema": schema.to_json(), "provenance": self.provenance}
        write_sealed(self.path / MANIFEST, {**manifest, "files": files})

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._staging:
            try:
                if error is not None:
                    raise error
                self._finish()
            finally:
                for out in self._files():
                    out.discard()
