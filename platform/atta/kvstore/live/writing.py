"""Writes the next version of a table, or of edges, beside the dataset. Rows go from file to file; memory holds a piece
of them, or the edges of one partition."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from atta.errors import ConfigError, DataError
from atta.kvstore.live.book import Sources, TableName
from atta.kvstore.live.folder import (
    CAME,
    COMMITTED,
    FORMAT,
    GONE,
    MANIFEST,
    VERSION,
    ChangedPart,
    EdgeDifference,
    VersionFiles,
    VersionFolder,
    changed_file,
    table_file,
)
from atta.partition.dataset import Dataset, Part, part_folder
from atta.partition.disk.files import NpyAppender, chunks, describe_file, map_array, write_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph.reading import MANIFEST as GRAPH
from atta.partition.graph.reading import Graph, index_dtype
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.partition.names import edge_folder
from atta.samplers.batch.items import EDGES

PIECE_BYTES = 16 << 20
"""About so many bytes of rows are in memory at a time."""
LEAST_CHANGES, CHANGED_SHARE = 1 << 14, 1 / 8
"""Edges are told by what differs from a base until so many differ, or this share of the dataset's: then all are written."""


def find_table(dataset: Dataset, name: str) -> TableName:
    """The table with this name, ``TABLE`` or ``NODETYPE/TABLE``. Raises UnknownNameError: there is none; ConfigError:
    several node types have one, or it holds the vertices' string ids."""
    node_type, slash, table = name.rpartition("/")
    tables = dataset.schema.node_tables
    if not slash:
        having = [t for t in dataset.schema.node_types if name in tables[t]] or dataset.schema.node_types[:1]
        if len(having) > 1:
            raise ConfigError(f"table {name}: node types {', '.join(having)} have one; write TYPE/{name}")
        node_type = having[0]
    dataset.schema.table(node_type, table)
    if table == NAME:
        raise ConfigError(f"table {node_type}/{table} holds the vertices' string ids: these do not change")
    return node_type, table


def find_edges(dataset: Dataset, edge_type: str | None) -> TableName:
    """What versions call the edges of a type; None: of the only type that there is. Raises UnknownNameError: there is
    none of this name. ConfigError: there are several, and none is named."""
    types = dataset.schema.edge_types
    if edge_type is None and len(types) != 1:
        raise ConfigError(f"the dataset has edge types {', '.join(types)}: say which one")
    return dataset.schema.find_edge_type(types[0] if edge_type is None else edge_type), EDGES


