"""Writes tables that are read block by block into a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.common import add_features
from atta.partition.importers.reading.edges import EdgeStream
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows
from atta.partition.importers.reading.stated import as_masks
from atta.partition.schema import TableSpec

__all__ = ["add_edge_rows", "add_node_rows", "as_labels"]

Array = npt.NDArray[Any]


def add_node_rows(  # noqa: PLR0917 - the table, and where it goes
    out: GraphWriter, node_type: str, name: str, rows: FileRows, table: str, options: ImportOptions
) -> None:
    """Write ``rows``, which the source calls ``name``, as the table ``table`` of a node type.

    ``x`` become features, ``y`` labels, and ``NAME_mask`` splits. Raises DataError if it has not a row for each vertex.
    """
    _check_count(rows, f"{name!r} of {node_type!r}", out.count(node_type), "vertices")
    if table == "x":
        add_features(out, _InTurn(rows, out.count(node_type)), node_type, options)
    elif table == "y":
        out.add_labels(as_labels(rows.whole()), node_type)
    elif table.endswith("_mask"):
        for split, mask in as_masks(
            rows.path, f"{name!r}", table.removesuffix("_mask"), _squeezed(rows.whole())
        ).items():
            out.add_split(split, mask, node_type)
    else:
        shape = () if rows.row_shape == (1,) else rows.row_shape
        sink = out.open_table(table, rows.dtype, shape, node_type)
        for block in rows.blocks():
            sink.append(block.reshape(-1, *shape))


class _InTurn:
    """A matrix [n, ...] whose rows are asked for in turn. Its slices are dense; like scipy's they have ``toarray``."""

    def __init__(self, rows: FileRows, count: int) -> None:
        self.dtype, self.shape = rows.dtype, (count, *rows.row_shape)
        self._path, self._pieces, self._kept = rows.path, rows.pieces(), np.empty((0, *rows.row_shape), rows.dtype)
        self._left = count

    def __getitem__(self, span: slice) -> _Dense:
        """The next rows; raises DataError if there are too few, or more behind the last."""
        wanted, found = (span.stop or 0) - (span.start or 0), [self._kept]
        while sum(map(len, found)) < wanted and (piece := next(self._pieces, None)) is not None:
            found.append(piece)
        rows = np.concatenate(found)
        self._kept, self._left = rows[wanted:], self._left - wanted
        if len(rows) < wanted or (not self._left and (len(self._kept) or next(self._pieces, None) is not None)):
            raise DataError(self._path, f"has not one row for each of the {self.shape[0]} vertices")
        return rows[:wanted].view(_Dense)


class _Dense(np.ndarray[Any, np.dtype[Any]]):
    def toarray(self) -> Array:
        return np.asarray(self)


def _check_count(rows: FileRows, what: str, count: int, of: str) -> None:
    if rows.count not in (None, count):
        raise DataError(rows.path, f"{what} has {rows.count} rows for {count} {of}")


def _squeezed(rows: Array) -> Array:
    """A table of one column as a vector, others unchanged."""
    return rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows


def as_labels(rows: Array) -> Array:
    """Labels [n] or [n, k]: whole numbers as int64 with -1 for NaN, which stands for unlabelled. Fractions, which are
    targets of a regression, stay as they are."""
    labels = _squeezed(rows)
    if labels.dtype.kind != "f":
        return labels
    known = labels[~np.isnan(labels)]
    if np.isinf(known).any() or (known % 1 != 0).any():
        return labels
    return np.nan_to_num(labels, nan=-1).astype(np.int64)


def _edge_shape(name: str, rows: FileRows) -> tuple[int, ...]:
    """The shape of a row in the edge table ``name``: columns are vectors, but for features."""
    return () if rows.row_shape == (1,) and name != "edge_attr" else rows.row_shape


def add_edge_rows(
    out: GraphWriter,
    edge_type: str,
    edges: FileRows,
    options: ImportOptions,
    tables: Mapping[str, FileRows] | None = None,
) -> int:
    """Write the edges [E, 2] of a type and its tables, block by block; returns their number.

    Raises DataError if a table has not a row for each edge, or the edges have not two columns.
    """
    if edges.row_shape != (2,) and edges.count != 0:
        raise DataError(edges.path, f"{int(np.prod(edges.row_shape))} columns instead of 2")
    tables = tables or {}
    shapes = {name: _edge_shape(name, rows) for name, rows in tables.items()}
    specs = {name: TableSpec(rows.dtype.newbyteorder("<").str, shapes[name]) for name, rows in tables.items()}
    size = min([edges.block_rows, *(rows.block_rows for rows in tables.values())])
    beside = {name: rows.blocks(size) for name, rows in tables.items()}
    total = 0
    with EdgeStream(out, edge_type, options, specs, total=edges.count) as stream:
        for block in edges.blocks(size):
            total += len(block)
            columns = {}
            for name, blocks in beside.items():
                rows = next(blocks, np.empty((0, *shapes[name])))
                if len(rows) < len(block):
                    ended = total - len(block) + len(rows)
                    raise DataError(tables[name].path, f"ends before the edges: {ended} rows")
                if len(rows) > len(block):
                    raise DataError(tables[name].path, f"has more rows than the {total} edges")
                columns[name] = rows.reshape(-1, *shapes[name])
            stream.append(block[:, 0], block[:, 1], **columns)
        for name, blocks in beside.items():
            if next(blocks, None) is not None:
                raise DataError(tables[name].path, f"has more rows than the {total} edges")
    return total
