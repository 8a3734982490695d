"""The graph of one partition, ready to be sampled. A daemon reads it to answer its peers and its own tasks."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np

from atta import _native
from atta.errors import ConfigError, DataError, blaming, known_name
from atta.partition.dataset import CSC, Dataset, Part, VertexTimes
from atta.partition.schema import Schema, TableSpec
from atta.samplers import kernels
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import EdgeDraws, InEdges, Tables

DEGREE_SAMPLE = 2048
TIMELY = "(timely)"
"""What may be asked for like an edge table: of each drawn edge, how many edges of its target are not hidden at the time of the
row. No table of a user has this name."""
_LAST_BITS = (1 << 16) - 1
"""By these bits of an id edges are chosen that may be seed edges."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Sampled in-neighbours of some rows. ``counts`` int32 [rows]; ``neighbors`` int32|int64 [sum(counts)] internal
    source ids. ``edge_ids`` int32|int64 and ``tables`` (rows of edge tables) have the length of ``neighbors``."""

    counts: np.ndarray
    neighbors: np.ndarray
    edge_ids: np.ndarray
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)


class EdgesElsewhere(Protocol):
    """In-edges that are not in memory."""

    def read(self, positions: np.ndarray, *types: np.dtype) -> tuple[np.ndarray, ...]:
        """Sources and ids, or sources alone, of these ``types``, of the edges at ``positions``, int64 [m]. Raises DataError."""


@dataclass(frozen=True)
class PartEdges:
    """The in-edges of one type of a partition's core vertices, mapped and checked at their first use, which raises DataError.

    Attributes:
        part, path: whose they are, which has the rows of edge tables, too; and the folder that errors name.
        resident: they are loaded into memory instead.
        disk: reads what has been drawn, and memory holds alone where each row begins; None: ``drawn`` is read.
    """

    part: Part
    schema: Schema
    edge_type: str
    path: Path
    resident: bool = False
    disk: EdgesElsewhere | None = None

    @cached_property
    def csc(self) -> CSC:
        """The edges."""
        csc, (source, target) = self.part.csc(self.edge_type), self.schema.endpoints(self.edge_type)
        with blaming(DataError, self.path, f"part {self.part.index}, edge type {self.edge_type}", of=ValueError):
            if len(csc.indptr) != self.part.num_core(target) + 1:
                raise ValueError(f"edges of {len(csc.indptr) - 1} vertices, not {self.part.num_core(target)}")
            kernels.validate_csc(csc.indptr, csc.indices, self.schema.node_counts[source])
        kept = self.resident or self.disk is not None
        return dataclasses.replace(csc, indptr=kernels.resident(csc.indptr)) if kept else csc

    @cached_property
    def drawn(self) -> CSC:
        """The same, as drawing reads them: source and edge id lie side by side if they are in memory."""
        if not self.resident or self.disk is not None:
            return self.csc
        indices, edge_ids = kernels.resident_beside(self.csc.indices, self.csc.edge_ids)
        return dataclasses.replace(self.csc, indices=indices, edge_ids=edge_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of what drawing reads; 0: it is not there yet, see ``drawn``."""
        there = [self.drawn] if "drawn" in vars(self) else []
        return sum(csc.indptr.nbytes + csc.indices.nbytes + csc.edge_ids.nbytes for csc in there)


