"""The vertices that edges name: their ids, and the numbers that stand for them while the edges are read.

Integers get the rows of their order, so rows do not depend on the order of the edges. Strings get rows in the order in
which they first come.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.common import name_bytes

__all__ = ["FoundVertices", "IntegerVertices", "StringVertices"]

Numbers = npt.NDArray[np.int32]


class FoundVertices(Protocol):
    """The ids of one node type."""

    def __len__(self) -> int:
        """Number of different ids."""

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """A number for each id of the Arrow arrays ``columns``, which stand side by side in lines."""

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        """Declare the node type, and return the row of each number; None: the numbers are the rows."""


class IntegerVertices:
    """Ids that are integers."""

    def __init__(self) -> None:
        self._known = _native.Numbering()

    def __len__(self) -> int:
        return len(self._known.ids())

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """As FoundVertices says; raises DataError if there are more than 2**31 - 1 ids."""
        try:
            return [self._known.number(column.to_numpy()) for column in columns]
        except ValueError as error:
            raise DataError(where, str(error)) from None

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        """As FoundVertices says."""
        ids = self._known.ids()
        order = np.argsort(ids)
        out.add_nodes(node_type, len(ids), ids=ids[order])
        rows = np.empty(len(ids), np.int32)
        rows[order] = np.arange(len(ids), dtype=np.int32)
        return rows


class StringVertices:
    """Ids that are strings. They become the table ``name``."""

    def __init__(self) -> None:
        import pyarrow as pa

        self.known = pa.array([], pa.large_string())

    def __len__(self) -> int:
        return len(self.known)

    def numbers(self, where: Path, columns: list[Any]) -> list[Numbers]:
        """As FoundVertices says."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count, width = len(columns[0]), len(columns)
        by_line = np.arange(count * width).reshape(width, count).T.reshape(-1)
        coded = pa.concat_arrays(columns).take(pa.array(by_line)).dictionary_encode()
        here = coded.dictionary.cast(pa.large_string())
        found = pc.index_in(here, value_set=self.known)
        fresh = here.filter(pc.is_null(found))
        number = found.fill_null(-1).to_numpy().copy()
        number[number < 0] = len(self.known) + np.arange(len(fresh))
        self.known = pa.concat_arrays([self.known, fresh])
        lines = number.astype(np.int32)[coded.indices.to_numpy()].reshape(count, width)
        return [np.ascontiguousarray(lines[:, side]) for side in range(width)]

    def add_nodes(self, out: GraphWriter, where: Path, node_type: str) -> Numbers | None:
        """As FoundVertices says; raises DataError for a string that is too long."""
        out.add_nodes(node_type, len(self.known))
        out.add_table(NAME, name_bytes(where, self.known.to_pylist()), node_type)
        return None
