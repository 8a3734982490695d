"""The kinds of loaders that consumers of a chaos run have, and the digest of a batch of each."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import atta
from atta.errors import ConfigError, UnknownNameError
from atta_bench.chaos.graph import ChaosGraph

__all__ = ["HOPS", "SEED", "LoaderKind", "batch_digest", "loader_kinds", "loader_of", "named", "taken"]

HOPS, SEED = (5, 5), 3
WALK = 3
"""Steps of the operator's walks."""


class LoaderKind(enum.Enum):
    """Whose batches a consumer takes."""

    NEIGHBOURS = "neighbours"
    DISJOINT = "disjoint"
    """Each seed has a tree of its own."""
    TEMPORAL = "temporal"
    """So it has, and no edge is later than its seed."""
    LINK = "link"
    OPERATOR = "operator"
    """GraphSAINT's random walks."""

    @property
    def local(self) -> bool:
        """Whether the local sampler makes these batches; else only an undisturbed run does."""
        return self not in {LoaderKind.LINK, LoaderKind.OPERATOR}


def loader_kinds(names: Sequence[str]) -> list[LoaderKind]:
    """The kinds with these names, each once; raises UnknownNameError or ConfigError."""
    known = {kind.value: kind for kind in LoaderKind}
    for name in names:
        if name not in known:
            raise UnknownNameError.of("loader", name, known)
    if not names:
        raise ConfigError("--loaders names none")
    return [known[name] for name in dict.fromkeys(names)]


def loader_of(kind: LoaderKind, cluster: atta.Cluster, *, rank: int, world: int, size: int) -> Any:
    """The loader of one of ``world`` ranks, in batches of ``size`` seeds of the chaos graph."""
    graph = ChaosGraph.drawn()
    own: dict[str, Any] = {
        "batch_size": size, "shuffle": True, "seed": SEED, "rank": rank, "world_size": world,
    }  # fmt: skip
    hops = list(HOPS)
    match kind:
        case LoaderKind.NEIGHBOURS:
            return atta.NeighborLoader(cluster, hops, "train", **own)
        case LoaderKind.DISJOINT:
            return atta.NeighborLoader(cluster, hops, "train", disjoint=True, **own)
        case LoaderKind.TEMPORAL:
            times = graph.times_of(graph.seeds)
            return atta.NeighborLoader(cluster, hops, graph.seeds, input_time=times, time_attr="time", **own)
        case LoaderKind.LINK:
            return atta.LinkNeighborLoader(cluster, hops, graph.links, neg_sampling="binary", **own)
        case LoaderKind.OPERATOR:
            return atta.BatchLoader(cluster, "saint-walks", {"length": WALK}, input_nodes=graph.seeds, **own)


def named(ids: np.ndarray, tree: np.ndarray | None) -> np.ndarray:
    """int64 [nodes]: a name for each vertex of a batch, from its user id and the number of its tree."""
    return ids if tree is None else ids + (tree.astype(np.int64) << 32)


def batch_digest(batch_id: int, seeds: np.ndarray, sources: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> str:
    """Digest of a batch by names of vertices.

    Args:
        batch_id: its number.
        seeds: int64 [S], in order.
        sources, targets: int64 [E], names of the edges' ends, in any order.
        rows: [nodes, 1 + WIDTH] of float64, the name of each vertex and its features, in any order.
    """
    edges = np.stack([sources, targets]).astype(np.int64)
    found = hashlib.sha256(str(batch_id).encode())
    for array in (seeds.astype(np.int64), edges[:, np.lexsort(edges)], rows[np.argsort(rows[:, 0])]):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def taken(kind: LoaderKind, batch: Any) -> str:
    """Digest of a batch that has come: what the local sampler can make again, or all of its arrays."""
    if not kind.local:
        found = hashlib.sha256(str(batch.batch_id).encode())
        for name, array in sorted(batch._raw.arrays.items()):
            found.update(f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()
    tree = None if kind is LoaderKind.NEIGHBOURS else np.asarray(batch.tree())
    names, (row, col) = named(np.asarray(batch.n_id()), tree), np.asarray(batch.edge_index())
    rows = np.column_stack([names.astype(np.float64), np.asarray(batch.table("x")).astype(np.float64)])
    return batch_digest(batch.batch_id, names[: batch.batch_size], names[row], names[col], rows)
