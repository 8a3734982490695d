"""Fills a graph folder block by block: features, labels, splits and tables of vertices, and edges with their reverses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from atta.errors import ConfigError, DataError
from atta.observe.lastwords import counted
from atta.partition.disk.files import chunks
from atta.partition.graph import EdgeAppender, GraphWriter
from atta.partition.graph.exact import as_float32
from atta.partition.graph.strings import to_rows
from atta.partition.importers.reading.rows import FileRows
from atta.partition.importers.reading.source import Array, Ids, ImportOptions, Mask, as_masks
from atta.partition.names import split_edge_type
from atta.partition.schema import TableSpec

_CHUNK_VALUES = 8 << 20
_MAX_NAME_BYTES = 256
_CHUNK = 4 << 20
_BUCKET_EDGES = 16 << 20
PART = "part"
"""The node table that has the partition of each vertex, where a format has partitions."""


def add_features(
    out: GraphWriter, matrix: Any, node_type: str, options: ImportOptions, *, name: str = "x", as_given: bool = False
) -> None:
    """Write a dense array, a CSR matrix or ``FileRows`` [n, d] as float32 rows, chunk by chunk, normalised if the
    options say so. ``as_given``: as floats of their own dtype. Raises ConfigError naming the table if its values are no
    real numbers, too large for float32, or whole numbers that float32 rounds; DataError if ``FileRows`` have not a row
    for each vertex."""
    converted = np.asarray if as_given else partial(as_float32, f"table {name!r} of {node_type!r}")
    shape = matrix.row_shape if isinstance(matrix, FileRows) else matrix.shape[1:]
    step = max(1, _CHUNK_VALUES // max(1, prod(shape)))
    table = out.open_table(name, converted(np.empty((0, *shape), matrix.dtype)).dtype, shape, node_type)
    options.progress.stage(f"features {node_type}", out.count(node_type))
    spans: Iterable[Any] = matrix.blocks(step) if isinstance(matrix, FileRows) else chunks(matrix.shape[0], step)
    for span in spans:
        rows = span if isinstance(matrix, FileRows) else matrix[slice(*span)]
        values = converted(rows.toarray() if issparse(rows) else rows)
        if options.normalize_features and values.ndim == 2:
            total = np.abs(values).sum(axis=1, keepdims=True)
            values = values / np.where(total == 0, np.float32(1), total)
        table.append(values)
        options.progress.advance(len(values))
    if isinstance(matrix, FileRows) and table.rows != out.count(node_type):
        raise DataError(matrix.path, f"has not one row for each of the {out.count(node_type)} vertices")


def name_bytes(where: str | Path, names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return the table ``name`` [n, bytes]: UTF-8, padded with zeros; raises DataError."""
    if strange := next((text for text in names if text.endswith("\0")), None):
        raise DataError(where, f"the id {strange!r} ends in a zero, which pads ids")
    rows = to_rows(np.array(names, dtype=np.str_))
    if rows.shape[1] > _MAX_NAME_BYTES:
        raise DataError(where, f"an id takes {rows.shape[1]} bytes, at most {_MAX_NAME_BYTES} are kept")
    return rows


class EdgeStream(AbstractContextManager["EdgeStream"]):
    """Writes one edge type in chunks, and the reverses that the options ask for. With ``undirected``, the missing
    reverses of edges inside one node type are appended at the end, so the stored edges keep their ids. Edges between
    two types get a second edge type with the relation ``rev_<relation>``. With ``reverse``, all edges get this second
    type. Use it as a context manager; leaving the block without an exception completes the edges."""

    def __init__(
        self,
        out: GraphWriter,
        edge_type: str,
        options: ImportOptions,
        tables: Mapping[str, TableSpec] | None = None,
        *,
        total: int | None = None,
        both: bool = False,
    ) -> None:
        """``tables``: the edge tables of every append. ``total``: number of edges if it is known, for the progress.
        ``both``: the edges have no direction: the reverse of each but self-loops follows at the end, in their order."""
        source, _, target = split_edge_type(edge_type)
        self._options = options
        self._edge_type = edge_type
        self._both = both
        self._symmetric = (both or options.undirected) and source == target
        self._forward = out.open_edges(edge_type, tables)
        self._backward: EdgeAppender | None = None
        if options.reverse or (options.undirected and source != target):
            self._backward = out.open_reverses(edge_type, tables)
        options.progress.stage(f"edges {edge_type}", total)

    def append(self, src: Array, dst: Array, tables: Mapping[str, Array] | None = None) -> None:
        """Add edges, and their reverses if they are wanted. ``src`` and ``dst``: int64 [n]; ``tables``: rows by name."""
        self._forward.append(src, dst, tables)
        if self._backward is not None:
            self._backward.append(dst, src, tables)
        self._options.progress.advance(len(src))

    @property
    def count(self) -> int:
        """Number of edges appended so far, without reverses that the options ask for."""
        return self._forward.count

    def one_way(self) -> tuple[int, int] | None:
        """Source and destination of an edge appended so far whose reverse is not there; None if there is none."""
        src, dst, _ = self._forward.written()
        alone = np.flatnonzero(missing_reverses(src, dst))
        return (int(src[alone[0]]), int(dst[alone[0]])) if len(alone) else None

    def _append_reverses(self) -> None:
        src, dst, tables = self._forward.written()
        self._options.progress.stage("reverse edges", len(src))
        marked = None if self._both else missing_reverses(src, dst, tables.get("time"))
        if marked is not None and "time" in tables:
            added = f"{counted(int(marked.sum()), 'reverse edge')} added, each with the time of its edge"
            said = f"{self._edge_type}: {added}; a reverse that is there at another time is another edge"
            self._options.notes.append(said)
        for lo, hi in chunks(len(src), _CHUNK):
            chosen = np.flatnonzero(src[lo:hi] != dst[lo:hi] if marked is None else marked[lo:hi]) + lo
            self._forward.append(dst[chosen], src[chosen], {name: rows[chosen] for name, rows in tables.items()})
            self._options.progress.advance(hi - lo)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._symmetric:
            self._append_reverses()
        if kind is None:  # a graph may have more edge types than files may be open
            self._forward.close()
            if self._backward is not None:
                self._backward.close()


