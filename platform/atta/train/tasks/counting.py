"""Looks at the targets of vertices before training begins."""

from __future__ import annotations

import numpy as np
import torch

import atta
from atta.client.loaders.dag import DagLoader
from atta.samplers.dag.spec import Hops, neighbor_spec
from atta.train.tasks.task import LearningTask, TargetCounts

__all__ = ["count_targets_of", "numbers_of", "of_numbers", "targets_in"]

_TOGETHER = 1 << 18
"""Number of targets per request."""


def targets_in(rows: np.ndarray, task: LearningTask, outputs: int) -> TargetCounts:
    """Count some rows of table ``y``."""
    targets = task.targets(torch.from_numpy(rows))
    unknown, wrong = (~task.known(targets)).sum(), task.wrong(targets, outputs).sum()
    return TargetCounts(len(rows), int(unknown), int(wrong), task.found(targets, outputs).numpy())


def count_targets_of(
    cluster: atta.Cluster, split: str, task: LearningTask, outputs: int, *, node_type: str, rank: int, world: int
) -> TargetCounts:
    """Count the targets of this rank's share of a split of a node type. Each vertex is in one rank's share.

    Raises RemoteError if a daemon does not answer.
    """
    spec = cluster.schema.node_tables[node_type]["y"]
    total = numbers_of(targets_in(np.zeros((0, *spec.row_shape), spec.dtype), task, outputs))
    if cluster.schema.splits[node_type].get(split):
        targets_alone = neighbor_spec(cluster.schema, Hops([]), seed_type=node_type, tables={node_type: ["y"]})
        loader = DagLoader(
            cluster,
            targets_alone,
            input_nodes=(node_type, split),
            batch_size=_TOGETHER,
            rank=rank,
            world_size=world,
            pad=False,
            edge_ids=False,
        )
        for batch in loader:
            total += numbers_of(targets_in(batch.table("y"), task, outputs))
    return of_numbers(total)


def numbers_of(counts: TargetCounts) -> np.ndarray:
    """The counts as float64 [3 + k], which add up over batches and trainers."""
    return np.concatenate([[counts.vertices, counts.unknown, counts.wrong], counts.found])


def of_numbers(numbers: np.ndarray) -> TargetCounts:
    """The inverse of ``numbers_of``."""
    vertices, unknown, wrong = (int(n) for n in numbers[:3])
    return TargetCounts(vertices, unknown, wrong, np.asarray(numbers[3:], np.float64))
