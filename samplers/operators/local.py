"""Operators over a whole graph in this process: to try an operator out, or for graphs that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers.arguments import integers, whole
from atta.samplers.local.graph import LocalGraph
from atta.samplers.operators.base import Batch, Operator
from atta.samplers.operators.parts.subgraph import first_seen
from atta.samplers.requests import LocalAccess, run

__all__ = ["Subgraph", "sample_locally"]

_MOST = (1 << 64) - 1


@dataclass(frozen=True)
class Subgraph:
    """What an operator has sampled, in user ids. Otherwise as ``Sampled``."""

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray
    tree: np.ndarray | None
    extra: Mapping[str, np.ndarray]


def sample_locally(
    graph: LocalGraph, operator: Operator, seeds: Any = (), *, seed: int = 0, epoch: int = 0, number: int = 0
) -> Subgraph:
    """The batch that ``atta.BatchLoader`` would deliver for the same ``seeds`` (positions in the graph), seed, epoch
    and number.

    As in the loader, a repeated seed counts once, unless every seed grows a tree of its own.

    Raises:
        ConfigError: a seed outside the graph; seed, epoch or number is not a whole number from 0 to 2**64 - 1.
    """
    at = [whole(what, n, 0, _MOST) for what, n in (("seed", seed), ("epoch", epoch), ("number", number))]
    ids, nodes = integers("seeds", seeds), graph.num_nodes
    if ids.ndim != 1 or (len(ids) and not (ids.min() >= 0 and ids.max() < nodes)):
        raise ConfigError(f"seeds: must be a list of vertices, 0 to {nodes - 1}")
    if not getattr(operator, "makes_trees", False):
        ids = first_seen(ids)
    by_rank = np.argsort(graph.keys, kind="stable")
    batch = Batch(ids, graph.keys, by_rank, *at)
    found = run(operator.run(batch), LocalAccess(graph))
    return Subgraph(graph.keys[found.vertices], found.row, found.col, found.edge_ids, found.trees, found.extra)
