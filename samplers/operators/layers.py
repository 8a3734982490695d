"""Layer-wise sampling: each layer is drawn for all known vertices at once (LADIES and FastGCN). Every layer adds the
vertices that it draws, with edges from them to all vertices known before. ``extra["layer_edges"]``, int64 [layers],
counts the edges of each layer, which stand one after another: the last one feeds the first layer of a network, as with
the blocks of DGL. ``extra["weight"]``, float32 [E]: over the edges of a layer into one vertex they sum to 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atta.samplers import kernels
from atta.samplers.operators.base import MAX_EDGES, Batch, Bounds, Sampled, check_layers
from atta.samplers.operators.draws import draw, draw_edges, streams, unit
from atta.samplers.requests import Expand, Neighbors, Program


@dataclass(frozen=True)
class Ladies:
    """Layer-dependent importance sampling (Zou et al., NeurIPS 2019, section 4, algorithm 1). Layer i draws
    ``layers[i]`` different vertices. D_v is the in-degree of v. The probability p_u of a vertex u is ∝ the sum of 1 /
    D_v² over its edges to known vertices v. This is the squared norm of u's column of the row-normalised adjacency
    matrix (parallel edges add up). An edge u → v has the weight 1 / (D_v p_u), normalised per target, as in the
    authors' code."""

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", check_layers(self.layers))

    def run(self, batch: Batch) -> Program[Sampled]:
        drawn = _Drawn(batch.seeds)
        for layer, size in enumerate(self.layers):
            found = yield from drawn.in_edges()
            candidates, at = _by_user_id(batch.keys, found.sources)
            degrees = np.repeat(found.counts, found.counts).astype(np.float64)
            importance = np.bincount(at, 1.0 / degrees**2, len(candidates))
            chosen = _race(importance, batch.keys[candidates], size, batch.key("ladies", layer))
            kept = chosen[at]
            # The factor 1 / D_v is left out: all edges of a row share it, so normalising the row removes it.
            drawn.add(candidates[chosen], found.only(kept), 1.0 / importance[at[kept]])
        return drawn.sampled()

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        if not seeds:  # without seeds there are no in-neighbours to draw from
            nodes = 0
        return _bounds(self.layers, seeds, nodes, edges)


@dataclass(frozen=True)
class FastGcn:
    """Importance sampling that draws each layer independently (Chen et al., ICLR 2018, section 3.1). Layer i makes
    ``layers[i]`` draws of vertices with replacement. The probability of a vertex u is ∝ q(u), the sum of 1 / D_v² over
    all its edges u → v, whether v is in the batch or not. So many drawn vertices may have no edges into the batch. All
    edges of a target have the same weight: they average over its drawn neighbours. The paper's unbiased estimator
    divides by q(u) instead, but q(u) needs a pass over the whole graph."""

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", check_layers(self.layers))

    def run(self, batch: Batch) -> Program[Sampled]:
        drawn = _Drawn(batch.seeds)
        for layer, size in enumerate(self.layers):
            sources, _ = yield from draw_edges(batch, size, batch.key("fastgcn", layer), power=2)
            chosen, _ = _by_user_id(batch.keys, sources)
            found = yield from drawn.in_edges(np.sort(chosen))
            drawn.add(chosen, found, np.ones(len(found.sources)))
        return drawn.sampled()

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        return _bounds(self.layers, seeds, nodes, edges)


class _Drawn:
    def __init__(self, seeds: np.ndarray) -> None:
        self._known = kernels.Compactor()
        self._known.insert(seeds)
        self._edges: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []  # row, col, edge_ids, weight

    def in_edges(self, within: np.ndarray | None = None) -> Program[Neighbors]:
        targets = self._known.ids(0, self._known.size)
        if not len(targets):
            return Neighbors(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        found: Neighbors = yield Expand(targets, within=within)
        return found

    def add(self, chosen: np.ndarray, edges: Neighbors, weight: np.ndarray) -> None:
        """Append a layer: its vertices ``chosen``, its edges from them to the vertices so far, and their weights."""
        self._known.insert(chosen)
        row = self._known.insert(edges.sources)
        col = np.repeat(np.arange(len(edges.counts), dtype=np.int32), edges.counts)
        sums = np.bincount(col, weight, len(edges.counts))
        self._edges.append((row, col, edges.edge_ids, (weight / sums[col]).astype(np.float32)))

    def sampled(self) -> Sampled:
        row, col, edge_ids, weight = (np.concatenate(parts) for parts in zip(*self._edges, strict=True))
        extra = {"weight": weight, "layer_edges": np.array([len(layer[0]) for layer in self._edges])}
        return Sampled(self._known.ids(0, self._known.size), row, col, edge_ids, extra=extra)


def _bounds(layers: tuple[int, ...], seeds: int, nodes: int, edges: int) -> Bounds:
    most = min(edges * len(layers), MAX_EDGES)
    extra = {"weight": ("float32", (most,)), "layer_edges": ("int64", (len(layers),))}
    return Bounds(min(nodes, seeds + sum(layers)), most, extra)


def _by_user_id(keys: np.ndarray, vertices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``vertices`` (int64 [m]) without repeats, by ascending user id, and the position of each given vertex in this
    list: int64 [m]."""
    _, first, at = np.unique(keys[vertices], return_index=True, return_inverse=True)
    return vertices[first], at


def _race(importance: np.ndarray, keys: np.ndarray, count: int, stream_key: int) -> np.ndarray:
    """Mark ``count`` candidates: bool [m]. They are drawn one after another, ∝ ``importance`` (float64 [m]) among the
    candidates that are left: candidate i arrives after an exponential time of rate ``importance[i]``, and the first win
    (Efraimidis and Spirakis, 2006). Ties go to the lowest user id, which stands first."""
    times = -np.log1p(-unit(draw(streams(stream_key, keys), 0))) / importance
    chosen = np.zeros(len(times), dtype=bool)
    chosen[np.argsort(times, kind="stable")[:count]] = True
    return chosen
