"""Writes edges into a graph folder chunk by chunk, and adds reverses. The edges are never all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.disk.files import chunks
from atta.partition.graph import EdgeAppender, GraphWriter
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.schema import TableSpec, split_edge_type

__all__ = ["EdgeStream", "add_edges", "missing_reverses", "reverses_to_add"]

Array = npt.NDArray[Any]
_CHUNK = 4 << 20
_BUCKET_EDGES = 16 << 20


class EdgeStream:
    """Writes one edge type in chunks, and the reverses that the options ask for.

    With ``undirected``, the missing reverses of edges inside one node type are appended at the end, so the stored edges
    keep their ids. Edges between two types get a second edge type with the relation ``rev_<relation>``. With
    ``reverse``, all edges get this second type. Use it as a context manager; leaving the block without an exception
    completes the edges.
    """

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

        ``both``: the edges have no direction: the reverse of each but self-loops follows at the end, in their order.
        """
        source, _, target = split_edge_type(edge_type)
        self._options = options
        self._both = both
        self._symmetric = (both or options.undirected) and source == target
        self._forward = out.open_edges(edge_type, tables)
        self._backward: EdgeAppender | None = None
        if options.reverse or (options.undirected and source != target):
            self._backward = out.open_reverses(edge_type, tables)
        options.progress.stage(f"edges {edge_type}", total)

    def append(self, src: Array, dst: Array, **tables: Array) -> None:
        """Append edges, given as rows of their end points; raises ConfigError for a row that does not exist."""
        self._forward.append(src, dst, **tables)
        if self._backward is not None:
            self._backward.append(dst, src, **tables)
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
        for lo, hi in chunks(len(src), _CHUNK):
            chosen = np.flatnonzero(src[lo:hi] != dst[lo:hi] if marked is None else marked[lo:hi]) + lo
            self._forward.append(dst[chosen], src[chosen], **{name: rows[chosen] for name, rows in tables.items()})
            self._options.progress.advance(hi - lo)

    def __enter__(self) -> EdgeStream:
        return self

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
    """Write an edge type from its (sources, destinations) and edge tables, which may be memory-mapped.

    ``both``: the edges have no direction: the reverse of each but self-loops follows at the end, in their order.
    """
    (src, dst), tables = ends, dict(tables or {})
    specs = {name: TableSpec(rows.dtype.newbyteorder("<").str, rows.shape[1:]) for name, rows in tables.items()}
    with EdgeStream(out, edge_type, options, specs, total=len(src), both=both) as stream:
        for lo, hi in chunks(len(src), _CHUNK):
            stream.append(src[lo:hi], dst[lo:hi], **{name: rows[lo:hi] for name, rows in tables.items()})


def missing_reverses(
    src: Array, dst: Array, time: Array | None = None, *, bucket_edges: int = _BUCKET_EDGES
) -> npt.NDArray[np.bool_]:
    """Mark the edges without a stored reverse. Edges with the same missing reverse are marked once.

    An edge and its reverse have the same smaller end point, so ranges of smaller end points are searched one after
    another. This takes one pass over the edges (which may be memory-mapped) per ``bucket_edges`` edges, and memory for
    one range at a time.
    """
    marked = np.zeros(len(src), np.bool_)
    for lo, hi in _ranges(src, dst, bucket_edges):
        inside = np.concatenate(
            [np.flatnonzero((smaller >= lo) & (smaller < hi)) + first for first, smaller in _smaller_ends(src, dst)]
        )
        moment = None if time is None else time[inside]
        marked[inside[reverses_to_add(src[inside], dst[inside], moment)]] = True
    return marked


def _smaller_ends(src: Array, dst: Array) -> Iterator[tuple[int, Array]]:
    """The first position and the smaller end points of every chunk of edges."""
    for lo, hi in chunks(len(src), _CHUNK):
        yield lo, np.minimum(src[lo:hi], dst[lo:hi])


def _ranges(src: Array, dst: Array, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of smaller end points with about ``limit`` edges each (or one vertex that has more)."""
    n = max((int(smaller.max(initial=-1)) + 1 for _, smaller in _smaller_ends(src, dst)), default=0)
    edges = np.zeros(n, np.int64)
    for _, smaller in _smaller_ends(src, dst):
        edges += np.bincount(smaller, minlength=n)
    ends = np.cumsum(edges)
    lo = done = 0
    while lo < n:
        hi = max(lo + 1, int(np.searchsorted(ends, done + limit, side="right")))
        yield lo, hi
        lo, done = hi, int(ends[hi - 1])


def reverses_to_add(src: Array, dst: Array, time: Array | None = None) -> npt.NDArray[np.int64]:
    """Return the ascending positions of edges without a stored reverse, each missing reverse once.

    With ``time``, an edge and its reverse must have the same time. Raises ConfigError if vertex numbers are too large
    to compare a pair of them as one number (about 3 billion).
    """
    if len(src) == 0:
        return np.empty(0, np.int64)
    n = int(max(src.max(), dst.max())) + 1
    if n * n >= 2**63:
        raise ConfigError(f"{n} vertices are too many to add reverse edges")
    u, v = src.astype(np.int64), dst.astype(np.int64)
    forward, backward = u * n + v, v * n + u
    if time is not None:
        forward, backward = _with_time(forward, backward, time)
    missing = np.flatnonzero((u != v) & ~np.isin(backward, forward))
    _, first = np.unique(backward[missing], return_index=True)
    return np.sort(missing[first])


def _with_time(forward: Array, backward: Array, time: Array) -> tuple[Array, Array]:
    """Combine pairs of vertices with times. Both are replaced by their ranks first, so that the product always fits."""
    instants, moment = np.unique(time, return_inverse=True)
    _, ranks = np.unique(np.concatenate([forward, backward]), return_inverse=True)
    there, back = np.split(ranks.astype(np.int64), 2)
    return there * len(instants) + moment, back * len(instants) + moment
