"""``labels``: each vertex has each of several labels or not, 1 or 0 in a row of table ``y``.

-1, or nan in a table of floats, says that it is not known whether a vertex has a label. Such entries do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.train.tasks.task import VERTICES, ClassWeights, Floats, LearningTask, Metric, TargetCounts

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

__all__ = ["TASK"]


def _outputs(spec: TableSpec, classes: int | None) -> int:
    if len(spec.row_shape) != 1 or not spec.row_shape[0]:
        raise ConfigError(
            f"--task labels needs a row of 0 and 1 per vertex, a column per label: y has rows of shape {spec.row_shape}"
        )
    return spec.row_shape[0]


def _entries(targets: torch.Tensor) -> torch.Tensor:
    """bool [n, labels]: what is known."""
    return targets >= 0  # not true of nan


def _known(targets: torch.Tensor) -> torch.Tensor:
    return _entries(targets).any(1)


def _wrong(targets: torch.Tensor, labels: int) -> torch.Tensor:
    right = (targets == 0) | (targets == 1) | (targets == -1) | targets.isnan()
    return ~right.all(1)


def _found(targets: torch.Tensor, labels: int) -> torch.Tensor:
    """For each label: vertices that have it; then for each label: vertices of which it is known."""
    import torch

    return torch.cat([(targets == 1).sum(0), _entries(targets).sum(0)]).double()


def _refuse(counts: TargetCounts, labels: int, vertices: str) -> None:
    if counts.wrong:
        raise ConfigError(
            f"{counts.wrong} of {counts.vertices} {vertices} vertices have a number in table y that is neither 0, 1 nor "
            "-1 (not known), as --task labels needs"
        )


def _check(counts: TargetCounts, labels: int) -> str | None:
    _refuse(counts, labels, VERTICES["train"])
    if counts.vertices and not counts.known:
        raise ConfigError(f"of none of the {counts.vertices} training vertices any label is known (all -1 in table y)")
    have, known = counts.found.reshape(2, -1)
    if counts.vertices and (not have.any() or (have == known).all()):
        every = "no" if not have.any() else "every"
        raise ConfigError(f"{every} training vertex has a label in table y: nothing tells them apart")
    if counts.unknown:
        return f"{counts.unknown} of {counts.vertices} training vertices have no known label and are left out"
    return None


def _loss(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Binary cross entropy, the mean over all labels of a vertex; labels that are not known add nothing."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    known = _entries(targets)
    total = binary_cross_entropy_with_logits(
        outputs, targets.where(known, 0), weight=known.to(outputs.dtype), pos_weight=weights, reduction="sum"
    )
    return total / outputs.shape[1]


def _predictions(outputs: torch.Tensor) -> torch.Tensor:
    """The labels that are likelier than not, bool [n, labels]."""
    return outputs > 0


def _sums(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """For each label: known, found rightly, said by the model, true."""
    import torch

    known, true = _entries(targets), targets == 1
    said = _predictions(outputs) & known
    return torch.cat([group.sum(0) for group in (known, said & true, said, true)]).double()


def _micro_f1(sums: Floats) -> float | None:
    known, right, said, true = sums.reshape(4, -1).sum(1)
    return float(2 * right / max(1.0, said + true)) if known else None


def _macro_f1(sums: Floats) -> float | None:
    known, right, said, true = sums.reshape(4, -1)
    return float(np.mean(2 * right / np.maximum(1, said + true))) if known.any() else None


def _balanced(found: Floats) -> Floats:
    """Vertices without the label for each one that has it; 1 for a label that no vertex has."""
    have, known = found.reshape(2, -1)
    return np.divide(known - have, have, out=np.ones_like(have), where=have > 0)


def _scaled(weights: Floats, found: Floats) -> Floats:
    """A weight is that of a vertex that has the label, beside 1 for one that has not."""
    return weights


TASK = LearningTask(
    name="labels",
    sentence="several labels per vertex, each 0 or 1",
    outputs=_outputs,
    rows=True,
    known=_known,
    wrong=_wrong,
    found=_found,
    refuse=_refuse,
    check=_check,
    loss=_loss,
    sums=_sums,
    metrics=(Metric("micro_f1", _micro_f1), Metric("macro_f1", _macro_f1)),
    predictions=_predictions,
    weights=ClassWeights(_balanced, _scaled),
)
