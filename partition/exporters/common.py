"""Helpers of the exporters: tables that a format would lose, masks of splits, rows in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from atta.observe.packages import load
from atta.partition.disk.files import chunks
from atta.partition.graph import Graph
from atta.partition.importers.reading.source import Array, Mask
from atta.partition.schema import Schema, TableSpec

_CHUNK_BYTES = 32 << 20
_CHUNK_ROWS = 1 << 18


def lost_tables(
    schema: Schema, node: Callable[[str, str, TableSpec], bool], edge: Callable[[str, str, TableSpec], bool]
) -> list[str]:
    """Name the tables that the format cannot hold. ``node`` and ``edge`` get type, name and spec and decide."""
    return [
        f"the {kind} table {name!r} of {owner!r} ({spec.dtype}{list(spec.row_shape)})"
        for kind, held, owners in (("node", node, schema.node_tables), ("edge", edge, schema.edge_tables))
        for owner, tables in owners.items()
        for name, spec in tables.items()
        if not held(owner, name, spec)
    ]


def lost_edge_types(schema: Schema) -> list[str]:
    """Report a graph without edge types, for formats that need edges."""
    return [] if schema.edge_types else ["a graph without edge types"]


def lost_classes(graph: Graph) -> list[str]:
    """Report a number of classes other than the highest label + 1, for formats that hold labels only."""
    schema = graph.schema
    told: int | None = None
    for t in schema.node_types:
        spec = schema.node_tables[t].get("y")
        if spec is not None and spec.row_shape in ((), (1,)) and np.dtype(spec.dtype).kind in "biu":
            told = max(told or 0, int(graph.table(t, "y").max(initial=-1)) + 1)
    if schema.num_classes is None or schema.num_classes == told:
        return []
    return [f"the number of classes, {schema.num_classes} (its labels tell of {told or 0})"]


def row_chunks(rows: int, *tables: Array) -> Iterator[tuple[int, int]]:
    """Ranges of rows. The rows of a range take a bounded amount of memory in all ``tables`` together."""
    row_bytes = sum(t.dtype.itemsize * prod(t.shape[1:]) for t in tables)
    return chunks(rows, min(_CHUNK_ROWS, max(1, _CHUNK_BYTES // max(1, row_bytes))))


def split_mask(rows: Array, lo: int, hi: int) -> Mask:
    """Turn the ascending ``rows`` of a split into a mask [hi - lo] of the rows ``lo`` to ``hi``."""
    mask = np.zeros(hi - lo, np.bool_)
    first, last = np.searchsorted(rows, (lo, hi))
    mask[rows[first:last] - lo] = True
    return mask


def torch_holds(spec: TableSpec) -> bool:
    """Whether torch has tensors of the table's dtype."""
    try:
        load("exporting tensors", "torch").from_numpy(np.empty(0, spec.dtype))
    except TypeError:
        return False
    return True


def tensor_of(array: Array) -> Any:
    """A tensor over an array that may be read-only: it is only saved."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        return load("exporting tensors", "torch").from_numpy(array)
