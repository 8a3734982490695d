"""``edge-classes``: one of several classes per edge; -1 for an edge without one. Targets are the edge table ``y``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.train.tasks import classes

if TYPE_CHECKING:
    from atta.partition.schema import TableSpec

__all__ = ["EDGE_CLASSES", "check_labels"]


def _outputs(spec: TableSpec, number: int | None) -> int:
    if np.dtype(spec.dtype).kind not in "iub" or spec.row_shape not in ((), (1,)):
        raise ConfigError(
            f"--task edge-classes: needs one whole number per edge in the edge table y, not rows of shape "
            f"{spec.row_shape} of {np.dtype(spec.dtype)}"
        )
    return number or 0


def check_labels(labels: np.ndarray, training: np.ndarray) -> int:
    """The number of classes; ``labels``: int64, of all edges; ``training``: of those for training, without unknown ones.

    Raises ConfigError for labels that nothing can be learnt from.
    """
    if (labels < classes.UNLABELLED).any():
        raise ConfigError("--task edge-classes: the edge table y has numbers below -1, which are no classes")
    if not len(training):
        raise ConfigError("--task edge-classes: no training edge has a label (all are -1 in the edge table y)")
    if (training == training[0]).all():
        raise ConfigError(
            f"--task edge-classes: all training edges are of class {training[0]}: nothing tells classes apart"
        )
    return int(labels.max()) + 1


EDGE_CLASSES = replace(classes.TASK, name="edge-classes", sentence="one class per edge", outputs=_outputs, weights=None)