def add_edges(
    out: GraphWriter,
    edge_type: str,
    ends: tuple[Array, Array],
    options: ImportOptions,
    tables: Mapping[str, Array] | None = None,
    *,
    both: bool = False,
) -> None:
    """Write an edge type from its (sources, destinations) and edge tables, which may be memory-mapped. ``both``: the
    edges have no direction: the reverse of each but self-loops follows at the end, in their order."""
    (src, dst), tables = ends, tables or {}
    with EdgeStream(out, edge_type, options, _specs(tables), total=len(src), both=both) as stream:
        for lo, hi in chunks(len(src), _CHUNK):
            stream.append(src[lo:hi], dst[lo:hi], {name: rows[lo:hi] for name, rows in tables.items()})


class Scattered:
    """The ``tables`` [count, ...] of vertices or edges by name, put together from parts."""

    def __init__(self, count: int) -> None:
        self.tables: dict[str, Array] = {}
        self._seen, self._rows = np.zeros(count, np.bool_), 0

    def put(self, where: Path, what: str, places: Array, parts: Mapping[str, Array]) -> None:
        """Put the rows [n, ...] of a part at their ``places`` [n]. ``what``: the part's tables, for messages. Raises
        DataError naming ``where``."""
        count = len(self._seen)
        for name, rows in parts.items():
            if rows.shape[:1] != places.shape:
                raise DataError(where, f"{what}: {name!r} has {rows.shape[0]} rows for {len(places)} numbers")
        if not len(places):
            return
        if places.min() < 0 or places.max() >= count:
            raise DataError(where, f"{what}: numbers a row {places.max()} where there are only {count}")
        if not self._rows:
            self.tables = {name: np.zeros((count, *rows.shape[1:]), rows.dtype) for name, rows in parts.items()}
        if _specs(self.tables) != _specs(parts):
            raise DataError(where, f"{what} differ from other parts'")
        for name, rows in parts.items():
            self.tables[name][places] = rows
        self._seen[places] = True
        self._rows += len(places)

    def check(self, where: Path, what: str) -> None:
        """Check that every row came from one part; otherwise rows of zeros would pass for features. Raises DataError."""
        seen = int(self._seen.sum())
        if seen < len(self._seen) or seen < self._rows:
            twice = self._rows - seen
            raise DataError(where, f"{len(self._seen) - seen} {what} are in no part, and {twice} are there twice")


def _specs(tables: Mapping[str, Array]) -> dict[str, TableSpec]:
    return {name: TableSpec(rows.dtype.newbyteorder("<").str, rows.shape[1:]) for name, rows in tables.items()}


