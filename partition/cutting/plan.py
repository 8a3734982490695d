"""Estimates the memory, disk and time to partition a graph of given size, by formulas that were fitted to measurements
(bench/results/partition-*.md). Memory is what all processes hold at once, pages of mapped files included."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.errors import ConfigError, UnknownNameError
from atta.partition.cutting.tasks import TaskSizes, thread_count
from atta.partition.cutting.union import SLICE
from atta.partition.cutting.writer import CHUNK_BYTES
from atta.partition.graph import index_dtype
from atta.partition.methods.metis import TAME_FROM, metis_bytes

METHODS = ("metis", "metis:tame=yes", "metis:tame=no", "block", "ldg", "fennel", "random")
_PROCESS = 64 << 20  # Python and its libraries
_PER_VERTEX = 35  # ids, ranks, owners, degrees
_PER_PLACED_VERTEX = 64  # bounds of rows, in-degrees, weights of three things, and these once more to put together
_PER_UNION_VERTEX = 24  # bounds of rows, in-degrees, loops
_PER_PLACE = 2  # bytes beside a neighbour until the rows are sorted
_PER_SORTED_EDGE = 70
_KEPT_PER_VERTEX = 1.22  # neighbours that a tamed METIS sees, per neighbour that a vertex may keep
_CAP = 8
_THINGS = 3  # number of quantities that are balanced at once
_START_S = 2.0
_FAR_EDGES, _FARTHER = 1e9, 0.4  # random reads of larger graphs leave the caches more often
_WRITE_NS = 65  # per edge: checksums, numbering, moving, sorting
_ASSIGN_NS = {"metis:tame=yes": 1100, "metis:tame=no": 1810, "block": 130, "ldg": 110, "fennel": 110, "random": 0}
"""Per edge of a graph of ``_FAR_EDGES``."""


@dataclass(frozen=True)
class GraphSize:
    """Counts of a graph.

    Attributes:
        nodes, edges: as stored: an undirected edge stored in both directions counts twice.
        row_bytes, edge_bytes: bytes of all node tables per vertex, and of all edge tables per edge.
        symmetric: whether both directions of every edge are stored.
        halo_ratio: HALO vertices per vertex, summed over partitions (1 to 2 with METIS on social graphs)."""

    nodes: int
    edges: int
    row_bytes: int = 0
    edge_bytes: int = 0
    symmetric: bool = True
    halo_ratio: float = 1.5

    def __post_init__(self) -> None:
        if min(self.nodes, self.edges, self.row_bytes, self.edge_bytes) < 0:
            raise ConfigError("nodes, edges and bytes must not be negative")
        if not 0 <= self.halo_ratio < math.inf:
            raise ConfigError(f"the HALO ratio is {self.halo_ratio}, must be finite and not negative")

    @property
    def neighbors(self) -> int:
        """Number of neighbours in the union graph."""
        return self.edges if self.symmetric else 2 * self.edges

    @property
    def folder_bytes(self) -> int:
        """Bytes of the graph folder on disk."""
        end = index_dtype(self.nodes).itemsize
        return self.edges * (2 * end + self.edge_bytes) + self.nodes * self.row_bytes

    @property
    def dataset_bytes(self) -> int:
        """Bytes of the partitioned dataset on disk. All daemons together load as many."""
        source, edge = index_dtype(self.nodes).itemsize, index_dtype(self.edges).itemsize
        per_vertex = 8 + source + 8 + self.row_bytes + 8 * self.halo_ratio  # ids, order, row bounds, tables, HALO lists
        degrees = 3 + 4 * bool(self.edge_bytes)  # of few edges in, out and to itself; and a sum of weights, perhaps
        return self.edges * (source + edge + self.edge_bytes) + round(self.nodes * (per_vertex + degrees))


@dataclass(frozen=True)
class Estimate:
    """What one method takes: ``memory`` in bytes at its peak, ``seconds``, and the stage with the ``peak``:
    ``"assign"`` or ``"write"``."""

    method: str
    memory: int
    seconds: float
    peak: str


def estimate(size: GraphSize, method: str, parts: int) -> Estimate:
    """Estimate what it takes to partition ``size`` into ``parts`` by ``method`` (one of ``METHODS``). Raises
    UnknownNameError: no such method; ConfigError: fewer than one partition."""
    if method not in METHODS:
        raise UnknownNameError.of("method", method, METHODS)
    if parts < 1:
        raise ConfigError(f"parts {parts}: must be at least 1")
    form = method
    if method == "metis":
        form = "metis:tame=yes" if size.neighbors >= TAME_FROM else "metis:tame=no"
    end = index_dtype(size.nodes).itemsize
    union, sorted_ = end * size.neighbors, _PER_PLACE * size.neighbors
    vertices = _PER_VERTEX * size.nodes + _PROCESS
    assign = vertices if form == "random" else union + vertices
    if form.startswith("metis"):
        kept = round(_KEPT_PER_VERTEX * _CAP * size.nodes) if form.endswith("yes") else size.neighbors
        assign += metis_bytes(size.nodes, min(kept, size.neighbors), _THINGS)
    elif form != "random":
        read = thread_count() * 2 * end * min(SLICE, size.edges)
        sorting = sorted_ + _PER_UNION_VERTEX * size.nodes + read
        assign = union + _PROCESS + max(_PER_PLACED_VERTEX * size.nodes, sorting)
    bucket, rows = TaskSizes.of(size.edges).bucket_edges, min(size.nodes * size.row_bytes, parts * CHUNK_BYTES)
    write = vertices + thread_count() * (_PER_SORTED_EDGE * min(size.edges, bucket) + rows)
    far = (size.edges / _FAR_EDGES) ** _FARTHER
    seconds = _START_S + 1e-9 * size.edges * (_WRITE_NS + _ASSIGN_NS[form] * far)
    return Estimate(method, max(assign, write), seconds, "assign" if assign > write else "write")