@dataclass(frozen=True)
class Present:
    """What a version changes: the newest one of a dataset.

    Attributes:
        dataset: with the vertices that are in use now.
        sources, edge_ids, bases, used, taken: see ``VersionFiles``; of the dataset itself nothing.
    """

    folder: VersionFolder
    dataset: Dataset
    sources: Sources = field(default_factory=dict)
    edge_ids: Mapping[str, int] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: VersionFolder, dataset: Dataset) -> Present:
        """The newest committed version. Raises DataError: its description is damaged."""
        if not (committed := folder.committed()):
            return cls(folder, dataset)
        last = committed[max(committed)]
        rest = last.edge_ids, last.bases, last.used, last.taken
        return cls(folder, dataset.with_used(last.used), last.sources, *rest)

    def rows(self, of: TableName, part: int) -> np.ndarray:
        """The rows of a table in one partition."""
        if source := self.sources.get(of, 0):
            return self.folder.load(self.dataset, part, of, source)
        return self.dataset.part(part).table(*of)

    def edges(self, edge_type: str, part: int) -> Part:
        """The edges of a type in one partition."""
        source = self.sources.get((edge_type, EDGES), 0)
        return self.folder.edges(self.dataset, part, source) if source else self.dataset.part(part)

    def since(self, edge_type: str, part: int) -> tuple[Part, EdgeDifference]:
        """The same edges by their base, see ``ChangedPart.since``."""
        edges = self.edges(edge_type, part)
        if isinstance(edges, ChangedPart):
            return edges.since(edge_type)
        return edges, EdgeDifference.none(edges, edge_type, self.dataset.schema.edge_tables[edge_type])

    def base(self, edge_type: str, more: int) -> int | None:
        """The version that edges can be told by when ``more`` have changed; None: too many have, since that version."""
        if (base := self.bases.get(edge_type)) is not None:
            of_parts = (self.since(edge_type, part)[1] for part in range(self.dataset.num_parts))
            more += sum(one.came.shape[1] + len(one.gone) for one in of_parts)
        most = max(LEAST_CHANGES, CHANGED_SHARE * self.dataset.schema.edge_counts[edge_type])
        return (self.sources.get((edge_type, EDGES), 0) if base is None else base) if more <= most else None

    def identified(self, graph: Graph, node_type: str) -> tuple[np.ndarray, np.ndarray]:
        """The vertices of a graph folder: int64 [n], the user ids that they have in the dataset, and bool [n], which are there.
        The ids of others are those of the folder. Raises ConfigError: one of the two has string ids, the other has not."""
        strings = [string_width(schema, node_type) is not None for schema in (graph.schema, self.dataset.schema)]
        if strings[0] != strings[1]:
            which = "has no" if strings[1] else "has"
            raise ConfigError(f"{graph.path}: node type {node_type!r} {which} string ids, other than the dataset's")
        if not strings[0]:
            ids = np.arange(graph.schema.node_counts[node_type]) if (own := graph.user_ids(node_type)) is None else own
            used = self.dataset.sorted_ids(node_type)[: self.dataset.schema.in_use(node_type)]
            at = np.minimum(np.searchsorted(used, ids), len(used) - 1)
            return ids, np.equal(used[at], ids) if len(used) else np.zeros(len(ids), np.bool_)
        wanted, parts = to_strings(graph.table(node_type, NAME)), range(self.dataset.num_parts)
        known = to_strings(np.concatenate([self.rows((node_type, NAME), part) for part in parts]))
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
        return np.asarray(self.dataset.ids(node_type)[at]), (known[at] == wanted) & (wanted != "")


