"""One partition's graph, ready to be sampled: what a daemon answers its peers and its own tasks from."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.samplers import kernels
from atta.samplers.methods import AliasTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atta.partition.dataset import CSC, Dataset

__all__ = ["Answer", "Shard"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Sampled in-neighbours of some rows.

    ``counts`` int32 [rows]; ``neighbors`` int32|int64 [sum(counts)] internal source ids; ``edge_ids`` int32|int64, same length.
    """

    counts: np.ndarray
    neighbors: np.ndarray
    edge_ids: np.ndarray


class Shard:
    """The in-edges of one partition's core vertices. Immutable and safe to use from many threads."""

    def __init__(self, dataset: Dataset, part: int, *, threads: int = 1, resident: bool = False) -> None:
        """Map partition ``part`` of ``dataset`` (``resident``: load it into memory) and check its structure once.

        Raises:
            DataError: an edge type's arrays contradict each other.
        """
        self.part = part
        self.threads = threads
        self.dataset = dataset
        self._csc: dict[str, CSC] = {}
        self._alias: dict[str, AliasTables] = {}
        self._lock = threading.Lock()
        self._keys: dict[str, np.ndarray] = {}
        for node_type in dataset.schema.node_types:
            lo, hi = dataset.book.range(node_type, part)
            self._keys[node_type] = np.ascontiguousarray(dataset.ids(node_type)[lo:hi], dtype=np.int64)
        for edge_type in dataset.schema.edge_types:
            csc = dataset.part(part).csc(edge_type)
            source, _ = dataset.schema.endpoints(edge_type)
            try:
                kernels.validate_csc(csc.indptr, csc.indices, dataset.schema.node_counts[source])
            except ValueError as error:
                raise DataError(dataset.path, f"part {part}, edge type {edge_type}: {error}") from error
            if resident:
                arrays = {name: kernels.resident(getattr(csc, name)) for name in ("indptr", "indices", "edge_ids")}
                csc = dataclasses.replace(csc, **arrays)
            self._csc[edge_type] = csc

    def sample(
        self,
        edge_type: str,
        rows: np.ndarray,
        *,
        fan_out: int,
        replace: bool,
        stream_key: int,
        weighted: bool = False,
        threads: int | None = None,
    ) -> Answer:
        """Sample in-neighbours of core ``rows`` (positions in this partition's range, int32|int64), ``weighted``: by edge weights.

        The result for a row is a pure function of (stream_key, the row's user id): architecture, determinism contract.

        Raises:
            ConfigError: a row outside the partition, a fan-out below -1, or no usable weights.
            UnknownNameError: no such edge type.
        """
        csc = self._edges(edge_type)
        keys = self._keys[self.dataset.schema.endpoints(edge_type)[1]]
        try:
            if weighted:
                counts, positions = self._alias_tables(edge_type, csc).pick(
                    csc.indptr,
                    keys,
                    rows,
                    fan_out=fan_out,
                    replace=replace,
                    stream_key=stream_key,
                    threads=threads or self.threads,
                )
                return Answer(counts, _taken(csc.indices, positions), _taken(csc.edge_ids, positions))
            counts, neighbors, edge_ids = kernels.sample_neighbors(
                csc.indptr,
                csc.indices,
                csc.edge_ids,
                keys,
                rows,
                fan_out=fan_out,
                replace=replace,
                stream_key=stream_key,
                threads=threads or self.threads,
            )
        except ValueError as error:
            raise ConfigError(f"part {self.part}, edge type {edge_type}: {error}") from error
        assert edge_ids is not None
        return Answer(counts, neighbors, edge_ids)

    def _alias_tables(self, edge_type: str, csc: CSC) -> AliasTables:
        """Made when first needed: not every job draws by weight."""
        with self._lock:
            if edge_type not in self._alias:
                if csc.weight is None:
                    raise ConfigError(f"edge type {edge_type} has no weights to draw by")
                self._alias[edge_type] = AliasTables.build(csc.indptr, csc.weight, threads=self.threads)
            return self._alias[edge_type]

    def pair(self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int) -> np.ndarray:
        """``count`` non-neighbours (or in-neighbours) per core row: int64 internal ids [rows * count], -1 where none exists.

        Raises:
            ConfigError: a row outside the partition.
            UnknownNameError: no such edge type.
        """
        csc = self._edges(edge_type)
        source, target = self.dataset.schema.endpoints(edge_type)
        try:
            return kernels.sample_pairs(
                csc.indptr,
                csc.indices,
                self._keys[target],
                rows,
                count=count,
                stream_key=stream_key,
                negative=negative,
                ids=self.dataset.ids(source),
                sorted_internal=self.dataset.sorted_internal(source),
            )
        except ValueError as error:
            raise ConfigError(f"part {self.part}, edge type {edge_type}: {error}") from error

    def degree(self, edge_types: Iterable[str], rows: np.ndarray) -> int:
        """Total in-degree of core ``rows`` over ``edge_types`` (the cost of expanding them, ByteGNN's NSC cost)."""
        return sum(kernels.degree_sum(self._csc[e].indptr, rows) for e in edge_types)

    def degrees(self, edge_type: str, rows: np.ndarray) -> np.ndarray:
        """int64 [rows]: in-degrees, for splitting full-neighbourhood answers into bounded messages.

        Raises:
            ConfigError: a row outside the partition.
        """
        indptr = self._edges(edge_type).indptr
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(indptr) - 1):
            raise ConfigError(f"part {self.part}, edge type {edge_type}: row outside 0..{len(indptr) - 2}")
        return np.asarray(indptr[rows + 1] - indptr[rows])

    def _edges(self, edge_type: str) -> CSC:
        csc = self._csc.get(edge_type)
        if csc is None:
            raise UnknownNameError.of("edge type", edge_type, self._csc)
        return csc


def _taken(table: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """``table[positions]``, with lines requested ahead."""
    out = np.empty(len(positions), table.dtype)
    kernels.gather_ids(table, positions, out)
    return out
