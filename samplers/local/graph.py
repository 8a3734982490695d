"""A whole graph in this process, for sampling without daemons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError, blaming, known_name
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.arguments import integers, whole


@dataclass(frozen=True)
class LocalGraph:
    """In-edges of all vertices (CSC). Rows are ordered by the source's key, so that results do not depend on the order in which
    the edges were given.

    Attributes:
        indptr, indices: int64 [n + 1]; int32|int64 [E], sources.
        keys: int64 [n], user ids. Random draws are a function of them.
        edge_ids: int32|int64 [E], positions of the edges in the user's input; None: an edge's id is its position in
            ``indices``.
        source_keys: int64 [m], user ids of the sources if they are of another node type.
        weight, time: [E] in the order of ``indices``, for the methods that need them.
        node_time, source_time: int64 [n] and [m], from when on each vertex exists, for temporal methods; None: always.
            Sources have ``source_time`` if they are of another node type."""

    indptr: np.ndarray
    indices: np.ndarray
    keys: np.ndarray
    edge_ids: np.ndarray | None = None
    source_keys: np.ndarray | None = None
    weight: np.ndarray | None = None
    time: np.ndarray | None = None
    node_time: np.ndarray | None = None
    source_time: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.source_keys is None and self.source_time is not None:
            raise ConfigError("source_time: the sources are of the same node type, their times are node_time")
        for what, times, count in (
            ("node_time", self.node_time, self.num_nodes),
            ("source_time", self.source_time, self.num_sources),
        ):
            if times is not None and times.shape != (count,):
                raise ConfigError(f"{what}: {list(times.shape)} for {count} vertices")

    @classmethod
    def from_csc(
        cls,
        indptr: Any,
        indices: Any,
        *,
        keys: Any = None,
        edge_ids: Any = None,
        source_keys: Any = None,
        weight: Any = None,
        time: Any = None,
        node_time: Any = None,
        source_time: Any = None,
    ) -> LocalGraph:
        """Wrap arrays or tensors of the right dtypes without a copy. node2vec needs rows ordered by key. Raises
        ConfigError: the arrays contradict each other."""
        ptr, sources = integers("indptr", indptr), np.ascontiguousarray(indices)
        key = np.arange(len(ptr) - 1, dtype=np.int64) if keys is None else integers("keys", keys)
        numbers = None if edge_ids is None else np.ascontiguousarray(edge_ids)
        others = None if source_keys is None else integers("source_keys", source_keys)
        tables = [None if table is None else np.ascontiguousarray(table) for table in (weight, time)]
        if len(key) != len(ptr) - 1 or any(t is not None and len(t) != len(sources) for t in (numbers, *tables)):
            raise ConfigError("keys, edge_ids, weight and time: need one entry per vertex and per edge")
        with blaming(ConfigError, of=ValueError):
            kernels.validate_csc(ptr, sources, len(key if others is None else others))
        return cls(ptr, sources, key, numbers, others, *tables, *_times(node_time, source_time))

    @classmethod
    def from_edges(
        cls,
        src: Any,
        dst: Any,
        num_nodes: int,
        *,
        keys: Any = None,
        source_keys: Any = None,
        weight: Any = None,
        time: Any = None,
        node_time: Any = None,
        source_time: Any = None,
    ) -> LocalGraph:
        """Build from edges ``src[i]`` → ``dst[i]``: arrays or tensors of ids, targets below ``num_nodes``. Sources are
        vertices of the same type, or the vertices that ``source_keys`` (int64 [m]) names. ``weight`` and ``time``: [E].
        ``node_time`` and ``source_time``: integers, one per vertex. Raises ConfigError: an id is out of range, or
        lengths differ."""
        source, target, num_nodes = integers("src", src), integers("dst", dst), whole("num_nodes", num_nodes, 0)
        if source.shape != target.shape or source.ndim != 1:
            raise ConfigError(f"edges: {source.shape} sources for {target.shape} targets, both must be [E]")
        key = np.arange(num_nodes, dtype=np.int64) if keys is None else integers("keys", keys)
        others = None if source_keys is None else integers("source_keys", source_keys)
        from_keys = key if others is None else others
        if len(key) != num_nodes:
            raise ConfigError(f"keys: {len(key)} for {num_nodes} vertices")
        for name, ids, count in (("src", source, len(from_keys)), ("dst", target, num_nodes)):
            if len(ids) and not (ids.min() >= 0 and ids.max() < count):
                raise ConfigError(f"{name}: ids lie in {ids.min()}..{ids.max()}, the graph has {count} vertices")
        tables = [None if table is None else np.asarray(table) for table in (weight, time)]
        if any(table is not None and table.shape != source.shape for table in tables):
            raise ConfigError(f"weight and time: must be [{len(source)}], one per edge")
        order = np.lexsort((from_keys[source], target))
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(target, minlength=num_nodes), out=indptr[1:])
        narrow = np.int32 if len(from_keys) <= np.iinfo(np.int32).max else np.int64
        in_order = [None if table is None else table[order] for table in tables]
        of_vertices = _times(node_time, source_time)
        return cls(indptr, source[order].astype(narrow), key, order, others, *in_order, *of_vertices)

    @classmethod
    def open(cls, path: str | Path, edge_type: str | None = None) -> LocalGraph:
        """Load one edge type of a dataset of one partition. ``open_all`` loads all edge types. Raises ConfigError: the
        dataset has several partitions, or several edge types and ``edge_type`` names none; DataError: the dataset is
        damaged."""
        graphs = cls.open_all(path)
        if edge_type is None and len(graphs) != 1:
            raise ConfigError(f"{path}: name one of the edge types {', '.join(graphs)}")
        return next(iter(graphs.values())) if edge_type is None else graphs[known_name("edge type", edge_type, graphs)]

    @classmethod
    def open_all(cls, path: str | Path) -> dict[str, LocalGraph]:
        """Load all edge types of a dataset of one partition. Errors as for ``open``."""
        from atta.partition.dataset import Dataset

        dataset = Dataset.open(path)
        if dataset.num_parts != 1:
            raise ConfigError(f"{path}: {dataset.num_parts} partitions; a local graph is one partition")
        keys = {t: kernels.resident(dataset.ids(t)) for t in dataset.schema.node_types}
        return {name: cls._from_part(dataset, name, keys) for name in dataset.schema.edge_types}

    @classmethod
    def _from_part(cls, dataset: Dataset, edge_type: str, keys: dict[str, np.ndarray]) -> LocalGraph:
        source, target = dataset.schema.endpoints(edge_type)
        csc = dataset.part(0).csc(edge_type)
        kernels.validate_csc(csc.indptr, csc.indices, dataset.schema.node_counts[source])
        times = [None if found is None else found.times for found in map(dataset.times, (target, source))]
        return cls(
            kernels.resident(csc.indptr),
            kernels.resident(csc.indices),
            keys[target],
            kernels.resident(csc.edge_ids),
            None if source == target else keys[source],
            csc.weight,
            csc.time,
            times[0],
            None if source == target else times[1],
        )

    @property
    def num_nodes(self) -> int:
        """Number of vertices that edges end at."""
        return len(self.indptr) - 1

    @property
    def num_sources(self) -> int:
        """Number of vertices that edges may come from."""
        return self.num_nodes if self.source_keys is None else len(self.source_keys)

    @property
    def times_of_sources(self) -> np.ndarray | None:
        """int64 [num_sources], from when on each source exists; None: always."""
        return self.node_time if self.source_keys is None else self.source_time


def _times(*of_vertices: Any) -> list[np.ndarray | None]:
    named = zip(("node_time", "source_time"), of_vertices, strict=True)
    return [None if times is None else integers(what, times) for what, times in named]
