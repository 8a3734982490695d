"""Subgraphs of servers for tests of what trainers compute on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.train.cooperative.exchange import TrainerBatch
from atta.train.cooperative.graph import TrainingGraph, worker_view


def training_graph(edges: np.ndarray, vertices: int, rng: np.random.Generator, **changes: Any) -> TrainingGraph:
    """All vertices are inner ones, with 5 random features, 3 classes, and a loss on about half of them."""
    edges = edges.astype(np.int64).reshape(2, -1)
    arrays: dict[str, Any] = {
        "global_ids": np.arange(vertices),
        "edges": edges,
        "features": rng.standard_normal((vertices, 5)),
        "labels": rng.integers(0, 3, vertices),
        "loss_mask": rng.random(vertices) < 0.5,
        "in_degrees": np.bincount(edges[1][edges[0] != edges[1]], minlength=vertices),
        "distance": np.zeros(vertices, np.int64),
    }
    return TrainingGraph(**(arrays | changes))


def batch_of(graph: TrainingGraph) -> TrainerBatch:
    return TrainerBatch.of(worker_view(graph, np.zeros(len(graph), np.int64), 0, 1))
