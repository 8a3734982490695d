"""Reading a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError, blaming
from atta.observe import html
from atta.partition.disk.files import FileRecord, check_file, map_array, read_sealed
from atta.partition.disk.store import path_here
from atta.partition.graph.strings import NAME, string_width
from atta.partition.names import edge_folder, node_folder
from atta.partition.schema import Schema, TableSpec

MANIFEST = "graph.json"
FORMAT, VERSION = "atta-graph", 1
NAME_BYTES = 32
"""How long string ids of vertices that come later may be, unless there are longer ones."""

Array = npt.NDArray[Any]


def index_dtype(bound: int) -> np.dtype[Any]:
    """Return int32 when all of ``range(bound)`` fits, otherwise int64."""
    return np.dtype(np.int32 if bound <= 2**31 - 1 else np.int64)


@dataclass(frozen=True)
class Edges:
    """The edges of one type, memory-mapped. The position of an edge is the user's edge id.

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
    """A graph folder, opened read-only. Arrays are memory-mapped when they are needed."""

    def __init__(self, path: Path, schema: Schema, files: dict[str, FileRecord], provenance: dict[str, Any]) -> None:
        self.path = path
        self.schema = schema
        self.files = files
        self.provenance = provenance

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Graph:
        """Open and check a graph folder. Sizes and array headers are always checked, checksums with ``verify``. Raises
        DataError naming the file."""
        path = path_here(path, "Graph.open")
        manifest = path / MANIFEST
        if not manifest.exists() and (path / "manifest.json").is_file():
            raise DataError(path, "is a partitioned dataset, not a graph folder: name the graph that it was made of")
        value = read_sealed(manifest, "a graph folder", FORMAT, VERSION)
        with blaming(DataError, manifest, "bad schema", of=ConfigError):
            schema = Schema.from_json(value.get("schema"))
        if not isinstance(provenance := value.get("provenance") or {}, dict):
            raise DataError(manifest, "does not say how it was made")
        files = read_records(manifest, value.get("files"))
        _check_files(manifest, schema, files)
        for name, record in files.items():
            check_file(path / name, record, verify=verify)
        return cls(path, schema, files, provenance)

    def __repr__(self) -> str:
        return f"Graph({str(self.path)!r}: {self.schema.sizes})"

    def _repr_html_(self) -> str:
        return html.table(repr(self), ()) + self.schema._repr_html_()

    def user_ids(self, node_type: str) -> npt.NDArray[np.int64] | None:
        """Return the int64 user id of each row, or None when they are the row numbers."""
        name = f"{node_folder(self.schema.check_node_type(node_type))}/ids.npy"
        if name not in self.files:
            return None
        ids, room = map_array(self.path / name), self.schema.room.get(node_type, 0)
        return np.concatenate([ids, ids.max(initial=-1) + 1 + np.arange(room)]) if room else ids

    def table(self, node_type: str, name: str) -> Array:
        """Return a node table [n, *row_shape]; raises UnknownNameError."""
        self.schema.table(node_type, name)
        return map_array(self.path / node_folder(node_type) / f"{name}.npy")

    def rows(self, node_type: str, name: str, at: Array) -> Array:
        """Rows ``at`` [n] of a node table, [n, *row_shape]. Those of room have nothing known."""
        table, spec = self.table(node_type, name), self.schema.table(node_type, name)
        if not self.schema.room.get(node_type):
            return table[at]
        out = np.full((len(at), *spec.row_shape), _unknown(name, np.dtype(spec.dtype)), spec.dtype)
        there = np.flatnonzero(at < len(table))
        found = table[at[there]]
        where: Any = (there, *map(slice, found.shape[1:]))  # string ids get longer
        out[where] = found
        return out

    def with_room(self, room: Mapping[str, int]) -> Graph:
        """The same graph with more vertices, which nobody uses yet: so many of each type, after its last row and its
        largest id. They have no edges, are in no split, and their string ids, of at most 32 bytes if there are no longer
        ones, are empty. ``table`` does not have their rows. Raises ConfigError: there are no such ids."""
        if not any(room.values()):
            return self
        counts, tables = dict(self.schema.node_counts), dict(self.schema.node_tables)
        for node_type, count in room.items():
            ids = self.user_ids(node_type)
            if ids is not None and len(ids) and int(ids.max()) > np.iinfo(np.int64).max - count:
                raise ConfigError(f"--room {count}: ids of {node_type!r} end at 2**63 - 1, there are no larger ones")
            counts[node_type] += count
            if width := string_width(self.schema, node_type):
                wider = TableSpec("|u1", (max(width, NAME_BYTES),))
                tables[node_type] = {**tables[node_type], NAME: wider}
        schema = replace(self.schema, node_counts=counts, node_tables=tables, room=dict(room))
        return Graph(self.path, schema, self.files, self.provenance)

    def split(self, node_type: str, name: str) -> Array:
        """Return the ascending int64 rows of a split; raises UnknownNameError."""
        self.schema.check_split(node_type, name)
        return map_array(self.path / node_folder(node_type) / f"split_{name}.npy")

    def edges(self, edge_type: str) -> Edges:
        """Return the edges of one type; raises UnknownNameError."""
        folder = self.path / edge_folder(self.schema.check_edge_type(edge_type))
        tables = {name: map_array(folder / f"{name}.npy") for name in self.schema.edge_tables[edge_type]}
        return Edges(map_array(folder / "src.npy"), map_array(folder / "dst.npy"), tables)


def _unknown(name: str, dtype: np.dtype[Any]) -> float:
    """What stands in the table ``name`` where nothing is known. Unlabelled vertices and those that come in the end of all
    times are told apart from others."""
    if name == "y":
        return np.nan if dtype.kind == "f" else -1 if dtype.kind == "i" else 0
    return min(np.iinfo(dtype).max, np.iinfo(np.int64).max) if name == "time" and dtype.kind in "iu" else 0


def read_records(manifest: Path, value: Any) -> dict[str, FileRecord]:
    """Read the ``files`` of a manifest; raises DataError naming it."""
    if not isinstance(value, Mapping):
        raise DataError(manifest, "'files' is missing or not a mapping")
    return {str(name): FileRecord.from_json(record, manifest, str(name)) for name, record in value.items()}


def _check_files(manifest: Path, schema: Schema, files: dict[str, FileRecord]) -> None:
    """Compare the listed files with the files that the schema needs. Refuse names outside the layout."""
    wanted: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    for t in schema.node_types:
        n, folder = schema.node_counts[t], node_folder(t)
        for name, spec in schema.node_tables[t].items():
            wanted[f"{folder}/{name}.npy"] = (spec.dtype, (n, *spec.row_shape))
        for name, size in schema.splits[t].items():
            wanted[f"{folder}/split_{name}.npy"] = ("<i8", (size,))
        if f"{folder}/ids.npy" in files:
            wanted[f"{folder}/ids.npy"] = ("<i8", (n,))
    for e in schema.edge_types:
        shape, folder = (schema.edge_counts[e],), edge_folder(e)
        for name in ("src", "dst"):
            wanted[f"{folder}/{name}.npy"] = (None, shape)
        for name, spec in schema.edge_tables[e].items():
            wanted[f"{folder}/{name}.npy"] = (spec.dtype, (*shape, *spec.row_shape))
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
