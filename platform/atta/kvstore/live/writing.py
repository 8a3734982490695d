"""Writes the next version of a table beside the dataset. Rows go from file to file; memory holds a piece of them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atta.errors import ConfigError
from atta.kvstore.live.book import DATASET, TableName
from atta.kvstore.live.folder import COMMITTED, FORMAT, MANIFEST, VERSION, VersionFiles, VersionFolder, table_file
from atta.partition.dataset import Dataset
from atta.partition.disk.files import NpyAppender, chunks, describe_file, map_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph.strings import NAME

__all__ = ["NewRows", "find_table", "write_version"]

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


def write_version(folder: VersionFolder, dataset: Dataset, table: TableName, new: NewRows) -> VersionFiles:
    """Write the version after the newest committed one. It counts when ``VersionFolder.commit`` says so.

    All partitions must lie on this machine. What an update that was broken off has left is replaced. For callers within
    ``VersionFolder.updating``.

    Raises:
        ConfigError: the rows are not of this table.
        DataError: a file cannot be read or written. DiskFullError: there is no space left.
    """
    committed, numbers = folder.committed(), folder.numbers()
    before = committed[max(committed)].sources if committed else DATASET
    newest = max((n for n in numbers if (folder.place(n) / COMMITTED).exists()), default=0)
    number, at = newest + 1, new.positions(dataset, table)
    with Staging(folder.place(number), MANIFEST, overwrite=True) as staging:
        files = {}
        for part in range(dataset.partitions.num_parts):
            name = table_file(part, *table)
            path = staging.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_part(path, folder, dataset, (table, before.get(table, 0)), part=part, new=(new.rows, at))
            files[name] = describe_file(path)
        value = {
            "format": FORMAT,
            "version": VERSION,
            "number": number,
            "id": secrets.token_hex(8),
            "dataset_id": dataset.dataset_id,
            "sources": {f"{t}/{n}": source for (t, n), source in {**before, table: number}.items()},
            "files": {name: record.to_json() for name, record in files.items()},
        }
        write_sealed(staging.path / MANIFEST, value)
    return folder.read(number)


def _write_part(
    path: Path,
    folder: VersionFolder,
    dataset: Dataset,
    old: tuple[TableName, int],
    *,
    part: int,
    new: tuple[np.ndarray, np.ndarray],
) -> None:
    """The rows of one partition: new ones where there are, else those of the version before."""
    (table, source), (rows, at) = old, new
    spec = dataset.schema.table(*table)
    low, high = dataset.partitions.range(table[0], part)
    kept = None
    if np.any(at[low:high] < 0):
        kept = folder.load(dataset, part, table, source) if source else dataset.part(part).table(*table)
    step = max(1, PIECE_BYTES // max(1, spec.row_bytes))
    with NpyAppender(path, spec.dtype, spec.row_shape) as out:
        for first, stop in chunks(high - low, step):
            places = at[low + first : low + stop]
            piece = np.empty((stop - first, *spec.row_shape), spec.dtype) if kept is None else kept[first:stop].copy()
            chosen = np.flatnonzero(places >= 0)
            order = np.argsort(places[chosen], kind="stable")  # files are read forwards
            piece[chosen[order]] = rows[places[chosen[order]]]
            out.append(piece)
