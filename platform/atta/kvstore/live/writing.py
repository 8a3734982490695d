"""Writes the next version of a table, or of edges, beside the dataset. Rows go from file to file; memory holds a piece
of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from atta.errors import ConfigError
from atta.kvstore.live.book import DATASET, TableName
from atta.kvstore.live.edges import NewEdges
from atta.kvstore.live.folder import COMMITTED, FORMAT, MANIFEST, VERSION, VersionFiles, VersionFolder, table_file
from atta.partition.dataset import Dataset
from atta.partition.disk.files import NpyAppender, chunks, describe_file, map_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph.strings import NAME

PIECE_BYTES = 16 << 20
"""About so many bytes of rows are in memory at a time."""


@dataclass(frozen=True)
class NewRows:
    """Rows that take the place of a table's.

    Attributes:
        rows: [n, *row_shape], mapped.
        ids: int64 [n], the user ids of their vertices; None: one row for each vertex, by ascending user id.
    """

    rows: np.ndarray
    ids: np.ndarray | None

    @classmethod
    def open(cls, path: Path, name: str) -> NewRows:
        """A file of all rows, or a folder with ``NAME.npy`` and perhaps ``ids.npy``, as in a graph folder.

        Raises:
            DataError: a file is missing or no array.
        """
        if not path.is_dir():
            return cls(map_array(path), None)
        ids = map_array(path / "ids.npy") if (path / "ids.npy").exists() else None
        return cls(map_array(path / f"{name}.npy"), ids)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def prepared(self, folder: VersionFolder, dataset: Dataset, of: TableName, source: int) -> RowWriter:
        """What writes the rows of each partition. ``source``: the version that has brought the present ones; 0: the
        dataset. Errors as ``positions``."""
        return RowWriter(self, self.positions(dataset, of), folder, dataset, of, source)

    def positions(self, dataset: Dataset, table: TableName) -> np.ndarray:
        """Where the row of each internal id is: int64 [vertices], -1 where a vertex keeps its row.

        Raises:
            ConfigError: the rows are not of this table, or name a vertex twice or one that does not exist.
        """
        node_type, name = table
        spec, count = dataset.schema.table(*table), dataset.schema.node_counts[node_type]
        found, wanted = (self.rows.dtype.str, self.rows.shape[1:]), (spec.dtype, spec.row_shape)
        if found != wanted:
            raise ConfigError(
                f"rows are {found[0]}{list(found[1])}, table {node_type}/{name} has {wanted[0]}{list(wanted[1])}"
            )
        at = np.full(count, -1, dtype=np.int64)
        if self.ids is None:
            if len(self.rows) != count:
                raise ConfigError(
                    f"{len(self.rows)} rows for {count} vertices of {node_type}: give one for each, or a folder with "
                    f"ids.npy and {name}.npy"
                )
            at[dataset.sorted_internal(node_type)] = np.arange(count)
            return at
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iu" or len(self.ids) != len(self.rows):
            raise ConfigError(f"ids.npy is {self.ids.dtype}{list(self.ids.shape)}, must be one integer for each row")
        internal = dataset.to_internal(node_type, self.ids)
        at[internal] = np.arange(len(internal))
        if int((at >= 0).sum()) != len(internal):
            raise ConfigError(f"ids.npy names a vertex of {node_type} twice")
        return at


def find_table(dataset: Dataset, name: str) -> TableName:
    """The table with this name, ``TABLE`` or ``NODETYPE/TABLE``.

    Raises:
        UnknownNameError: there is none.
        ConfigError: several node types have one, or it holds the vertices' string ids.
    """
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


def write_version(folder: VersionFolder, dataset: Dataset, of: TableName, new: NewRows | NewEdges) -> VersionFiles:
    """Write the version after the newest committed one. It counts when ``VersionFolder.commit`` says so. ``of``: the
    table, or the edges, that change.

    All partitions must lie on this machine. What an update that was broken off has left is replaced. For callers within
    ``VersionFolder.updating``.

    Raises:
        ConfigError: the rows are not of this table, or the edges do not fit.
        DataError: a file cannot be read or written. DiskFullError: there is no space left.
    """
    committed, numbers = folder.committed(), folder.numbers()
    latest = committed[max(committed)] if committed else None
    before, ids = (DATASET, {}) if latest is None else (latest.sources, latest.edge_ids)
    newest = max((n for n in numbers if (folder.place(n) / COMMITTED).exists()), default=0)
    number, writer = newest + 1, new.prepared(folder, dataset, of, before.get(of, 0))
    with Staging(folder.place(number), MANIFEST, overwrite=True) as staging:
        parts = range(dataset.partitions.num_parts)
        names = [*chain(*(writer.write(part, staging.path) for part in parts)), *writer.write_shared(staging.path)]
        files = {name: describe_file(staging.path / name) for name in names}
        value = {
            "format": FORMAT,
            "version": VERSION,
            "number": number,
            "id": secrets.token_hex(8),
            "dataset_id": dataset.dataset_id,
            "sources": {f"{t}/{n}": source for (t, n), source in {**before, of: number}.items()},
            "edge_ids": {**ids, **writer.edge_ids},
            "files": {name: record.to_json() for name, record in files.items()},
        }
        write_sealed(staging.path / MANIFEST, value)
    return folder.read(number)


@dataclass(frozen=True)
class RowWriter:
    """Writes the rows of a version, partition by partition: new ones where there are, else those of the version
    ``source``. ``at`` as from ``NewRows.positions``."""

    new: NewRows
    at: np.ndarray
    folder: VersionFolder
    dataset: Dataset
    table: TableName
    source: int

    @property
    def edge_ids(self) -> Mapping[str, int]:
        """Rows bring no edges."""
        return {}

    def write(self, part: int, to: Path) -> list[str]:
        """Write the file of one partition into the folder ``to``; returns its name there.

        Raises:
            DataError: a file cannot be read or written.
        """
        name, spec = table_file(part, *self.table), self.dataset.schema.table(*self.table)
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        low, high = self.dataset.partitions.range(self.table[0], part)
        kept = self._kept(part) if np.any(self.at[low:high] < 0) else None
        step = max(1, PIECE_BYTES // max(1, spec.row_bytes))
        with NpyAppender(to / name, spec.dtype, spec.row_shape) as out:
            for first, stop in chunks(high - low, step):
                places = self.at[low + first : low + stop]
                shape = (stop - first, *spec.row_shape)
                piece = np.empty(shape, spec.dtype) if kept is None else kept[first:stop].copy()
                chosen = np.flatnonzero(places >= 0)
                order = np.argsort(places[chosen], kind="stable")  # files are read forwards
                piece[chosen[order]] = self.new.rows[places[chosen[order]]]
                out.append(piece)
        return [name]

    def write_shared(self, to: Path) -> list[str]:
        """See ``EdgeWriter``: rows belong to partitions."""
        return []

    def _kept(self, part: int) -> np.ndarray:
        if self.source:
            return self.folder.load(self.dataset, part, self.table, self.source)
        return self.dataset.part(part).table(*self.table)
