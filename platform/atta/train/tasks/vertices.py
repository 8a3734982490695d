"""Tasks whose targets are rows of table ``y`` of vertices: classes, labels and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.train.tasks.task import Floats, LearningTask, Metric, TargetCounts, ratio

UNLABELLED = -1
_ENOUGH = 30
"""Of so many vertices an accuracy within two standard errors of that of a guess is taken for one."""


def _mean_f1(right: Floats, said: Floats, true: Floats) -> float:
    return float(np.mean(2 * right / np.maximum(1, said + true)))


class Classes(LearningTask):
    """``classes``: one of several classes per vertex; -1 for a vertex without one."""

    name, weighs = "classes", True
    # Sums: vertices with a label; then, for each class: found rightly, said by the model, true.
    metrics = (
        Metric("accuracy", lambda sums: ratio(sums[1 : 1 + len(sums) // 3].sum(), sums[0])),
        Metric("macro_f1", lambda sums: _mean_f1(*sums[1:].reshape(3, -1)) if sums[0] else None),
    )

    def outputs(self, spec: TableSpec, classes: int | None) -> int:
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

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        return targets != UNLABELLED

    def wrong(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        return (targets < UNLABELLED) | (targets >= outputs)

    def wrong_text(self, outputs: int) -> str:
        return f"a label in table y that is neither one of the {outputs} classes (0 to {outputs - 1}) nor -1 (no label)"

    def found(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        """Vertices of each class [classes]."""
        inside = targets[(targets >= 0) & (targets < outputs)]
        return inside.bincount(minlength=outputs).double()

    def check_different(self, counts: TargetCounts) -> None:
        if counts.known > 1 and np.count_nonzero(counts.found) == 1:
            only = int(np.argmax(counts.found))
            raise ConfigError(
                f"all {counts.known} labelled training vertices are of class {only}: nothing tells classes apart"
            )

    def doubt(self, figures: Mapping[str, float], counts: TargetCounts) -> str:
        share, accuracy = counts.found.max(initial=0) / max(1, counts.known), figures.get("accuracy", 1.0)
        chance = 2 * math.sqrt(share * (1 - share) / counts.known) if counts.known >= _ENOUGH else 0.0
        found = f"accuracy {accuracy:.4f}, and {share:.4f} of the {counts.known} vertices are of one class"
        return found if share > 0 and accuracy <= share + chance else ""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return cross_entropy(outputs, targets, weight=weights, ignore_index=UNLABELLED, reduction="sum")

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        labelled = self.known(targets)
        true, said = targets[labelled], outputs.argmax(-1)[labelled]
        counts = [group.bincount(minlength=outputs.shape[1]) for group in (true[said == true], said, true)]
        return torch.cat([labelled.sum().reshape(1), *counts]).double()

    def balanced(self, found: Floats) -> Floats:
        """The inverse of a class's share of vertices; 0 for a class without any."""
        return np.divide(1.0, found, out=np.zeros_like(found), where=found > 0)

    def scaled(self, weights: Floats, found: Floats) -> Floats:
        """Weights whose mean over the training vertices is 1, so that the learning rate keeps its meaning. Raises
        ConfigError if no training vertex has a weight above 0."""
        total = float((weights * found).sum())
        if total <= 0:
            raise ConfigError("--class-weights: the classes of all training vertices have weight 0")
        return np.asarray(weights * (found.sum() / total))


CLASSES = Classes()


def _micro_f1(sums: Floats) -> float | None:
    known, right, said, true = sums.reshape(4, -1).sum(1)
    return float(2 * right / max(1.0, said + true)) if known else None


