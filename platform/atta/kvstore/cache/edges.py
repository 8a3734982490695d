"""In-edges of chosen vertices of other partitions, in their owner's order, so that a batch expands such a vertex at
home to the same bits. A vertex that is here stays and does not change: look-ups need no lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from atta.kvstore.cache.choice import VERTEX_BYTES, HotVertices, edge_types_into
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import EdgeDraws, InEdges, Tables
from atta.samplers.shard import Answer

PIECE_BYTES = 1 << 20
"""About so many bytes of in-edges come at once. A single vertex may have more."""
TIER_BYTES = 8 << 20
"""Vertices that save about as much are regrouped by owner, within so many bytes."""
EDGE_BYTES, ROW_BYTES = 8, 4
"""An edge and a row of an answer on the network."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Vertices of one owner: the rows [first, stop) of ``HotVertices``; ``nbytes`` on the network."""

    tier: int
    node_type: str
    owner: int
    first: int
    stop: int
    nbytes: int


def in_pieces(hot: HotVertices, offsets: np.ndarray) -> tuple[HotVertices, list[Piece]]:
    """Reorder ``hot`` so that the vertices of a piece follow each other, in ascending order of ids. ``offsets`` int64
    [P+1]: the partitions' ranges of ids."""
    sizes = ROW_BYTES + EDGE_BYTES * hot.degrees.sum(axis=1)
    tiers = (np.cumsum(sizes) - sizes) // TIER_BYTES
    order = np.lexsort((hot.ids, tiers))
    sizes, tiers, ids = sizes[order], tiers[order], hot.ids[order]
    owners = np.searchsorted(offsets, ids, side="right") - 1
    starts = np.flatnonzero(np.diff(tiers, prepend=-1) | np.diff(owners, prepend=-1))
    found = []
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        for first, end in _cut(sizes, int(start), int(stop)):
            nbytes = int(sizes[first:end].sum())
            found.append(Piece(int(tiers[first]), hot.node_type, int(owners[first]), first, end, nbytes))
    return HotVertices(hot.node_type, ids, hot.degrees[order]), found


def _cut(sizes: np.ndarray, start: int, stop: int) -> Sequence[tuple[int, int]]:
    """Cut rows [start, stop) so that no piece is much larger than ``PIECE_BYTES``."""
    done = np.cumsum(sizes[start:stop])
    found, at = [], 0
    while at < len(done):
        before = done[at - 1] if at else 0
        end = max(at + 1, int(np.searchsorted(done, before + PIECE_BYTES, side="right")))
        found.append((start + at, start + end))
        at = end
    return found


MARK_BYTES = 4
"""Memory per edge that LABOR needs besides the edges."""


class _CachedEdges:
    """In-edges of one type: row i's are at ``indptr[i]`` ... ``indptr[i + 1] - 1``. int64 [n + 1], the rest [edges]."""

    def __init__(self, dataset: Dataset, part: int, edge_type: str, degrees: np.ndarray) -> None:
        like = dataset.part(part).csc(edge_type)
        self.indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        # Pages that are only zero take no memory. A row that never comes must hold valid ids, too (LABOR reads all).
        self.indices, self.edge_ids = kernels.zeros_beside(
            int(self.indptr[-1]), like.indices.dtype, like.edge_ids.dtype
        )
        self.marks: Tables | None = None

    def are(self, first: int, answer: Answer, digests: np.ndarray, keys: np.ndarray, sources: int) -> bool:
        """Whether ``answer`` has the in-edges of rows ``first``, ... (user ids ``keys``) with these digests. There are
        ``sources`` vertices of the type that they begin at."""
        indptr = self.indptr[first : first + len(digests) + 1] - self.indptr[first]
        if not np.array_equal(np.diff(indptr), answer.counts) or len(answer.neighbors) != indptr[-1]:
            return False
        if not (_fit(answer.neighbors, self.indices.dtype) and _fit(answer.edge_ids, self.edge_ids.dtype)):
            return False
        try:
            found = kernels.edge_digests(
                indptr,
                answer.neighbors,
                answer.edge_ids,
                vertex_keys=keys,
                num_sources=sources,
                rows=np.arange(len(digests)),
            )
        except ValueError:  # a source that does not exist, or edges without an id
            return False
        return np.array_equal(found, digests)

    def put(self, first: int, answer: Answer) -> None:
        """Copy the in-edges of rows ``first``, ... to their place."""
        begin = self.indptr[first]
        self.indices[begin : begin + len(answer.neighbors)] = answer.neighbors
        self.edge_ids[begin : begin + len(answer.edge_ids)] = answer.edge_ids

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.indices.nbytes + self.edge_ids.nbytes


class _CachedVertices:
    """The chosen vertices of one node type: their index, and whose edges are here."""

    def __init__(self, dataset: Dataset, part: int, hot: HotVertices) -> None:
        nodes, count = dataset.schema.node_counts[hot.node_type], len(hot.ids)
        # A direct table has 4 bytes per vertex of the graph. Hashing takes at most about 60 per vertex of the index.
        self.index = kernels.Compactor(nodes if nodes <= 12 * count else 0)
        self.index.insert(hot.ids)
        self.keys = np.ascontiguousarray(dataset.ids(hot.node_type)[hot.ids], dtype=np.int64)
        self.present = np.zeros(count, dtype=np.uint8)
        types = edge_types_into(dataset.schema, hot.node_type)
        self.edges = {e: _CachedEdges(dataset, part, e, hot.degrees[:, i]) for i, e in enumerate(types)}

    @property
    def nbytes(self) -> int:
        return VERTEX_BYTES * len(self.present) + sum(edges.nbytes for edges in self.edges.values())


