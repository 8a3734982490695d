"""What a layer reads to compute some vertices, and what a layer is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class DegreeRule:
    """How a layer counts in-degrees, as PyG's ``gcn_norm`` does. ``loop``: weight of the one self-loop that each vertex has
    in place of its own, which keeps its weight if the edges have weights; None: self-loops are edges like others.
    ``weights``: which of ``LayerBlock.edge_rows`` has the weights of edges; None: each edge counts 1."""

    loop: float | None = 1.0
    weights: str | None = None


@dataclass(frozen=True)
class LayerBlock:
    """Some vertices, all (or the sampled) in-edges of them, and the rows of both ends.

    Attributes:
        x: float32 [r, channels], rows of the vertices that the layer reads. The first ``targets`` of them are the
            vertices that it computes.
        edge_index: int64 [2, e], positions in ``x`` of sources and targets; targets ascend. A layer of several hops
            has the in-edges of all vertices but those of the last hop.
        targets: number of vertices to compute.
        degrees: float32 [r] by rule, in-degrees in the whole graph of each vertex that is read: those that a layer asks
            for.
        edge_rows: [e, ...] rows of edge tables, by the argument of the layer that takes them.
        weights: float32 [e], what each edge of a sampled batch weighs by ``gcn_norm`` of the whole graph, in place of
            degrees; edges of a vertex to itself that were added are among them. None: edges have no weights.
        nodes_per_hop: [hops + 1] new vertices; the first number counts the seeds.
        edges_per_hop: [hops] edges.
    """

    x: Floats
    edge_index: npt.NDArray[np.int64]
    targets: int
    degrees: Mapping[DegreeRule, Floats] = field(default_factory=dict)
    edge_rows: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    weights: Floats | None = None
    nodes_per_hop: Sequence[int] = ()
    edges_per_hop: Sequence[int] = ()


@dataclass(frozen=True)
class TypedBlock:
    """Some vertices of one node type of a typed graph, all in-edges of them, and the rows of both ends; or a sampled
    neighbourhood of several hops, hop by hop.

    Attributes:
        x: float32 [r, channels] by node type. The first ``targets`` rows of the own type are those that are computed.
        edges: int64 [2, e] by edge type, positions in ``x`` of sources and targets.
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


@dataclass(frozen=True)
class SummedLayer:
    """A layer that reads its in-neighbours as their total alone: what each of them adds, and what the layer makes of it. So
    who keeps totals can go on from them.

    Attributes:
        widths: by edge type, how many numbers of a total come along it; empty: the only one. They stand one after another.
        message: float64 [n, width], what vertices add along an edge type to each vertex that an edge leads to, from their
            rows [n, channels] and in-degrees [n] (None: the layer has no ``degrees``).
        update: float32 rows [n, out channels] from the vertices' own rows, totals and in-degrees.
        loops: whether an edge from a vertex to itself counts.
    """

    widths: Mapping[str, int]
    message: Callable[[str, Floats, Floats | None], Doubles]
    update: Callable[[Floats, Doubles, Floats | None], Floats]
    loops: bool = True

    @property
    def columns(self) -> dict[str, slice]:
        """By edge type, which numbers of a total come along it."""
        ends = np.cumsum([0, *self.widths.values()]).tolist()
        return {name: slice(*bounds) for name, bounds in zip(self.widths, pairwise(ends), strict=True)}


class Layer(Protocol):
    """A layer of a model: computes a row for each target of a block from the rows that the block has."""

    @property
    def hops(self) -> int:
        """How far it reads: number of hops whose in-edges a block has; 0: the rows of the targets alone."""

    @property
    def degrees(self) -> DegreeRule | None:
        """The in-degrees that blocks must have, as for the normalisation of a GCN."""

    @property
    def edge_arguments(self) -> tuple[str, ...]:
        """Which of ``LayerBlock.edge_rows`` it reads."""

    @property
    def row_per_edge(self) -> bool:
        """Whether it makes a row per edge in memory. Other layers sum up rows as they read them."""

    @property
    def sums(self) -> SummedLayer | None:
        """The same layer by totals; None: it reads more of its in-neighbours."""

    def __call__(self, block: LayerBlock) -> Floats:
        """float32 [targets, out channels]."""


