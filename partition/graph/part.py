"""Partitions: which one owns which vertex, what one holds on disk, several that are read as one, times of vertices, and
how many edges of a type there are at each vertex of the whole graph, of which a batch sees a part only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.observe.machine.threads import in_order
from atta.partition.disk.files import chunks
from atta.partition.names import edge_folder, node_folder
from atta.partition.schema import Schema


@dataclass(frozen=True)
class PartitionBook:
    """Contiguous ranges of internal ids per (node type, partition).

    Attributes:
        offsets: node type -> int64 [P+1], ascending, first 0, last the number of vertices.
    """

    offsets: dict[str, npt.NDArray[np.int64]]

    def __post_init__(self) -> None:
        sizes = {len(o) for o in self.offsets.values()}
        if len(sizes) != 1 or min(sizes) < 2:
            raise ConfigError("partition ranges: every node type needs the same number of ranges, at least one")
        for node_type, offsets in self.offsets.items():
            if offsets.dtype != np.int64 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
                raise ConfigError(f"partition ranges of node type {node_type!r} are not ascending from 0")

    @property
    def num_parts(self) -> int:
        """Number of partitions."""
        return len(next(iter(self.offsets.values()))) - 1

    def owner(self, node_type: str, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return the owning partition of each internal id (int32, shape of ``ids``). Ids are not range-checked."""
        return np.searchsorted(self._of(node_type)[1:], ids, side="right").astype(np.int32)

    def range(self, node_type: str, part: int) -> tuple[int, int]:
        """Return the internal ids ``[lo, hi)`` of a partition's core vertices."""
        offsets = self._of(node_type)
        if not 0 <= part < self.num_parts:
            raise ConfigError(f"partition {part} does not exist: there are {self.num_parts}")
        return int(offsets[part]), int(offsets[part + 1])

    def _of(self, node_type: str) -> npt.NDArray[np.int64]:
        try:
            return self.offsets[node_type]
        except KeyError:
            raise UnknownNameError.of("node type", node_type, self.offsets) from None

    def to_json(self) -> dict[str, list[int]]:
        """Return plain lists, the inverse of ``from_json``."""
        return {t: o.tolist() for t, o in self.offsets.items()}

    @classmethod
    def from_json(cls, value: Any) -> PartitionBook:
        """Read what ``to_json`` wrote; raises ConfigError."""
        try:
            return cls({str(t): np.array([int(x) for x in o], dtype=np.int64) for t, o in value.items()})
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"partition ranges are malformed: {error}") from None


Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
NONE: Ids = np.empty(0, np.int64)
Led = tuple[Ids, Array] | None
"""Core rows, ascending, that edges lead to, and their sources, [n] each."""
# Edges of a partition that are kept by source, at most; so many of these are looked up, or one of so many, at most.
MOST_SORTED, LEAST_FOUND, SHARE_FOUND = 1 << 28, 1 << 10, 32


def part_folder(part: int) -> str:
    """Return the folder name of a partition."""
    return f"part-{part:04d}"


@dataclass(frozen=True)
class CSC:
    """In-neighbours of a partition's core vertices for one edge type, memory-mapped.

    Attributes:
        indptr: int64 [core+1]; the in-neighbours of core row i are at ``indptr[i]:indptr[i+1]``.
        indices: int32 or int64 [E], internal ids of the sources, ordered by (user id, edge id) within a row.
        edge_ids: int32 or int64 [E], the users' edge ids.
        weight: [E] or None.
        time: [E] or None.
    """

    indptr: Ids
    indices: Array
    edge_ids: Array
    weight: Array | None = None
    time: Array | None = None


