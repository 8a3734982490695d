"""Write one partition: the rows of its tables, its edges by destination, its HALO vertices.

Edges are sorted in buckets of bounded size, so memory depends on the vertices and the bucket. Where the edges come from
is the caller's: all of the graph, or those that were moved to the partition before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.observe.progress import Progress
from atta.partition import dataset as layout
from atta.partition.cutting.numbering import Numbering
from atta.partition.cutting.quality import Counts
from atta.partition.cutting.sorting import stable_order
from atta.partition.disk.files import NpyAppender, chunks, write_array
from atta.partition.graph import Graph, index_dtype
from atta.partition.names import edge_folder, node_folder

__all__ = ["CHUNK_EDGES", "AllEdges", "EdgeSource", "PartWriter"]

CHUNK_EDGES = 4 << 20
_CHUNK_BYTES = 32 << 20

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


class EdgeSource(Protocol):
    """The edges into a partition."""

    def degrees(self, edge_type: str, part: int) -> Ids:
        """Return how many edges of the type go into each core vertex, by internal id; int64 [n]."""

    def into(self, edge_type: str, part: int, lo: int, hi: int) -> Iterator[tuple[Array, Array]]:
        """Yield ids and internal destinations of the part's edges into the internal ids ``[lo, hi)``, ids ascending."""


class AllEdges:
    """Looks through all edges of the graph each time. Keeps the in-degrees of all vertices."""

    def __init__(self, graph: Graph, numbering: Mapping[str, Numbering]) -> None:
        self._graph, self._numbering = graph, numbering
        self._degrees: dict[str, Ids] = {}

    def degrees(self, edge_type: str, part: int) -> Ids:
        offsets = self._numbering[self._graph.schema.endpoints(edge_type)[1]].offsets
        if edge_type not in self._degrees:
            self._degrees[edge_type] = self._counted(edge_type)
        return self._degrees[edge_type][offsets[part] : offsets[part + 1]]

    def _counted(self, edge_type: str) -> Ids:
        target = self._graph.schema.endpoints(edge_type)[1]
        by_row = np.zeros(self._graph.schema.node_counts[target], np.int64)
        dst = self._graph.edges(edge_type).dst
        for lo, hi in chunks(len(dst), 4 * CHUNK_EDGES):
            by_row += np.bincount(dst[lo:hi], minlength=len(by_row))
        return by_row[self._numbering[target].row_of]

    def into(self, edge_type: str, part: int, lo: int, hi: int) -> Iterator[tuple[Array, Array]]:
        internal_of = self._numbering[self._graph.schema.endpoints(edge_type)[1]].internal_of
        edges = self._graph.edges(edge_type)
        for first, last in chunks(len(edges), CHUNK_EDGES):
            internal = internal_of[edges.dst[first:last]]
            chosen = np.flatnonzero((internal >= lo) & (internal < hi))
            yield (chosen + first).astype(index_dtype(len(edges))), internal[chosen]


