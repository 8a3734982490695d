"""``regression``: one or more numbers per vertex; nan for one that is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.train.tasks.task import VERTICES, Floats, LearningTask, Metric, TargetCounts

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

__all__ = ["TASK", "with_loss"]

_ALIKE = 1e-12
"""Squared spread of targets, relative to their squared size, which float32 targets cannot express."""


def _outputs(spec: TableSpec, classes: int | None) -> int:
    shape = spec.row_shape or (1,)
    if len(shape) != 1 or not shape[0]:
        raise ConfigError(f"--task regression needs one or more numbers per vertex, y has rows of shape {shape}")
    return shape[0]


def _known(targets: torch.Tensor) -> torch.Tensor:
    return ~targets.isnan().all(1)


def _wrong(targets: torch.Tensor, outputs: int) -> torch.Tensor:
    return targets.isinf().any(1)


def _found(targets: torch.Tensor, outputs: int) -> torch.Tensor:
    """Nothing."""
    return targets.new_zeros(0).double()


def _refuse(counts: TargetCounts, outputs: int, vertices: str) -> None:
    if counts.wrong:
        raise ConfigError(
            f"{counts.wrong} of {counts.vertices} {vertices} vertices have a target in table y that is infinite, or beyond "
            "what 32 bits hold"
        )


def _check(counts: TargetCounts, outputs: int) -> str | None:
    _refuse(counts, outputs, VERTICES["train"])
    if counts.vertices and not counts.known:
        raise ConfigError(f"none of the {counts.vertices} training vertices has a target: all are nan in table y")
    if counts.unknown:
        return (
            f"{counts.unknown} of {counts.vertices} training vertices have no target (nan in table y) and are left out"
        )
    return None


def _errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Output minus target [n, outputs]; 0 where the target is not known."""
    return (outputs - targets).where(~targets.isnan(), 0)


def _squared(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Squared error, the mean over all outputs of a vertex; those that are not known add nothing."""
    return _errors(outputs, targets).square().sum() / outputs.shape[1]


def _absolute(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Absolute error, the mean over all outputs of a vertex; those that are not known add nothing."""
    return _errors(outputs, targets).abs().sum() / outputs.shape[1]


def _predictions(outputs: torch.Tensor) -> torch.Tensor:
    """The outputs themselves."""
    return outputs


def _sums(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """For each output: known targets, squared errors, absolute errors, targets, squared targets."""
    import torch

    errors, true = _errors(outputs.double(), targets.double()), targets.double().nan_to_num(nan=0.0)
    known = (~targets.isnan()).double()
    return torch.cat([part.sum(0) for part in (known, errors.square(), errors.abs(), true, true.square())])


def _mse(sums: Floats) -> float | None:
    count, squared, *_ = sums.reshape(5, -1).sum(1)
    return float(squared / count) if count else None


def _mae(sums: Floats) -> float | None:
    count, _, absolute, *_ = sums.reshape(5, -1).sum(1)
    return float(absolute / count) if count else None


def _r2(sums: Floats) -> float | None:
    """The mean of the outputs' coefficients of determination, without outputs whose targets are all alike."""
    count, squared, _, total, squares = sums.reshape(5, -1)
    spread = squares - total**2 / np.maximum(1, count)
    uneven = spread > _ALIKE * squares
    return float(np.mean(1 - squared[uneven] / spread[uneven])) if uneven.any() else None


_MSE, _MAE, _R2 = Metric("mse", _mse, rises=False), Metric("mae", _mae, rises=False), Metric("r2", _r2)

TASK = LearningTask(
    name="regression",
    sentence="one or more numbers per vertex",
    outputs=_outputs,
    rows=True,
    known=_known,
    wrong=_wrong,
    found=_found,
    refuse=_refuse,
    check=_check,
    loss=_squared,
    sums=_sums,
    metrics=(_MSE, _MAE, _R2),
    predictions=_predictions,
)


def with_loss(loss: str) -> LearningTask:
    """The task with loss ``mse`` or ``mae``; the metric of that name decides which epoch is the best."""
    return TASK if loss == "mse" else replace(TASK, loss=_absolute, metrics=(_MAE, _MSE, _R2))
