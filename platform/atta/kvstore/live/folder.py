"""Versions of a dataset on the disk: a folder ``DATASET.versions`` beside it.

    0001/version.json             what the version changes, and size and checksum of its files
    0001/part-0000/  0001/shared/ the changed rows and edges, as in the dataset
    0001/part-0000/came/  gone/   by edge type whose edges are told by what differs from those of a version before, their
                                  *base*: see ``EdgeDifference``. Only edges that came are among the edges then
    0001/part-0000/changed/       by type: int64 [n], the core rows that have another row than before, or are new; of edges
                                  [3, n], the core rows that they lead to, their sources, and 1 if they came or -1 if
                                  they went
    0001/committed                empty; the version counts since this file is there. Of one that counts no more,
                                  version.json and changed/ stay for a while
    lock                          held by the command that writes and publishes a version

A folder appears whole and never changes afterwards. Version 0 is the dataset itself.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError
from atta.kvstore.durable.logfile import force, written
from atta.kvstore.live.book import USED, Sources, TableName
from atta.partition.dataset import CSC, Dataset, VertexTimes, part_folder
from atta.partition.disk.files import FileRecord, check_file, map_array, read_sealed
from atta.partition.graph.part import NONE, GraphDegrees, JoinedPart, Led, Part, edges_of_parts
from atta.partition.names import edge_folder, node_folder
from atta.partition.schema import Schema
from atta.samplers.batch.items import EDGES, TIME

MANIFEST, COMMITTED, LOCK = "version.json", "committed", "lock"
FORMAT, VERSION, CHANGED, CAME, GONE = "atta-version", 1, "changed", "came", "gone"
KEPT_CHANGES = 1000
"""What so many newest versions have changed stays on the disk: whoever follows versions may be that far behind."""
_NUMBER = re.compile(r"[0-9]{4,9}")


def table_file(part: int, node_type: str, name: str) -> str:
    """The file of a table's rows of one partition, within the folder of a version."""
    return f"{part_folder(part)}/{node_folder(node_type)}/{name}.npy"


def changed_file(part: int, of: TableName, kind: str = CHANGED) -> str:
    """The file of what changes of a type in one partition, likewise; tables of a type share it. ``kind``: of edges also
    ``CAME`` and ``GONE``."""
    return f"{part_folder(part)}/{kind}/{edge_folder(of[0]) if of[1] == EDGES else node_folder(of[0])}.npy"


@dataclass(frozen=True)
class EdgeDifference:
    """What the edges of a type and a partition are beside those of their base.

    Attributes:
        came: int64 [2, n], the core rows that edges lead to, and before which edge of the base each of them comes. Both
            ascend.
        columns: of these edges ``indices``, ``edge_ids`` and the rows of edge tables, by name.
        gone: int64 [m], the edges of the base that went, ascending.
    """

    came: np.ndarray
    columns: Mapping[str, np.ndarray]
    gone: np.ndarray

    @classmethod
    def none(cls, base: Part, edge_type: str, tables: Iterable[str]) -> EdgeDifference:
        """There is none."""
        csc, nothing = base.csc(edge_type), np.empty((3, 0), np.int64)
        columns = {"indices": csc.indices[:0], "edge_ids": csc.edge_ids[:0]}
        columns |= {name: base.edge_table(edge_type, name)[:0] for name in tables}
        return cls(nothing[:2], columns, nothing[2])

    def indptr(self, base: np.ndarray) -> np.ndarray:
        """int64 [core + 1], where the edges of each core row begin; ``base``: the same of the base."""
        went = np.bincount(np.searchsorted(base, self.gone, side="right"), minlength=len(base))
        return np.asarray(base + np.cumsum(np.bincount(self.came[0] + 1, minlength=len(base)) - went))

    def merged(self, base: Part, edge_type: str) -> dict[str, np.ndarray]:
        """All arrays of the edges, by the name of their file."""
        csc = base.csc(edge_type)
        own = {"indices": csc.indices, "edge_ids": csc.edge_ids}
        of_base = {name: own[name] if name in own else base.edge_table(edge_type, name) for name in self.columns}
        merged = {name: self.column(name, array) for name, array in of_base.items()}
        return {"indptr": self.indptr(csc.indptr), **merged}

    def column(self, name: str, base: np.ndarray, room: Room = np.empty) -> np.ndarray:
        """All of a column, in memory of ``room``; ``base``: that of the base."""
        new, at = self.columns[name], self.came[1] - np.searchsorted(self.gone, self.came[1])
        kept = np.delete(base, self.gone, axis=0) if len(self.gone) else base
        out = room((len(kept) + len(new), *base.shape[1:]), np.result_type(base, new))
        stays = np.ones(len(out), np.bool_)
        stays[at := at + np.arange(len(at))] = False
        out[at], out[stays] = new, kept
        return out