def in_degrees(block: LayerBlock, rule: DegreeRule) -> Floats:
    """float32 [r]: in-degree of each vertex of a block among its edges."""
    source, target = block.edge_index
    weights = np.ones(len(source)) if rule.weights is None else block.edge_rows[rule.weights].reshape(-1)
    if rule.loop is None:
        return np.bincount(target, weights, minlength=len(block.x)).astype(np.float32)
    other = source != target
    counts = np.bincount(target[other], weights[other], minlength=len(block.x))
    return (counts + self_loops(block, rule.loop, weights)).astype(np.float32)


def self_loops(block: LayerBlock, usual: float, weights: npt.NDArray[Any]) -> Floats:
    """float32 [r]: the weight of each vertex' self-loop: its own, of several the last one, or the usual one."""
    source, target = block.edge_index
    found, loops = np.full(len(block.x), usual, np.float32), source == target
    found[target[loops]] = weights[loops]
    return found


def with_company(block: LayerBlock) -> LayerBlock:
    """The same block with one more target, the first one, which has edges; its row means nothing. PyG's quantiles look
    at the value before those of a vertex without edges, so there must be two."""
    rows = np.concatenate([block.x[:1], block.x, block.x[:1]])
    edges = np.concatenate([[[len(rows) - 1] * 2, [0, 0]], block.edge_index + 1], axis=1)
    degrees = {rule: np.pad(found, 1, constant_values=1) for rule, found in block.degrees.items()}
    of_edges = {n: np.concatenate([np.zeros_like(r, shape=(2, *r.shape[1:])), r]) for n, r in block.edge_rows.items()}
    return LayerBlock(rows, edges, block.targets + 1, degrees, of_edges)


def typed_with_new(
    block: TypedBlock, own: str, x: Floats, new: Mapping[str, tuple[Places, Places]], types: Mapping[str, Sequence[str]]
) -> TypedBlock:
    """A sampled block with one hop more, around new vertices of type ``own`` that have features ``x`` [n, channels]. ``new``:
    by edge type, what their in-edges come from, places among the rows of ``block`` (below 0: a new vertex, counted from their
    end), and which of them they lead to. ``types``: of both ends of each edge type."""
    edges, count = {}, len(x)
    for edge_type, known in block.edges.items():
        shift = np.array([[count * (node_type == own)] for node_type in types[edge_type]])
        coming = np.asarray(new[edge_type]) + shift * [[1], [0]] if edge_type in new else known[:, :0]
        edges[edge_type] = np.concatenate([coming, known + shift], axis=1)
    rows = {t: np.concatenate([x, known]) if t == own else known for t, known in block.x.items()}
    nodes = {t: [count * (t == own), *counts] for t, counts in block.nodes_per_hop.items()}
    hops = {e: [edges[e].shape[1] - block.edges[e].shape[1], *counts] for e, counts in block.edges_per_hop.items()}
    return TypedBlock(rows, edges, count, block.places, nodes, hops)


def with_new(block: LayerBlock, x: Floats, sources: Places, targets: Places, hops: int) -> LayerBlock:
    """The same of a graph with one type. It has ``hops``, and ``block`` perhaps one that is read for its weights alone."""
    weights = None
    if block.weights is not None:
        (source, target), everyone = block.edge_index, np.arange(len(x))
        loops, degrees = source == target, 1 + np.bincount(targets, minlength=len(x))
        # An edge to itself weighs 1 / degree.
        inverse = [np.bincount(target[loops], block.weights[loops], len(block.x)), 1 / degrees]
        sources, targets = np.concatenate([sources, everyone - len(x)]), np.concatenate([targets, everyone])
        weights = np.sqrt(np.concatenate(inverse)[sources] / degrees[targets])
    order = np.argsort(targets, kind="stable")
    known = TypedBlock(
        {"": block.x}, {"": block.edge_index}, 0, targets[:0], {"": block.nodes_per_hop}, {"": block.edges_per_hop}
    )
    found = typed_with_new(known, "", x, {"": (sources[order], targets[order])}, {"": ("", "")})
    return LayerBlock(
        found.x[""], found.edges[""], len(x), nodes_per_hop=found.nodes_per_hop[""][: hops + 1],
        weights=None if weights is None else np.concatenate([weights[order], block.weights]).astype(np.float32),
        edges_per_hop=found.edges_per_hop[""][:hops],
    )  # fmt: skip


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
