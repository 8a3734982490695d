"""The neutral graph folder, which importers and generators write and partitioning reads (docs/reference/formats.md):
``graph.json``, ``nodes/<type>/`` with ``ids.npy``, tables and splits, ``edges/<type>/`` with ``src.npy``, ``dst.npy``
(rows of the end points; the position is the user's edge id) and tables."""

from __future__ import annotations

from atta.partition.graph.reading import MANIFEST, Edges, Graph, check_layout, index_dtype, read_records
from atta.partition.graph.writing import EdgeAppender, GraphWriter
from atta.partition.schema import EDGE_TYPE, NODE_TYPE

__all__ = [
    "EDGE_TYPE",
    "MANIFEST",
    "NODE_TYPE",
    "EdgeAppender",
    "Edges",
    "Graph",
    "GraphWriter",
    "check_layout",
    "index_dtype",
    "read_records",
]
