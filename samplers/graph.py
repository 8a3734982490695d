"""A whole graph in this process, for sampling without daemons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers import kernels

__all__ = ["LocalGraph", "blaming"]


@contextlib.contextmanager
def blaming() -> Iterator[None]:
    """Complaints of the native kernels as Atta's errors."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True)
class LocalGraph:
    """In-edges of all vertices (CSC). Rows are ordered by the source's key, so that results do not depend on how edges came.

    Attributes:
        indptr: int64 [n + 1].
        indices: int32|int64 [E], sources.
        keys: int64 [n], user ids: what randomness is a function of.
        edge_ids: int32|int64 [E], positions of the edges as they were given; None: an edge's id is its position in ``indices``.
    """

    indptr: np.ndarray
    indices: np.ndarray
    keys: np.ndarray
    edge_ids: np.ndarray | None = None

    @classmethod
    def from_csc(cls, indptr: Any, indices: Any, *, keys: Any = None, edge_ids: Any = None) -> LocalGraph:
        """Wrap arrays or tensors of the right dtypes without a copy; node2vec wants rows ordered by key.

        Raises:
            ConfigError: the arrays contradict each other.
        """
        ptr, sources = np.ascontiguousarray(indptr, dtype=np.int64), np.ascontiguousarray(indices)
        key = np.arange(len(ptr) - 1, dtype=np.int64) if keys is None else np.ascontiguousarray(keys, dtype=np.int64)
        numbers = None if edge_ids is None else np.ascontiguousarray(edge_ids)
        if len(key) != len(ptr) - 1 or (numbers is not None and len(numbers) != len(sources)):
            raise ConfigError("keys and edge_ids: need one entry per vertex and per edge")
        with blaming():
            kernels.validate_csc(ptr, sources, len(key))
        return cls(ptr, sources, key, numbers)

    @classmethod
    def from_edges(cls, src: Any, dst: Any, num_nodes: int, *, keys: Any = None) -> LocalGraph:
        """Build from edges ``src[i]`` → ``dst[i]`` (arrays or tensors of ids below ``num_nodes``).

        Raises:
            ConfigError: an id is out of range, or lengths differ.
        """
        source, target = np.asarray(src).astype(np.int64, copy=False), np.asarray(dst).astype(np.int64, copy=False)
        if source.shape != target.shape or source.ndim != 1:
            raise ConfigError(f"edges: {source.shape} sources for {target.shape} targets, both must be [E]")
        for name, ids in (("src", source), ("dst", target)):
            if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
                raise ConfigError(f"{name}: ids lie in {ids.min()}..{ids.max()}, the graph has {num_nodes} vertices")
        key = np.arange(num_nodes, dtype=np.int64) if keys is None else np.ascontiguousarray(keys, dtype=np.int64)
        if len(key) != num_nodes:
            raise ConfigError(f"keys: {len(key)} for {num_nodes} vertices")
        order = np.lexsort((key[source], target))
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(target, minlength=num_nodes), out=indptr[1:])
        narrow = np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64
        return cls(indptr, source[order].astype(narrow), key, order)

    @classmethod
    def open(cls, path: str | Path, edge_type: str | None = None) -> LocalGraph:
        """Load a dataset of one partition, or one edge type of it between vertices of one type.

        Raises:
            ConfigError: several partitions, or an edge type between different node types.
            DataError: the dataset is damaged.
        """
        from atta.partition.dataset import Dataset

        dataset = Dataset.open(path)
        name = dataset.schema.edge_types[0] if edge_type is None else dataset.schema.check_edge_type(edge_type)
        source, target = dataset.schema.endpoints(name)
        if dataset.num_parts != 1 or source != target:
            raise ConfigError(
                f"{path}: {dataset.num_parts} partitions, {name}; a local graph is one partition of one node type"
            )
        csc = dataset.part(0).csc(name)
        kernels.validate_csc(csc.indptr, csc.indices, dataset.schema.node_counts[source])
        arrays = [kernels.resident(a) for a in (csc.indptr, csc.indices, dataset.ids(source), csc.edge_ids)]
        return cls(*arrays)

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return len(self.indptr) - 1
