"""Tries a layer on a small graph: whether the rows of a vertex are the same in any block, and if not, why. No daemons.

The graph has a vertex with many edges, vertices with none, one of them the last, self-loops, an edge that comes twice,
and a long path. A layer is right if a vertex gets the row that it has on the whole graph

- called again,
- with its edges in another order,
- beside vertices that no edge joins to it,
- in any block which has only what the layer reads: ``hops`` hops of in-edges.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import Floats, Layer, LayerBlock, in_degrees, with_company
from atta.errors import ConfigError
from atta.partition.schema import TableSpec

CANNOT = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    ImportError,
)
"""What layers raise on input that they cannot take."""
TOLERANCE = 1e-4
"""Rounding of float32 that is no difference, as a part of a row's largest number."""
_SMALL = 0.05
"""Rows whose numbers are smaller than this part of the largest of all are compared with that part."""
_PATH = 8
"""Vertices of the long path: more than any layer reads hops."""
_VERTICES, _HUB = 16 + _PATH, 40
"""Size of the graph, and edges of its hub: more than neighbourhoods are cut off at, or divided into."""
_STRANGERS, _LARGER_HUB = 6 + _PATH, 150
"""The same of vertices beside it. Their hub is larger, so that what is padded to the largest is padded more."""


@dataclass(frozen=True)
class LayerFault:
    """Why a layer cannot be computed block by block: ``cause`` is a sentence about the layer, without its name, ``kind`` is
    ``"raises"``, ``"shape"``, ``"random"``, ``"reverse"`` (out-edges), ``"order"`` (of edges), ``"others"`` (the other rows of
    the block) or ``"far"`` (edges farther than ``hops``), ``off`` how far rows are off, as a part of a row's largest number."""

    kind: str
    cause: str
    off: float = 0.0


@dataclass(frozen=True)
class LayerVerdict:
    """What the trial of a layer has shown: numbers per row that it gives, or why it cannot be computed, and whether its
    first vertex must have an edge (``with_company``)."""

    width: int = 0
    fault: LayerFault | None = None
    needs_edges: bool = False


class _FoundError(Exception):
    def __init__(self, kind: str, cause: str, off: float = 0.0) -> None:
        super().__init__(cause)
        self.fault = LayerFault(kind, cause, off)


def tried(layer: Layer, channels: int, edge_tables: Mapping[str, TableSpec] | None = None) -> LayerVerdict:
    """Try a layer that reads rows of ``channels`` numbers, and of ``edge_rows`` what these tables have."""
    trial, first = None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for graph, strangers in _graphs(channels, edge_tables or {}):
            for needs_edges in (False, True) if layer.hops else (False,):
                trial = _Trial(layer, graph, strangers, needs_edges)
                try:
                    return LayerVerdict(trial.width(), None, trial.needs_edges)
                except _FoundError as error:
                    if error.fault.kind not in ("raises", "shape"):
                        return LayerVerdict(0, error.fault, trial.needs_edges)
                    first = first or error.fault
    return LayerVerdict(0, first)


def layer_widths(layers: Sequence[Layer], channels: int) -> list[int]:
    """Numbers per row before the first layer, which are ``channels``, and after each layer, of layers known to be
    right. Raises ConfigError for layers that do not give a vertex a row."""
    widths = [channels]
    for number, layer in enumerate(layers, 1):
        degrees = {} if layer.degrees is None else {layer.degrees: np.ones(1, np.float32)}
        out = layer(LayerBlock(np.zeros((1, widths[-1]), np.float32), np.empty((2, 0), np.int64), 1, degrees))
        if out.ndim != 2 or len(out) != 1:
            raise ConfigError(f"layer {number} gives an array of shape {list(out.shape)} for a vertex, not [1, width]")
        widths.append(out.shape[1])
    return widths


