"""Looks at targets of vertices before training begins: counts them, and weighs classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import atta
from atta.client.loaders.dag import DagLoader
from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.samplers.dag.spec import Hops, neighbor_spec
from atta.train.tasks.task import Floats, LearningTask, TargetCounts

_TOGETHER = 1 << 18
"""Number of targets per request."""
_LONGEST = 1 << 26


def targets_in(rows: np.ndarray, task: LearningTask, outputs: int) -> np.ndarray:
    """Count some rows of table ``y``: float64 [3 + k], which adds up over batches and trainers (``counts_of``)."""
    targets = task.targets(torch.from_numpy(rows))
    unknown, wrong = (~task.known(targets)).sum(), task.wrong(targets, outputs).sum()
    return np.concatenate([[len(rows), int(unknown), int(wrong)], task.found(targets, outputs).numpy()])


def counts_of(numbers: np.ndarray) -> TargetCounts:
    """What sums of ``targets_in`` say."""
    vertices, unknown, wrong = (int(n) for n in numbers[:3])
    return TargetCounts(vertices, unknown, wrong, np.asarray(numbers[3:], np.float64))


def count_targets_of(
    cluster: atta.Cluster, split: str, task: LearningTask, outputs: int, *, node_type: str, rank: int, world: int
) -> np.ndarray:
    """``targets_in`` of this rank's share of a split of a node type. Raises RemoteError if a daemon does not answer."""
    spec = cluster.schema.node_tables[node_type]["y"]
    total = targets_in(np.zeros((0, *spec.row_shape), spec.dtype), task, outputs)
    if cluster.schema.splits[node_type].get(split):
        targets_alone = neighbor_spec(cluster.schema, Hops([]), seed_type=node_type, tables={node_type: ["y"]})
        loader = DagLoader(
            cluster, targets_alone, input_nodes=(node_type, split), batch_size=_TOGETHER, rank=rank, world_size=world,
            pad=False, edge_ids=False,
        )  # fmt: skip
        for batch in loader:
            total += targets_in(batch.table("y"), task, outputs)
    return total


def class_weights(setting: str, task: LearningTask, counts: TargetCounts, outputs: int) -> Floats | None:
    """The weights of the loss, float64 [outputs], of ``--class-weights none|balanced|FILE``; None: all are 1. Raises
    ConfigError: all weights that count are 0; DataError: those of the file are none."""
    if setting == "none":
        return None
    given = task.balanced(counts.found) if setting == "balanced" else read_weights(setting, outputs)
    return task.scaled(given, counts.found)


def read_weights(path: str | Path, outputs: int) -> Floats:
    """A file of text with a weight per line, in the order of the classes; an empty line or ``#`` counts for nothing.
    Raises DataError: there are not ``outputs`` numbers of at least 0."""
    try:
        with open_regular(Path(path)) as file:
            text = file.read(_LONGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else "is no text"
        raise DataError(path, f"--class-weights: cannot be read: {cause}") from None
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    weights = np.array([_weight(path, number, line) for number, line in lines if line])
    if len(weights) != outputs:
        raise DataError(path, f"--class-weights: holds {len(weights)} weights, the dataset has {outputs} classes")
    return weights


def _weight(path: str | Path, number: int, line: str) -> float:
    try:
        weight = float(line)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < np.inf:
        raise DataError(path, f"--class-weights: line {number}, {line[:40]!r}, must be a number of at least 0")
    return weight
