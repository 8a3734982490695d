"""The neutral graph folder: what importers and generators write and partitioning reads.

    graph.json                       format, version, schema, provenance, size and checksum of each file
    nodes/<type>/ids.npy             int64 user ids by row; absent when the row number is the id
    nodes/<type>/<table>.npy         one row per vertex
    nodes/<type>/split_<name>.npy    int64 ascending rows
    edges/<type>/src.npy, dst.npy    rows of the end points; the position in the file is the user's edge id
    edges/<type>/weight.npy, time.npy

A homogeneous graph has the node type ``node`` and the edge type ``node__to__node``.
"""

from __future__ import annotations

from atta.partition.graph.reading import (
    MANIFEST,
    Edges,
    Graph,
    check_layout,
    index_dtype,
    read_records,
)
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
