"""The partitioned dataset, opened read-only: the schema, the partition book, ids and the parts of one machine.
``docs/reference/formats.md`` describes the layout on disk, and which files a machine needs."""

from __future__ import annotations

import copy
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError, blaming
from atta.observe import html
from atta.partition.disk.files import FileRecord, check_file, map_array, read_sealed
from atta.partition.disk.staging import recover
from atta.partition.disk.store import path_here
from atta.partition.graph import MANIFEST as GRAPH_MANIFEST
from atta.partition.graph import check_layout, read_records
from atta.partition.graph.part import (
    CSC,
    GraphDegrees,
    JoinedPart,
    Part,
    PartitionBook,
    Parts,
    VertexTimes,
    degree_folder,
    joined_book,
    part_folder,
)
from atta.partition.names import edge_folder, node_folder, shared_folder
from atta.partition.schema import Schema

__all__ = ["CSC", "MANIFEST", "Dataset", "Part", "VertexTimes", "part_folder"]

MANIFEST = "manifest.json"
FORMAT, VERSION = "atta-dataset", 1

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


def fingerprint(schema: Mapping[str, Any], ranges: Mapping[str, Any], files: Mapping[str, FileRecord]) -> str:
    """Return the dataset id: 16 hex digits of a one-way digest of schema, ranges and file checksums."""
    checksums = {name: record.xxh3 for name, record in files.items()}
    text = json.dumps([schema, ranges, checksums], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class _OpenedFolder:
    """A dataset's folder as it was opened. Files are mapped later, when another dataset may lie in the folder."""

    path: Path
    manifest: tuple[int, ...]

    @classmethod
    def of(cls, path: Path) -> _OpenedFolder:
        recover(path)
        return cls(path, _identity(path / MANIFEST))

    def map(self, path: Path) -> Array:
        """Memory-map one of the files read-only. Raises DataError: the file is missing or damaged, or another dataset
        lies in the folder now. Rows of two datasets must not be mixed."""
        array = map_array(path)
        # Check after the file was opened: if the manifest is still the same, the file belongs to this dataset.
        if _identity(self.path / MANIFEST) != self.manifest:
            raise DataError(self.path, "was replaced since it was opened; open it again")
        return array


def _identity(path: Path) -> tuple[int, ...]:
    """Figures that change when another file replaces this one; () if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


class Dataset:
    """A partitioned dataset, opened read-only.

    Attributes:
        path: folder of the dataset.
        dataset_id: 16 hex digits; equal ids mean equal schema, ranges and file contents.
        schema: types, tables, splits.
        book: ranges of internal ids, of each owner.
        partitions: the same of each partition. Every partition is an owner, unless several are ``joined``.
        groups: the partitions of each owner.
        provenance: how it was made.
        quality: edge cut, balance and HALO figures.
        files: what the manifest says about each file.
    """

    def __init__(
        self, path: Path, manifest: dict[str, Any], schema: Schema, book: PartitionBook, place: _OpenedFolder
    ) -> None:
        self.path = path
        self.schema = schema
        self.book = self.partitions = book
        self.groups: Parts = tuple(range(p, p + 1) for p in range(book.num_parts))
        self.dataset_id = str(manifest["dataset_id"])
        self.provenance: dict[str, Any] = dict(manifest.get("provenance") or {})
        self.quality: dict[str, Any] = dict(manifest.get("quality") or {})
        self.files = read_records(path / MANIFEST, manifest.get("files"))
        self._parts: dict[int, Part] = {}
        self._times: dict[str, VertexTimes] = {}
        self._ids: dict[str, dict[str, Array]] = {}
        self._degrees: dict[str, GraphDegrees] = {}
        self._later_degrees: Mapping[str, Callable[[], GraphDegrees]] = {}
        self.place = place

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {self.num_parts} parts, {self.schema.sizes})"

    def _repr_html_(self) -> str:
        rows = [
            (number, *(sum(part[what].values()) for what in ("nodes", "edges", "halo")), part["cut_edges"])
            for number, part in enumerate(self.quality.get("parts", ()))
        ]
        cut, halo = (self.quality.get(name, float("nan")) for name in ("edge_cut", "halo_ratio"))
        heads = "partition", "vertices", "in-edges", "HALO vertices", "cut edges"
        quality = html.table(f"Partitions: {cut:.1%} of the edges cut, HALO ratio {halo:.3f}", rows, heads)
        return html.table(repr(self), ()) + quality + self.schema._repr_html_()

    @classmethod
    def open(cls, path: str | Path, *, parts: Sequence[int] | None = None, verify: bool = True) -> Dataset:
        """Open a dataset. At least ``parts`` (None: all partitions) must lie on this machine. Sizes and array headers of the
        shared files and of ``parts`` are always checked, checksums with ``verify``. Raises DataError: something is missing,
        truncated, altered or of another format; the message names the file; ConfigError: a part of ``parts`` does not exist."""
        dataset = cls.described(path)
        dataset._check_files(range(dataset.num_parts) if parts is None else parts, verify)
        return dataset

    @classmethod
    def described(cls, path: str | Path) -> Dataset:
        """The dataset as its manifest describes it, which alone must be here. Raises DataError as ``open`` does."""
        path = path_here(path, "Dataset.open")
        where = path / MANIFEST
        if not where.exists() and (path / GRAPH_MANIFEST).is_file():
            command = shlex.join(("atta", "partition", str(path), f"{path}-2p", "--parts", "2"))
            raise DataError(path, f"a graph that is not partitioned yet: run {command}")
        place = _OpenedFolder.of(path)
        manifest = read_sealed(where, "a partitioned dataset", FORMAT, VERSION)
        with blaming(DataError, where, of=ConfigError):
            schema = Schema.from_json(manifest.get("schema"))
            book = PartitionBook.from_json(manifest.get("ranges"))
        if {t: int(o[-1]) for t, o in book.offsets.items()} != schema.node_counts:
            raise DataError(where, "its ranges do not cover the vertices of its schema")
        if not isinstance(manifest.get("dataset_id"), str):
            raise DataError(where, "has no dataset_id")
        if not all(isinstance(manifest.get(name) or {}, dict) for name in ("provenance", "quality")):
            raise DataError(where, "does not say how it was made")
        dataset = cls(path, manifest, schema, book, place)
        if fingerprint(schema.to_json(), book.to_json(), dataset.files) != dataset.dataset_id:
            raise DataError(where, "altered: schema, ranges and checksums do not match its dataset_id")
        check_layout(where, dict(dataset._layout()), dataset.files)
        return dataset

    def _check_files(self, parts: Sequence[int], verify: bool) -> None:
        for part in parts:
            if not 0 <= part < self.num_parts:
                raise ConfigError(f"{self.path}: partition {part} does not exist: there are {self.num_parts}")
        here = [p for p in range(self.num_parts) if (self.path / part_folder(p)).is_dir()]
        if here and (lacking := sorted({*parts} - {*here})):
            raise DataError(self.path, f"holds partition {', '.join(map(str, here))}, not {lacking[0]}")
        present = ("shared/", *(f"{part_folder(p)}/" for p in parts))
        for name, record in self.files.items():
            if name.startswith(present):
                check_file(self.path / name, record, verify=verify)

    def _layout(self) -> Iterator[tuple[str, tuple[str | None, tuple[int, ...]]]]:
        """Yield every file that the schema asks for with its dtype (None: int32 or int64) and shape."""
        schema = self.schema
        for t in schema.node_types:
            n, folder = schema.node_counts[t], shared_folder(t)
            yield f"{folder}/ids.npy", ("<i8", (n,))
            yield f"{folder}/sorted_internal.npy", (None, (n,))
            if f"{folder}/sorted_ids.npy" in self.files:
                yield f"{folder}/sorted_ids.npy", ("<i8", (n,))
            for name, size in schema.splits[t].items():
                yield f"{folder}/split_{name}.npy", ("<i8", (size,))
        for e in schema.edge_types:
            yield from GraphDegrees.layout(schema, e, {name: record.dtype for name, record in self.files.items()})
        for part in range(self.partitions.num_parts):
            yield from self._part_layout(part)

    def _part_layout(self, part: int) -> Iterator[tuple[str, tuple[str | None, tuple[int, ...]]]]:
        schema, part_of = self.schema, part_folder(part)
        for t in schema.node_types:
            folder = f"{part_of}/{node_folder(t)}"
            lo, hi = self.partitions.range(t, part)
            for name, spec in schema.node_tables[t].items():
                yield f"{folder}/{name}.npy", (spec.dtype, (hi - lo, *spec.row_shape))
            yield f"{folder}/halo.npy", ("<i8", self._shape(f"{folder}/halo.npy"))
        for e in schema.edge_types:
            folder = f"{part_of}/{edge_folder(e)}"
            lo, hi = self.partitions.range(schema.endpoints(e)[1], part)
            shape = self._shape(f"{folder}/indices.npy")
            yield f"{folder}/indptr.npy", ("<i8", (hi - lo + 1,))
            yield f"{folder}/indices.npy", (None, shape)
            yield f"{folder}/edge_ids.npy", (None, shape)
            for name, spec in schema.edge_tables[e].items():
                yield f"{folder}/{name}.npy", (spec.dtype, (*shape, *spec.row_shape))

    def _shape(self, name: str) -> tuple[int, ...]:
        record = self.files.get(name)
        return (record.shape[0] if record and record.shape else 0,)

    def joined(self, groups: Sequence[range]) -> Dataset:
        """The same dataset with ``groups`` of consecutive partitions as its parts. ``book``, ``num_parts`` and ``part``
        are then about the groups, in their order: a group is one part that owns what its partitions own. Raises
        ConfigError: the groups are not all partitions, each once and in order."""
        book = joined_book(self.partitions, groups)
        found = copy.copy(self)
        found.book, found.groups, found._parts = book, tuple(groups), {}
        return found

    @property
    def num_parts(self) -> int:
        """Number of parts: of partitions, or of groups of ``joined`` ones."""
        return self.book.num_parts

    def ids(self, node_type: str) -> Ids:
        """Return the user id of every internal id, int64 [n], memory-mapped."""
        return self._id_maps(node_type)["ids"]

    def to_internal(self, node_type: str, user_ids: npt.ArrayLike) -> Ids:
        """Return the internal ids (int64) of user ids; raises ConfigError naming the first unknown one."""
        maps, wanted = self._id_maps(node_type), _integers(user_ids)
        ordered, n = maps.get("sorted_ids"), len(maps["ids"])
        if ordered is None:
            ranks, known = wanted, (wanted >= 0) & (wanted < n)
        else:
            ranks = np.searchsorted(ordered, wanted)
            known = np.zeros(wanted.shape, bool) if n == 0 else ordered[np.minimum(ranks, n - 1)] == wanted
        if not known.all():
            raise ConfigError(f"{wanted[~known][0]} is not a vertex of node type {node_type!r}")
        return maps["sorted_internal"][ranks].astype(np.int64)

    def to_used(self, node_type: str, user_ids: npt.ArrayLike) -> Ids:
        """The same where vertices that nobody uses are unknown."""
        found = self.to_internal(node_type, user_ids)
        used, maps = self.schema.in_use(node_type), self._id_maps(node_type)
        if used < len(maps["ids"]):
            unused = _integers(user_ids) >= maps["ids"][maps["sorted_internal"][used]]
            if unused.any():
                raise ConfigError(f"{_integers(user_ids)[unused][0]} is not a vertex of node type {node_type!r} yet")
        return found

    def used(self, node_type: str) -> Array:
        """Internal ids of the vertices that are in use, in ascending order of user ids; the first ones of
        ``sorted_internal``."""
        return self.sorted_internal(node_type)[: self.schema.in_use(node_type)]

    def sorted_internal(self, node_type: str) -> Array:
        """Return the internal id of the i-th smallest user id for all i, int32 or int64 [n], memory-mapped."""
        return self._id_maps(node_type)["sorted_internal"]

    def sorted_ids(self, node_type: str) -> Ids:
        """Return the ascending user ids, int64 [n]; ``sorted_internal`` has their internal ids."""
        maps = self._id_maps(node_type)
        return maps["sorted_ids"] if "sorted_ids" in maps else np.arange(len(maps["ids"]))

    def split(self, node_type: str, name: str) -> Ids:
        """Return the ascending internal ids (int64) of a split; raises UnknownNameError."""
        self.schema.check_split(node_type, name)
        return self.place.map(self.path / shared_folder(node_type) / f"split_{name}.npy")

    def times(self, node_type: str) -> VertexTimes | None:
        """When the vertices of a type begin to exist, those of all partitions; None: the type has no times. They are
        read at the first use, and take 8 bytes per vertex if there are several partitions. Raises DataError: a
        partition's file is missing or altered; the message names it."""
        if not self.schema.timed(node_type):
            return None
        if node_type not in self._times:
            files = [self.path / name for name in self.time_files(node_type)]
            for path in files:
                if not path.exists():
                    raise DataError(path, "is missing: every machine needs the times of all vertices; deploy it again")
                check_file(path, self.files[path.relative_to(self.path).as_posix()], verify=True)
            rows = [self.place.map(path) for path in files]
            self._times[node_type] = VertexTimes.joined(rows, self.sorted_internal(node_type))
        return self._times[node_type]

    def time_files(self, node_type: str) -> list[str]:
        """The files that ``times`` reads, by partition. Every machine has those of all partitions."""
        if not self.schema.timed(node_type):
            return []
        return [f"{part_folder(part)}/{node_folder(node_type)}/time.npy" for part in range(self.partitions.num_parts)]

    def with_times(self, times: Mapping[str, VertexTimes]) -> Dataset:
        """The same dataset with other times of the vertices of some types."""
        found = copy.copy(self)
        found._times = {**self._times, **times}
        return found

    def degrees(self, edge_type: str) -> GraphDegrees:
        """How many edges of a type each vertex of the whole graph has, memory-mapped."""
        if edge_type in self._later_degrees:
            return self._later_degrees[edge_type]()
        if edge_type not in self._degrees:
            folder = degree_folder(self.schema.check_edge_type(edge_type))
            found = GraphDegrees.read(folder, self.files, lambda name: self.place.map(self.path / name))
            assert found is not None, "the manifest lists the files"
            self._degrees[edge_type] = found
        return self._degrees[edge_type]

    def with_used(self, used: Mapping[str, int]) -> Dataset:
        """The same dataset with so many vertices of its room in use, by node type; they have the smallest ids of it."""
        found, room = copy.copy(self), {t: count - used.get(t, 0) for t, count in self.schema.room.items()}
        found.schema = replace(self.schema, room=room)
        return found

    def with_degrees(self, degrees: Mapping[str, Callable[[], GraphDegrees]]) -> Dataset:
        """The same dataset with other degrees of some edge types, which are asked for when they are needed."""
        found = copy.copy(self)
        found._later_degrees = {**self._later_degrees, **degrees}
        return found

    def part(self, index: int) -> Part:
        """Return a part; raises ConfigError if it does not exist."""
        if index not in self._parts:
            if not 0 <= index < self.num_parts:
                raise ConfigError(f"{self.path}: partition {index} does not exist: there are {self.num_parts}")
            found = [self.partition(p) for p in self.groups[index]]
            ranges = {t: self.book.range(t, index) for t in self.schema.node_types}
            self._parts[index] = JoinedPart(found, index, self.schema, ranges) if len(found) > 1 else found[0]
        return self._parts[index]

    def partition(self, index: int) -> Part:
        """One partition by itself, also of a joined dataset."""
        core = {t: hi - lo for t in self.schema.node_types for lo, hi in [self.partitions.range(t, index)]}
        return Part(self.path, index, self.place.map, self.schema, core)

    def _id_maps(self, node_type: str) -> dict[str, Array]:
        """User ids of a node type: by internal id, and in ascending order with their internal ids; the ascending ones
        are absent if they are 0 ... n - 1."""
        if self.schema.check_node_type(node_type) not in self._ids:
            names = {
                name: f"{shared_folder(node_type)}/{name}.npy" for name in ("ids", "sorted_ids", "sorted_internal")
            }
            found = {key: self.place.map(self.path / name) for key, name in names.items() if name in self.files}
            self._ids[node_type] = found
        return self._ids[node_type]


def _integers(values: npt.ArrayLike) -> Ids:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ConfigError(f"vertex ids are integers, not {array.dtype}")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"vertex id {array.max()} is too large: ids are below 2**63")
    return array.astype(np.int64)
