"""Several consecutive partitions that are read as one.

Every partition owns one range of internal ids per node type. So the ranges of consecutive partitions make one range,
and their arrays, one after another, are those of a partition that owns all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.partition.parts.book import PartitionBook
from atta.partition.parts.part import CSC, Part
from atta.partition.schema import Schema

__all__ = ["JoinedPart", "Parts", "joined_book"]

Array = npt.NDArray[Any]
Parts = tuple[range, ...]
"""The partitions of each owner: ranges without gaps between them."""


def joined_book(book: PartitionBook, groups: Sequence[range]) -> PartitionBook:
    """The ranges that ``groups`` of consecutive partitions own.

    Raises:
        ConfigError: the groups are not all partitions, each once and in order.
    """
    if not all(groups) or [*chain(*groups)] != [*range(book.num_parts)]:
        named = ", ".join(map(_named, groups))
        raise ConfigError(
            f"partitions {named} are named for the daemons; these must be 0 to {book.num_parts - 1}, in order and each once"
        )
    firsts = [group.start for group in groups] + [book.num_parts]
    return PartitionBook({t: offsets[firsts] for t, offsets in book.offsets.items()})


def _named(group: range) -> str:
    return str(group.start) if len(group) == 1 else f"{group.start}-{group.stop - 1}"


class JoinedPart:
    """Consecutive partitions as one ``Part``.

    Arrays are copied into memory, one after another, at their first use: files cannot be mapped so that the rows of one
    follow those of another. They lie on huge pages where the system gives them.
    """

    def __init__(
        self, parts: Sequence[Part], index: int, schema: Schema, ranges: Mapping[str, tuple[int, int]]
    ) -> None:
        """``ranges``: the internal ids [lo, hi) that the partitions own together, by node type."""
        self.index = index
        self._parts, self._schema, self._ranges = list(parts), schema, ranges
        self._csc: dict[str, CSC] = {}
        self._loaded: dict[tuple[str, str, str], Array] = {}

    def num_core(self, node_type: str) -> int:
        """See ``Part.num_core``."""
        lo, hi = self._ranges[self._schema.check_node_type(node_type)]
        return hi - lo

    def csc(self, edge_type: str) -> CSC:
        """See ``Part.csc``."""
        if edge_type not in self._csc:
            of_parts = [part.csc(edge_type) for part in self._parts]
            known = self._schema.edge_tables[edge_type]
            tables = {name: self.edge_table(edge_type, name) for name in ("weight", "time") if name in known}
            self._csc[edge_type] = CSC(
                _row_bounds([csc.indptr for csc in of_parts]),
                _concatenated([csc.indices for csc in of_parts]),
                _concatenated([csc.edge_ids for csc in of_parts]),
                **tables,
            )
        return self._csc[edge_type]

    def table(self, node_type: str, name: str) -> Array:
        """See ``Part.table``."""
        key = "nodes", node_type, name
        if key not in self._loaded:
            self._loaded[key] = _concatenated([part.table(node_type, name) for part in self._parts])
        return self._loaded[key]

    def edge_table(self, edge_type: str, name: str) -> Array:
        """See ``Part.edge_table``."""
        key = "edges", edge_type, name
        if key not in self._loaded:
            self._loaded[key] = _concatenated([part.edge_table(edge_type, name) for part in self._parts])
        return self._loaded[key]

    def halo(self, node_type: str) -> Array:
        """In-neighbours that none of these partitions owns."""
        key = "halo", node_type, ""
        if key not in self._loaded:
            near = np.unique(np.concatenate([part.halo(node_type) for part in self._parts]))
            lo, hi = self._ranges[node_type]
            self._loaded[key] = near[(near < lo) | (near >= hi)]
        return self._loaded[key]


def _row_bounds(of_parts: Sequence[Array]) -> npt.NDArray[np.int64]:
    """The ``indptr`` of edges that lie one after another: int64 [rows + 1]."""
    bounds = _empty(1 + sum(len(indptr) - 1 for indptr in of_parts), np.dtype(np.int64))
    bounds[0] = row = edge = 0
    for indptr in of_parts:
        np.add(indptr[1:], edge, out=bounds[row + 1 : row + len(indptr)])
        row, edge = row + len(indptr) - 1, edge + int(indptr[-1])
    return bounds


def _concatenated(of_parts: Sequence[Array]) -> Array:
    first = of_parts[0]
    rows = sum(map(len, of_parts))
    out = _empty((rows, *first.shape[1:]), np.result_type(*of_parts))
    np.concatenate(of_parts, out=out)
    return out


def _empty(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array: Array = np.empty(shape, dtype)
    _native.advise_huge(array.reshape(-1).view(np.uint8)[:, None])  # the native call takes rows of bytes
    return array