def missing_reverses(src: Array, dst: Array, time: Array | None = None, *, bucket_edges: int = _BUCKET_EDGES) -> Mask:
    """Mark the edges without a stored reverse. Edges with the same missing reverse are marked once. An edge and its
    reverse have the same smaller end point, which says in which bucket both are looked for. This takes one pass over the
    edges (which may be memory-mapped) per ``bucket_edges`` edges, and memory for one bucket at a time."""
    marked, buckets = np.zeros(len(src), np.bool_), -(-len(src) // bucket_edges)
    for bucket in range(buckets):
        spans = chunks(len(src), _CHUNK)
        found = [lo + np.flatnonzero(np.minimum(src[lo:hi], dst[lo:hi]) % buckets == bucket) for lo, hi in spans]
        inside = np.concatenate(found)
        moment = None if time is None else time[inside]
        marked[inside[reverses_to_add(src[inside], dst[inside], moment)]] = True
    return marked


def reverses_to_add(src: Array, dst: Array, time: Array | None = None) -> Ids:
    """Return the ascending positions of edges without a stored reverse, each missing reverse once. With ``time``, an
    edge and its reverse must have the same time. Raises ConfigError if vertex numbers are too large to compare a pair
    of them as one number (about 3 billion)."""
    if len(src) == 0:
        return np.empty(0, np.int64)
    n = int(max(src.max(), dst.max())) + 1
    if n * n >= 2**63:
        raise ConfigError(f"{n} vertices are too many to add reverse edges")
    u, v = src.astype(np.int64), dst.astype(np.int64)
    forward, backward = u * n + v, v * n + u
    if time is not None:  # of pairs and times their ranks are combined, so that the product always fits
        instants, moment = np.unique(time, return_inverse=True)
        _, ranks = np.unique(np.concatenate([forward, backward]), return_inverse=True)
        forward, backward = (half * len(instants) + moment for half in np.split(ranks.astype(np.int64), 2))
    missing = np.flatnonzero((u != v) & ~np.isin(backward, forward))
    _, first = np.unique(backward[missing], return_index=True)
    return np.sort(missing[first])


def add_node_array(
    out: GraphWriter,
    node_type: str,
    name: str,
    rows: Array,
    options: ImportOptions,
    *,
    where: str | Path,
    table: str = "",
) -> None:
    """Write the rows [n, ...] that ``where`` calls ``name`` as ``table`` (default: the same) of a node type: ``x`` become
    features, ``y`` labels, and ``NAME_mask`` splits."""
    table = table or name
    if table == "x":
        add_features(out, rows, node_type, options)
    elif table == "y":
        out.add_labels(rows, node_type)
    elif table.endswith("_mask"):
        for split, mask in as_masks(where, name, table.removesuffix("_mask"), rows).items():
            out.add_split(split, mask, node_type)
    else:
        out.add_table(table, rows, node_type)


def add_node_rows(  # noqa: PLR0917 - the table, and where it goes
    out: GraphWriter, node_type: str, name: str, rows: FileRows, table: str, options: ImportOptions
) -> None:
    """The same for rows in files, block by block; raises DataError if there is not one for each vertex."""
    if rows.count not in (None, out.count(node_type)):
        what = f"{name!r} of {node_type!r} has {rows.count} rows"
        raise DataError(rows.path, f"{what} for {out.count(node_type)} vertices")
    if table == "x":
        add_features(out, rows, node_type, options)
    elif table == "y" or table.endswith("_mask"):
        whole = as_labels(rows.whole()) if table == "y" else _squeezed(rows.whole())
        add_node_array(out, node_type, name, whole, options, where=rows.path, table=table)
    else:
        shape = () if rows.row_shape == (1,) else rows.row_shape
        out.add_rows(table, rows.dtype, shape, (block.reshape(-1, *shape) for block in rows.blocks()), node_type)


def _squeezed(rows: Array) -> Array:
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


@dataclass(frozen=True)
class EdgeFiles:
    """The edges [E, 2] of a type in files, their tables by name, and the file that states their number, if there is one.
    ``mirrored``: the reverse of each edge follows it."""

    edges: FileRows
    tables: Mapping[str, FileRows] = field(default_factory=dict)
    stated: tuple[Path, int] | None = None
    mirrored: bool = False


def add_edge_rows(out: GraphWriter, edge_type: str, found: EdgeFiles, options: ImportOptions) -> int:
    """Write the edges of a type and its tables, block by block; returns how many edges the files have. Raises DataError if a
    table has not a row for each edge, the edges have not two columns, or another number of them is stated."""
    edges, tables = found.edges, found.tables
    if edges.row_shape != (2,) and edges.count != 0:
        raise DataError(edges.path, f"{int(np.prod(edges.row_shape))} columns instead of 2")
    shapes = {  # columns are vectors, but for features
        name: () if rows.row_shape == (1,) and name != "edge_attr" else rows.row_shape for name, rows in tables.items()
    }
    specs = {name: TableSpec(rows.dtype.newbyteorder("<").str, shapes[name]) for name, rows in tables.items()}
    size = min([edges.block_rows, *(rows.block_rows for rows in tables.values())])
    beside = {name: rows.blocks(size) for name, rows in tables.items()}
    total = 0
    with EdgeStream(out, edge_type, options, specs, total=edges.count) as stream:
        for block in chain(edges.blocks(size), [np.empty((0, 2), np.int64)]):  # behind the edges, tables end too
            columns = {name: next(blocks, np.empty((0, *shapes[name]))) for name, blocks in beside.items()}
            for name, rows in columns.items():
                if len(rows) < len(block):
                    raise DataError(tables[name].path, f"ends before the edges: {total + len(rows)} rows")
                if len(rows) > len(block):
                    raise DataError(tables[name].path, f"has more rows than the {total + len(block)} edges")
            total += len(block)
            ends, rows_of = block, {name: rows.reshape(-1, *shapes[name]) for name, rows in columns.items()}
            if found.mirrored:
                ends = np.repeat(block, 2, axis=0)
                rows_of = {n: np.repeat(rows, 2, axis=0) for n, rows in rows_of.items()}
                ends[1::2] = block[:, ::-1]
            stream.append(ends[:, 0], ends[:, 1], rows_of)
    if found.stated is not None and found.stated[1] != total:
        raise DataError(found.stated[0], f"states {found.stated[1]} edges, {edges.path.name} has {total}")
    return total
