"""Build a partitioned dataset from a graph folder and an assignment of vertices to partitions. Every edge goes to the
owner of its destination (DistDGL's edge-cut placement, section 4.1 of its description), so that a core vertex sees all
its in-neighbours. Edges are sorted in buckets of bounded size, so memory depends on the vertices and the bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress, Silent
from atta.partition import dataset as layout
from atta.partition.cutting.balance import Counts, summarise
from atta.partition.disk.files import FileRecord, NpyAppender, chunks, describe_file, write_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph import Graph, index_dtype
from atta.partition.graph.part import GraphDegrees, PartitionBook, degree_folder
from atta.partition.names import edge_folder, node_folder, shared_folder


def stable_order(keys: npt.NDArray[Any], bound: int) -> npt.NDArray[Any]:
    """Return the permutation that sorts ``keys`` (integers in ``range(bound)``). Equal keys keep their order.
    Converting a CSR matrix with one entry per row into CSC is a counting sort in compiled code. It takes O(len +
    bound), several times less than a comparison sort of the same keys."""
    from scipy.sparse import csr_array  # takes long to import, and daemons never sort

    n = len(keys)
    index = np.int32 if max(n, bound) < 2**31 - 1 else np.int64
    one_per_row = csr_array(
        (np.zeros(n, np.int8), keys.astype(index, copy=False), np.arange(n + 1, dtype=index)), shape=(n, max(bound, 1))
    )
    order: npt.NDArray[Any] = one_per_row.tocsc().indices
    return order


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
    """Number the vertices of a type by (partition, user id). ``user_ids``: int64 [n] by row; None: the row numbers.
    ``owners``: int32 [n], the partition of each row."""
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


CHUNK_EDGES = 4 << 20
_CHUNK_BYTES = 32 << 20


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


MAX_PARTS = 9999
BUCKET_EDGES = 32 << 20
"""Number of edges sorted in memory at a time (about 40 bytes each)."""


def write_dataset(
    graph: Graph,
    assignment: Mapping[str, npt.NDArray[np.int32]],
    dst: str | Path,
    parts: int,
    *,
    bounds: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    bucket_edges: int = BUCKET_EDGES,
) -> dict[str, Any]:
    """Write the dataset ``dst``, which appears under its name only when complete; returns the quality that its manifest
    records. ``assignment``: node type -> int32 [n], the partition of each row. ``bounds``: what the method promised of
    the balance. ``bucket_edges``: number of edges sorted in memory at a time (about 40 bytes each). Raises ConfigError:
    ``dst`` may not be written, or the assignment does not fit the graph."""
    check_assignment(graph, assignment, parts)
    with Staging(dst, layout.MANIFEST, overwrite=overwrite) as staging:
        steps = DatasetSteps(graph, staging.path, parts, progress or Silent())
        steps.number(assignment)
        steps.shared()
        steps.degrees()
        source = AllEdges(graph, steps.numbering)
        about: Any = {"counts": steps.counts, "progress": steps.progress, "bucket_edges": bucket_edges}
        writer = PartWriter(graph, staging.path, steps.numbering, source, **about)
        steps.tables(writer)
        steps.edges(writer)
        return steps.manifest(dict(provenance or {}), bounds or {})


def _pieces(graph: Graph, edge_type: str) -> Iterator[tuple[Any, Any, Any]]:
    """Sources, targets and weights of the edges of a type, by row, some at a time."""
    edges = graph.edges(edge_type)
    weight = edges.tables.get("weight")
    for lo, hi in chunks(len(edges), CHUNK_EDGES):
        yield edges.src[lo:hi], edges.dst[lo:hi], None if weight is None else weight[lo:hi]


def check_assignment(graph: Graph, assignment: Mapping[str, npt.NDArray[np.int32]], parts: int) -> None:
    """Raise ConfigError if the number of partitions is wrong, or vertices lack one."""
    if not 1 <= parts <= MAX_PARTS:
        raise ConfigError(f"{parts} partitions: must lie between 1 and {MAX_PARTS}")
    for t in graph.schema.node_types:
        if len(assignment.get(t, ())) != graph.schema.node_counts[t]:
            raise ConfigError(f"the assignment does not cover the vertices of node type {t!r}")


class DatasetSteps:
    """The steps of one run, and their common data: ``numbering`` by node type, and ``counts`` of what was written."""

    def __init__(self, graph: Graph, path: Path, parts: int, progress: Progress) -> None:
        self.graph = graph
        self.schema = graph.schema
        self.path = path
        self.parts = parts
        self.progress = progress
        self.numbering: dict[str, Numbering] = {}
        self.counts = Counts.zero(self.schema, parts)

    def number(self, assignment: Mapping[str, npt.NDArray[np.int32]]) -> None:
        """Number the vertices."""
        for t in self.schema.node_types:
            self.numbering[t] = number_vertices(self.graph.user_ids(t), assignment[t], self.parts)
            self.counts.nodes[t][:] = np.diff(self.numbering[t].offsets)

    def shared(self) -> None:
        """Write id maps and splits."""
        self.progress.stage("ids and splits", None)
        for t, numbers in self.numbering.items():
            folder = self.path / shared_folder(t)
            write_array(folder / "ids.npy", numbers.ids)
            write_array(folder / "sorted_internal.npy", numbers.sorted_internal)
            ordered = np.sort(numbers.ids)
            if not np.array_equal(ordered, np.arange(len(ordered))):
                write_array(folder / "sorted_ids.npy", ordered)
            for name in self.schema.splits[t]:
                internal = np.sort(numbers.internal_of[self.graph.split(t, name)]).astype(np.int64)
                write_array(folder / f"split_{name}.npy", internal)
                self.counts.splits[t][name][:] = np.diff(np.searchsorted(internal, numbers.offsets))

    def degrees(self) -> None:
        """Write how many edges of each type every vertex has."""
        for e in self.schema.edge_types:
            source, target = (self.numbering[t].row_of for t in self.schema.endpoints(e))
            found = GraphDegrees.counted(_pieces(self.graph, e), self.schema, e).ordered(source, target)
            for name, array in found.files(degree_folder(e)).items():
                write_array(self.path / name, array)

    def tables(self, writer: PartWriter) -> None:
        """Copy the rows of every table into the parts that own them."""
        specs = [(t, name, spec) for t in self.schema.node_types for name, spec in self.schema.node_tables[t].items()]
        self.progress.stage("tables", sum(spec.row_bytes * self.schema.node_counts[t] for t, _, spec in specs))
        for t, name, _ in specs:
            for part in range(self.parts):
                writer.table(t, name, part)

    def edges(self, writer: PartWriter) -> None:
        """Write CSC and HALO lists of all parts."""
        self.progress.stage("edges", sum(self.schema.edge_counts.values()))
        for part in range(self.parts):
            writer.edges(part)

    def manifest(
        self, provenance: dict[str, Any], bounds: Mapping[str, float], known: Mapping[str, FileRecord] | None = None
    ) -> dict[str, Any]:
        """Write the manifest, and return its quality. ``known``: records of files that were described before."""
        self.progress.stage("checksums", None)
        names = sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*.npy"))
        files = {name: (known or {}).get(name) or describe_file(self.path / name) for name in names}
        schema = self.schema.to_json()
        ranges = PartitionBook({t: numbers.offsets for t, numbers in self.numbering.items()}).to_json()
        quality = summarise(self.counts, bounds)
        value = {
            "format": layout.FORMAT,
            "version": layout.VERSION,
            "dataset_id": layout.fingerprint(schema, ranges, files),
            "schema": schema,
            "ranges": ranges,
            "provenance": {**provenance, "graph": self.graph.provenance},
            "quality": quality,
            "files": {name: record.to_json() for name, record in files.items()},
        }
        write_sealed(self.path / layout.MANIFEST, value)
        return quality
