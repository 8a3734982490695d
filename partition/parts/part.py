"""One partition on disk: its in-edges, tables and HALO list, memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError, UnknownNameError
from atta.partition.names import edge_folder, node_folder
from atta.partition.schema import Schema

__all__ = ["CSC", "Part", "part_folder"]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


def part_folder(part: int) -> str:
    """Return the folder name of a partition."""
    return f"part-{part:04d}"


@dataclass(frozen=True)
class CSC:
    """In-neighbours of a partition's core vertices for one edge type, memory-mapped.

    Attributes:
        indptr: int64 [core+1]; the in-neighbours of core row i are at ``indptr[i]:indptr[i+1]``.
        indices: int32 or int64 [E], internal ids of the sources, ordered by (user id, edge id) within a row.
        edge_ids: int32 or int64 [E], the users' edge ids.
        weight: [E] or None.
        time: [E] or None.
    """

    indptr: Ids
    indices: Array
    edge_ids: Array
    weight: Array | None = None
    time: Array | None = None


class Part:
    """One partition. Arrays are memory-mapped at their first use, and the mapping is kept."""

    def __init__(
        self, dataset: Path, index: int, map_file: Callable[[Path], Array], schema: Schema, core: Mapping[str, int]
    ) -> None:
        """``dataset``: its folder; ``map_file`` maps one of its files; ``core``: number of core vertices by type."""
        self.index = index
        self.path = dataset / part_folder(index)
        self._map, self._schema, self._core = map_file, schema, core
        self._csc: dict[str, CSC] = {}
        self._tables: dict[tuple[str, str], Array] = {}

    def num_core(self, node_type: str) -> int:
        """Return the number of core vertices of a node type."""
        return self._core[self._schema.check_node_type(node_type)]

    def csc(self, edge_type: str) -> CSC:
        """Return the in-edges of the core vertices; raises UnknownNameError or DataError."""
        if edge_type not in self._csc:
            self._csc[edge_type] = self._open_csc(edge_type)
        return self._csc[edge_type]

    def _open_csc(self, edge_type: str) -> CSC:
        folder = self.path / edge_folder(self._schema.check_edge_type(edge_type))
        indptr, indices = self._map(folder / "indptr.npy"), self._map(folder / "indices.npy")
        if indptr[0] != 0 or indptr[-1] != len(indices):
            raise DataError(folder / "indptr.npy", f"does not end at the {len(indices)} edges of this partition")
        known = self._schema.edge_tables[edge_type]
        tables = {name: self._map(folder / f"{name}.npy") for name in ("weight", "time") if name in known}
        return CSC(indptr, indices, self._map(folder / "edge_ids.npy"), tables.get("weight"), tables.get("time"))

    def table(self, node_type: str, name: str) -> Array:
        """Return the rows [core, *row_shape] of a table in internal order; raises UnknownNameError or DataError."""
        key = node_type, name
        if key not in self._tables:
            self._schema.table(node_type, name)
            self._tables[key] = self._map(self.path / node_folder(node_type) / f"{name}.npy")
        return self._tables[key]

    def edge_table(self, edge_type: str, name: str) -> Array:
        """Return the rows [E, *row_shape] of an edge table in the order of ``csc(edge_type).indices``; errors as
        ``table``."""
        tables = self._schema.edge_tables[self._schema.check_edge_type(edge_type)]
        if name not in tables:
            raise UnknownNameError.of(f"table of edge type {edge_type!r}:", name, tables)
        return self._map(self.path / edge_folder(edge_type) / f"{name}.npy")

    def halo(self, node_type: str) -> Array:
        """Return the ascending internal ids (int64) of in-neighbours that other partitions own."""
        return self._map(self.path / node_folder(self._schema.check_node_type(node_type)) / "halo.npy")