Room = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Gives memory for an array of a shape and a type."""


class ChangedPart(Part):
    """A partition with the edges of one version alone. Those that have a base are made at their first use."""

    def __init__(
        self,
        version: Path,
        index: int,
        map_file: Callable[[Path], np.ndarray],
        schema: Schema,
        *,
        core: Mapping[str, int],
        bases: Mapping[str, Part],
        room: Room,
    ) -> None:
        """``bases``: partitions with the edges that those of this one are told by, by edge type."""
        super().__init__(version, index, map_file, schema, core)
        self._version, self._bases, self._room = version, bases, room
        self._since: dict[str, tuple[Part, EdgeDifference]] = {}

    def since(self, edge_type: str) -> tuple[Part, EdgeDifference]:
        """The base of the edges of a type, and what differs; where they have none, they are told by themselves."""
        tables, of = self._schema.edge_tables[edge_type], (edge_type, EDGES)
        if edge_type not in self._bases:
            return self, EdgeDifference.none(self, edge_type, tables)
        if edge_type not in self._since:
            names, folder = ("indices", "edge_ids", *tables), self.path / edge_folder(edge_type)
            came, gone = (self._map(self._version / changed_file(self.index, of, kind)) for kind in (CAME, GONE))
            columns = {name: self._map(folder / f"{name}.npy") for name in names}
            self._since[edge_type] = self._bases[edge_type], EdgeDifference(came, columns, gone)
        return self._since[edge_type]

    def _open_csc(self, edge_type: str) -> CSC:
        if self._schema.check_edge_type(edge_type) not in self._bases:
            return super()._open_csc(edge_type)
        base, difference = self.since(edge_type)
        csc, known = base.csc(edge_type), self._schema.edge_tables[edge_type]
        ends = (difference.column(name, getattr(csc, name), self._room) for name in ("indices", "edge_ids"))
        tables = {name: self.edge_table(edge_type, name) for name in ("weight", "time") if name in known}
        return CSC(difference.indptr(csc.indptr), *ends, **tables)

    def edges_from(self, edge_type: str, sources: np.ndarray, most: int, gone: np.ndarray = NONE) -> Led:
        if edge_type not in self._bases:
            return super().edges_from(edge_type, sources, most, gone)
        base, difference = self.since(edge_type)
        came = sources[new := difference.columns["indices"]]
        if (kept := base.edges_from(edge_type, sources, most, difference.gone)) is None:
            return None
        rows = np.concatenate([kept[0], difference.came[0][came]])
        if len(rows) > most:
            return None
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate([kept[1], new[came]])[order]

    def edge_table(self, edge_type: str, name: str) -> np.ndarray:
        if edge_type not in self._bases:
            return super().edge_table(edge_type, name)
        if (edge_type, name) not in self._tables:  # no node type is called as an edge type
            base, difference = self.since(edge_type)
            self._tables[edge_type, name] = difference.column(name, base.edge_table(edge_type, name), self._room)
        return self._tables[edge_type, name]


@dataclass(frozen=True)
class VersionFiles:
    """One version as its ``version.json`` describes it.

    Attributes:
        id: random; tells apart versions that were written under one number.
        sources: of all tables and edges that are not the dataset's own.
        edge_ids: by edge type that is not the dataset's own, one more than the largest edge id so far.
        bases: by edge type whose edges are told by what differs from those of a version before: that version.
        taken: by folder that updates are taken from, the latest of these, and the version that they are in.
        used: by node type with vertices of the room that are in use, how many.
    """

    number: int
    id: str
    path: Path
    sources: Sources
    edge_ids: Mapping[str, int]
    files: Mapping[str, FileRecord] = field(repr=False)
    bases: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)


class VersionFolder:
    """The versions of a dataset."""

    def __init__(self, data: str | Path, dataset_id: str) -> None:
        """``data``: the dataset's folder."""
        data = Path(data).absolute()
        self.path, self._dataset_id = data.with_name(f"{data.name}.versions"), dataset_id
        self._read: dict[int, VersionFiles] = {}
        self._bases: dict[tuple[int, int], Part] = {}
        self._retired: set[int] = set()

    def place(self, number: int) -> Path:
        """The folder of one version."""
        return self.path / f"{number:04d}"

    def numbers(self) -> list[int]:
        """Versions that are there, committed or not, ascending."""
        try:
            return sorted(int(entry) for entry in os.listdir(self.path) if _NUMBER.fullmatch(entry))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(self.path, error.strerror or str(error)) from None

    def committed(self) -> dict[int, VersionFiles]:
        """The committed versions of this dataset, by number. Those of another dataset are left out. Raises DataError: a
        description is damaged."""
        found, numbers = dict[int, VersionFiles](), self.numbers()
        self._retired &= {*numbers}
        for number in reversed(numbers):
            if not number or number in self._retired or not os.path.exists(f"{self.path}/{number:04d}/{COMMITTED}"):
                self._retired |= {number} if found else set()  # it does not count any more: another one followed it
            else:
                version = self._read.get(number)  # a committed folder does not change
                try:
                    found[number] = self._read[number] = version or self.read(number)
                except DataError:
                    if self.place(number).exists():
                        raise  # else it was removed meanwhile
        self._read = {**found}
        return {number: found[number] for number in sorted(found) if found[number].id}

    def read(self, number: int) -> VersionFiles:
        """What ``version.json`` says; the id is empty if it belongs to another dataset. Raises DataError: it is
        missing, damaged, or says something impossible."""
        where = self.place(number) / MANIFEST
        value = read_sealed(where, "a version of a dataset", FORMAT, VERSION)
        try:
            sources = {_table_name(name): int(source) for name, source in dict(value["sources"]).items()}
            files = {str(n): FileRecord.from_json(record, where, str(n)) for n, record in dict(value["files"]).items()}
            ids = {str(edge_type): int(count) for edge_type, count in dict(value.get("edge_ids", {})).items()}
            bases = {str(edge_type): int(base) for edge_type, base in dict(value.get("bases", {})).items()}
            taken = {str(at): (str(name), int(n)) for at, (name, n) in dict(value.get("taken", {})).items()}
            used = {str(node_type): int(count) for node_type, count in dict(value.get("used", {})).items()}
            of, told, id_ = str(value["dataset_id"]), int(value["number"]), str(value["id"])
        except (KeyError, TypeError, ValueError):
            raise DataError(where, "is malformed") from None
        if told != number or not id_ or not all(0 < source <= number for source in sources.values()):
            raise DataError(where, f"is not that of version {number}")
        if ids.keys() != {name for name, kind in sources if kind == EDGES} or not all(
            0 <= n < 1 << 62 for n in ids.values()
        ):
            raise DataError(where, "does not tell the edge ids of its edges")
        if not all(t in ids and 0 <= base < sources[t, EDGES] for t, base in bases.items()):
            raise DataError(where, "has edges without a base")
        if used.keys() != {name for name, kind in sources if kind == USED} or not all(n > 0 for n in used.values()):
            raise DataError(where, "does not tell how many vertices are in use")
        id_ = id_ if of == self._dataset_id else ""
        return VersionFiles(number, id_, self.place(number), sources, ids, files, bases, taken, used)

    def _version(self, number: int) -> VersionFiles:
        return self._read.get(number) or self.read(number)

    @contextmanager
    def updating(self, *, wait: bool = False) -> Iterator[None]:
        """Meanwhile no other process writes or publishes a version. Raises ConfigError: another one does, and this one
        does not ``wait``. DataError: the folder cannot be written."""
        try:
            self.path.mkdir(exist_ok=True)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataError(self.path, f"cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        except BlockingIOError:
            raise ConfigError(f"{self.path}: another update is under way") from None
        finally:
            os.close(lock)

    def commit(self, number: int) -> None:
        """Let the version count. Repeating it changes nothing. Raises DataError: the file cannot be written."""
        path = self.place(number)
        with written(path):
            (path / COMMITTED).touch()
            force(path / COMMITTED)
            force(path)

    def remove(self, number: int) -> None:
        """Remove a version that does not count."""
        shutil.rmtree(self.place(number), ignore_errors=True)

    def retire(self, number: int) -> None:
        """Remove a version but for what it has changed. First it stops counting, so that nobody reads half of it."""
        (self.place(number) / COMMITTED).unlink(missing_ok=True)
        for path in self.place(number).rglob("*.npy"):
            if CHANGED not in path.relative_to(self.place(number)).parts:
                path.unlink(missing_ok=True)
        for old in self.numbers():
            if old <= number - KEPT_CHANGES and not (self.place(old) / COMMITTED).exists():
                self.remove(old)

    def load(self, dataset: Dataset, owner: int, table: TableName, source: int) -> np.ndarray:
        """The rows [core, *row_shape] of what ``owner`` of a (joined) dataset owns. Every byte is checked. Mapped;
        those of several partitions are copied, one after another. Raises DataError: a file is missing, truncated,
        altered, or has other rows than the dataset."""
        arrays = self._rows(dataset, dataset.groups[owner], table, source)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def times(self, dataset: Dataset, node_type: str, source: int) -> VertexTimes:
        """The times of all vertices of a type, in all partitions, as version ``source`` has them. Errors as ``load``."""
        rows = self._rows(dataset, range(dataset.partitions.num_parts), (node_type, TIME), source)
        return VertexTimes.joined(rows, dataset.sorted_internal(node_type))

    def _rows(self, dataset: Dataset, parts: Iterable[int], table: TableName, source: int) -> list[np.ndarray]:
        """The mapped rows of a table, by partition. Errors as ``load``."""
        version, spec = self._version(source), dataset.schema.table(*table)
        arrays: list[Any] = []
        for part in parts:
            name = table_file(part, *table)
            path = version.path / name
            record = version.files.get(name)
            low, high = dataset.partitions.range(table[0], part)
            if record is None or (record.dtype, record.shape) != (spec.dtype, (high - low, *spec.row_shape)):
                raise DataError(version.path / MANIFEST, f"has no {name} with the rows of partition {part}")
            check_file(path, record, verify=True)
            arrays.append(map_array(path))
        return arrays

    def edges(self, dataset: Dataset, owner: int, source: int, room: Room = np.empty) -> Part:
        """What ``owner`` of a (joined) dataset owns, with the edges that version ``source`` brought; it has nothing
        else. Every byte of a file is checked when it is mapped. ``room``: gives memory for edges that are told by a base.
        Raises DataError: the description is missing or damaged."""
        version = self._version(source)
        parts = [self.part(dataset, version, n, room) for n in dataset.groups[owner]]
        ranges = {t: dataset.book.range(t, owner) for t in dataset.schema.node_types}
        return parts[0] if len(parts) == 1 else JoinedPart(parts, owner, dataset.schema, ranges)

    def part(self, dataset: Dataset, version: VersionFiles, index: int, room: Room = np.empty) -> ChangedPart:
        """One partition, likewise."""
        of_types = ((t, dataset.partitions.range(t, index)) for t in dataset.schema.node_types)
        core, its = {t: high - low for t, (low, high) in of_types}, version.bases.items()
        bases = {t: self._base(dataset, base, index) for t, base in its if version.sources[t, EDGES] == version.number}
        kept = [*self._bases.items()]  # at once: daemons read several versions on threads
        self._bases = {key: part for key, part in kept if key[0] in version.bases.values()}
        checked = partial(_checked, version)
        found = ChangedPart(version.path, index, checked, dataset.schema, core=core, bases=bases, room=room)
        for edge_type in bases:  # what is missing or altered is named now, and files may go afterwards
            found.since(edge_type)[0].csc(edge_type)
        return found

    def _base(self, dataset: Dataset, number: int, index: int) -> Part:
        """The partition of a version that others are told by. It is kept, as its files are checked when they are mapped."""
        if (found := self._bases.get((number, index))) is None:
            found = self.part(dataset, self._version(number), index) if number else dataset.partition(index)
            self._bases[number, index] = found
        return found

    def degrees(self, dataset: Dataset, edge_type: str, source: int) -> GraphDegrees:
        """Count how many edges each vertex of the whole graph has of those that version ``source`` brought. Errors as
        ``edges``."""
        version, parts = self._version(source), range(dataset.partitions.num_parts)
        read = (self.part(dataset, version, part) for part in parts)
        edges = edges_of_parts(read, dataset.partitions, dataset.schema, edge_type)
        return GraphDegrees.counted(edges, dataset.schema, edge_type)

    def changed(self, dataset: Dataset, owner: int, number: int) -> dict[TableName, np.ndarray] | None:
        """What version ``number`` changed of what ``owner`` has: int64 [n], vertices with another row of a table, or new ones
        (``USED``); int64 [3, n], targets and sources of edges, and 1 if they came or -1 if they went. Vertices are internal
        ids. None: it does not say so, or is another dataset's. Errors as ``edges``."""
        version, found = self._version(number), dict[TableName, np.ndarray]()
        for of in [name for name, source in version.sources.items() if source == number]:
            if not version.id or changed_file(0, of) not in version.files:
                return None
            node_type = dataset.schema.endpoints(of[0])[1] if of[1] == EDGES else of[0]
            pieces = []
            for part in dataset.groups[owner]:
                path, (low, high) = version.path / changed_file(part, of), dataset.partitions.range(node_type, part)
                told = np.array(_checked(version, path), np.int64)
                rows = told[0] if of[1] == EDGES else told
                if len(rows) and not 0 <= rows.min() <= rows.max() < high - low:
                    raise DataError(path, "has rows that do not exist")
                rows += low
                pieces.append(told)
            found[of] = np.concatenate(pieces, axis=-1)
        return found

    def edge_bytes(self, dataset: Dataset, owner: int, edge_type: str, source: int) -> int:
        """Bytes of the files of edges that version ``source`` brought to ``owner``, with those of its base. Errors as ``edges``."""
        version = self._version(source) if source else None
        folders = tuple(f"{part_folder(part)}/{edge_folder(edge_type)}/" for part in dataset.groups[owner])
        files, base = (version.files, version.bases.get(edge_type)) if version else (dataset.files, None)
        own = sum(record.size for name, record in files.items() if name.startswith(folders))
        return own + (self.edge_bytes(dataset, owner, edge_type, base) if base is not None else 0)

    def has_base(self, edge_type: str, source: int) -> bool:
        """Whether the edges that version ``source`` brought are told by what differs from others. Errors as ``edges``."""
        return edge_type in self._version(source).bases

    def edge_ids(self, edge_type: str, source: int) -> int:
        """One more than the largest id of an edge of this type that version ``source`` brought. Errors as ``edges``."""
        return self._version(source).edge_ids[edge_type]

    def used(self, node_type: str, source: int) -> int:
        """How many vertices of the room of a type version ``source`` uses. Raises DataError as ``edges``."""
        return self._version(source).used[node_type]


def _checked(version: VersionFiles, path: Path) -> np.ndarray:
    """Map one of its files; raises DataError if it is missing or altered."""
    name = path.relative_to(version.path).as_posix()
    record = version.files.get(name)
    if record is None:
        raise DataError(version.path / MANIFEST, f"has no {name}")
    check_file(path, record, verify=True)
    return map_array(path)


def _table_name(name: str) -> TableName:
    node_type, _, table = name.rpartition("/")  # no table has a "/"
    if not node_type or not table:
        raise ValueError(name)
    return node_type, table


def kept_numbers(versions: Mapping[int, VersionFiles], read: Sequence[int], keep: int) -> set[int]:
    """Versions that must stay: the newest ``keep`` (at least one), those that are ``read``, all their sources, and the bases
    of all these."""
    wanted = {*sorted(versions)[-max(1, keep) :], *read} & versions.keys()
    wanted |= {source for number in wanted for source in versions[number].sources.values()}
    return wanted | {base for number in wanted & versions.keys() for base in versions[number].bases.values()} - {0}