class Labels(LearningTask):
    """``labels``: each vertex has each of several labels or not, 1 or 0 in a row of table ``y``.

    -1, or nan in a table of floats, says that it is not known whether a vertex has a label. Such entries do not count.
    """

    name, rows, weighs, target = "labels", True, True, "known label"
    # Sums, for each label: known, found rightly, said by the model, true.
    metrics = (
        Metric("micro_f1", _micro_f1),
        Metric("macro_f1", lambda sums: _mean_f1(*sums.reshape(4, -1)[1:]) if sums[: len(sums) // 4].any() else None),
    )

    def outputs(self, spec: TableSpec, classes: int | None) -> int:
        if len(spec.row_shape) != 1 or not spec.row_shape[0]:
            raise ConfigError(
                "--task labels needs a row of 0 and 1 per vertex, a column per label: y has rows of shape "
                f"{spec.row_shape}"
            )
        return spec.row_shape[0]

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        return (targets >= 0).any(1)  # not true of nan

    def wrong(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        right = (targets == 0) | (targets == 1) | (targets == -1) | targets.isnan()
        return ~right.all(1)

    def wrong_text(self, outputs: int) -> str:
        return "a number in table y that is neither 0, 1 nor -1 (not known), as --task labels needs"

    def found(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        """For each label: vertices that have it; then for each label: vertices of which it is known."""
        return torch.cat([(targets == 1).sum(0), (targets >= 0).sum(0)]).double()

    def check_different(self, counts: TargetCounts) -> None:
        have, known = counts.found.reshape(2, -1)
        if not have.any() or (have == known).all():
            every = "no" if not have.any() else "every"
            raise ConfigError(f"{every} training vertex has a label in table y: nothing tells them apart")

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Binary cross entropy, the mean over all labels of a vertex; labels that are not known add nothing."""
        known = targets >= 0
        total = binary_cross_entropy_with_logits(
            outputs, targets.where(known, 0), weight=known.to(outputs.dtype), pos_weight=weights, reduction="sum"
        )
        return total / outputs.shape[1]

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        known, true = targets >= 0, targets == 1
        said = (outputs > 0) & known
        return torch.cat([group.sum(0) for group in (known, said & true, said, true)]).double()

    def balanced(self, found: Floats) -> Floats:
        """Vertices without the label for each one that has it; 1 for a label that no vertex has. A weight is that of a
        vertex that has the label, beside 1 for one that has not."""
        have, known = found.reshape(2, -1)
        return np.divide(known - have, have, out=np.ones_like(have), where=have > 0)


_ALIKE = 1e-12
"""Squared spread of targets, relative to their squared size, which float32 targets cannot express."""


def _r2(sums: Floats) -> float | None:
    """The mean of the outputs' coefficients of determination, without outputs whose targets are all alike."""
    count, squared, _, total, squares = sums.reshape(5, -1)
    spread = squares - total**2 / np.maximum(1, count)
    uneven = spread > _ALIKE * squares
    return float(np.mean(1 - squared[uneven] / spread[uneven])) if uneven.any() else None


def _mean_error(place: int) -> Metric:
    """Of squared errors (1) or absolute ones (2)."""
    name = {1: "mse", 2: "mae"}[place]
    return Metric(name, lambda sums: ratio(*sums.reshape(5, -1).sum(1)[[place, 0]]), rises=False)


class Regression(LearningTask):
    """``regression``: one or more numbers per vertex; nan for one that is not known."""

    name, rows, target, nothing = "regression", True, "target", "nan"

    def __init__(self, loss: str = "mse") -> None:
        """``loss``: ``mse`` or ``mae``; the metric of that name decides which epoch is the best."""
        self._squares = loss == "mse"
        # Sums, for each output: known targets, squared errors, absolute errors, targets, squared targets.
        self.metrics = (*map(_mean_error, (1, 2) if self._squares else (2, 1)), Metric("r2", _r2))

    def outputs(self, spec: TableSpec, classes: int | None) -> int:
        shape = spec.row_shape or (1,)
        if len(shape) != 1 or not shape[0]:
            raise ConfigError(f"--task regression needs one or more numbers per vertex, y has rows of shape {shape}")
        return shape[0]

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        return ~targets.isnan().all(1)

    def wrong(self, targets: torch.Tensor, outputs: int) -> torch.Tensor:
        return targets.isinf().any(1)

    def wrong_text(self, outputs: int) -> str:
        return "a target in table y that is infinite, or beyond what 32 bits hold"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Squared or absolute error, the mean over all outputs of a vertex; those that are not known add nothing."""
        errors = _errors(outputs, targets)
        return (errors.square() if self._squares else errors.abs()).sum() / outputs.shape[1]

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        errors, true = _errors(outputs.double(), targets.double()), targets.double().nan_to_num(nan=0.0)
        known = (~targets.isnan()).double()
        return torch.cat([part.sum(0) for part in (known, errors.square(), errors.abs(), true, true.square())])


def _errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Output minus target [n, outputs]; 0 where the target is not known."""
    return (outputs - targets).where(~targets.isnan(), 0)
