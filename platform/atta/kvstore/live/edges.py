"""New edges of a dataset: added to those that there are, taken from them, or in the place of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError, DataError
from atta.kvstore.live.folder import VersionFolder, version_part
from atta.partition.dataset import Dataset, Part, part_folder
from atta.partition.disk.files import map_array, write_array
from atta.partition.graph.part import GraphDegrees, degree_folder, edges_of_parts
from atta.partition.graph.reading import index_dtype
from atta.partition.names import edge_folder
from atta.samplers.batch.items import EDGES

if TYPE_CHECKING:
    from atta.kvstore.live.book import TableName


def _no_ids() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def find_edges(dataset: Dataset, edge_type: str | None) -> TableName:
    """What versions call the edges of a type; None: of the only type that there is.

    Raises:
        UnknownNameError: there is none of this name. ConfigError: there are several, and none is named.
    """
    types = dataset.schema.edge_types
    if edge_type is None and len(types) != 1:
        raise ConfigError(f"the dataset has edge types {', '.join(types)}: say which one")
    return dataset.schema.find_edge_type(types[0] if edge_type is None else edge_type), EDGES


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
        cls, dataset: Dataset, edge_type: str, added: Path | None, removed: Path | None, *, replaces: bool = False
    ) -> NewEdges:
        """``added``: a folder with ``src.npy``, ``dst.npy`` and a file for each edge table; ``removed``: a file of ids.

        Raises:
            DataError: a file is missing, no array, or of no edge table. ConfigError: nothing is given, or what is given
                contradicts itself.
        """
        if added is None and removed is None:
            raise ConfigError("neither edges to add nor edges to remove are given")
        if replaces and (added is None or removed is not None):
            raise ConfigError("to replace all edges, give those that take their place, and no ids to remove")
        gone = _no_ids() if removed is None else map_array(removed)
        if added is None:
            spec = dataset.schema.edge_tables[edge_type]
            none = {name: np.empty((0, *table.row_shape), table.dtype) for name, table in spec.items()}
            return cls(tables=none, removed=gone)
        known = dataset.schema.edge_tables[edge_type]
        for path in sorted(added.glob("*.npy")):
            if path.stem not in ("src", "dst", *known):
                raise DataError(path, f"not an edge table of {edge_type}; there are: {', '.join(known) or 'none'}")
        tables = {name: map_array(added / f"{name}.npy") for name in known}
        return cls(map_array(added / "src.npy"), map_array(added / "dst.npy"), tables, gone, replaces)

    def __len__(self) -> int:
        """Number of edges that are added."""
        return len(self.sources)

    def prepared(self, folder: VersionFolder, dataset: Dataset, of: TableName, source: int) -> EdgeWriter:
        """What writes the edges of each partition. ``source``: the version that has brought the present ones; 0: the
        dataset.

        Raises:
            ConfigError: a table does not fit, a vertex or an edge that is to go does not exist.
            DataError: the present edges cannot be read.
        """
        edge_type, schema = of[0], dataset.schema
        for name, ids in (("src.npy", self.sources), ("dst.npy", self.targets), ("ids of edges", self.removed)):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise ConfigError(f"{name} is {ids.dtype}{list(ids.shape)}, must be a row of integers")
        if len(self.sources) != len(self.targets):
            raise ConfigError(f"{len(self.sources)} sources and {len(self.targets)} targets of edges")
        for name, spec in schema.edge_tables[edge_type].items():
            rows, wanted = self.tables[name], (spec.dtype, (len(self), *spec.row_shape))
            if (rows.dtype.str, rows.shape) != wanted:
                raise ConfigError(
                    f"{name}.npy is {rows.dtype.str}{list(rows.shape)}, must be {wanted[0]}{list(wanted[1])}"
                )
        ends = [
            dataset.to_internal(t, ids)
            for t, ids in zip(schema.endpoints(edge_type), (self.sources, self.targets), strict=True)
        ]
        first = 0 if self.replaces else folder.edge_ids(edge_type, source) if source else schema.edge_counts[edge_type]
        writer = EdgeWriter(self, folder, dataset, edge_type, source, ends[0], ends[1], first)
        writer.check_removed()
        return writer


@dataclass(frozen=True)
class EdgeWriter:
    """Writes the edges of a version, partition by partition: memory holds those of one.

    Attributes:
        sources, targets: int64, internal ids.
        first: the id of the first edge that is added; the others follow.
    """

    new: NewEdges
    folder: VersionFolder
    dataset: Dataset
    edge_type: str
    source: int
    sources: np.ndarray
    targets: np.ndarray
    first: int

    @property
    def edge_ids(self) -> Mapping[str, int]:
        """By edge type, one more than the largest edge id so far."""
        return {self.edge_type: self.first + len(self.new)}

    def check_removed(self) -> None:
        """Raise ConfigError if an edge that is to go does not exist, or is named twice."""
        wanted = np.sort(self.new.removed)
        if len(wanted) and np.any(wanted[1:] == wanted[:-1]):
            raise ConfigError(f"edge {wanted[:-1][wanted[1:] == wanted[:-1]][0]} is to be removed twice")
        missing = np.ones(len(wanted), dtype=bool)
        for part in range(self.dataset.num_parts) if len(wanted) else ():
            ids = np.asarray(self._present(part).csc(self.edge_type).edge_ids)
            at = np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)
            missing[at[wanted[at] == ids]] = False
        if missing.any():
            raise ConfigError(f"edge {wanted[missing][0]} of {self.edge_type}, to be removed, does not exist")

    def write(self, part: int, to: Path) -> list[str]:
        """Write the files of one partition into the folder ``to``; returns their names there.

        Raises:
            DataError: a file cannot be read or written.
        """
        low, high = self.dataset.partitions.range(self.dataset.schema.endpoints(self.edge_type)[1], part)
        present, ids_dtype = self._present(part), index_dtype(self.first + len(self.new))
        csc, tables = present.csc(self.edge_type), self.dataset.schema.edge_tables[self.edge_type]
        indptr = np.asarray(csc.indptr)
        old = {"indices": csc.indices, "edge_ids": csc.edge_ids.astype(ids_dtype, copy=False)}
        old |= {name: present.edge_table(self.edge_type, name) for name in tables}
        if self.new.replaces:
            indptr, old = np.zeros_like(indptr), {name: array[:0] for name, array in old.items()}
        elif len(self.new.removed):
            stays = ~np.isin(csc.edge_ids, self.new.removed)
            indptr = np.concatenate([[0], np.cumsum(stays)])[indptr]
            old = {name: array[stays] for name, array in old.items()}
        mine = np.flatnonzero((self.targets >= low) & (self.targets < high))
        rows, sources = self.targets[mine] - low, self.sources[mine]
        keys = self.dataset.ids(self.dataset.schema.endpoints(self.edge_type)[0])
        order = np.lexsort((mine, keys[sources], rows))  # their ids ascend as they do
        mine, rows, sources = mine[order], rows[order], sources[order]
        at = _places(indptr, old["indices"], keys, rows, keys[sources])
        added = {"indices": sources, "edge_ids": self.first + mine, **{n: self.new.tables[n][mine] for n in tables}}
        merged = {name: np.insert(array, at, added[name].astype(array.dtype), axis=0) for name, array in old.items()}
        degrees = np.bincount(rows, minlength=high - low)
        merged["indptr"] = (indptr + np.concatenate([[0], np.cumsum(degrees)])).astype(np.int64)
        folder = f"{part_folder(part)}/{edge_folder(self.edge_type)}"
        (to / folder).mkdir(parents=True, exist_ok=True)
        for name, array in merged.items():
            write_array(to / folder / f"{name}.npy", array)
        return [f"{folder}/{name}.npy" for name in merged]

    def write_shared(self, to: Path) -> list[str]:
        """Write how many edges each vertex has now, of what ``write`` has written of all partitions; returns the files' names.

        Raises:
            DataError: a file cannot be read or written.
        """
        dataset, schema = self.dataset, self.dataset.schema
        parts = (version_part(dataset, to, part, map_array) for part in range(dataset.partitions.num_parts))
        edges = edges_of_parts(parts, dataset.partitions, schema, self.edge_type)
        files = GraphDegrees.counted(edges, schema, self.edge_type).files(degree_folder(self.edge_type))
        (to / degree_folder(self.edge_type)).mkdir(parents=True, exist_ok=True)
        for name, array in files.items():
            write_array(to / name, array)
        return [*files]

    def _present(self, part: int) -> Part:
        if not self.source:
            return self.dataset.part(part)
        return self.folder.edges(self.dataset, part, self.source)


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
