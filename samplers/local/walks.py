"""Random walks over a local graph, from a vertex to one of its in-neighbours, and neighbourhoods made from them. What a
walker does is a function of the stream key, its number and the user id of its start."""

from __future__ import annotations

import numpy as np

from atta import _native
from atta.errors import ConfigError, blaming
from atta.samplers.arguments import integers
from atta.samplers.local.graph import LocalGraph


def random_walks(
    graph: LocalGraph,
    starts: np.ndarray,
    length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    restart: float = 0.0,
    stream_key: int = 0,
    threads: int = 1,
) -> np.ndarray:
    """Walk ``length`` steps from each of ``starts`` (int [m]): int64 [m, length + 1], -1 after a vertex without
    in-edges. ``p`` and ``q`` bias the walk as node2vec does (Grover and Leskovec, KDD 2016): a step back has the weight
    1/p, a step to a neighbour of the previous vertex 1, and a step further away 1/q. With probability ``restart`` a
    walker returns to its start instead of stepping. Raises ConfigError: a start outside the graph, or an argument out
    of range."""
    if length < 0:
        raise ConfigError(f"length {length}: must not be negative")
    with blaming(ConfigError, of=ValueError):
        at = integers("starts", starts)
        rows = graph.indptr, graph.indices, graph.keys
        paths = _native.random_walks(*rows, at, length, p, q, restart, stream_key, threads)
    return paths.reshape(-1, length + 1)


def pinsage_neighbors(
    graph: LocalGraph,
    seeds: np.ndarray,
    count: int,
    *,
    walks: int = 10,
    length: int = 3,
    restart: float = 0.5,
    stream_key: int = 0,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ``count`` vertices that short walks from each seed visit most (PinSAGE, Ying et al., KDD 2018, section 3.1).
    Returns counts int32 [m], vertices int64 [sum(counts)] (most visited first, ties by user id) and their visits int64,
    which are the importance weights. The seed itself does not count. Raises ConfigError: a seed outside the graph, or
    an argument out of range."""
    if count < 0 or walks < 1:
        raise ConfigError(f"{count} neighbours of {walks} walks: at least 0 and 1")
    starts = integers("starts", seeds)
    paths = random_walks(
        graph, np.repeat(starts, walks), length, restart=restart, stream_key=stream_key, threads=threads
    )
    visited = np.ascontiguousarray(paths[:, 1:]).reshape(-1)
    with blaming(ConfigError, of=ValueError):
        return _native.frequent_visits(graph.indptr, graph.indices, graph.keys, starts, visited, count)


def pagerank(
    graph: LocalGraph, seeds: np.ndarray, count: int, *, alpha: float = 0.15, epsilon: float = 1e-5, threads: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ``count`` vertices with the highest personalised PageRank of each seed, by forward pushes (Andersen et al.,
    FOCS 2006). ``alpha``: probability of returning to the seed; ``epsilon``: mass per degree that is not pushed on. It
    bounds the work by 1 / (alpha * epsilon). Returns counts int32 [m], vertices int64 and scores float64 [sum(counts)],
    best first. Raises ConfigError: a seed outside the graph, or an argument out of range."""
    if count < 0:
        raise ConfigError(f"count {count}: must not be negative")
    starts = integers("starts", seeds)
    with blaming(ConfigError, of=ValueError):
        return _native.pagerank(graph.indptr, graph.indices, graph.keys, starts, alpha, epsilon, count, threads)
