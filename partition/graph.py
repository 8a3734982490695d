"""The neutral graph folder: what importers and generators write and partitioning reads.

    graph.json                       format, version, schema, provenance, size and checksum of each file
    nodes/<type>/ids.npy             int64 user ids by row; absent when the row number is the id
    nodes/<type>/<table>.npy         one row per vertex
    nodes/<type>/split_<name>.npy    int64 ascending rows
    edges/<type>/src.npy, dst.npy    rows of the end points; the position in the file is the user's edge id
    edges/<type>/weight.npy, time.npy

A homogeneous graph has the node type ``node`` and the edge type ``node__to__node``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import (
    FileRecord,
    NpyAppender,
    check_file,
    chunks,
    describe_file,
    map_array,
    read_sealed,
    write_sealed,
)
from atta.partition.disk.staging import Staging
from atta.partition.schema import Schema, TableSpec, check_name, split_edge_type

__all__ = ["EDGE_TYPE", "MANIFEST", "NODE_TYPE", "EdgeAppender", "Edges", "Graph", "GraphWriter", "index_dtype"]

MANIFEST = "graph.json"
FORMAT, VERSION = "atta-graph", 1
NODE_TYPE, EDGE_TYPE = "node", "node__to__node"
_CHUNK = 4 << 20
_LARGEST = 2**63 - 1

Array = npt.NDArray[Any]


def index_dtype(bound: int) -> np.dtype[Any]:
    """Return int32 when all of ``range(bound)`` fits, otherwise int64."""
    return np.dtype(np.int32 if bound <= 2**31 - 1 else np.int64)


@dataclass(frozen=True)
class Edges:
    """The edges of one type, memory-mapped; position = user's edge id.

    Attributes:
        src: [E] int32 or int64, rows of the sources.
        dst: [E] int32 or int64, rows of the destinations.
        tables: by name, [E, *row_shape].
    """

    src: Array
    dst: Array
    tables: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.src)


class Graph:
    """A graph folder, opened read-only; arrays are memory-mapped when asked for."""

    def __init__(self, path: Path, schema: Schema, files: dict[str, FileRecord], provenance: dict[str, Any]) -> None:
        self.path = path
        self.schema = schema
        self.files = files
        self.provenance = provenance

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Graph:
        """Open and check a graph folder.

        Sizes and array headers are always checked, checksums with ``verify``. Raises DataError naming the file.
        """
        path = Path(path)
        manifest = path / MANIFEST
        value = read_sealed(manifest, "a graph folder", FORMAT, VERSION)
        try:
            schema = Schema.from_json(value.get("schema"))
        except ConfigError as error:
            raise DataError(manifest, f"bad schema: {error}") from None
        files = read_records(manifest, value.get("files"))
        _check_files(manifest, schema, files)
        for name, record in files.items():
            check_file(path / name, record, verify=verify)
        return cls(path, schema, files, dict(value.get("provenance") or {}))

    def user_ids(self, node_type: str) -> npt.NDArray[np.int64] | None:
        """Return the int64 user id of each row, or None when they are the row numbers."""
        name = f"nodes/{self.schema.check_node_type(node_type)}/ids.npy"
        return map_array(self.path / name) if name in self.files else None

    def table(self, node_type: str, name: str) -> Array:
        """Return a node table [n, *row_shape]; raises UnknownNameError."""
        self.schema.table(node_type, name)
        return map_array(self.path / f"nodes/{node_type}/{name}.npy")

    def split(self, node_type: str, name: str) -> Array:
        """Return the ascending int64 rows of a split; raises UnknownNameError."""
        self.schema.check_split(node_type, name)
        return map_array(self.path / f"nodes/{node_type}/split_{name}.npy")

    def edges(self, edge_type: str) -> Edges:
        """Return the edges of one type; raises UnknownNameError."""
        folder = self.path / "edges" / self.schema.check_edge_type(edge_type)
        tables = {name: map_array(folder / f"{name}.npy") for name in self.schema.edge_tables[edge_type]}
        return Edges(map_array(folder / "src.npy"), map_array(folder / "dst.npy"), tables)


def read_records(manifest: Path, value: Any) -> dict[str, FileRecord]:
    """Read the ``files`` of a manifest; raises DataError naming it."""
    if not isinstance(value, Mapping):
        raise DataError(manifest, "'files' is missing or not a mapping")
    return {str(name): FileRecord.from_json(record, manifest, str(name)) for name, record in value.items()}


def _check_files(manifest: Path, schema: Schema, files: dict[str, FileRecord]) -> None:
    """Compare the listed files with those the schema asks for. Names outside the layout are refused."""
    wanted: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    for t in schema.node_types:
        n = schema.node_counts[t]
        for name, spec in schema.node_tables[t].items():
            wanted[f"nodes/{t}/{name}.npy"] = (spec.dtype, (n, *spec.row_shape))
        for name, size in schema.splits[t].items():
            wanted[f"nodes/{t}/split_{name}.npy"] = ("<i8", (size,))
        if f"nodes/{t}/ids.npy" in files:
            wanted[f"nodes/{t}/ids.npy"] = ("<i8", (n,))
    for e in schema.edge_types:
        shape = (schema.edge_counts[e],)
        for name in ("src", "dst"):
            wanted[f"edges/{e}/{name}.npy"] = (None, shape)
        for name, spec in schema.edge_tables[e].items():
            wanted[f"edges/{e}/{name}.npy"] = (spec.dtype, (*shape, *spec.row_shape))
    check_layout(manifest, wanted, files)


def check_layout(
    manifest: Path, wanted: Mapping[str, tuple[str | None, tuple[int, ...]]], files: Mapping[str, FileRecord]
) -> None:
    """Check that exactly the wanted files are listed, with the wanted dtype (None: int32 or int64) and shape."""
    for name in files.keys() - wanted.keys():
        raise DataError(manifest, f"lists the file {str(PurePosixPath(name))!r}, which its schema does not have")
    for name, (dtype, shape) in wanted.items():
        record = files.get(name)
        if record is None:
            raise DataError(manifest, f"lacks the file {name!r}, which its schema has")
        if record.shape != shape or record.dtype not in ((dtype,) if dtype else ("<i4", "<i8")):
            have, want = f"{record.dtype}{list(record.shape)}", f"{dtype or 'integers'}{list(shape)}"
            raise DataError(manifest, f"lists the file {name!r} as {have}, but its schema says {want}")


class EdgeAppender:
    """Writes the edges of one type in a stream."""

    def __init__(self, folder: Path, counts: tuple[int, int], tables: Mapping[str, TableSpec]) -> None:
        self._counts = counts
        self._src = NpyAppender(folder / "src.npy", index_dtype(counts[0]))
        self._dst = NpyAppender(folder / "dst.npy", index_dtype(counts[1]))
        self._tables = {n: NpyAppender(folder / f"{n}.npy", t.dtype, t.row_shape) for n, t in tables.items()}

    @property
    def count(self) -> int:
        """Number of edges appended so far."""
        return self._src.rows

    @property
    def specs(self) -> dict[str, TableSpec]:
        """Specs of the edge tables."""
        return {name: TableSpec(t.dtype.str, t.row_shape) for name, t in self._tables.items()}

    def append(self, src: npt.ArrayLike, dst: npt.ArrayLike, **tables: npt.ArrayLike) -> None:
        """Append edges given by the rows of their end points; raises ConfigError for a row that does not exist."""
        ends = np.asarray(src), np.asarray(dst)
        if len(ends[0]) != len(ends[1]) or tables.keys() != self._tables.keys():
            raise ValueError("every edge needs a source, a destination and a value in each edge table")
        for rows, count, what in zip(ends, self._counts, ("source", "destination"), strict=True):
            if len(rows) and rows.dtype.kind not in "iu":
                raise ConfigError(
                    f"an edge has the {what} {rows[0]}: vertices are numbered by integers, not {rows.dtype}"
                )
            if len(rows) and (rows.min() < 0 or rows.max() >= count):
                bad = rows[(rows < 0) | (rows >= count)][0]
                raise ConfigError(f"an edge has the {what} {bad}, but there are only {count} vertices of its type")
        self._src.append(ends[0])
        self._dst.append(ends[1])
        for name, values in tables.items():
            self._tables[name].append(values)

    def written(self) -> tuple[Array, Array, dict[str, Array]]:
        """Memory-map what was appended so far: sources, destinations and edge tables."""
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
    """Return ``values`` as int64; raises ConfigError naming the first one that is no such number."""
    numbers = np.asarray(values)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ConfigError(f"{what} are integers, not {numbers.dtype}")
    if numbers.dtype.kind == "u" and numbers.size and int(numbers.max()) > _LARGEST:
        place = int(np.argmax(numbers > np.uint64(_LARGEST)))
        raise ConfigError(f"{what}: {numbers.reshape(-1)[place]} at position {place} does not fit into int64")
    return numbers.astype(np.int64)


class GraphWriter:
    """Writes a graph folder in a stream; it appears under its name only when complete.

    Use as a context manager: declare node types first, then append. Leaving the block without an exception completes
    the folder; an exception removes everything.

    Raises:
        ConfigError: ``dst`` exists and is not empty (and ``overwrite`` is not set), or a name is unsuitable.
    """

    def __init__(self, dst: str | Path, *, overwrite: bool = False, provenance: dict[str, Any] | None = None) -> None:
        self._staging = Staging(dst, MANIFEST, overwrite=overwrite)
        self.path = self._staging.path
        self.provenance = dict(provenance or {})
        self.num_classes: int | None = None
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
        """Declare a node type of ``count`` vertices; ``ids`` are their distinct int64 user ids (default: rows).

        ``tables`` (``y``: labels) and ``splits`` are added as if by the methods below.
        """
        self._declare(node_type, count, ids)
        for name, rows in (tables or {}).items():
            if name == "y":
                self.add_labels(rows, node_type)
            else:
                self.add_table(name, rows, node_type)
        for name, chosen in (splits or {}).items():
            self.add_split(name, chosen, node_type)

    def _declare(self, node_type: str, count: int, ids: npt.ArrayLike | None) -> None:
        check_name("node type", node_type)
        if node_type in self._counts:
            raise ConfigError(f"node type {node_type!r} is declared twice")
        self._counts[node_type] = int(count)
        self._tables[node_type], self._splits[node_type] = {}, {}
        if ids is None:
            return
        user = _integers(f"node type {node_type!r}: ids", ids)
        if len(user) != count:
            raise ConfigError(f"node type {node_type!r}: {len(user)} ids for {count} vertices")
        ordered = np.sort(user)
        if len(twice := np.flatnonzero(ordered[1:] == ordered[:-1])):
            raise ConfigError(f"node type {node_type!r}: the vertex id {ordered[twice[0]]} occurs twice")
        if not np.array_equal(user, np.arange(count)):
            self._write(f"nodes/{node_type}/ids.npy", user)

    def open_table(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = (), node_type: str = NODE_TYPE
    ) -> NpyAppender:
        """Begin a node table; append its rows in order."""
        check_name("table", name)
        self.count(node_type)
        if name in self._tables[node_type]:
            raise ConfigError(f"table {name!r} of {node_type!r} is given twice")
        out = NpyAppender(self.path / "nodes" / node_type / f"{name}.npy", np.dtype(dtype).newbyteorder("<"), row_shape)
        self._tables[node_type][name] = out
        return out

    def add_table(self, name: str, rows: Array, node_type: str = NODE_TYPE) -> None:
        """Add a whole node table, copied chunk by chunk (so that it may be memory-mapped)."""
        out = self.open_table(name, rows.dtype, rows.shape[1:], node_type)
        step = max(1, _CHUNK // max(1, int(np.prod(rows.shape[1:]))))
        for lo, hi in chunks(len(rows), step):
            out.append(rows[lo:hi])

    def add_labels(self, labels: npt.ArrayLike, node_type: str = NODE_TYPE) -> None:
        """Add the table ``y``; integer labels become int64 and set the number of classes (-1: unlabelled)."""
        y = np.asarray(labels)
        if y.dtype.kind in "biu":
            y = y.astype(np.int64)
            if y.ndim == 1:
                self.num_classes = int(y.max(initial=-1)) + 1
        self.add_table("y", y, node_type)

    def add_split(self, name: str, rows: npt.ArrayLike, node_type: str = NODE_TYPE) -> None:
        """Add a split from row numbers (any order, duplicates dropped) or a boolean mask."""
        check_name("split", name)
        values = np.asarray(rows)
        chosen = (
            np.flatnonzero(values) if values.dtype == bool else np.unique(_integers(f"split {name!r}: rows", values))
        )
        count = self.count(node_type)
        if name in self._splits[node_type]:
            raise ConfigError(f"split {name!r} of {node_type!r} is given twice")
        if (values.dtype == bool and len(values) != count) or (len(chosen) and (chosen[0] < 0 or chosen[-1] >= count)):
            raise ConfigError(f"split {name!r}: refers to vertices outside the {count} of type {node_type!r}")
        self._splits[node_type][name] = len(chosen)
        self._write(f"nodes/{node_type}/split_{name}.npy", chosen.astype(np.int64))

    def open_edges(self, edge_type: str = EDGE_TYPE, tables: Mapping[str, TableSpec] | None = None) -> EdgeAppender:
        """Begin an edge type between declared node types, with the edge ``tables`` that every append will bring."""
        source, _, destination = split_edge_type(edge_type)
        if edge_type in self._edges:
            raise ConfigError(f"edge type {edge_type!r} is declared twice")
        counts = self.count(source), self.count(destination)
        self._edges[edge_type] = EdgeAppender(self.path / "edges" / edge_type, counts, tables or {})
        return self._edges[edge_type]

    def add_edges(self, edge_type: str, src: npt.ArrayLike, dst: npt.ArrayLike, **tables: Array) -> None:
        """Add a whole edge type; ``tables``: [E, *row_shape], ``weight`` and ``time`` with their meanings and any others."""
        out = self.open_edges(
            edge_type, {n: TableSpec(values.dtype.str, values.shape[1:]) for n, values in tables.items()}
        )
        out.append(src, dst, **tables)

    def count(self, node_type: str = NODE_TYPE) -> int:
        """The number of vertices of a declared node type; raises ConfigError."""
        if node_type not in self._counts:
            raise ConfigError(f"node type {node_type!r} is not declared")
        return self._counts[node_type]

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
        )

    def _files(self) -> list[NpyAppender]:
        tables = [out for named in self._tables.values() for out in named.values()]
        return [*tables, *(out for edges in self._edges.values() for out in edges.files)]

    def _finish(self) -> None:
        for out in self._files():
            out.close()
        schema = self._schema()
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
