"""``classes``: one of several classes per vertex; -1 for a vertex without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.train.tasks.task import VERTICES, ClassWeights, Floats, LearningTask, Metric, TargetCounts

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

__all__ = ["TASK", "UNLABELLED"]

UNLABELLED = -1


def _outputs(spec: TableSpec, classes: int | None) -> int:
    if np.dtype(spec.dtype).kind not in "iub":
        raise ConfigError(
            f"training needs integer labels, table y holds {np.dtype(spec.dtype)}; numbers are for --task regression"
        )
    if spec.row_shape not in ((), (1,)):
        raise ConfigError(
            f"training needs one label per vertex, y has rows of shape {spec.row_shape}; several are for --task labels"
        )
    if not classes:
        raise ConfigError("training needs labels: no vertex has one (all are -1 in table y)")
    if classes == 1:
        raise ConfigError("training needs at least two classes: all labels in table y are 0")
    return classes


def _known(targets: torch.Tensor) -> torch.Tensor:
    return targets != UNLABELLED


def _wrong(targets: torch.Tensor, classes: int) -> torch.Tensor:
    return (targets != UNLABELLED) & ((targets < 0) | (targets >= classes))


def _found(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Vertices of each class [classes]."""
    inside = targets[(targets >= 0) & (targets < classes)]
    return inside.bincount(minlength=classes).double()


def _refuse(counts: TargetCounts, classes: int, vertices: str) -> None:
    if counts.wrong:
        raise ConfigError(
            f"{counts.wrong} of {counts.vertices} {vertices} vertices have a label in table y that is neither one of the "
            f"{classes} classes (0 to {classes - 1}) nor -1 (no label)"
        )


def _check(counts: TargetCounts, classes: int) -> str | None:
    _refuse(counts, classes, VERTICES["train"])
    if counts.vertices and not counts.known:
        raise ConfigError(f"none of the {counts.vertices} training vertices has a label: all are -1 in table y")
    if counts.known > 1 and np.count_nonzero(counts.found) == 1:
        only = int(np.argmax(counts.found))
        raise ConfigError(
            f"all {counts.known} labelled training vertices are of class {only}: nothing tells classes apart"
        )
    if counts.unknown:
        return f"{counts.unknown} of {counts.vertices} training vertices have no label (-1 in table y) and are left out"
    return None


def _loss(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Cross entropy."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs, targets, weight=weights, ignore_index=UNLABELLED, reduction="sum")


def _predictions(outputs: torch.Tensor) -> torch.Tensor:
    """The class with the highest score, int64 [n]."""
    return outputs.argmax(-1)


def _sums(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Vertices with a label; then, for each class: found rightly, said by the model, true."""
    import torch

    labelled = targets != UNLABELLED
    true, said = targets[labelled], _predictions(outputs)[labelled]
    groups = true[said == true], said, true
    counts = [group.bincount(minlength=outputs.shape[1]) for group in groups]
    return torch.cat([labelled.sum().reshape(1), *counts]).double()


def _accuracy(sums: Floats) -> float | None:
    classes = len(sums) // 3
    return float(sums[1 : 1 + classes].sum() / sums[0]) if sums[0] else None


def _macro_f1(sums: Floats) -> float | None:
    right, said, true = sums[1:].reshape(3, -1)
    return float(np.mean(2 * right / np.maximum(1, said + true))) if sums[0] else None


def _balanced(found: Floats) -> Floats:
    """The inverse of a class's share of vertices; 0 for a class without any."""
    return np.divide(1.0, found, out=np.zeros_like(found), where=found > 0)


def _scaled(weights: Floats, found: Floats) -> Floats:
    """Weights whose mean over the training vertices is 1, so that the learning rate keeps its meaning.

    Raises ConfigError if no training vertex has a weight above 0.
    """
    total = float((weights * found).sum())
    if total <= 0:
        raise ConfigError("--class-weights: the classes of all training vertices have weight 0")
    return np.asarray(weights * (found.sum() / total))


TASK = LearningTask(
    name="classes",
    sentence="one class per vertex",
    outputs=_outputs,
    rows=False,
    known=_known,
    wrong=_wrong,
    found=_found,
    refuse=_refuse,
    check=_check,
    loss=_loss,
    sums=_sums,
    metrics=(Metric("accuracy", _accuracy), Metric("macro_f1", _macro_f1)),
    predictions=_predictions,
    weights=ClassWeights(_balanced, _scaled),
)