def largest_difference(found: Floats, wanted: Floats) -> float:
    """The largest difference between two arrays of rows [n, width], as a part of the largest number of its row."""
    if not wanted.size:
        return 0.0
    finite = np.where(np.isfinite(wanted), np.abs(wanted), 0)
    size = np.maximum(finite.max(axis=1, keepdims=True), _SMALL * finite.max())
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        off = np.where(same, 0, np.abs(found.astype(np.float64) - wanted) / size)
    return float(np.nan_to_num(off, nan=np.inf).max())


@dataclass(frozen=True)
class _TrialGraph:
    """Rows of vertices [n, channels], edges [2, e] in the order of their targets, and rows of edges [e, ...]."""

    x: Floats
    edges: npt.NDArray[np.int64]
    edge_rows: Mapping[str, npt.NDArray[np.generic]]

    def block(self, layer: Layer, targets: Sequence[int]) -> LayerBlock:
        """What a layer reads to compute some vertices."""
        order = np.asarray(targets)
        read = order[:0]
        for _ in range(layer.hops):
            read = order
            found = np.unique(self.edges[0][np.isin(self.edges[1], read)])
            order = np.concatenate([order, np.setdiff1d(found, order)])
        place = np.zeros(len(self.x), np.int64)
        place[order] = np.arange(len(order))
        kept = np.flatnonzero(np.isin(self.edges[1], read))
        kept = kept[np.argsort(place[self.edges[1][kept]], kind="stable")]
        rows = {name: of_edges[kept] for name, of_edges in self.edge_rows.items()}
        block = LayerBlock(self.x[order], place[self.edges[:, kept]], len(targets), edge_rows=rows)
        if layer.degrees is None:
            return block
        whole = LayerBlock(self.x, self.edges, len(self.x), edge_rows=self.edge_rows)
        return replace(block, degrees={layer.degrees: in_degrees(whole, layer.degrees)[order]})

    def reordered(self, rng: np.random.Generator) -> _TrialGraph:
        """The same graph with the edges of each vertex in another order."""
        order = np.lexsort((rng.random(self.edges.shape[1]), self.edges[1]))
        return _TrialGraph(self.x, self.edges[:, order], {name: rows[order] for name, rows in self.edge_rows.items()})

    def beside(self, other: _TrialGraph) -> _TrialGraph:
        """This graph and another one, which no edge joins."""
        rows = {name: np.concatenate([own, other.edge_rows[name]]) for name, own in self.edge_rows.items()}
        edges = np.concatenate([self.edges, other.edges + len(self.x)], axis=1)
        return _TrialGraph(np.concatenate([self.x, other.x]), edges, rows)