class EdgeCache:
    """In-edges of chosen vertices of other partitions. Safe to use from many threads. It counts the remote vertices that
    batches looked up and found, and pieces that were refused, because they differed from what the owner has."""

    def __init__(self, dataset: Dataset, part: int, *, limit_bytes: int = 0) -> None:
        """``limit_bytes``: may be set later, before ``reserve``."""
        self.dataset, self.part, self.limit_bytes = dataset, part, max(0, limit_bytes)
        self.rows_asked = self.rows_hit = self.refused = 0
        self._lock = threading.Lock()
        self._vertices: dict[str, _CachedVertices] = {}
        self._complete = False

    def reserve(self, hot: Sequence[HotVertices]) -> None:
        """Take the memory for the in-edges of ``hot``. Called once. Raises ValueError: they need more than
        ``limit_bytes``. Nothing is kept then."""
        made = {of_type.node_type: _CachedVertices(self.dataset, self.part, of_type) for of_type in hot}
        if (needed := sum(vertices.nbytes for vertices in made.values())) > self.limit_bytes:
            raise ValueError(f"in-edges of {needed} bytes in a cache of {self.limit_bytes}")
        self._vertices = made

    @property
    def nbytes(self) -> int:
        """Memory of the cache when all chosen in-edges are here, in bytes."""
        marks = sum(
            MARK_BYTES * len(e.indices)
            for v in self._vertices.values()
            for e in v.edges.values()
            if e.marks is not None
        )
        return sum(vertices.nbytes for vertices in self._vertices.values()) + marks

    def stats(self) -> dict[str, float]:
        """Counters and the size, for a daemon's statistics."""
        with self._lock:
            asked, hit = self.rows_asked, self.rows_hit
        kept = sum(int(np.count_nonzero(vertices.present)) for vertices in self._vertices.values())
        return {
            "edge_cache_rows_asked": float(asked),
            "edge_cache_rows_hit": float(hit),
            "edge_cache_rows": float(kept),
            "edge_cache_refused": float(self.refused),
            "edge_cache_bytes": float(self.nbytes),
        }

    def completed(self) -> None:
        """No more in-edges will come. LABOR reads all of them at its first use, so only now it may."""
        self._complete = True

    def serves(self, method: Method, tables: Sequence[str]) -> bool:
        """Whether vertices can be expanded here by ``method``, with the edges' rows of ``tables``."""
        if tables or not self._vertices:
            return False
        if method is Method.LABOR:
            edges = sum(len(e.indices) for v in self._vertices.values() for e in v.edges.values())
            without_marks = sum(vertices.nbytes for vertices in self._vertices.values())
            return self._complete and without_marks + MARK_BYTES * edges <= self.limit_bytes
        return method is Method.UNIFORM

    def split(
        self, node_type: str, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Rows are int32, everything else is int64; the order of ``ids`` is kept."""
        vertices = self._vertices.get(node_type)
        if vertices is None:
            return None
        *found, _ = kernels.split_cached(vertices.index, vertices.present, ids, positions, starts, need=1)
        rows, here, missing, elsewhere, bounds = found
        with self._lock:
            self.rows_asked += len(ids)
            self.rows_hit += len(rows)
        return rows, here, missing, elsewhere, bounds

    def sample(
        self,
        edge_type: str,
        rows: np.ndarray,
        *,
        method: Method = Method.UNIFORM,
        trees: np.ndarray | None = None,
        threads: int = 1,
        **how: Unpack[EdgeDraws],
    ) -> Answer:
        """What ``Shard.sample`` of the owners answers; ``rows`` as ``split`` gave them. The method must be served."""
        vertices = self._vertices[self.dataset.schema.endpoints(edge_type)[1]]
        edges = vertices.edges[edge_type]
        counts, neighbors, edge_ids = kernels.sample_neighbors(
            edges.indptr,
            edges.indices,
            edges.edge_ids,
            vertices.keys,
            rows,
            **how,
            method=self._marks(edge_type, edges) if method is Method.LABOR else None,
            trees=trees,
            threads=threads,
        )
        assert edge_ids is not None
        return Answer(counts, neighbors, edge_ids)

    def keep(self, node_type: str, first: int, answers: Sequence[Answer], digests: Sequence[np.ndarray]) -> bool:
        """Keep all in-edges of the rows ``first``, ``first`` + 1, ...: for each of ``edge_types_into`` an answer with
        fan-out -1, and the owner's digests (int64 [rows]). Returns False, and keeps none of them, if an answer has
        other degrees or another digest than the owner says."""
        vertices = self._vertices[node_type]
        keys = vertices.keys[first : first + len(digests[0])]
        for (edge_type, edges), answer, digest in zip(vertices.edges.items(), answers, digests, strict=True):
            sources = self.dataset.schema.node_counts[self.dataset.schema.endpoints(edge_type)[0]]
            if not edges.are(first, answer, digest, keys, sources):
                with self._lock:
                    self.refused += 1
                return False
        for edges, answer in zip(vertices.edges.values(), answers, strict=True):
            edges.put(first, answer)
        # Write the edges first, then the flags: look-ups read without the lock.
        vertices.present[first : first + len(keys)] = 1
        return True

    def _marks(self, edge_type: str, edges: _CachedEdges) -> Tables | None:
        with self._lock:
            if edges.marks is None:
                source, _ = self.dataset.schema.endpoints(edge_type)
                keys = np.ascontiguousarray(self.dataset.ids(source))
                sources = np.ascontiguousarray(edges.indices)
                edges.marks = tables_for(Method.LABOR, InEdges(edges.indptr, sources, source_keys=keys))
            return edges.marks


def _fit(ids: np.ndarray, dtype: np.dtype) -> bool:
    return ids.dtype.itemsize <= dtype.itemsize or not len(ids) or int(ids.max()) <= np.iinfo(dtype).max