@dataclass(frozen=True)
class Written:
    """What a change has written: names of files in the version's folder; and by edge type what ``VersionFiles`` says."""

    names: Sequence[str]
    edge_ids: Mapping[str, int] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NewRows:
    """Rows that take the place of a table's.

    Attributes:
        rows: [n, *row_shape], mapped.
        ids: int64 [n], the user ids of their vertices; None: one row for each vertex, by ascending user id.
        new: whether the vertices are new. What changes is then said by ``NewUse``.
    """

    rows: np.ndarray
    ids: np.ndarray | None
    new: bool = False

    @classmethod
    def open(cls, path: Path, name: str) -> NewRows:
        """A file of all rows, or a folder with ``NAME.npy`` and perhaps ``ids.npy``, as in a graph folder. Raises
        DataError: a file is missing or no array."""
        if not path.is_dir():
            return cls(map_array(path), None)
        ids = map_array(path / "ids.npy") if (path / "ids.npy").exists() else None
        return cls(map_array(path / f"{name}.npy"), ids)

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, present: Present, of: TableName, to: Path) -> Written:
        """Write the files of all partitions into the folder ``to``. Raises ConfigError: the rows are not of this table, or
        name a vertex twice or one that does not exist; DataError: a file cannot be read or written."""
        at = self._positions(present.dataset, of)
        parts = range(present.dataset.partitions.num_parts)
        return Written([name for part in parts for name in self._write_part(present, of, part, at, to)])

    def _write_part(self, present: Present, of: TableName, part: int, at: np.ndarray, to: Path) -> list[str]:
        name, spec = table_file(part, *of), present.dataset.schema.table(*of)
        low, high = present.dataset.partitions.range(of[0], part)
        kept, changed = present.rows(of, part), []
        step = max(1, PIECE_BYTES // max(1, spec.row_bytes))
        with NpyAppender(to / name, spec.dtype, spec.row_shape) as out:
            for first, stop in chunks(high - low, step):
                places, old = at[low + first : low + stop], kept[first:stop]
                piece = old.copy()
                chosen = np.flatnonzero(places >= 0)
                order = np.argsort(places[chosen], kind="stable")  # files are read forwards
                piece[chosen[order]] = self.rows[places[chosen[order]]]
                out.append(piece)
                changed.append(first + np.flatnonzero(_differ(piece, old)))
        rows = np.concatenate([*changed, _no_ids()])
        return [name, *_write_files(to, {} if self.new else {changed_file(part, of): rows})]

    def _positions(self, dataset: Dataset, table: TableName) -> np.ndarray:
        """Where the row of each internal id is: int64 [vertices], -1 where a vertex keeps its row."""
        node_type, name = table
        spec, count = dataset.schema.table(*table), dataset.schema.node_counts[node_type]
        found, wanted = (self.rows.dtype.str, self.rows.shape[1:]), (spec.dtype, spec.row_shape)
        if found != wanted:
            raise ConfigError(
                f"rows are {found[0]}{list(found[1])}, table {node_type}/{name} has {wanted[0]}{list(wanted[1])}"
            )
        at = np.full(count, -1, dtype=np.int64)
        if self.ids is None:
            if len(self.rows) != (used := dataset.schema.in_use(node_type)):
                raise ConfigError(
                    f"{len(self.rows)} rows for {used} vertices of {node_type}: give one for each, or a folder with "
                    f"ids.npy and {name}.npy"
                )
            at[dataset.used(node_type)] = np.arange(len(self.rows))
            return at
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iu" or len(self.ids) != len(self.rows):
            raise ConfigError(f"ids.npy is {self.ids.dtype}{list(self.ids.shape)}, must be one integer for each row")
        internal = dataset.to_used(node_type, self.ids)
        at[internal] = np.arange(len(internal))
        if int((at >= 0).sum()) != len(internal):
            raise ConfigError(f"ids.npy names a vertex of {node_type} twice")
        return at


def _no_ids() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class NewEdges:
    """What becomes of the edges of one type.

    Attributes:
        sources, targets: int [n], user ids of the ends of the edges that are added.
        tables: by edge table, their rows [n, *row_shape].
        removed: int [m], ids of edges that go.
        replaces: whether the edges that there are go, too.
    """

    sources: np.ndarray = field(default_factory=_no_ids)
    targets: np.ndarray = field(default_factory=_no_ids)
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)
    removed: np.ndarray = field(default_factory=_no_ids)
    replaces: bool = False

    @classmethod
    def open(
        cls, present: Present, edge_type: str, added: Path | None, removed: Path | None, *, replaces: bool = False
    ) -> NewEdges:
        """``added``: a folder with ``src.npy``, ``dst.npy`` and a file for each edge table, also within a graph folder, whose
        vertices may have other numbers; ``removed``: a file of ids. Raises DataError: a file is missing, no array, or of no edge
        table. ConfigError: nothing is given, or what is given contradicts itself."""
        if added is None and removed is None:
            raise ConfigError("neither edges to add nor edges to remove are given")
        if replaces and (added is None or removed is not None):
            raise ConfigError("to replace all edges, give those that take their place, and no ids to remove")
        gone = _no_ids() if removed is None else map_array(removed)
        if added is None:
            spec = present.dataset.schema.edge_tables[edge_type]
            none = {name: np.empty((0, *table.row_shape), table.dtype) for name, table in spec.items()}
            return cls(tables=none, removed=gone)
        if not (added / "src.npy").exists():
            raise DataError(added, "holds no src.npy; atta import makes such folders of tables: GRAPH/edges/TYPE")
        known = present.dataset.schema.edge_tables[edge_type]
        for path in sorted(added.glob("*.npy")):
            if path.stem not in ("src", "dst", *known):
                raise DataError(path, f"not an edge table of {edge_type}; there are: {', '.join(known) or 'none'}")
        tables = {name: map_array(added / f"{name}.npy") for name in known}
        sources, targets = _ends(present, edge_type, added)
        return cls(sources, targets, tables, gone, replaces)

    @classmethod
    def joined(cls, some: Sequence[NewEdges]) -> NewEdges:
        """All edges that ``some``, at least one, add, one after another."""
        tables = {name: np.concatenate([one.tables[name] for one in some]) for name in some[0].tables}
        ends = ([getattr(one, of) for one in some] for of in ("sources", "targets"))
        # Some may be unsigned.
        sources, targets = (np.concatenate(ids, dtype=np.int64, casting="unsafe") for ids in ends)
        return cls(sources, targets, tables)

    def __len__(self) -> int:
        return len(self.sources)

    def write(self, present: Present, of: TableName, to: Path) -> Written:
        """Write the files of all partitions into the folder ``to``. Raises ConfigError: a table does not fit, a vertex or an
        edge that is to go does not exist; DataError: a file cannot be read or written."""
        dataset, edge_type = present.dataset, of[0]
        ends = self.ends(dataset, edge_type)
        self._check_removed(present, edge_type)
        first = 0 if self.replaces else present.edge_ids.get(edge_type, dataset.schema.edge_counts[edge_type])
        base = None if self.replaces else present.base(edge_type, len(self) + len(self.removed))
        parts, names = range(dataset.partitions.num_parts), []
        for part in parts:
            edges, difference, changed = self._difference(present, edge_type, part, ends, first)
            folder, files = f"{part_folder(part)}/{edge_folder(edge_type)}", {changed_file(part, of): changed}
            arrays = difference.merged(edges, edge_type) if base is None else difference.columns
            if base is not None:
                kinds = (CAME, difference.came), (GONE, difference.gone)
                files |= {changed_file(part, of, kind): array for kind, array in kinds}
            names += _write_files(to, {**files, **{f"{folder}/{name}.npy": array for name, array in arrays.items()}})
        return Written(names, {edge_type: first + len(self)}, {} if base is None else {edge_type: base})

    def ends(self, dataset: Dataset, edge_type: str) -> list[np.ndarray]:
        """int64 [n], internal ids of the sources of the edges that are added, and of their targets. Raises ConfigError: a
        table does not fit, or a vertex does not exist."""
        for name, ids in (("src.npy", self.sources), ("dst.npy", self.targets), ("ids of edges", self.removed)):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise ConfigError(f"{name} is {ids.dtype}{list(ids.shape)}, must be a row of integers")
        if len(self.sources) != len(self.targets):
            raise ConfigError(f"{len(self.sources)} sources and {len(self.targets)} targets of edges")
        for name, spec in dataset.schema.edge_tables[edge_type].items():
            rows, wanted = self.tables[name], (spec.dtype, (len(self), *spec.row_shape))
            if (rows.dtype.str, rows.shape) != wanted:
                raise ConfigError(
                    f"{name}.npy is {rows.dtype.str}{list(rows.shape)}, must be {wanted[0]}{list(wanted[1])}"
                )
        types = dataset.schema.endpoints(edge_type)
        return [dataset.to_used(t, ids) for t, ids in zip(types, (self.sources, self.targets), strict=True)]

    def _check_removed(self, present: Present, edge_type: str) -> None:
        """Raise ConfigError if an edge that is to go does not exist, or is named twice."""
        wanted = np.sort(self.removed)
        if len(wanted) and np.any(wanted[1:] == wanted[:-1]):
            raise ConfigError(f"edge {wanted[:-1][wanted[1:] == wanted[:-1]][0]} is to be removed twice")
        missing = np.ones(len(wanted), dtype=bool)
        for part in range(present.dataset.num_parts) if len(wanted) else ():
            ids = np.asarray(present.edges(edge_type, part).csc(edge_type).edge_ids)
            at = np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)
            missing[at[wanted[at] == ids]] = False
        if missing.any():
            raise ConfigError(f"edge {wanted[missing][0]} of {edge_type}, to be removed, does not exist")

    def _difference(
        self, present: Present, edge_type: str, part: int, ends: Sequence[np.ndarray], first: int
    ) -> tuple[Part, EdgeDifference, np.ndarray]:
        """The base of the edges of one partition, what differs from it, and the edges that come and go, as ``changed_file`` has
        them. ``ends``: int64, internal ids of sources and targets; ``first``: the id of the first edge that is added, which
        the others follow."""
        dataset, (sources, targets) = present.dataset, ends
        source_type, target_type = dataset.schema.endpoints(edge_type)
        (low, high), keys = dataset.partitions.range(target_type, part), dataset.ids(source_type)
        base, before = present.since(edge_type, part)
        csc, gone, stays = base.csc(edge_type), before.gone, np.ones(before.came.shape[1], np.bool_)
        went = np.empty((2, 0), np.int64)
        if self.replaces or len(self.removed):
            gone = np.arange(len(csc.indices)) if self.replaces else np.flatnonzero(np.isin(csc.edge_ids, self.removed))
            stays &= not self.replaces and ~np.isin(before.columns["edge_ids"], self.removed)
            now = np.setdiff1d(gone, before.gone, assume_unique=True)
            of_base = np.stack([np.searchsorted(csc.indptr, now, side="right") - 1, csc.indices[now]])
            of_others = np.stack([before.came[0][~stays], before.columns["indices"][~stays]])
            went = np.concatenate([of_base, of_others], axis=1)
            gone = np.union1d(before.gone, gone)
        mine = np.flatnonzero((targets >= low) & (targets < high))
        rows, near = targets[mine] - low, sources[mine]
        came = np.stack([rows, _places(csc.indptr, csc.indices, keys, rows, keys[near])])
        edge_ids = (first + mine).astype(index_dtype(first + len(self)))
        new = {"indices": near.astype(csc.indices.dtype), "edge_ids": edge_ids}
        new |= {name: self.tables[name][mine] for name in dataset.schema.edge_tables[edge_type]}
        columns = {name: np.concatenate([before.columns[name][stays], array]) for name, array in new.items()}
        came = np.concatenate([before.came[:, stays], came], axis=1)
        order = np.lexsort((columns["edge_ids"], keys[columns["indices"]], came[0]))
        difference = EdgeDifference(came[:, order], {name: array[order] for name, array in columns.items()}, gone)
        both = np.concatenate([went, [rows, near]], axis=1)
        return base, difference, np.concatenate([both, [np.repeat([-1, 1], [went.shape[1], len(mine)])]])


