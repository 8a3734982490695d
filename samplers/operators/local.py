"""Operators over a whole graph in this process, for trying one out or for graphs that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.samplers.graph import LocalGraph
from atta.samplers.operators.base import Batch, Operator
from atta.samplers.requests import LocalAccess, run

__all__ = ["Subgraph", "sample_locally"]


@dataclass(frozen=True)
class Subgraph:
    """What an operator has sampled, in user ids; as ``Sampled`` otherwise."""

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray
    tree: np.ndarray | None
    extra: Mapping[str, np.ndarray]


def sample_locally(
    graph: LocalGraph, operator: Operator, seeds: Any = (), *, seed: int = 0, epoch: int = 0, number: int = 0
) -> Subgraph:
    """The batch that ``atta.BatchLoader`` would deliver for the same ``seeds`` (positions in the graph), seed, epoch and number.

    Raises:
        ConfigError: a seed outside the graph.
    """
    by_rank = np.argsort(graph.keys, kind="stable")
    batch = Batch(np.asarray(seeds, dtype=np.int64), graph.keys, by_rank, seed, epoch, number)
    found = run(operator.run(batch), LocalAccess(graph))
    return Subgraph(graph.keys[found.vertices], found.row, found.col, found.edge_ids, found.trees, found.extra)
