"""Graphs by user ids, a brute-force access to them, and results in user ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from atta.samplers.local.graph import LocalGraph
from atta.samplers.operators import Batch, Operator, Sampled
from atta.samplers.requests import (
    Access,
    Contains,
    Degrees,
    DegreeSums,
    Expand,
    LocalAccess,
    Neighbors,
    Request,
    Step,
    run,
)


@dataclass(frozen=True)
class Graph:
    """Edges between vertices in internal ids; ``keys`` are the vertices' user ids."""

    src: np.ndarray
    dst: np.ndarray
    keys: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.keys)

    @cached_property
    def local(self) -> LocalGraph:
        return LocalGraph.from_edges(self.src, self.dst, self.nodes, keys=self.keys)

    @cached_property
    def degree(self) -> np.ndarray:
        return np.bincount(self.dst, minlength=self.nodes)

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.src.tolist(), self.dst.tolist(), strict=True))

    @cached_property
    def against(self) -> nx.MultiDiGraph:
        """Its edges reversed, as walkers go."""
        found = nx.MultiDiGraph([(d, s) for s, d in self.pairs])
        found.add_nodes_from(range(self.nodes))
        return found

    def some(self, seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        return rng.permutation(self.nodes)[: rng.integers(0, self.nodes + 1)].tolist()

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared column norms of the row-normalised adjacency matrix, edge by edge."""
        norms = np.zeros(self.nodes)
        for s, d in self.pairs:
            norms[s] += 1.0 / int(self.degree[d]) ** 2
        return norms

    def batch(self, seeds: Any, number: int = 0) -> Batch:
        by_rank = np.argsort(self.keys).astype(np.int32)
        return Batch(np.asarray(seeds, dtype=np.int64), self.keys, by_rank, seed=7, number=number)

    def relabelled(self, rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
        """The same graph with other internal ids, and the new id of each old one."""
        new = rng.permutation(self.nodes)
        keys = np.empty_like(self.keys)
        keys[new] = self.keys
        return Graph(new[self.src], new[self.dst], keys), new

    def sample(self, operator: Operator, seeds: Any, number: int = 0) -> Sampled:
        sampled = run(operator.run(self.batch(seeds, number)), LocalAccess(self.local))
        self.check(operator, np.asarray(seeds, dtype=np.int64), sampled)
        return sampled

    def check(self, operator: Operator, seeds: np.ndarray, sampled: Sampled) -> None:
        vertices, bounds = sampled.vertices, operator.bounds(len(seeds), self.nodes, len(self.src))
        assert np.array_equal(vertices[: len(seeds)], seeds)
        trees = np.zeros(len(vertices), int) if sampled.trees is None else sampled.trees
        assert len(set(zip(trees.tolist(), vertices.tolist(), strict=True))) == len(vertices)
        assert len(sampled.row) == len(sampled.col) == len(sampled.edge_ids) <= bounds.edges
        assert len(vertices) <= bounds.vertices
        assert vertices.dtype == sampled.edge_ids.dtype == np.int64
        assert sampled.row.dtype == sampled.col.dtype == np.int32
        assert (trees[sampled.row] == trees[sampled.col]).all()
        real = sampled.edge_ids >= 0
        assert (self.src[sampled.edge_ids[real]] == vertices[sampled.row[real]]).all()
        assert (self.dst[sampled.edge_ids[real]] == vertices[sampled.col[real]]).all()
        assert sampled.extra.keys() == bounds.extra.keys()
        for name, array in sampled.extra.items():
            dtype, shape = bounds.extra[name]
            assert array.dtype == np.dtype(dtype)
            assert array.shape[1:] == shape[1:]
            assert len(array) <= shape[0]

    def edges_among(self, vertices: Any) -> list[int]:
        some = set(np.asarray(vertices).tolist())
        return [i for i, (s, d) in enumerate(self.pairs) if s in some and d in some]


def random_graph(seed: int, nodes: int = 30, edges: int = 150, *, both: bool = False) -> Graph:
    """Some parallel edges, some loops, three vertices without in-edges (unless ``both`` directions are stored)."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, edges), rng.integers(0, nodes if both else nodes - 3, edges)
    src[:3], dst[:3] = src[3:6], dst[3:6]
    if both:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    return Graph(src, dst, rng.permutation(1000)[:nodes])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of any kind: empty, with loops, with parallel edges."""
    nodes = draw(st.integers(1, 12))
    ends = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=60))
    keys = draw(st.lists(st.integers(-(2**62), 2**62), min_size=nodes, max_size=nodes, unique=True))
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Graph(table[:, 0], table[:, 1], np.array(keys, dtype=np.int64))


class PlainAccess(Access):
    """Answers vertex by vertex, with Python's integers. It cannot draw, so it expands only with -1."""

    def __init__(self, graph: Graph) -> None:
        self._rows: list[list[tuple[int, int, int]]] = [[] for _ in range(graph.nodes)]
        for i, (s, d) in enumerate(graph.pairs):
            self._rows[d].append((int(graph.keys[s]), i, s))
        for row in self._rows:
            row.sort()
        self.asked: Counter[type] = Counter()

    def answer(self, request: Request) -> Any:
        self.asked[type(request)] += 1
        match request:
            case Expand():
                assert request.fan_out == -1
                within = None if request.within is None else request.within.tolist()
                assert within is None or within == sorted(within)
                rows = [
                    [(s, i) for _, i, s in self._rows[v] if within is None or s in within]
                    for v in request.vertices.tolist()
                ]
                table = np.array([edge for row in rows for edge in row], dtype=np.int64).reshape(-1, 2)
                return Neighbors(np.array([len(row) for row in rows], dtype=np.int32), table[:, 0], table[:, 1])
            case Step():
                asked = zip(request.vertices.tolist(), request.bits.tolist(), strict=True)
                rows_ = [(self._rows[v], bits) for v, bits in asked]
                return np.array([row[bits * len(row) >> 64][2] if row else -1 for row, bits in rows_], dtype=np.int64)
            case Contains():
                pairs = zip(request.targets.tolist(), request.sources.tolist(), strict=True)
                return np.array([any(s == u for _, _, u in self._rows[t]) for t, s in pairs], dtype=bool)
            case Degrees():
                return np.array([len(self._rows[v]) for v in request.vertices.tolist()], dtype=np.int64)
            case DegreeSums():
                raise AssertionError("no operator asks for this")


def in_user_ids(graph: Graph, sampled: Sampled) -> list[Any]:
    return [
        graph.keys[sampled.vertices].tolist(),
        sampled.row.tolist(),
        sampled.col.tolist(),
        sampled.edge_ids.tolist(),
        None if sampled.trees is None else sampled.trees.tolist(),
        {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in sampled.extra.items()},
    ]