@dataclass(frozen=True)
class NewUse:
    """Vertices of the room that come into use: ``ids`` int64 [n], the next ones."""

    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def write(self, present: Present, of: TableName, to: Path) -> Written:
        """Write which vertices come."""
        internal, files = np.sort(present.dataset.to_internal(of[0], self.ids)), dict[str, np.ndarray]()
        for part in range(present.dataset.partitions.num_parts):
            low, high = present.dataset.partitions.range(of[0], part)
            files[changed_file(part, of)] = internal[slice(*np.searchsorted(internal, [low, high]))] - low
        return Written(_write_files(to, files))


Changes = Mapping[TableName, NewRows | NewEdges | NewUse]
"""What a version changes."""


def _ends(present: Present, edge_type: str, added: Path) -> list[np.ndarray]:
    """User ids of the sources and targets of edges. In a graph folder these are rows of its vertices."""
    ends: list[np.ndarray] = [map_array(added / "src.npy"), map_array(added / "dst.npy")]
    if not (added.parent.parent / GRAPH).exists():
        return ends
    graph, types = Graph.open(added.parent.parent, verify=False), present.dataset.schema.endpoints(edge_type)
    return [_user_ids(present, graph, node_type, rows) for node_type, rows in zip(types, ends, strict=True)]


def _user_ids(present: Present, graph: Graph, node_type: str, rows: np.ndarray) -> np.ndarray:
    ids, there = present.identified(graph, node_type)
    if string_width(graph.schema, node_type) is not None and not there[rows].all():
        lost = to_strings(graph.table(node_type, NAME)[rows[~there[rows]][:1]])
        raise ConfigError(f"no vertex of {node_type!r} has the string id {str(lost[0])!r}: see atta update nodes")
    return np.asarray(ids[rows])