class Shard:
    """The in-edges of one partition's core vertices. Immutable and safe to use from many threads."""

    def __init__(
        self,
        dataset: Dataset,
        part: int,
        *,
        threads: int = 1,
        resident: bool = False,
        disk: Mapping[str, EdgesElsewhere] | None = None,
    ) -> None:
        """Map partition ``part`` of ``dataset`` and check its structure once. ``resident``: load it into memory
        instead, but for the edge types of ``disk``. Raises DataError: an edge type's arrays contradict each other."""
        self.part = part
        self.threads = threads
        self.dataset = dataset
        self._tables: dict[tuple[str, Method, str], Tables | None] = {}
        self._lock = threading.Lock()
        self.on_prepared: Callable[[str, Method, Tables | None], None] | None = None
        """Called with the edge type and the tables of a method that has just been prepared."""
        self._keys: dict[str, np.ndarray] = {}
        for node_type in dataset.schema.node_types:
            lo, hi = dataset.book.range(node_type, part)
            self._keys[node_type] = np.ascontiguousarray(dataset.ids(node_type)[lo:hi], dtype=np.int64)
        of_part, on_disk = dataset.part(part), disk or {}
        self._edges = {
            edge_type: PartEdges(of_part, dataset.schema, edge_type, dataset.path, resident, on_disk.get(edge_type))
            for edge_type in dataset.schema.edge_types
        }
        for edge_type in self._edges:
            self.drawn(edge_type)  # it is loaded, or mapped, now

    def with_changes(self, edges: Mapping[str, PartEdges], times: Mapping[str, VertexTimes]) -> Shard:
        """The same partition with other in-edges, and other times of vertices, of some types; the rest is shared."""
        found = copy.copy(self)
        found._edges, found.dataset = {**self._edges, **edges}, self.dataset.with_times(times)
        found._lock, found.on_prepared = threading.Lock(), None
        other = {e for e in self._edges if self.dataset.schema.endpoints(e)[0] in times}
        with self._lock:
            found._tables = {
                (edge_type, method, by): tables
                for (edge_type, method, by), tables in self._tables.items()
                if edge_type not in edges and not (method.temporal and edge_type in other)
            }
        return found

    def sample(
        self,
        edge_type: str,
        rows: np.ndarray,
        *,
        method: Method = Method.UNIFORM,
        trees: np.ndarray | None = None,
        times: np.ndarray | None = None,
        tables: Sequence[str] = (),
        by: str = "",
        threads: int | None = None,
        **how: Unpack[EdgeDraws],
    ) -> Answer:
        """Sample in-neighbours of core ``rows`` (positions in this partition's range, int32|int64). The result for a row is a
        pure function of ``stream_key`` and ``renewed`` (``hashing.stream_of``), its entries of ``trees`` int32 [m] and ``times``
        int64 [m], and the row's user id. ``tables`` names the edge tables whose rows are wanted too. ``by``: the edge table that
        a weighted method draws by; empty: ``weight``. Raises ConfigError: a row outside the partition, a fan-out below -1, or no
        usable weights or times; UnknownNameError: no such edge type, or no such edge table."""
        edges = self._of(edge_type)
        csc, drawn, unread = edges.csc, edges.drawn, edges.disk is not None
        with self._blaming(edge_type):
            counts, neighbors, found = kernels.sample_neighbors(
                drawn.indptr,
                csc.indices if tables else drawn.indices,
                None if tables or unread else drawn.edge_ids,
                self._keys[self.dataset.schema.endpoints(edge_type)[1]],
                rows,
                **how,
                method=self._method(edge_type, csc, method, by),
                trees=trees,
                times=times,
                positions=bool(tables) and not unread,
                unread=unread,
                threads=threads or self.threads,
            )
        if edges.disk is not None:
            found = neighbors
            neighbors, edge_ids = edges.disk.read(found, csc.indices.dtype, csc.edge_ids.dtype)
        elif tables:
            assert found is not None
            edge_ids = kernels.taken(csc.edge_ids, found)
        else:
            assert found is not None
            return Answer(counts, neighbors, found)
        rows_of = {name: kernels.taken(self._edge_table(edge_type, name), found) for name in tables if name != TIMELY}
        if TIMELY in tables:
            rows_of[TIMELY] = np.repeat(self._timely(edge_type, rows, method, times), counts)
            rows_of = {name: rows_of[name] for name in tables}
        return Answer(counts, neighbors, edge_ids, rows_of)

    def _method(self, edge_type: str, csc: CSC, method: Method, by: str) -> Tables | None:
        if method is Method.UNIFORM:
            return None
        with self._lock:
            key = edge_type, method, by
            if key not in self._tables:
                source, _ = self.dataset.schema.endpoints(edge_type)
                of_sources = self.dataset.times(source) if method.temporal else None
                edges = InEdges(
                    csc.indptr,
                    csc.indices,
                    weight=self._edge_table(edge_type, by) if by else csc.weight,
                    time=csc.time,
                    source_keys=np.ascontiguousarray(self.dataset.ids(source)),
                    source_time=None if of_sources is None else of_sources.times,
                    threads=self.threads,
                )
                self._tables[key] = tables_for(method, edges)
                if self.on_prepared is not None and not by:
                    self.on_prepared(edge_type, method, self._tables[key])
            return self._tables[key]

    def _timely(self, edge_type: str, rows: np.ndarray, method: Method, times: np.ndarray | None) -> np.ndarray:
        prepared = self._method(edge_type, self.csc(edge_type), method, "")
        if not method.temporal or times is None or not isinstance(prepared, _native.Method):
            return self.degrees(edge_type, rows)
        return prepared.timely(self.csc(edge_type).indptr, np.ascontiguousarray(rows), np.ascontiguousarray(times))

    def _edge_table(self, edge_type: str, name: str) -> np.ndarray:
        return self._edges[edge_type].part.edge_table(edge_type, name)

    def step(self, edge_type: str, rows: np.ndarray, bits: np.ndarray) -> np.ndarray:
        """One in-neighbour of each core row (int64 [m]), chosen by ``bits`` (uint64 [m]): int64 internal ids, -1 =
        none. A row's d in-edges are ordered by user id, and the one at ``bits * d >> 64`` is chosen. Errors as for
        ``degrees``."""
        edges = self._of(edge_type)
        sources, disk = edges.csc.indices, edges.disk
        read = partial(kernels.taken, sources) if disk is None else lambda at: disk.read(at, sources.dtype)[0]
        with self._blaming(edge_type):
            return kernels.step(edges.drawn.indptr, read, rows, bits)

    def contains(self, edge_type: str, rows: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """bool [m]: whether core row ``rows[i]`` has an in-edge from internal id ``sources[i]`` (int64 [m]). Errors as
        for ``degrees``."""
        keys = self.dataset.ids(self.dataset.schema.endpoints(edge_type)[0])
        with self._blaming(edge_type):
            csc, _, rows = self._edges_of(edge_type, rows)
            return kernels.has_edges(csc.indptr, csc.indices, keys, rows, sources)

    def edges_from(self, edge_type: str, sources: np.ndarray, rows: range, most: int) -> tuple[np.ndarray, np.ndarray]:
        """The edges from ``sources``, bool by internal id, into core ``rows`` one after another, until there are ``most``: int64
        [rows], the numbers of these of each, and where they come from. Those of a row stay together."""
        edges = self._of(edge_type)  # if they are few, they are looked up; else all edges into the rows are read
        if edges.disk is None and (found := edges.part.edges_from(edge_type, sources, most)) is not None:
            low, high = np.searchsorted(found[0], [rows.start, rows.stop])
            return np.bincount(found[0][low:high] - rows.start, minlength=len(rows)), found[1][low:high]
        return _native.edges_into(edges.csc.indptr, edges.csc.indices, sources, rows.start, rows.stop, most)

    def pair(self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int) -> np.ndarray:
        """``count`` non-neighbours (or in-neighbours) per core row: int64 internal ids [rows * count], -1 where none
        exists. Raises ConfigError: a row outside the partition; UnknownNameError: no such edge type."""
        source = self.dataset.schema.endpoints(edge_type)[0]
        with self._blaming(edge_type):
            csc, keys, rows = self._edges_of(edge_type, rows)
            return kernels.sample_pairs(
                csc.indptr,
                csc.indices,
                keys,
                rows,
                count=count,
                stream_key=stream_key,
                negative=negative,
                ids=self.dataset.ids(source),
                sorted_internal=self.dataset.sorted_internal(source),
            )

    def degree(self, edge_types: Iterable[str], rows: np.ndarray) -> int:
        """Estimate the total in-degree of core ``rows`` over ``edge_types``: the cost of expanding them (ByteGNN's NSC
        cost). Of many rows only a sample is looked up. An exact sum costs a cache miss per row, and the scheduler needs
        an estimate only."""
        stride = max(1, len(rows) // DEGREE_SAMPLE)
        sample = rows[::stride] if stride > 1 else rows
        found = sum(kernels.degree_sum(self.drawn(e).indptr, np.ascontiguousarray(sample)) for e in edge_types)
        return found * len(rows) // max(1, len(sample))

    def degrees(self, edge_type: str, rows: np.ndarray) -> np.ndarray:
        """int64 [rows]: in-degrees. They serve to split full-neighbourhood answers into bounded messages. Raises
        ConfigError: a row outside the partition."""
        with self._blaming(edge_type):
            return kernels.in_degrees(self.drawn(edge_type).indptr, rows)

    def digests(self, edge_type: str, rows: np.ndarray) -> np.ndarray:
        """int64 [rows]: digests of the in-edges of core rows (``kernels.edge_digests``). Errors as for ``degrees``."""
        n = self.dataset.schema.node_counts[self.dataset.schema.endpoints(edge_type)[0]]
        with self._blaming(edge_type):
            csc, keys, rows = self._edges_of(edge_type, rows)
            return kernels.edge_digests(
                csc.indptr, csc.indices, csc.edge_ids, vertex_keys=keys, num_sources=n, rows=rows
            )

    def _edges_of(self, edge_type: str, rows: np.ndarray) -> tuple[CSC, np.ndarray, np.ndarray]:
        """Edges that have those of core ``rows``, user ids of their targets, and where ``rows`` are among these: all in place,
        or those of ``rows`` read from the disk. Raises ValueError: a row outside the partition."""
        edges, keys = self._of(edge_type), self._keys[self.dataset.schema.endpoints(edge_type)[1]]
        if edges.disk is None:
            return edges.csc, keys, rows
        some, at = np.unique(rows, return_inverse=True)
        counts = kernels.in_degrees(edges.drawn.indptr, some)
        ends = np.concatenate([[0], np.cumsum(counts)])
        positions = np.repeat(edges.drawn.indptr[some] - ends[:-1], counts) + np.arange(ends[-1])
        sources, ids = edges.disk.read(positions, edges.csc.indices.dtype, edges.csc.edge_ids.dtype)
        return dataclasses.replace(edges.csc, indptr=ends, indices=sources, edge_ids=ids), keys[some], at

    def _blaming(self, edge_type: str) -> AbstractContextManager[None]:
        return blaming(ConfigError, f"part {self.part}, edge type {edge_type}", of=ValueError)

    def keys(self, node_type: str) -> np.ndarray:
        """int64 [core rows]: user ids of the partition's vertices."""
        return self._keys[node_type]

    def csc(self, edge_type: str) -> CSC:
        """The in-edges of one type; raises UnknownNameError with the nearest name that exists."""
        return self._of(edge_type).csc

    def has(self, edge_type: str) -> bool:
        """Whether edges of a type have been drawn. If not, the first use may take some time."""
        return bool(self._of(edge_type).nbytes)

    def drawn(self, edge_type: str) -> CSC:
        """The same edges, as drawing reads them: source and edge id lie side by side if the partition is in memory.
        Errors as for ``csc``."""
        return self._of(edge_type).drawn

    def _of(self, edge_type: str) -> PartEdges:
        return self._edges[known_name("edge type", edge_type, self._edges)]


def spec_of_drawn(schema: Schema, edge_type: str, name: str) -> TableSpec:
    """Of an edge table, or of ``TIMELY``; raises UnknownNameError."""
    if name == TIMELY:
        return TableSpec("<i8", ())
    tables = schema.edge_tables[edge_type]
    return tables[known_name(f"table of edge type {edge_type!r}", name, tables)]


def without_edges(
    answer: Answer, near: np.ndarray, ids: np.ndarray, targets: np.ndarray, sources: np.ndarray
) -> Answer:
    """``answer`` without the edges ``sources[i]`` → ``targets[i]`` and without edges parallel to them. ``near`` int64:
    which rows of the answer may be targets; ``ids`` int64: their internal ids. Only their edges are read."""
    ends, number = np.unique(targets, return_inverse=True)
    if not len(ends) or not len(answer.neighbors):
        return answer
    at = np.minimum(np.searchsorted(ends, ids), len(ends) - 1)
    asked = np.flatnonzero(ends[at] == ids)
    near, at = near[asked], at[asked]
    counts = answer.counts[near].astype(np.int64)
    first = (np.cumsum(answer.counts) - answer.counts)[near]
    edges = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    # Most edges come from vertices whose last bits no source of a seed edge has. Looking up the others takes longer.
    some = np.zeros(_LAST_BITS + 1, dtype=bool)
    some[sources & _LAST_BITS] = True
    likely = np.flatnonzero(some[answer.neighbors[edges] & _LAST_BITS])
    edges, row = edges[likely], np.repeat(np.arange(len(near)), counts)[likely]
    found = answer.neighbors[edges].astype(np.int64)
    span = 1 + int(max(sources.max(), found.max(initial=0)))
    unwanted, keys = np.sort(number * span + sources), at[row] * span + found
    gone = unwanted[np.minimum(np.searchsorted(unwanted, keys), len(unwanted) - 1)] == keys
    if not gone.any():
        return answer
    kept = np.ones(len(answer.neighbors), dtype=bool)
    kept[edges[gone]] = False
    return only(answer, kept)


def only(answer: Answer, kept: np.ndarray) -> Answer:
    """``answer`` with the edges that ``kept`` (bool [edges]) marks."""
    rows = np.repeat(np.arange(len(answer.counts)), answer.counts)
    counts = np.bincount(rows[kept], minlength=len(answer.counts)).astype(answer.counts.dtype)
    tables = {name: table[kept] for name, table in answer.tables.items()}
    return Answer(counts, answer.neighbors[kept], answer.edge_ids[kept], tables)


def places(groups: Sequence[tuple[np.ndarray, Answer]], start: int, stop: int) -> Iterator[tuple[np.ndarray, Answer]]:
    """Yield each answer with the positions (int64) that its edges have among all edges, in the order of the frontier
    [start, stop)."""
    counts = np.zeros(stop - start, dtype=np.int64)
    for positions, answer in groups:
        counts[positions - start] = answer.counts
    first = np.cumsum(counts) - counts
    for positions, answer in groups:
        own = np.cumsum(answer.counts) - answer.counts
        shift = first[positions - start] - own
        yield np.repeat(shift, answer.counts) + np.arange(len(answer.neighbors)), answer
