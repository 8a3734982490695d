"""Build a partitioned dataset from a graph folder and an assignment of vertices to partitions.

Steps:

1. Number the vertices so that every (partition, node type) is one contiguous range.
2. Copy table rows part by part.
3. Move every edge to the owner of its destination (DistDGL's edge-cut placement, section 4.1 of its description), so
   that a core vertex sees all its in-neighbours.
4. List HALO vertices, measure the quality, write the manifest.

The edges of a partition are sorted in buckets of bounded size, so memory depends on the vertices and the bucket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress, Silent
from atta.partition import dataset as layout
from atta.partition.cutting.quality import Counts, summarise
from atta.partition.cutting.sorting import stable_order
from atta.partition.disk.files import FileRecord, NpyAppender, chunks, describe_file, write_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph import Edges, Graph, index_dtype
from atta.partition.parts.book import PartitionBook

__all__ = ["Numbering", "number_vertices", "write_dataset"]

_CHUNK_EDGES = 4 << 20
_CHUNK_BYTES = 32 << 20
MAX_PARTS = 9999

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Numbering:
    """How the vertices of one node type are numbered.

    Attributes:
        offsets: int64 [P+1], starts of the partitions' ranges.
        row_of: [n] row in the graph folder by internal id.
        internal_of: [n] internal id by row.
        rank_of: [n] position of the row's user id among all user ids.
        ids: int64 [n], user id by internal id.
    """

    offsets: Ids
    row_of: Array
    internal_of: Array
    rank_of: Array
    ids: Ids

    @property
    def sorted_internal(self) -> Array:
        """Return the internal id of the i-th smallest user id, [n]."""
        out = np.empty_like(self.internal_of)
        out[self.rank_of] = self.internal_of
        return out


def number_vertices(user_ids: Ids | None, owners: npt.NDArray[np.int32], parts: int) -> Numbering:
    """Number the vertices of a type by (partition, user id).

    Args:
        user_ids: int64 [n] by row; None: each row's number is its id.
        owners: int32 [n], the partition of each row.
        parts: number of partitions, empty ones allowed.
    """
    n = len(owners)
    index = index_dtype(n)
    if n and (owners.min() < 0 or owners.max() >= parts):
        raise ConfigError(f"the assignment names partitions outside 0..{parts - 1}")
    by_id = np.arange(n, dtype=index) if user_ids is None else np.argsort(user_ids, kind="stable").astype(index)
    row_of = by_id[stable_order(owners[by_id], parts)] if n else by_id
    internal_of, rank_of = np.empty(n, index), np.empty(n, index)
    internal_of[row_of] = rank_of[by_id] = np.arange(n, dtype=index)
    offsets = np.zeros(parts + 1, np.int64)
    offsets[1:] = np.cumsum(np.bincount(owners, minlength=parts))
    ids = row_of.astype(np.int64) if user_ids is None else np.asarray(user_ids)[row_of]
    return Numbering(offsets, row_of, internal_of, rank_of, ids)


def write_dataset(
    graph: Graph,
    assignment: Mapping[str, npt.NDArray[np.int32]],
    dst: str | Path,
    parts: int,
    *,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    bucket_edges: int = 32 << 20,
) -> None:
    """Write the dataset ``dst``; it appears under its name only when complete.

    Args:
        graph: the graph to cut.
        assignment: node type -> int32 [n], the partition of each row.
        dst: folder to write; must not exist or be empty, unless ``overwrite``.
        parts: number of partitions.
        provenance: any facts, for the manifest.
        overwrite: replace an existing dataset.
        progress: receives the stages.
        bucket_edges: number of edges sorted in memory at a time (about 40 bytes each).

    Raises:
        ConfigError: ``dst`` may not be written, or the assignment does not fit the graph.
    """
    if not 1 <= parts <= MAX_PARTS:
        raise ConfigError(f"{parts} partitions: must lie between 1 and {MAX_PARTS}")
    for t in graph.schema.node_types:
        if len(assignment.get(t, ())) != graph.schema.node_counts[t]:
            raise ConfigError(f"the assignment does not cover the vertices of node type {t!r}")
    with Staging(dst, layout.MANIFEST, overwrite=overwrite) as staging:
        writer = _Writer(graph, staging.path, parts, progress or Silent(), bucket_edges)
        writer.number(assignment)
        writer.shared()
        writer.tables()
        writer.edges()
        writer.manifest(dict(provenance or {}))


class _Writer:
    """The steps of one run, and their common data."""

    def __init__(self, graph: Graph, path: Path, parts: int, progress: Progress, bucket_edges: int) -> None:
        self.graph = graph
        self.schema = graph.schema
        self.path = path
        self.parts = parts
        self.progress = progress
        self.bucket_edges = bucket_edges
        self.numbering: dict[str, Numbering] = {}
        self.counts = Counts.zero(self.schema, parts)

    def number(self, assignment: Mapping[str, npt.NDArray[np.int32]]) -> None:
        for t in self.schema.node_types:
            self.numbering[t] = number_vertices(self.graph.user_ids(t), assignment[t], self.parts)
            self.counts.nodes[t][:] = np.diff(self.numbering[t].offsets)

    def shared(self) -> None:
        """Write id maps and splits."""
        self.progress.stage("ids and splits", None)
        for t, numbers in self.numbering.items():
            folder = self.path / "shared" / t
            write_array(folder / "ids.npy", numbers.ids)
            write_array(folder / "sorted_internal.npy", numbers.sorted_internal)
            ordered = np.sort(numbers.ids)
            if not np.array_equal(ordered, np.arange(len(ordered))):
                write_array(folder / "sorted_ids.npy", ordered)
            for name in self.schema.splits[t]:
                internal = np.sort(numbers.internal_of[self.graph.split(t, name)]).astype(np.int64)
                write_array(folder / f"split_{name}.npy", internal)
                self.counts.splits[t][name][:] = np.diff(np.searchsorted(internal, numbers.offsets))

    def tables(self) -> None:
        """Copy the rows of every table into the parts that own them."""
        specs = [(t, name, spec) for t in self.schema.node_types for name, spec in self.schema.node_tables[t].items()]
        self.progress.stage("tables", sum(spec.row_bytes * self.schema.node_counts[t] for t, _, spec in specs))
        for t, name, spec in specs:
            rows, numbers = self.graph.table(t, name), self.numbering[t]
            step = max(1, _CHUNK_BYTES // max(1, spec.row_bytes))
            for part in range(self.parts):
                path = self.path / layout.part_folder(part) / "nodes" / t / f"{name}.npy"
                lo, hi = numbers.offsets[part], numbers.offsets[part + 1]
                with NpyAppender(path, spec.dtype, spec.row_shape) as out:
                    for first, last in chunks(int(hi - lo), step):
                        out.append(rows[numbers.row_of[lo + first : lo + last]])
                        self.progress.advance((last - first) * spec.row_bytes)

    def edges(self) -> None:
        """Write CSC and HALO lists of all parts."""
        self.progress.stage("edges", sum(self.schema.edge_counts.values()))
        degrees = {e: self._in_degrees(e) for e in self.schema.edge_types}
        for part in range(self.parts):
            folder = self.path / layout.part_folder(part)
            remote = {t: np.zeros(self.schema.node_counts[t], bool) for t in self.schema.node_types}
            for e in self.schema.edge_types:
                self._part_edges(e, part, degrees[e], remote[self.schema.endpoints(e)[0]])
            for t, seen in remote.items():
                halo = np.flatnonzero(seen)
                self.counts.halo[t][part] = len(halo)
                write_array(folder / "nodes" / t / "halo.npy", halo.astype(np.int64))

    def _in_degrees(self, edge_type: str) -> Ids:
        """Count the in-edges of each internal id."""
        target = self.schema.endpoints(edge_type)[1]
        by_row = np.zeros(self.schema.node_counts[target], np.int64)
        dst = self.graph.edges(edge_type).dst
        for lo, hi in chunks(len(dst), 4 * _CHUNK_EDGES):
            by_row += np.bincount(dst[lo:hi], minlength=len(by_row))
        return by_row[self.numbering[target].row_of]

    def _part_edges(self, edge_type: str, part: int, degrees: Ids, remote: npt.NDArray[np.bool_]) -> None:
        """Write the in-edges of a part's core vertices; mark the sources that it does not own in ``remote``."""
        source, target = self.schema.endpoints(edge_type)
        edges, numbers = self.graph.edges(edge_type), self.numbering[source]
        lo, hi = (int(x) for x in self.numbering[target].offsets[part : part + 2])
        own_lo, own_hi = numbers.offsets[part], numbers.offsets[part + 1]
        indptr = np.concatenate([[0], np.cumsum(degrees[lo:hi])]).astype(np.int64)
        folder = self.path / layout.part_folder(part) / "edges" / edge_type
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
                chosen = self._bucket(edge_type, edges, lo + first, lo + last)
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

    def _bucket(self, edge_type: str, edges: Edges, lo: int, hi: int) -> Array:
        """Return the ids of the edges into the internal ids ``[lo, hi)``, by (destination, user id of source, id)."""
        source, target = self.schema.endpoints(edge_type)
        internal_of = self.numbering[target].internal_of
        found, heads = [], []
        for first, last in chunks(len(edges), _CHUNK_EDGES):
            internal = internal_of[edges.dst[first:last]]
            chosen = np.flatnonzero((internal >= lo) & (internal < hi))
            found.append((chosen + first).astype(index_dtype(len(edges))))
            heads.append((internal[chosen] - lo).astype(internal.dtype))
        ids, head = np.concatenate(found), np.concatenate(heads)
        # Two stable counting sorts, the less significant key first.
        order = stable_order(self.numbering[source].rank_of[edges.src[ids]], self.schema.node_counts[source])
        ids = ids[order]
        result: Array = ids[stable_order(head[order], hi - lo)]
        return result

    def manifest(self, provenance: dict[str, Any]) -> None:
        self.progress.stage("checksums", None)
        names = sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*.npy"))
        files: dict[str, FileRecord] = {name: describe_file(self.path / name) for name in names}
        schema = self.schema.to_json()
        ranges = PartitionBook({t: numbers.offsets for t, numbers in self.numbering.items()}).to_json()
        value = {
            "format": layout.FORMAT,
            "version": layout.VERSION,
            "dataset_id": layout.fingerprint(schema, ranges, files),
            "schema": schema,
            "ranges": ranges,
            "provenance": {**provenance, "graph": self.graph.provenance},
            "quality": summarise(self.counts),
            "files": {name: record.to_json() for name, record in files.items()},
        }
        write_sealed(self.path / layout.MANIFEST, value)


def _buckets(indptr: Ids, limit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most ``limit`` edges, or one row that has more. Some rows without edges may be
    left out."""
    first = 0
    while first < len(indptr) - 1 and indptr[-1] > indptr[first]:
        last = int(np.searchsorted(indptr, indptr[first] + limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