def _differ(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """bool [n]: which rows [n, ...] have other bits than their counterparts."""
    found, wanted = (np.ascontiguousarray(a).reshape(len(a), -1).view(np.uint8) for a in (rows, others))
    return np.asarray(np.not_equal(found, wanted).any(axis=1))


def _places(
    indptr: np.ndarray, indices: np.ndarray, keys: np.ndarray, rows: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Where in ``indices`` an edge of ``rows`` [n] whose source has the user id ``wanted`` [n] goes: int64 [n], after
    all of its row whose sources have at most this id. The new edge has the largest edge id, so it is last of these."""
    low: np.ndarray = indptr[rows].astype(np.int64)
    high: np.ndarray = indptr[rows + 1].astype(np.int64)
    while len(active := np.flatnonzero(low < high)):
        middle = (low[active] + high[active]) >> 1
        after = np.less_equal(keys[indices[middle]], wanted[active])
        low[active] = np.where(after, middle + 1, low[active])
        high[active] = np.where(after, high[active], middle)
    return low


def _write_files(to: Path, files: Mapping[str, np.ndarray]) -> list[str]:
    """Write arrays by the names of their files within ``to``; returns the names."""
    for name, array in files.items():
        write_array(to / name, array)
    return [*files]


def write_version(
    folder: VersionFolder, dataset: Dataset, changes: Changes, taken: Mapping[str, str] | None = None
) -> VersionFiles:
    """Write the version after the newest committed one. It counts when ``VersionFolder.commit`` says so. ``taken``: by folder,
    the updates that it has from there.

    All partitions must lie on this machine. What an update that was broken off has left is replaced. For callers within
    ``VersionFolder.updating``.

    Raises:
        ConfigError: the rows are not of this table, or the edges do not fit.
        DataError: a file cannot be read or written.
        DiskFullError: there is no space left.
    """
    present, numbers = Present.of(folder, dataset), folder.numbers()
    number = 1 + max((n for n in numbers if (folder.place(n) / COMMITTED).exists()), default=0)
    came = {of[0]: len(new) for of, new in changes.items() if isinstance(new, NewUse)}
    used = {**present.used, **{t: present.used.get(t, 0) + count for t, count in came.items()}}
    present = replace(present, dataset=dataset.with_used(used))
    with Staging(folder.place(number), MANIFEST, overwrite=True) as staging:
        written = {of: new.write(present, of, staging.path) for of, new in changes.items()}
        edge_ids = {**present.edge_ids}
        bases = {t: base for t, base in present.bases.items() if (t, EDGES) not in changes}
        for one in written.values():
            edge_ids, bases = {**edge_ids, **one.edge_ids}, {**bases, **one.bases}
        files = {name: describe_file(staging.path / name) for one in written.values() for name in one.names}
        value = {
            "format": FORMAT,
            "version": VERSION,
            "number": number,
            "id": secrets.token_hex(8),
            "dataset_id": dataset.dataset_id,
            "sources": {
                f"{t}/{n}": source for (t, n), source in {**present.sources, **dict.fromkeys(changes, number)}.items()
            },
            "edge_ids": edge_ids,
            "bases": bases,
            "taken": {**present.taken, **{at: (name, number) for at, name in (taken or {}).items()}},
            "used": used,
            "files": {name: record.to_json() for name, record in files.items()},
        }
        write_sealed(staging.path / MANIFEST, value)
    return folder.read(number)
