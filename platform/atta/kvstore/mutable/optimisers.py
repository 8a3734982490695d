"""Makes the arrays of an optimiser and calls its kernels, as its description says."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from atta.kvstore.mutable import kernels
from atta.kvstore.spec import OptimiserSpec

__all__ = ["apply_step", "initial_state"]


def initial_state(optimiser: OptimiserSpec | None, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The optimiser's arrays before the first step (float32 of ``shape``), by name."""
    if optimiser is None:
        return {}
    begin = np.float32(optimiser.initial_accumulator_value if optimiser.kind == "adagrad" else 0.0)
    # Write zeros, too: memory that is only reserved may be missing when it is first used.
    return {name: np.full(shape, begin, dtype=np.float32) for name in optimiser.state_names}


def apply_step(
    optimiser: OptimiserSpec,
    step: int,
    values: np.ndarray,
    state: Mapping[str, np.ndarray],
    locks: kernels.RowLocks,
    *,
    rows: np.ndarray,
    grads: np.ndarray,
) -> None:
    """Make step number ``step`` (from 1 on): change ``rows`` (int64 [n], may repeat) of ``values`` by ``grads``
    (float32 [n, *row shape]).

    The factors are computed in double precision, as torch computes them.
    """
    if optimiser.kind == "sgd":
        kernels.step_sgd(values, rows, grads, locks, lr=optimiser.lr)
    elif optimiser.kind == "adagrad":
        lr = optimiser.lr / (1 + (step - 1) * optimiser.lr_decay)
        kernels.step_adagrad(values, rows, grads, locks, sums=state["sum"], lr=lr, eps=optimiser.eps)
    elif optimiser.kind == "row_adam":
        kernels.step_row_adam(
            values,
            rows,
            grads,
            locks,
            moments=(state["exp_avg"], state["exp_avg_sq"]),
            steps=state["steps"],
            lr=optimiser.lr,
            betas=optimiser.betas,
            eps=optimiser.eps,
        )
    else:
        beta1, beta2 = optimiser.betas
        kernels.step_adam(
            values,
            rows,
            grads,
            locks,
            moments=(state["exp_avg"], state["exp_avg_sq"]),
            step_size=optimiser.lr * math.sqrt(1 - beta2**step) / (1 - beta1**step),
            betas=optimiser.betas,
            eps=optimiser.eps,
        )
