"""Subgraphs of a local graph as batches: GraphSAINT's three samplers and Cluster-GCN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers.graph import LocalGraph, blaming
from atta.samplers.walks import random_walks

__all__ = ["Subgraph", "cluster_batches", "induced", "saint_edges", "saint_nodes", "saint_walks"]


@dataclass(frozen=True)
class Subgraph:
    """Some vertices and all edges among them.

    Attributes:
        n_id: int64 [nodes], vertices of the graph.
        row, col: int32 [edges], positions in ``n_id`` of the edges' sources and targets.
        e_id: int32|int64 [edges], as ``LocalGraph.edge_ids``.
    """

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray


def induced(graph: LocalGraph, vertices: np.ndarray) -> Subgraph:
    """The subgraph on ``vertices`` (int [m], each once), in their order.

    Raises:
        ConfigError: a vertex outside the graph, or one that repeats.
    """
    n_id = np.ascontiguousarray(vertices, dtype=np.int64)
    with blaming():
        row, col, positions = _native.induced(graph.indptr, graph.indices, graph.keys, n_id)
    return Subgraph(n_id, row, col, positions if graph.edge_ids is None else graph.edge_ids[positions])


def saint_nodes(graph: LocalGraph, budget: int, batches: int, rng: np.random.Generator) -> Iterator[Subgraph]:
    """GraphSAINT's node sampler (Zeng et al., ICLR 2020, section 3.4): per batch ``budget`` draws of vertices.

    A vertex is drawn with probability ∝ the squared norm of its column in the normalised adjacency matrix: the sum of 1/D² over
    the vertices that it has edges to, D being their in-degrees.
    """
    degree = np.diff(graph.indptr)
    norm = 1.0 / degree[np.repeat(np.arange(graph.num_nodes), degree)] ** 2
    sums = np.cumsum(np.bincount(graph.indices, norm, minlength=graph.num_nodes))
    for _ in range(batches):
        yield induced(graph, _unique(_draw(sums, budget, rng)))


def saint_edges(graph: LocalGraph, budget: int, batches: int, rng: np.random.Generator) -> Iterator[Subgraph]:
    """GraphSAINT's edge sampler: per batch ``budget`` draws of edges, ∝ 1/deg(u) + 1/deg(v), and all edges among their ends."""
    degree = np.diff(graph.indptr)
    targets = np.repeat(np.arange(graph.num_nodes), degree)
    out_degree = np.bincount(graph.indices, minlength=graph.num_nodes)
    sums = np.cumsum(1.0 / out_degree[graph.indices] + 1.0 / degree[targets])
    for _ in range(batches):
        chosen = _draw(sums, budget, rng)
        yield induced(graph, _unique(np.concatenate([graph.indices[chosen], targets[chosen]])))


def saint_walks(
    graph: LocalGraph, roots: int, length: int, batches: int, rng: np.random.Generator, *, threads: int = 1
) -> Iterator[Subgraph]:
    """GraphSAINT's walk sampler: per batch everything that walks of ``length`` steps from ``roots`` random vertices touch."""
    for _ in range(batches if graph.num_nodes else 0):
        starts, key = rng.integers(0, graph.num_nodes, roots), int(rng.integers(0, 2**63))
        paths = random_walks(graph, starts, length, stream_key=key, threads=threads).reshape(-1)
        yield induced(graph, _unique(paths[paths >= 0]))


def cluster_batches(
    graph: LocalGraph, clusters: Sequence[np.ndarray], per_batch: int, rng: np.random.Generator
) -> Iterator[Subgraph]:
    """Cluster-GCN (Chiang et al., KDD 2019): an epoch of batches of ``per_batch`` random clusters with the edges between them."""
    if per_batch < 1:
        raise ConfigError(f"{per_batch} clusters per batch: must be at least 1")
    order = rng.permutation(len(clusters))
    for at in range(0, len(order), per_batch):
        yield induced(graph, _unique(np.concatenate([clusters[i] for i in order[at : at + per_batch]])))


def _draw(sums: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` independent draws of positions, ∝ the weights whose running sums are given."""
    if count < 0:
        raise ConfigError(f"budget {count}: must not be negative")
    if count == 0 or not len(sums) or sums[-1] <= 0:
        return np.empty(0, dtype=np.int64)
    drawn: np.ndarray = np.searchsorted(sums, rng.random(count) * sums[-1], side="right").clip(max=len(sums) - 1)
    return drawn


def _unique(vertices: np.ndarray) -> np.ndarray:
    return np.unique(np.asarray(vertices, dtype=np.int64))
