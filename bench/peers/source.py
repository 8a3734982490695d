"""Graphs in a form that every peer can read: end points, tables and training vertices as plain arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, UnknownNameError
from atta.partition import dataset as parted
from atta.partition.graph import MANIFEST as GRAPH_MANIFEST
from atta.partition.graph import Graph
from atta.partition.schema import Schema

__all__ = ["PlainGraph", "fingerprint", "read_plain"]


@dataclass(frozen=True)
class PlainGraph:
    """A homogeneous graph in memory.

    Attributes:
        num_nodes: number of vertices, n.
        src, dst: end points of the edges, int64 [E], 0 to n - 1.
        tables: by name, [n, *row_shape].
        splits: by name, ascending vertices, int64 [S].
        seeds: the vertices of the chosen split.
    """

    num_nodes: int
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    tables: Mapping[str, npt.NDArray[Any]]
    splits: Mapping[str, npt.NDArray[np.int64]]
    seeds: npt.NDArray[np.int64]


def fingerprint(path: str | Path) -> str:
    """16 hex digits that identify the contents of a graph folder or partitioned dataset."""
    if (Path(path) / GRAPH_MANIFEST).exists():
        files = Graph.open(path, verify=False).files
        text = "\n".join(f"{name} {record.xxh3}" for name, record in sorted(files.items()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return parted.Dataset.open(path, parts=[], verify=False).dataset_id


def read_plain(path: str | Path, split: str = "train") -> PlainGraph:
    """Read a graph folder, or join a partitioned dataset (internal ids then number the vertices).

    Raises:
        DataError: the folder is damaged.
        ConfigError: it has several node or edge types.
        UnknownNameError: it has no such split.
    """
    if (Path(path) / GRAPH_MANIFEST).exists():
        return _from_graph(Graph.open(path, verify=False), split)
    return _from_dataset(parted.Dataset.open(path, verify=False), split)


def _from_graph(graph: Graph, split: str) -> PlainGraph:
    node_type, edge_type = _only_types(graph.schema, split)
    edges = graph.edges(edge_type)
    splits = {name: np.asarray(graph.split(node_type, name), dtype=np.int64) for name in graph.schema.splits[node_type]}
    return PlainGraph(
        graph.schema.node_counts[node_type],
        np.asarray(edges.src, dtype=np.int64),
        np.asarray(edges.dst, dtype=np.int64),
        {name: graph.table(node_type, name) for name in graph.schema.node_tables[node_type]},
        splits,
        splits[split],
    )


def _from_dataset(dataset: parted.Dataset, split: str) -> PlainGraph:
    node_type, edge_type = _only_types(dataset.schema, split)
    parts = [dataset.part(p) for p in range(dataset.num_parts)]
    stored = [part.csc(edge_type) for part in parts]
    starts = [dataset.book.range(node_type, p)[0] for p in range(dataset.num_parts)]
    targets = [
        s + np.repeat(np.arange(len(c.indptr) - 1), np.diff(c.indptr)) for s, c in zip(starts, stored, strict=True)
    ]
    splits = {
        name: np.asarray(dataset.split(node_type, name), dtype=np.int64) for name in dataset.schema.splits[node_type]
    }
    return PlainGraph(
        dataset.schema.node_counts[node_type],
        np.concatenate([np.asarray(c.indices, dtype=np.int64) for c in stored]),
        np.concatenate(targets),
        {
            name: np.concatenate([part.table(node_type, name) for part in parts])
            for name in dataset.schema.node_tables[node_type]
        },
        splits,
        splits[split],
    )


def _only_types(schema: Schema, split: str) -> tuple[str, str]:
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("peers take graphs with one node type and one edge type")
    node_type = schema.node_types[0]
    if split not in schema.splits[node_type]:
        raise UnknownNameError.of("split", split, schema.splits[node_type])
    return node_type, schema.edge_types[0]
