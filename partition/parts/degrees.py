"""How many edges of one type there are at each vertex of the whole graph.

A batch sees a part of a vertex' edges. What a layer makes of degrees (the norms of GCN, unbiased sums) is therefore
made of these. Every machine has those of all vertices, as an edge's source may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.disk.files import chunks
from atta.partition.names import edge_folder
from atta.partition.parts.book import PartitionBook
from atta.partition.parts.part import Part
from atta.partition.schema import Schema

__all__ = ["GraphDegrees", "degree_folder", "edges_of_parts"]

Array = npt.NDArray[Any]
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
        loops, weights, loop_weights, loop_sums = np.zeros_like(into), *np.zeros((3, len(into) if weighed else 0))
        for src, dst, weight in edges:
            into += np.bincount(dst, minlength=len(into))
            out += np.bincount(src, minlength=len(out))
            alone = np.flatnonzero(src == dst) if source == target else np.empty(0, np.int64)
            loops += np.bincount(dst[alone], minlength=len(into))
            if weighed:
                assert weight is not None
                weights += np.bincount(dst, weights=weight, minlength=len(into))
                loop_sums += np.bincount(dst[alone], weights=weight[alone], minlength=len(into))
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
        held = {name: getattr(self, name) for name in ("into", *_MAYBE)}
        found = {name: None if array is None else array[targets] for name, array in held.items()}
        return replace(self, out=self.out[sources], **found)

    @cached_property
    def into_roots(self) -> Array:
        """float32 [targets]: 1 / root of the in-degree, 0 without in-edges."""
        return _inverse_roots(self.into.astype(np.float32))

    @cached_property
    def out_roots(self) -> Array:
        """float32 [sources]: 1 / root of the out-degree, 0 without out-edges."""
        return _inverse_roots(self.out.astype(np.float32))

    @cached_property
    def gcn_roots(self) -> Array:
        """float32 [targets]: 1 / root of the in-degree with one edge to itself in place of those that it has."""
        return _inverse_roots(self.into.astype(np.float32) + 1 - (0 if self.loops is None else self.loops))

    @cached_property
    def summed_gcn_roots(self) -> Array:
        """float32 [targets]: the same of sums of weights. The edge to itself is the last that it has, else one of weight 1.

        Raises:
            ConfigError: sums of weights are not kept.
        """
        if self.weights is None or (self.loops is not None and self.loop_weights is None):
            raise ConfigError(
                "norm_attr: sums of weights are not kept: partition the graph again, with a table 'weight'"
            )
        if self.loops is None or self.loop_weights is None:
            return _inverse_roots(self.weights + 1)
        others = self.weights - (self.loop_weights if self.loop_sums is None else self.loop_sums)
        one = np.where(self.loops > 0, self.weights, self.weights + 1)
        return _inverse_roots(np.where(self.loops > 1, others + self.loop_weights, one))

    @staticmethod
    def layout(
        schema: Schema, edge_type: str, dtypes: Mapping[str, str]
    ) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        """Yield the files of a type with dtype and shape. ``dtypes``: of the files that there are. A dataset of an earlier
        release has none, and then none is due."""
        folder, (source, target) = degree_folder(edge_type), schema.endpoints(edge_type)
        due = {"into": target, "out": source} if f"{folder}/into.npy" in dtypes else {}
        due |= {name: target for name in _MAYBE if due and f"{folder}/{name}.npy" in dtypes}
        for name, of in due.items():
            path = f"{folder}/{name}.npy"
            dtype = dtypes.get(path, "<u4")
            counts = dtype if dtype in _UNSIGNED else "<u4"
            wanted = counts if name in ("into", "out", "loops") else "<f4"
            yield path, (wanted, (schema.node_counts[of],))


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


def _inverse_roots(degrees: Array) -> Array:
    with np.errstate(invalid="ignore"):  # PyG has no number for the root of a negative sum either
        roots = np.sqrt(degrees, dtype=np.float32)
    return np.divide(1, roots, out=np.zeros_like(roots), where=roots != 0)
