"""Tables of one partition: gather rows by position, bounded and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError, UnknownNameError
from atta.samplers import kernels

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset

__all__ = ["Store", "Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """A named table's rows on this partition: ``data`` [core rows, *row_shape], read-only and memory-mapped."""

    node_type: str
    name: str
    data: np.ndarray

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.data.dtype.itemsize * int(np.prod(self.data.shape[1:], dtype=np.int64))


class Store:
    """This daemon's shard of every table."""

    def __init__(self, dataset: Dataset, part: int, *, threads: int = 1) -> None:
        self.part = part
        self.threads = threads
        shard = dataset.part(part)
        self._tables = {
            (node_type, name): Table(node_type, name, shard.table(node_type, name))
            for node_type, tables in dataset.schema.node_tables.items()
            for name in tables
        }

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def table(self, node_type: str, name: str) -> Table:
        """The table, or UnknownNameError with the nearest name that exists."""
        found = self._tables.get((node_type, name))
        if found is None:
            raise UnknownNameError.of("table", f"{node_type}/{name}", (f"{t}/{n}" for t, n in self._tables))
        return found

    def gather(self, node_type: str, name: str, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy ``rows`` (positions in this partition's range, int32|int64) of a table into ``out`` [len(rows), *row_shape].

        Raises:
            ConfigError: a row outside the partition.
        """
        self._call(node_type, name, rows, out, None)

    def gather_to(self, node_type: str, name: str, rows: np.ndarray, out: np.ndarray, positions: np.ndarray) -> None:
        """Like ``gather``, but row i lands at ``out[positions[i]]``: rows of several owners interleave in a batch."""
        self._call(node_type, name, rows, out, positions)

    def _call(self, node_type: str, name: str, rows: np.ndarray, out: np.ndarray, positions: np.ndarray | None) -> None:
        table = self.table(node_type, name)
        try:
            kernels.gather_rows(table.data, rows, out, positions=positions, threads=self.threads)
        except ValueError as error:
            raise ConfigError(f"part {self.part}, table {node_type}/{name}: {error}") from error
