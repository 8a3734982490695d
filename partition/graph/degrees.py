"""How many edges of one type there are at each vertex of the whole graph. A batch sees a part of them, so norms and unbiased
sums are made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.disk.files import chunks
from atta.partition.graph.part import Part, PartitionBook
from atta.partition.names import edge_folder
from atta.partition.schema import Schema

Array = npt.NDArray[Any]
Edges = tuple[Array, Array, Array | None]
"""Sources, targets and weights of some edges, [n] each."""
_ROWS = 1 << 20
"""Number of vertices whose edges are counted at a time."""
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
    """

    into: Array
    out: Array
    loops: Array | None = None
    weights: Array | None = None

    @classmethod
    def counted(cls, edges: Iterable[Edges], schema: Schema, edge_type: str) -> GraphDegrees:
        """Count all edges of a type, which come in pieces."""
        source, target = schema.endpoints(edge_type)
        into, out = (np.zeros(schema.node_counts[t], np.int64) for t in (target, source))
        loops, weighed = np.zeros_like(into), "weight" in schema.edge_tables[edge_type]
        weights = np.zeros(len(into) if weighed else 0)
        for src, dst, weight in edges:
            into += np.bincount(dst, minlength=len(into))
            out += np.bincount(src, minlength=len(out))
            if source == target:
                loops += np.bincount(dst[src == dst], minlength=len(into))
            if weighed:
                assert weight is not None
                weights += np.bincount(dst, weights=weight, minlength=len(into))
        some_loops, sums = _narrow(loops) if loops.any() else None, weights.astype(np.float32) if weighed else None
        return cls(_narrow(into), _narrow(out), some_loops, sums)

    @classmethod
    def read(cls, folder: str, names: Iterable[str], map_file: Callable[[str], Array]) -> GraphDegrees | None:
        """Those in ``folder``, of whose files (some of ``names``) each is given by ``map_file``; None: there are none."""
        held = {n.removeprefix(f"{folder}/")[:-4]: map_file(n) for n in names if n.startswith(f"{folder}/")}
        return cls(**held) if held else None

    def files(self, folder: str) -> dict[str, Array]:
        """The arrays that there are, by the name of their file."""
        held = {"into": self.into, "out": self.out, "loops": self.loops, "weights": self.weights}
        return {f"{folder}/{name}.npy": array for name, array in held.items() if array is not None}

    def ordered(self, sources: Array, targets: Array) -> GraphDegrees:
        """The same in another order: the vertex at place i is the one that has been at ``sources[i]`` (``targets[i]``)."""
        loops, weights = (None if held is None else held[targets] for held in (self.loops, self.weights))
        return GraphDegrees(self.into[targets], self.out[sources], loops, weights)

    @staticmethod
    def layout(
        schema: Schema, edge_type: str, dtypes: Mapping[str, str]
    ) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        """Yield the files of a type with dtype and shape. ``dtypes``: of the files that there are."""
        folder, (source, target) = degree_folder(edge_type), schema.endpoints(edge_type)
        for name, of in {"into": target, "out": source, "loops": target, "weights": target}.items():
            dtype = dtypes.get(path := f"{folder}/{name}.npy")
            if dtype is not None or name in ("into", "out"):
                wanted = "<f4" if name == "weights" else dtype if dtype in _UNSIGNED else "<u4"
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
