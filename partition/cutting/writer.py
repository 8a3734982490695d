"""Build a partitioned dataset from a graph folder and an assignment of vertices to partitions. Every edge goes to the
owner of its destination (DistDGL's edge-cut placement, section 4.1 of its description), so that a core vertex sees all
its in-neighbours. Tasks move the edges into buckets of bounded size, by their destinations, and then write the
partitions bucket by bucket, so that the edges are read twice in order. Memory depends on the vertices and the bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition import dataset as layout
from atta.partition.cutting.balance import Counts, summarise
from atta.partition.cutting.tasks import (
    BucketReader,
    BucketWriter,
    EdgeSlice,
    TaskRun,
    TaskSizes,
    TaskWork,
    Threads,
    column_file,
    lots,
    remove_folders,
)
from atta.partition.disk.files import (
    FileRecord,
    NpyAppender,
    chunks,
    describe_file,
    map_array,
    write_array,
    write_sealed,
)
from atta.partition.disk.staging import Staging
from atta.partition.graph import Graph, index_dtype
from atta.partition.graph.part import GraphDegrees, PartitionBook, degree_folder
from atta.partition.names import edge_folder, file_name, node_folder, shared_folder
from atta.partition.schema import Schema

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Numbering:
    """How the vertices of one node type are numbered. ``offsets`` int64 [P + 1]: starts of the partitions' ranges. By internal
    id: ``row_of`` [n], rows in the graph folder; ``ids`` int64 [n], user ids. ``internal_of`` [n]: internal ids by row;
    ``sorted_internal`` [n]: by rank of the user id. ``ranks`` [n]: ranks by row; None: they are the rows."""

    offsets: Ids
    row_of: Array
    internal_of: Array
    sorted_internal: Array
    ids: Ids
    ranks: Array | None


def number_vertices(user_ids: Ids | None, owners: npt.NDArray[np.int32], parts: int) -> Numbering:
    """Number the vertices of a type by (partition, user id). ``user_ids``: int64 [n] by row; None: the row numbers.
    ``owners``: int32 [n], the partition of each row."""
    n = len(owners)
    index = index_dtype(n)
    if n and (owners.min() < 0 or owners.max() >= parts):
        raise ConfigError(f"the assignment names partitions outside 0..{parts - 1}")
    offsets = np.zeros(parts + 1, np.int64)
    offsets[1:] = np.cumsum(np.bincount(owners, minlength=parts))
    if user_ids is None:
        row_of = _native.stable_order(owners, parts)
        internal_of = _inverse(row_of)
        return Numbering(offsets, row_of, internal_of, internal_of, row_of.astype(np.int64), None)
    by_id = np.argsort(user_ids, kind="stable").astype(index)
    row_of = by_id[_native.stable_order(owners[by_id], parts)]
    internal_of = _inverse(row_of)
    return Numbering(offsets, row_of, internal_of, internal_of[by_id], np.asarray(user_ids)[row_of], _inverse(by_id))


def _inverse(order: Array) -> Array:
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=order.dtype)
    return places


CHUNK_EDGES = 4 << 20
CHUNK_BYTES = 32 << 20
_SORTED_BYTES = 80


def _kept_numbering(folder: Path, node_type: str) -> Numbering:
    paths = {field.name: _numbering_file(folder, node_type, field.name) for field in fields(Numbering)}
    held: dict[str, Any] = {name: map_array(path) if path.exists() else None for name, path in paths.items()}
    return Numbering(**held)


def _numbering_file(folder: Path, node_type: str, name: str) -> Path:
    return folder / "numbering" / file_name(node_type) / f"{name}.npy"


@dataclass(frozen=True)
class EdgeBuckets:
    """How the edges of a type are divided by their destinations. ``starts`` int64 [B + 1]: bucket b has those into the internal
    ids ``starts[b]`` to ``starts[b + 1]``. ``firsts`` [P + 1]: each partition's first bucket. ``folders``: one for each slice
    of the edges, see ``split_by_bucket``."""

    starts: Ids
    firsts: list[int]
    folders: Sequence[Path] = ()

    @classmethod
    def of(cls, ends: Ids, offsets: Ids, limit: int) -> EdgeBuckets:
        """Divide at the partitions, and where a bucket has ``limit`` edges. ``ends``: int64 [n + 1], number of edges
        into all internal ids before each."""
        starts, firsts = [0], [0]
        for lo, hi in pairwise(offsets.tolist()):
            starts += [last for _, last in lots(ends, limit, lo, hi)]
            firsts.append(len(starts) - 1)
        return cls(np.array(starts), firsts)


def moved_columns(schema: Schema, edge_type: str) -> dict[str, np.dtype[Any]]:
    """What moves of each edge: its id, the internal id of its destination, the rank of its source's user id, and its rows
    of tables."""
    source, target = (index_dtype(schema.node_counts[t]) for t in schema.endpoints(edge_type))
    tables = {f"tables/{name}": np.dtype((s.dtype, s.row_shape)) for name, s in schema.edge_tables[edge_type].items()}
    return {"ids": index_dtype(schema.edge_counts[edge_type]), "heads": target, "tails": source, **tables}


def _fewer(schema: Schema, edge_type: str, edges: int) -> int:
    """``edges``, or as many as take no more memory with their rows of tables."""
    row_bytes = sum(spec.row_bytes for spec in schema.edge_tables[edge_type].values())
    return max(1, edges * _SORTED_BYTES // (_SORTED_BYTES + row_bytes))


def split_by_bucket(work: TaskWork, part: EdgeSlice, starts: Ids) -> Path:
    """Sort edges by the bucket of their destination. Returns the folder of buckets, with the ``moved_columns``."""
    schema = work.graph.schema
    source, target = (_kept_numbering(work.folder, t) for t in schema.endpoints(part.edge_type))
    columns = moved_columns(schema, part.edge_type)
    folder = work.own_folder("moved")
    with BucketWriter(folder, len(starts) - 1, columns) as out:
        for first, last in chunks(part.hi - part.lo, _fewer(schema, part.edge_type, work.sizes.chunk_edges)):
            at, edges = slice(part.lo + first, part.lo + last), work.graph.edges(part.edge_type)  # as in _pieces
            heads = _native.looked_up(target.internal_of, edges.dst[at])
            tails = edges.src[at].astype(columns["tails"], copy=False)
            tails = tails if source.ranks is None else _native.looked_up(source.ranks, tails)
            ids = np.arange(at.start, at.stop, dtype=columns["ids"])
            rows = {f"tables/{name}": rows[at] for name, rows in edges.tables.items()}
            out.add(_native.buckets_of(heads, starts), ids=ids, heads=heads, tails=tails, **rows)
    return folder


@dataclass(frozen=True)
class WrittenPart:
    """A partition that a task wrote: the folder that holds its own, the records of its files, the number of its HALO
    vertices by node type, and of its edges with a source in another partition."""

    folder: Path
    files: dict[str, FileRecord]
    halo: dict[str, int]
    cut: int


def write_part(work: TaskWork, buckets: Mapping[str, EdgeBuckets], part: int) -> WrittenPart:
    """Write one partition."""
    folder = work.own_folder("part")
    writer = _PartWriter(work, folder / layout.part_folder(part), part)
    for node_type, tables in work.graph.schema.node_tables.items():
        for name in tables:
            writer.table(node_type, name)
    for edge_type, moved in buckets.items():
        writer.edges(edge_type, moved)
    halo = writer.halo()
    paths = sorted((folder / layout.part_folder(part)).rglob("*.npy"))
    files = {path.relative_to(folder).as_posix(): describe_file(path) for path in paths}
    return WrittenPart(folder, files, halo, writer.cut)


class _PartWriter:
    """Writes a partition into ``path``. ``cut``: number of edges so far with a source in another partition."""

    def __init__(self, work: TaskWork, path: Path, part: int) -> None:
        self.graph, self.schema, self.path, self.part, self.cut = work.graph, work.graph.schema, path, part, 0
        self.numbering = {t: _kept_numbering(work.folder, t) for t in self.schema.node_types}
        self._remote = {t: np.zeros(n, bool) for t, n in self.schema.node_counts.items()}

    def _range(self, node_type: str) -> tuple[int, int]:
        lo, hi = self.numbering[node_type].offsets[self.part : self.part + 2].tolist()
        return lo, hi

    def table(self, node_type: str, name: str) -> None:
        row_of = self.numbering[node_type].row_of
        spec = self.schema.node_tables[node_type][name]
        lo, hi = self._range(node_type)
        with NpyAppender(self.path / node_folder(node_type) / f"{name}.npy", spec.dtype, spec.row_shape) as out:
            for first, last in chunks(hi - lo, max(1, CHUNK_BYTES // max(1, spec.row_bytes))):
                # Mapped anew, as in _pieces.
                out.append(self.graph.rows(node_type, name, row_of[lo + first : lo + last]))

    def edges(self, edge_type: str, moved: EdgeBuckets) -> None:
        """Write the in-edges of the core vertices, by (destination, user id of source, id)."""
        source = self.schema.endpoints(edge_type)[0]
        columns, total = moved_columns(self.schema, edge_type), 0
        kinds = {"indptr": np.dtype(np.int64), "indices": columns["tails"], "edge_ids": columns["ids"]}
        kinds |= {name.removeprefix("tables/"): kind for name, kind in columns.items() if "/" in name}
        folder = self.path / edge_folder(edge_type)
        with contextlib.ExitStack() as files:
            out = {n: files.enter_context(column_file(folder / f"{n}.npy", kind)) for n, kind in kinds.items()}
            out["indptr"].append([0])
            reader = files.enter_context(BucketReader(moved.folders, columns))
            for number in range(moved.firsts[self.part], moved.firsts[self.part + 1]):
                first, last = moved.starts[number : number + 2].tolist()
                ids, heads, ranks, *rows = reader.read(number)
                heads -= first
                order = _native.stable_order(heads, last - first, ranks)
                tails = _native.looked_up(self.numbering[source].sorted_internal, _native.looked_up(ranks, order))
                self._note(source, tails)
                out["indptr"].append(total + np.cumsum(np.bincount(heads, minlength=last - first)))
                out["indices"].append(tails)
                out["edge_ids"].append(_native.looked_up(ids, order))
                for name, values in zip(list(kinds)[3:], rows, strict=True):
                    out[name].append(values[order])
                total += len(ids)

    def _note(self, node_type: str, sources: Array) -> None:
        """Keep in mind which sources the partition does not own."""
        lo, hi = self._range(node_type)
        away = sources[(sources < lo) | (sources >= hi)]
        self._remote[node_type][away] = True
        self.cut += len(away)

    def halo(self) -> dict[str, int]:
        """Write the HALO lists, after all edges. Returns their lengths."""
        lists = {t: np.flatnonzero(remote).astype(np.int64) for t, remote in self._remote.items()}
        for node_type, vertices in lists.items():
            write_array(self.path / node_folder(node_type) / "halo.npy", vertices)
        return {node_type: len(vertices) for node_type, vertices in lists.items()}


MAX_PARTS = 9999


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
    sizes: TaskSizes | None = None,
) -> dict[str, Any]:
    """Write the dataset ``dst``, which appears under its name only when complete; returns the quality that its manifest
    records. ``assignment``: node type -> int32 [n], the partition of each row. ``bounds``: what the method promised of
    the balance. ``sizes``: how the work is divided; by default it suits the number of edges. Raises ConfigError:
    ``dst`` may not be written, or the assignment does not fit the graph."""
    for t in graph.schema.node_types:
        if len(assignment.get(t, ())) != graph.schema.node_counts[t]:
            raise ConfigError(f"the assignment does not cover the vertices of node type {t!r}")
    with Staging(dst, layout.MANIFEST, overwrite=overwrite) as staging:
        run = TaskRun.begun(Threads(), graph, staging.path, sizes, progress)
        return DatasetSteps(run, staging.path, parts).all(assignment, provenance or {}, bounds or {})


def _pieces(graph: Graph, edge_type: str) -> Iterator[tuple[Any, Any, Any]]:
    """Sources, targets and weights of the edges of a type, by row, some at a time."""
    for lo, hi in chunks(graph.schema.edge_counts[edge_type], CHUNK_EDGES):
        edges = graph.edges(edge_type)  # mapped anew, so that pages which were read do not stay
        weight = edges.tables.get("weight")
        yield edges.src[lo:hi], edges.dst[lo:hi], None if weight is None else weight[lo:hi]


def check_parts(parts: int, graph: Graph) -> None:
    """Raise ConfigError if the graph cannot have so many partitions. That of a graph without vertices is empty."""
    vertices = sum(graph.schema.node_counts.values())
    if not 1 <= parts <= MAX_PARTS:
        raise ConfigError(f"--parts {parts}: must lie between 1 and {MAX_PARTS}")
    if parts > max(1, vertices):
        raise ConfigError(f"--parts {parts}: the graph has only {vertices} vertices")


class DatasetSteps:
    """The steps of one run, which write a dataset into ``path``, and their common data: ``numbering`` by node type, and
    ``counts`` of what was written."""

    def __init__(self, run: TaskRun, path: Path, parts: int) -> None:
        self.run, self.graph, self.schema = run, run.graph, run.graph.schema
        self.path, self.parts = path, parts
        self.numbering: dict[str, Numbering] = {}
        self.counts = Counts.zero(self.schema, parts)

    def all(
        self,
        assignment: Mapping[str, npt.NDArray[np.int32]],
        provenance: Mapping[str, Any],
        bounds: Mapping[str, float],
    ) -> dict[str, Any]:
        """Take all steps: see ``write_dataset``."""
        self.number(assignment)
        self.shared()
        files = self.write_parts(self.move(self.degrees()))
        return self.manifest(dict(provenance), bounds, files)

    def number(self, assignment: Mapping[str, npt.NDArray[np.int32]]) -> None:
        """Number the vertices."""
        for t in self.schema.node_types:
            self.numbering[t] = number_vertices(self.graph.user_ids(t), assignment[t], self.parts)
            self.counts.nodes[t][:] = np.diff(self.numbering[t].offsets)

    def shared(self) -> None:
        """Write id maps and splits."""
        self.run.progress.stage("ids and splits", None)
        for t, numbers in self.numbering.items():
            folder = self.path / shared_folder(t)
            write_array(folder / "ids.npy", numbers.ids)
            write_array(folder / "sorted_internal.npy", numbers.sorted_internal)
            ordered = None if numbers.ranks is None else np.sort(numbers.ids)
            if ordered is not None and not np.array_equal(ordered, np.arange(len(ordered))):
                write_array(folder / "sorted_ids.npy", ordered)
            for name in self.schema.splits[t]:
                internal = np.sort(numbers.internal_of[self.graph.split(t, name)]).astype(np.int64)
                write_array(folder / f"split_{name}.npy", internal)
                self.counts.splits[t][name][:] = np.diff(np.searchsorted(internal, numbers.offsets))

    def degrees(self) -> dict[str, EdgeBuckets]:
        """Write how many edges of each type every vertex has. Returns how these edges are divided."""
        buckets: dict[str, EdgeBuckets] = {}
        totals = {t: np.zeros(n, np.int64) for t, n in self.schema.node_counts.items()}
        for e in self.schema.edge_types:
            source, target = (self.numbering[t] for t in self.schema.endpoints(e))
            found = GraphDegrees.counted(_pieces(self.graph, e), self.schema, e).ordered(source.row_of, target.row_of)
            for name, array in found.files(degree_folder(e)).items():
                write_array(self.path / name, array)
            totals[self.schema.endpoints(e)[1]] += found.into
            ends = np.concatenate([[0], np.cumsum(found.into, dtype=np.int64)])
            self.counts.edges[e][:] = np.diff(ends[target.offsets])
            limit = _fewer(self.schema, e, self.run.work.sizes.bucket_edges)
            buckets[e] = EdgeBuckets.of(ends, target.offsets, limit)
        for t, degrees in totals.items():
            for part, (lo, hi) in enumerate(pairwise(self.numbering[t].offsets.tolist())):
                most = int(degrees[lo:hi].max(initial=0))
                self.counts.most_into[part] = max(self.counts.most_into[part], most)
        return buckets

    def move(self, buckets: Mapping[str, EdgeBuckets]) -> dict[str, EdgeBuckets]:
        """Have the edges moved into their buckets."""
        for node_type, numbers in self.numbering.items():  # for all tasks to map
            for field in fields(Numbering):
                if (array := getattr(numbers, field.name)) is not None:
                    write_array(_numbering_file(self.run.work.folder, node_type, field.name), array)
        given = [(s, buckets[s.edge_type].starts) for s in self.run.slices]
        split = self.run.tasks("moving edges", split_by_bucket, given)
        made = [(s.edge_type, folder) for (s, _), folder in zip(given, split, strict=True)]
        return {
            e: replace(of, folders=[folder for of_type, folder in made if of_type == e]) for e, of in buckets.items()
        }

    def write_parts(self, moved: Mapping[str, EdgeBuckets]) -> dict[str, FileRecord]:
        """Write all partitions. Returns the records of their files."""
        records: dict[str, FileRecord] = {}
        given = [(moved, part) for part in range(self.parts)]
        for part, written in enumerate(self.run.tasks("partitions", write_part, given)):
            (written.folder / layout.part_folder(part)).rename(self.path / layout.part_folder(part))
            self.counts.cut[part] = written.cut
            for t, count in written.halo.items():
                self.counts.halo[t][part] = count
            records |= written.files
        remove_folders([self.run.work.folder])
        return records

    def manifest(
        self, provenance: dict[str, Any], bounds: Mapping[str, float], known: Mapping[str, FileRecord]
    ) -> dict[str, Any]:
        """Write the manifest, and return its quality. ``known``: records of the partitions' files."""
        self.run.progress.stage("checksums", None)
        names = sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*.npy"))
        files = {name: known.get(name) or describe_file(self.path / name) for name in names}
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
