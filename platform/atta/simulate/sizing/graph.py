"""What a daemon's partition of a larger graph takes in memory, from a sample of it. Pure.

Bytes per vertex and per edge are those of the sample's files. Numbers that no longer fit into 32 bits take twice as
much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError
from atta.partition.dataset import Dataset, part_folder
from atta.partition.disk.files import FileRecord
from atta.partition.graph.needs import BARE_BYTES

__all__ = ["GraphCounts", "SampleBytes", "sample_bytes"]

UNEVEN = 1.1
"""A part may be this many times as large as the mean: cuts balance vertices, and edges only roughly."""
_NARROW = 1 << 31


@dataclass(frozen=True)
class GraphCounts:
    """Vertices and edges of a graph, all types together."""

    vertices: int
    edges: int

    @property
    def degree(self) -> float:
        """Mean in-degree."""
        return self.edges / max(1, self.vertices)


@dataclass(frozen=True)
class SampleBytes:
    """Bytes of a sample's partitions.

    Attributes:
        size: of the sample.
        per_vertex: of its own vertices, in the memory of the daemon that has them.
        per_edge: the same of edges.
        shared: of all vertices, in the memory of every daemon.
        vertex_numbers, edge_numbers: of ``per_edge``, numbers of vertices and of edges that fit into 32 bits.
        row: bytes of the table rows of a vertex.
    """

    size: GraphCounts
    per_vertex: float
    per_edge: float
    shared: float
    vertex_numbers: float
    edge_numbers: float
    row: float

    def daemon(self, graph: GraphCounts, machines: int, cache: int, buffer: int) -> int:
        """Bytes that each daemon of a larger graph needs, one per machine.

        Args:
            graph: the larger graph.
            machines: number of daemons.
            cache, buffer: the daemon's bounds for rows of others and for batches, in bytes.
        """
        wide = self.vertex_numbers * (graph.vertices >= _NARROW) + self.edge_numbers * (graph.edges >= _NARROW)
        part = (graph.vertices * self.per_vertex + graph.edges * (self.per_edge + wide)) / machines
        rows = graph.vertices * (1 - 1 / machines) * self.row
        uneven = UNEVEN if machines > 1 else 1.0
        return math.ceil(BARE_BYTES + uneven * part + graph.vertices * self.shared + min(cache, rows) + buffer)


def sample_bytes(dataset: Dataset) -> SampleBytes:
    """What the manifest of a partitioned sample tells.

    Raises:
        ConfigError: it has no edges.
    """
    schema = dataset.schema
    size = GraphCounts(sum(schema.node_counts.values()), sum(schema.edge_counts.values()))
    if not size.edges:
        raise ConfigError(f"{dataset.path}: has no edges, so it says nothing about a larger graph")
    parts = tuple(f"{part_folder(part)}/" for part in range(dataset.num_parts))
    files = {name: record for name, record in dataset.files.items() if name.startswith(parts)}
    of_edges = {n: record for n, record in files.items() if "/edges/" in n and not n.endswith("/indptr.npy")}
    edge_bytes = sum(record.size for record in of_edges.values())
    shared = sum(record.size for name, record in dataset.files.items() if name.startswith("shared/"))
    rows = [
        schema.node_counts[t] * sum(spec.row_bytes for spec in tables.values())
        for t, tables in schema.node_tables.items()
    ]
    return SampleBytes(
        size,
        per_vertex=(sum(record.size for record in files.values()) - edge_bytes) / size.vertices,
        per_edge=edge_bytes / size.edges,
        shared=shared / size.vertices,
        vertex_numbers=_narrow(of_edges, "indices.npy") / size.edges,
        edge_numbers=_narrow(of_edges, "edge_ids.npy") / size.edges,
        row=sum(rows) / size.vertices,
    )


def _narrow(files: Mapping[str, FileRecord], ending: str) -> float:
    """Bytes of the files with this ending whose numbers have 32 bits."""
    found = [record for name, record in files.items() if name.endswith(ending)]
    return float(sum(record.size for record in found if np.dtype(record.dtype).itemsize == 4))