class PartWriter:
    """Writes partitions into ``path``, and their figures into ``counts``."""

    def __init__(
        self,
        graph: Graph,
        path: Path,
        numbering: Mapping[str, Numbering],
        source: EdgeSource,
        *,
        counts: Counts,
        progress: Progress,
        bucket_edges: int,
    ) -> None:
        self.graph, self.schema, self.path = graph, graph.schema, path
        self.numbering, self.source, self.counts = numbering, source, counts
        self.progress, self.bucket_edges = progress, bucket_edges

    def table(self, node_type: str, name: str, part: int) -> None:
        """Copy the rows of a table that the partition owns."""
        rows, numbers = self.graph.table(node_type, name), self.numbering[node_type]
        spec = self.schema.node_tables[node_type][name]
        path = self.path / layout.part_folder(part) / node_folder(node_type) / f"{name}.npy"
        lo, hi = numbers.offsets[part], numbers.offsets[part + 1]
        with NpyAppender(path, spec.dtype, spec.row_shape) as out:
            for first, last in chunks(int(hi - lo), max(1, _CHUNK_BYTES // max(1, spec.row_bytes))):
                out.append(rows[numbers.row_of[lo + first : lo + last]])
                self.progress.advance((last - first) * spec.row_bytes)

    def edges(self, part: int) -> None:
        """Write CSC and HALO lists of the partition."""
        remote = {t: np.zeros(self.schema.node_counts[t], bool) for t in self.schema.node_types}
        degrees: dict[str, Ids] = {}
        for e in self.schema.edge_types:
            source, target = self.schema.endpoints(e)
            into = self.source.degrees(e, part)
            degrees[target] = degrees[target] + into if target in degrees else into
            self._type(e, part, into, remote[source])
        self.counts.most_into[part] = max((int(d.max(initial=0)) for d in degrees.values()), default=0)
        for t, seen in remote.items():
            halo = np.flatnonzero(seen)
            self.counts.halo[t][part] = len(halo)
            write_array(self.path / layout.part_folder(part) / node_folder(t) / "halo.npy", halo.astype(np.int64))

    def _type(self, edge_type: str, part: int, degrees: Ids, remote: npt.NDArray[np.bool_]) -> None:
        """Write the in-edges of a part's core vertices, ``degrees`` of each; mark the sources that it does not own in
        ``remote``."""
        source, target = self.schema.endpoints(edge_type)
        edges, numbers = self.graph.edges(edge_type), self.numbering[source]
        lo = int(self.numbering[target].offsets[part])
        own_lo, own_hi = numbers.offsets[part], numbers.offsets[part + 1]
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        folder = self.path / layout.part_folder(part) / edge_folder(edge_type)
        write_array(folder / "indptr.npy", indptr)
        with contextlib.ExitStack() as files:
            indices = files.enter_context(
                NpyAppender(folder / "indices.npy", index_dtype(self.schema.node_counts[source]))
            )
            edge_ids = files.enter_context(
                NpyAppender(folder / "edge_ids.npy", index_dtype(self.schema.edge_counts[edge_type]))
            )
            tables = {
                name: files.enter_context(NpyAppender(folder / f"{name}.npy", values.dtype, values.shape[1:]))
                for name, values in edges.tables.items()
            }
            for first, last in _buckets(indptr, self.bucket_edges):
                chosen = self._bucket(edge_type, part, lo + first, lo + last)
                internal = numbers.internal_of[edges.src[chosen]]
                away = internal[(internal < own_lo) | (internal >= own_hi)]
                remote[away] = True
                self.counts.cut[part] += len(away)
                indices.append(internal)
                edge_ids.append(chosen)
                for name, out in tables.items():
                    out.append(edges.tables[name][chosen])
                self.progress.advance(len(chosen))
        self.counts.edges[edge_type][part] = int(indptr[-1])

    def _bucket(self, edge_type: str, part: int, lo: int, hi: int) -> Array:
        """Return the ids of the edges into the internal ids ``[lo, hi)``, by (destination, user id of source, id)."""
        source = self.schema.endpoints(edge_type)[0]
        found, heads = zip(*self.source.into(edge_type, part, lo, hi), strict=True)
        ids, head = np.concatenate(found), np.concatenate([internal - lo for internal in heads])
        # Two stable counting sorts, the less significant key first.
        src = self.graph.edges(edge_type).src
        order = stable_order(self.numbering[source].rank_of[src[ids]], self.schema.node_counts[source])
        ids = ids[order]
        result: Array = ids[stable_order(head[order], hi - lo)]
        return result


def _buckets(indptr: Ids, limit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most ``limit`` edges, or one row that has more. Some rows without edges may be
    left out."""
    first = 0
    while first < len(indptr) - 1 and indptr[-1] > indptr[first]:
        last = int(np.searchsorted(indptr, indptr[first] + limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
