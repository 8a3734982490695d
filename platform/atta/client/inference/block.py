"""What a layer reads to compute some vertices, and what a layer is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Layer", "LayerBlock", "TypedBlock", "in_degrees", "one_prepared"]

Floats = npt.NDArray[np.float32]
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class LayerBlock:
    """Some vertices, all (or the sampled) in-edges of them, and the rows of both ends.

    Attributes:
        x: float32 [r, channels], rows of the vertices that the layer reads. The first ``targets`` of them are the
            vertices that it computes.
        edge_index: int64 [2, e], positions in ``x`` of sources and targets; targets ascend.
        targets: number of vertices to compute.
        degrees: float32 [r], in-edges of each vertex that is read, in the whole graph and without self-loops; None
            unless the layer asks for them.
        weights: float32 [e], what each edge of a sampled batch weighs by ``gcn_norm`` of the whole graph, in place of
            degrees; edges of a vertex to itself that were added are among them. None: edges have no weights.
    """

    x: Floats
    edge_index: npt.NDArray[np.int64]
    targets: int
    degrees: Floats | None = None
    weights: Floats | None = None


@dataclass(frozen=True)
class TypedBlock:
    """Some vertices of one node type of a typed graph, all in-edges of them, and the rows of both ends.

    Or a sampled neighbourhood of several hops: vertices and edges stand hop by hop.

    Attributes:
        x: float32 [r, channels] by node type, rows of the vertices that the layer reads. The first ``targets`` rows of
            the vertices' own type are those that it computes.
        edges: int64 [2, e] by edge type, positions in ``x`` of sources and targets.
        targets: number of vertices to compute.
        places: int64 [targets], where tables of the node type have the rows of these vertices.
        nodes_per_hop: [hops + 1] new vertices by node type; the first number counts the seeds.
        edges_per_hop: [hops] edges by edge type.
    """

    x: Mapping[str, Floats]
    edges: Mapping[str, npt.NDArray[np.int64]]
    targets: int
    places: npt.NDArray[np.int64]
    nodes_per_hop: Mapping[str, Sequence[int]]
    edges_per_hop: Mapping[str, Sequence[int]]


class Layer(Protocol):
    """A layer of a model: computes a row for each target of a block from the rows that the block has."""

    @property
    def needs_degrees(self) -> bool:
        """Whether blocks must have in-degrees, as for the normalisation of a GCN."""

    @property
    def row_per_edge(self) -> bool:
        """Whether it makes a row per edge in memory. Other layers sum up rows as they read them."""

    def __call__(self, block: LayerBlock) -> Floats:
        """float32 [targets, out channels]."""


def in_degrees(edge_index: npt.NDArray[np.int64], vertices: int) -> Floats:
    """float32 [vertices]: in-edges of each vertex among these edges, without self-loops."""
    source, target = edge_index
    return np.bincount(target[source != target], minlength=vertices)[:vertices].astype(np.float32)


def one_prepared(items: Iterable[Item], prepare: Callable[[Item], Made]) -> Iterator[Made]:
    """Yield ``prepare(item)`` in order; a thread takes and prepares the next item while one is in use."""
    source, end = iter(items), object()

    def make() -> Made | object:
        item = next(source, end)
        return end if item is end else prepare(item)  # type: ignore[arg-type]  # only the mark is not an Item

    with ThreadPoolExecutor(1, thread_name_prefix="atta-block") as thread:
        coming = thread.submit(make)
        while True:
            made = [coming.result()]
            if made[0] is end:
                return
            coming = thread.submit(make)
            yield made.pop()  # type: ignore[misc]  # only the mark is not what was made; no reference stays here
