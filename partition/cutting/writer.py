"""Build a partitioned dataset from a graph folder and an assignment of vertices to partitions.

DatasetSteps:

1. Number the vertices so that every (partition, node type) is one contiguous range.
2. Copy table rows part by part.
3. Move every edge to the owner of its destination (DistDGL's edge-cut placement, section 4.1 of its description), so
   that a core vertex sees all its in-neighbours.
4. Count every vertex' edges, which batches do not see.
5. List HALO vertices, measure the quality, write the manifest.

The edges of a partition are sorted in buckets of bounded size, so memory depends on the vertices and the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress, Silent
from atta.partition import dataset as layout
from atta.partition.cutting.numbering import Numbering, number_vertices
from atta.partition.cutting.part_writer import CHUNK_EDGES, AllEdges, PartWriter
from atta.partition.cutting.quality import Counts, summarise
from atta.partition.disk.files import FileRecord, chunks, describe_file, write_array, write_sealed
from atta.partition.disk.staging import Staging
from atta.partition.graph import Graph
from atta.partition.names import shared_folder
from atta.partition.parts.book import PartitionBook
from atta.partition.parts.degrees import GraphDegrees, degree_folder

__all__ = ["BUCKET_EDGES", "MAX_PARTS", "DatasetSteps", "check_assignment", "write_dataset"]

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
    """Write the dataset ``dst``; it appears under its name only when complete.

    Args:
        graph: the graph to cut.
        assignment: node type -> int32 [n], the partition of each row.
        dst: folder to write; must not exist or be empty, unless ``overwrite``.
        parts: number of partitions.
        bounds: what the method promised of the balance (``PartitionMethod``).
        provenance: any facts, for the manifest.
        overwrite: replace an existing dataset.
        progress: receives the stages.
        bucket_edges: number of edges sorted in memory at a time (about 40 bytes each).

    Returns:
        The quality that the manifest records.

    Raises:
        ConfigError: ``dst`` may not be written, or the assignment does not fit the graph.
    """
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
    """The steps of one run, and their common data.

    Attributes:
        numbering: by node type, after ``number``.
        counts: what was written, for the quality.
    """

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