class Part:
    """One partition. Arrays are memory-mapped at their first use, and the mapping is kept."""

    def __init__(
        self, dataset: Path, index: int, map_file: Callable[[Path], Array], schema: Schema, core: Mapping[str, int]
    ) -> None:
        """``dataset``: its folder; ``map_file`` maps one of its files; ``core``: number of core vertices by type."""
        self.index = index
        self.path = dataset / part_folder(index)
        self._map, self._schema, self._core = map_file, schema, core
        self._csc: dict[str, CSC] = {}
        self._tables: dict[tuple[str, str], Array] = {}
        self._by_source: dict[str, tuple[Ids, Array]] = {}

    def num_core(self, node_type: str) -> int:
        """Return the number of core vertices of a node type."""
        return self._core[self._schema.check_node_type(node_type)]

    def csc(self, edge_type: str) -> CSC:
        """Return the in-edges of the core vertices; raises UnknownNameError or DataError."""
        if edge_type not in self._csc:
            self._csc[edge_type] = self._open_csc(edge_type)
        return self._csc[edge_type]

    def _open_csc(self, edge_type: str) -> CSC:
        folder = self.path / edge_folder(self._schema.check_edge_type(edge_type))
        indptr, indices = self._map(folder / "indptr.npy"), self._map(folder / "indices.npy")
        if indptr[0] != 0 or indptr[-1] != len(indices):
            raise DataError(folder / "indptr.npy", f"does not end at the {len(indices)} edges of this partition")
        known = self._schema.edge_tables[edge_type]
        tables = {name: self._map(folder / f"{name}.npy") for name in ("weight", "time") if name in known}
        return CSC(indptr, indices, self._map(folder / "edge_ids.npy"), tables.get("weight"), tables.get("time"))

    def edges_from(self, edge_type: str, sources: Array, most: int, gone: Ids = NONE) -> Led:
        """The edges from ``sources``, bool by internal id, but for those at ``gone``, ascending; None: they are too many. The first
        call sorts all: 4 bytes of memory for each edge and 8 for each source until the partition goes. Errors as ``csc``."""
        csc = self.csc(edge_type)
        if edge_type not in self._by_source:
            if len(csc.indices) > MOST_SORTED:
                return None
            self._by_source[edge_type] = _native.places_by_source(csc.indices, len(sources))
        most = min(most, max(LEAST_FOUND, len(csc.indices) // SHARE_FOUND))
        return _native.edges_from(csc.indptr, csc.indices, *self._by_source[edge_type], sources, gone, most)

    def table(self, node_type: str, name: str) -> Array:
        """Return the rows [core, *row_shape] of a table in internal order; raises UnknownNameError or DataError."""
        key = node_type, name
        if key not in self._tables:
            self._schema.table(node_type, name)
            self._tables[key] = self._map(self.path / node_folder(node_type) / f"{name}.npy")
        return self._tables[key]

    def edge_table(self, edge_type: str, name: str) -> Array:
        """Return the rows [E, *row_shape] of an edge table in the order of ``csc(edge_type).indices``; errors as
        ``table``."""
        tables = self._schema.edge_tables[self._schema.check_edge_type(edge_type)]
        if name not in tables:
            raise UnknownNameError.of(f"table of edge type {edge_type!r}:", name, tables)
        return self._map(self.path / edge_folder(edge_type) / f"{name}.npy")

    def halo(self, node_type: str) -> Array:
        """Return the ascending internal ids (int64) of in-neighbours that other partitions own."""
        return self._map(self.path / node_folder(self._schema.check_node_type(node_type)) / "halo.npy")


Parts = tuple[range, ...]
"""The partitions of each owner: ranges without gaps between them."""


def joined_book(book: PartitionBook, groups: Sequence[range]) -> PartitionBook:
    """The ranges that ``groups`` of consecutive partitions own. Raises ConfigError: the groups are not all partitions,
    each once and in order."""
    if not all(groups) or [*chain(*groups)] != [*range(book.num_parts)]:
        named = ", ".join(f"{g.start}-{g.stop - 1}" if len(g) != 1 else str(g.start) for g in groups)
        raise ConfigError(
            f"partitions {named} are named for the daemons; these must be 0 to {book.num_parts - 1}, in order and each once"
        )
    firsts = [group.start for group in groups] + [book.num_parts]
    return PartitionBook({t: offsets[firsts] for t, offsets in book.offsets.items()})


class JoinedPart(Part):
    """Consecutive partitions as one ``Part``. Arrays are copied into memory, one after another, at their first use:
    files cannot be mapped so that the rows of one follow those of another. They lie on huge pages where the system
    gives them."""

    def __init__(
        self, parts: Sequence[Part], index: int, schema: Schema, ranges: Mapping[str, tuple[int, int]]
    ) -> None:
        """``ranges``: the internal ids [lo, hi) that the partitions own together, by node type."""
        self.index, self._parts, self._schema, self._ranges = index, list(parts), schema, ranges
        self._core = {t: hi - lo for t, (lo, hi) in ranges.items()}
        self._csc, self._tables = {}, {}
        self._halo: dict[str, Array] = {}

    def _open_csc(self, edge_type: str) -> CSC:
        of_parts = [part.csc(edge_type) for part in self._parts]
        known = self._schema.edge_tables[edge_type]
        tables = {name: self.edge_table(edge_type, name) for name in ("weight", "time") if name in known}
        return CSC(
            _row_bounds([csc.indptr for csc in of_parts]),
            _concatenated([csc.indices for csc in of_parts]),
            _concatenated([csc.edge_ids for csc in of_parts]),
            **tables,
        )

    def edges_from(self, edge_type: str, *asked: Any) -> Led:
        first, found = 0, []
        for part in self._parts:
            if (of_part := part.edges_from(edge_type, *asked)) is None:
                return None
            found.append((first + of_part[0], of_part[1]))
            first += part.num_core(self._schema.endpoints(edge_type)[1])
        rows, ends = (np.concatenate(of_parts) for of_parts in zip(*found, strict=True))
        return (rows, ends) if len(rows) <= asked[1] else None

    def table(self, node_type: str, name: str) -> Array:
        if (node_type, name) not in self._tables:
            self._tables[node_type, name] = _concatenated([part.table(node_type, name) for part in self._parts])
        return self._tables[node_type, name]

    def edge_table(self, edge_type: str, name: str) -> Array:
        if (edge_type, name) not in self._tables:  # no node type is called as an edge type
            self._tables[edge_type, name] = _concatenated([part.edge_table(edge_type, name) for part in self._parts])
        return self._tables[edge_type, name]

    def halo(self, node_type: str) -> Array:
        """In-neighbours that none of these partitions owns."""
        if node_type not in self._halo:
            near = np.unique(np.concatenate([part.halo(node_type) for part in self._parts]))
            lo, hi = self._ranges[node_type]
            self._halo[node_type] = near[(near < lo) | (near >= hi)]
        return self._halo[node_type]


def _row_bounds(of_parts: Sequence[Array]) -> npt.NDArray[np.int64]:
    """The ``indptr`` of edges that lie one after another: int64 [rows + 1]."""
    bounds = _empty(1 + sum(len(indptr) - 1 for indptr in of_parts), np.dtype(np.int64))
    bounds[0] = row = edge = 0
    for indptr in of_parts:
        np.add(indptr[1:], edge, out=bounds[row + 1 : row + len(indptr)])
        row, edge = row + len(indptr) - 1, edge + int(indptr[-1])
    return bounds


def _concatenated(of_parts: Sequence[Array]) -> Array:
    first = of_parts[0]
    rows = sum(map(len, of_parts))
    out = _empty((rows, *first.shape[1:]), np.result_type(*of_parts))
    np.concatenate(of_parts, out=out)
    return out


def _empty(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array: Array = np.empty(shape, dtype)
    _native.advise_huge(array.reshape(-1).view(np.uint8)[:, None])  # the native call takes rows of bytes
    return array


@dataclass(frozen=True, eq=False)
class VertexTimes:
    """The times of all vertices of a node type.

    Attributes:
        times: int64 [n], by internal id.
        by_rank: int32|int64 [n], the internal id of the i-th smallest user id.
    """

    times: Ids
    by_rank: Array

    @classmethod
    def joined(cls, of_parts: Sequence[Array], by_rank: Array) -> VertexTimes:
        """From the rows of all partitions, in their order. Those of a single one are not copied if they are int64.
        Raises ConfigError: a time does not fit into int64."""
        rows = of_parts[0] if len(of_parts) == 1 else np.concatenate(of_parts)
        if rows.dtype.kind == "u" and rows.size and rows.max() > np.iinfo(np.int64).max:
            raise ConfigError(f"times of vertices: {rows.max()} is too large, times are below 2**63")
        return cls(np.ascontiguousarray(rows, dtype=np.int64), by_rank)

    @property
    def nbytes(self) -> int:
        """Bytes of the times."""
        return self.times.nbytes

    @cached_property
    def order(self) -> Array:
        """int32|int64 [n], internal ids: the earliest vertex first, those of one time by user id."""
        return self.by_rank[np.argsort(self.times[self.by_rank], kind="stable")]

    @cached_property
    def _ascending(self) -> Ids:
        return self.times[self.order]

    def existing(self, at: Ids) -> Ids:
        """int64 [m]: how many vertices exist at the times ``at`` (int64 [m]). They are the first of ``order``."""
        return np.searchsorted(self._ascending, at, side="right").astype(np.int64)


Edges = tuple[Array, Array, Array | None]
"""Sources, targets and weights of some edges, [n] each."""
_ROWS = 1 << 20
"""Number of vertices whose edges are counted at a time."""
_MAYBE = ("loops", "weights", "loop_weights", "loop_sums")
_UNSIGNED = ("|u1", "<u2", "<u4", "<u8")


def degree_folder(edge_type: str) -> str:
    """Where a partitioned dataset, or a version of its edges, keeps the degrees of an edge type."""
    return f"shared/{edge_folder(edge_type)}"


@dataclass(frozen=True, eq=False)
class GraphDegrees:
    """Numbers of edges by internal id, as the smallest unsigned integers that hold them: mostly 2 bytes, at most 4
    below 2**32 edges.

    Attributes:
        into: [targets], in-edges of each vertex.
        out: [sources], out-edges of each vertex.
        loops: [targets], edges of a vertex to itself; None: there are none.
        weights: float32 [targets], sums of the in-edges' weights; None: edges have none.
        loop_weights: float32 [targets], weight of the last edge of a vertex to itself (the one with the largest id), 0
            without one; None: there are none, or no weights.
        loop_sums: float32 [targets], sums of the weights of these edges; None: no vertex has several.
    """

    into: Array
    out: Array
    loops: Array | None = None
    weights: Array | None = None
    loop_weights: Array | None = None
    loop_sums: Array | None = None

    @classmethod
    def counted(cls, edges: Iterable[Edges], schema: Schema, edge_type: str) -> GraphDegrees:
        """Count all edges of a type, which come in pieces."""
        source, target = schema.endpoints(edge_type)
        into, out = (np.zeros(schema.node_counts[t], np.int64) for t in (target, source))
        weighed = "weight" in schema.edge_tables[edge_type]
        loops, (weights, loop_weights, loop_sums, scratch) = (
            np.zeros_like(into),
            np.zeros((4, len(into) if weighed else 0)),
        )
        for src, dst, weight in edges:
            deque(in_order([partial(_native.count_ids, dst, into), partial(_native.count_ids, src, out)], 2), maxlen=0)
            alone = np.flatnonzero(src == dst) if source == target else np.empty(0, np.int64)
            _native.count_ids(dst[alone], loops)
            if weighed:
                assert weight is not None
                values = weight.astype(np.float64)
                _native.add_sums(dst, values, weights, scratch)
                _native.add_sums(dst[alone], values[alone], loop_sums, scratch)
                loop_weights[dst[alone]] = weight[alone]  # edges come by their ids, so the last one stays
        some, several = bool(loops.any()), bool((loops > 1).any())
        kept = (some, loops), (weighed, weights), (some and weighed, loop_weights), (several and weighed, loop_sums)
        arrays = [array if there else None for there, array in kept]
        floats = (None if array is None else array.astype(np.float32) for array in arrays[1:])
        return cls(_narrow(into), _narrow(out), None if arrays[0] is None else _narrow(loops), *floats)

    @classmethod
    def read(cls, folder: str, names: Iterable[str], map_file: Callable[[str], Array]) -> GraphDegrees | None:
        """Those in ``folder``, of whose files (some of ``names``) each is given by ``map_file``; None: there are none."""
        held = {n.removeprefix(f"{folder}/")[:-4]: map_file(n) for n in names if n.startswith(f"{folder}/")}
        return cls(**held) if held else None

    def files(self, folder: str) -> dict[str, Array]:
        """The arrays that there are, by the name of their file."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f"{folder}/{name}.npy": array for name, array in held.items() if array is not None}

    def ordered(self, sources: Array, targets: Array) -> GraphDegrees:
        """The same in another order: the vertex at place i is the one that has been at ``sources[i]`` (``targets[i]``)."""
        found = {name: None if (held := getattr(self, name)) is None else held[targets] for name in _MAYBE}
        return GraphDegrees(self.into[targets], self.out[sources], **found)

    @cached_property
    def others(self) -> Array:
        """[targets], unsigned: in-edges of each vertex without those to itself."""
        return self.into if self.loops is None else self.into - self.loops.astype(self.into.dtype)

    @cached_property
    def summed_gcn_roots(self) -> Array:
        """float32 [targets]: the same of sums of weights. The edge to itself is the last that it has, else one of
        weight 1. Raises ConfigError: sums of weights are not kept."""
        if self.weights is None or (self.loops is not None and self.loop_weights is None):
            raise ConfigError("norm_attr: no sums of weights are kept: partition the graph again with a table 'weight'")
        if self.loops is None or self.loop_weights is None:
            return inverse_roots(self.weights + 1)
        others = self.weights - (self.loop_weights if self.loop_sums is None else self.loop_sums)
        one = np.where(self.loops > 0, self.weights, self.weights + 1)
        return inverse_roots(np.where(self.loops > 1, others + self.loop_weights, one))

    @staticmethod
    def layout(
        schema: Schema, edge_type: str, dtypes: Mapping[str, str]
    ) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        """Yield the files of a type with dtype and shape. ``dtypes``: of the files that there are."""
        folder, (source, target) = degree_folder(edge_type), schema.endpoints(edge_type)
        for name, of in {"into": target, "out": source, **dict.fromkeys(_MAYBE, target)}.items():
            dtype = dtypes.get(path := f"{folder}/{name}.npy")
            if dtype is not None or name in ("into", "out"):
                counts = dtype if dtype in _UNSIGNED else "<u4"
                wanted = counts if name in ("into", "out", "loops") else "<f4"
                yield path, (str(wanted), (schema.node_counts[of],))


def edges_of_parts(parts: Iterable[Part], book: PartitionBook, schema: Schema, edge_type: str) -> Iterator[Edges]:
    """The edges of a type in all ``parts``, as internal ids, those of some vertices at a time."""
    for part in parts:
        csc, first = part.csc(edge_type), book.range(schema.endpoints(edge_type)[1], part.index)[0]
        for low, high in chunks(len(csc.indptr) - 1, _ROWS):
            at = slice(int(csc.indptr[low]), int(csc.indptr[high]))
            targets = np.repeat(np.arange(first + low, first + high), np.diff(csc.indptr[low : high + 1]))
            yield csc.indices[at], targets, None if csc.weight is None else csc.weight[at]


def _narrow(counts: npt.NDArray[np.int64]) -> Array:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def inverse_roots(degrees: Array) -> Array:
    """float32: 1 / root of each number, 0 for 0."""
    with np.errstate(invalid="ignore"):  # PyG has no number for the root of a negative sum either
        roots = np.sqrt(degrees, dtype=np.float32)
    return np.divide(1, roots, out=np.zeros_like(roots), where=roots != 0)