class _Trial:
    """One layer on one graph, also beside one of strangers."""

    def __init__(self, layer: Layer, graph: _TrialGraph, strangers: _TrialGraph, needs_edges: bool) -> None:
        self._layer, self._graph, self._strangers = layer, graph, strangers
        self.needs_edges = needs_edges

    def width(self) -> int:
        """Numbers per row, if all is well; raises ``_FoundError``."""
        layer, graph, rng = self._layer, self._graph, np.random.default_rng(1)
        everywhere = range(len(graph.x))
        whole = self._rows(graph, everywhere)
        self._compare("random", "gives other rows each time it is called", self._rows(graph, everywhere), whole)
        self._check_direction(whole)
        reordered = self._rows(graph.reordered(rng), everywhere)
        self._compare("order", "depends on the order of a vertex' edges, which is not kept", reordered, whole)
        both = graph.beside(self._strangers)
        beside = self._rows(both, range(len(both.x)))[: len(whole)]
        self._compare("others", "gives a vertex rows that depend on the other rows of the block", beside, whole)
        within = f" within {layer.hops} hops" if layer.hops > 1 else ""
        far = f"reads more than the in-edges of a vertex{within}"
        alone = [[vertex] for vertex in everywhere]
        without_edges = np.setdiff1d(everywhere, graph.edges[1]).tolist()
        some = [rng.permutation(everywhere)[:count].tolist() for count in rng.integers(2, len(graph.x), 4)]
        for targets in (*alone, without_edges, *some):
            self._compare("far", far, self._rows(graph, targets), whole[targets])
        return int(whole.shape[1])

    def _check_direction(self, whole: Floats) -> None:
        """Refuse a layer to which a vertex matters that its in-edges do not come from: on the path nothing leads back."""
        if not self._layer.hops:
            return
        *_, before, last, lone = range(len(whole))
        graph = replace(self._graph, x=self._graph.x.copy())
        graph.x[last] += 1
        found = self._rows(graph, range(len(whole)))
        if found.shape == whole.shape and largest_difference(found[[lone]], whole[[lone]]) <= TOLERANCE:
            cause = (
                "reads edges that lead away from a vertex: it adds the reverses of its edges, which the graph would need to "
                "have (atta import --undirected), or has flow='target_to_source'"
            )
            self._compare("reverse", cause, found[[before]], whole[[before]])

    def _rows(self, graph: _TrialGraph, targets: Sequence[int]) -> Floats:
        block = graph.block(self._layer, targets)
        if self.needs_edges:
            block = with_company(block)
        try:
            found = self._layer(block)
        except CANNOT as error:
            said = str(error).partition("\n")[0]
            raise _FoundError("raises", f"raises {type(error).__name__}{said and f': {said}'}") from error
        if found.ndim != 2 or len(found) != block.targets:
            shape = list(found.shape)
            raise _FoundError("shape", f"gives an array of shape {shape} for {block.targets} vertices, not [n, width]")
        return found[len(found) - len(targets) :]

    @staticmethod
    def _compare(kind: str, cause: str, found: Floats, wanted: Floats) -> None:
        off = largest_difference(found, wanted) if found.shape == wanted.shape else np.inf
        if off > TOLERANCE:
            raise _FoundError(kind, f"{cause}: they differ by up to {off:.2g} of their size", off)


def _graphs(channels: int, edge_tables: Mapping[str, TableSpec]) -> Iterator[tuple[_TrialGraph, _TrialGraph]]:
    """The small graph and strangers, with rows of several kinds: some layers read codes in place of numbers."""
    rng = np.random.default_rng(0)
    pair = [
        _graph(rng, vertices, hub, channels, edge_tables)
        for vertices, hub in ((_VERTICES, _HUB), (_STRANGERS, _LARGER_HUB))
    ]
    yield pair[0], pair[1]
    for top in (2, 1):
        graph, strangers = (replace(g, x=rng.integers(0, top, g.x.shape).astype(np.float32)) for g in pair)
        yield graph, strangers


def _graph(
    rng: np.random.Generator, vertices: int, hub: int, channels: int, edge_tables: Mapping[str, TableSpec]
) -> _TrialGraph:
    near = vertices - _PATH - 1  # vertices from here on are a path that begins at the last vertex of the rest
    some = rng.integers(0, near, (2, 3 * near))  # the last vertex has no edge
    some = some[:, (some[0] != some[1]) & (some[1] > 1)]  # the first one has no in-edges, the second one many
    extra = np.array([[2, 0, 0], [2, 3, 3]])  # a self-loop, and an edge that comes twice
    many = np.stack([rng.integers(2, near, hub), np.full(hub, 1)])
    path = np.arange(near - 1, vertices - 2)
    edges = np.concatenate([some, extra, many, [path, path + 1]], axis=1)
    edges = edges[:, np.lexsort((edges[0], edges[1]))]
    rows = {name: _edge_rows(rng, edges.shape[1], table) for name, table in edge_tables.items()}
    return _TrialGraph(rng.normal(size=(vertices, channels)).astype(np.float32), edges, rows)


def _edge_rows(rng: np.random.Generator, count: int, table: TableSpec) -> npt.NDArray[np.generic]:
    """Numbers between 0 and 1 that are not small, or for whole numbers 0 and 1: there may be codes of two kinds."""
    shape, dtype = (count, *table.row_shape), np.dtype(table.dtype)
    found = rng.uniform(0.2, 1, shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return found.astype(dtype)
