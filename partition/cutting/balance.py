"""The quantities that are balanced over partitions: vertices, edges, splits, the vertices of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from atta.errors import UnknownNameError
from atta.partition.graph import Graph

__all__ = ["DEFAULT_BALANCE", "TYPES", "capacities", "capacity", "constraints", "known_balance", "slacks"]

DEFAULT_BALANCE = ("nodes", "edges", "train")
TYPES = "types"

Longs = npt.NDArray[np.int64]


def known_balance(graph: Graph, balance: Sequence[str] | None) -> list[str]:
    """Check the names in ``balance``: ``nodes``, ``edges``, ``types`` (each node type) or a split.

    None: vertices, edges and training vertices, if they exist. Raises UnknownNameError.
    """
    splits = {name for per_type in graph.schema.splits.values() for name in per_type}
    known = {"nodes", "edges", TYPES, *splits}
    if balance is None:
        return [name for name in DEFAULT_BALANCE if name in known]
    for name in balance:
        if name not in known:
            raise UnknownNameError.of("name in --balance:", name, known)
    return list(balance)


def slacks(graph: Graph, bounds: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return float64 [C]: the bound of each column of ``constraints(graph, list(bounds))``."""
    return np.array([bounds.get(name, 0.0) for name, _ in _columns(graph, list(bounds))])


def constraints(
    graph: Graph, balance: Sequence[str] = DEFAULT_BALANCE, in_degrees: Mapping[str, Longs] | None = None
) -> Longs:
    """Return the vertex weights [N, C] of the union graph, one column per thing to balance.

    ``nodes`` gives each vertex the weight 1. ``edges`` gives it its in-degree. A split gives the weight 1 to its
    vertices. ``types`` makes one column per node type. Columns of zeros (no edges, an empty split) are left out. Raises
    UnknownNameError for a split that no node type has. ``in_degrees``: of each row by node type, if known; otherwise they
    are counted.
    """
    return np.ascontiguousarray(np.stack([column for _, column in _columns(graph, balance, in_degrees)], axis=1))


def _columns(
    graph: Graph, balance: Sequence[str], in_degrees: Mapping[str, Longs] | None = None
) -> list[tuple[str, Longs]]:
    columns: list[tuple[str, Longs]] = []
    for name in dict.fromkeys(balance):
        found = _type_columns(graph) if name == TYPES else [_column(graph, name, in_degrees)]
        columns += [(name, column) for column in found if column.any()]
    return columns or [("nodes", _column(graph, "nodes"))]


def capacities(weights: Longs, parts: int, slack: float | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return float64 [C]: how much of each column a partition may hold.

    This is its share, plus the fraction ``slack`` of the share, plus room for one vertex.
    """
    return capacity(weights.sum(axis=0, dtype=np.float64) / parts, slack, weights.max(axis=0, initial=0))


def capacity(
    share: float | npt.NDArray[np.float64], slack: float | npt.NDArray[np.float64], heaviest: float | Longs
) -> npt.NDArray[np.float64]:
    """Return how much a partition may hold whose even share is ``share``; ``heaviest``: the weight of one vertex."""
    room = np.maximum(share * (1 + slack), np.ceil(share))
    most: npt.NDArray[np.float64] = np.maximum(room, heaviest)
    return most


def _column(graph: Graph, name: str, in_degrees: Mapping[str, Longs] | None = None) -> Longs:
    schema = graph.schema
    weights = {t: np.zeros(n, np.int64) for t, n in schema.node_counts.items()}
    if name == "nodes":
        weights = {t: np.ones(n, np.int64) for t, n in schema.node_counts.items()}
    elif name == "edges" and in_degrees is not None:
        weights = dict(in_degrees)
    elif name == "edges":
        for edge_type in schema.edge_types:
            target = schema.endpoints(edge_type)[1]
            weights[target] += np.bincount(graph.edges(edge_type).dst, minlength=schema.node_counts[target])
    else:
        for node_type, splits in schema.splits.items():
            if name in splits:
                weights[node_type][graph.split(node_type, name)] = 1
    return np.concatenate([weights[t] for t in schema.node_counts])


def _type_columns(graph: Graph) -> list[Longs]:
    counts = graph.schema.node_counts
    return [np.concatenate([np.full(n, int(t == mine), np.int64) for t, n in counts.items()]) for mine in counts]
