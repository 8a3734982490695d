"""The arrays of a table's shard, values, versions and the optimiser's state, and the steps that change them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atta import _native
from atta.kvstore.initial import RowIds
from atta.kvstore.spec import MutableSpec, OptimiserSpec


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
    locks: _native.RowLocks,
    *,
    rows: np.ndarray,
    grads: np.ndarray,
) -> None:
    """Make step number ``step`` (from 1 on): change ``rows`` (int64 [n], may repeat) of ``values`` by ``grads``
    (float32 [n, *row shape]).

    The factors are computed in double precision, as torch computes them.
    """
    lr, (beta1, beta2) = optimiser.lr, optimiser.betas
    if optimiser.kind == "adagrad":
        lr /= 1 + (step - 1) * optimiser.lr_decay
    elif optimiser.kind == "adam":
        lr = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    arrays = [state[name] for name in optimiser.state_names]
    _native.step_rows(optimiser.kind, values, arrays, rows, grads, locks, lr, beta1, beta2, optimiser.eps)


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """The rows in memory: ``values`` [rows, *row shape], ``versions`` int64 [rows], ``state`` of the optimiser by
    name."""

    values: np.ndarray
    versions: np.ndarray | None
    state: dict[str, np.ndarray]

    @classmethod
    def fresh(cls, spec: MutableSpec, rows: int, ids: RowIds) -> ShardArrays:
        """What ``rows`` rows with these ids hold before anything is written."""
        values = np.empty((rows, *spec.row_shape), dtype=spec.dtype)
        spec.init.fill(values, ids)
        versions = np.full(rows, -1, dtype=np.int64) if spec.versioned else None
        return cls(values, versions, initial_state(spec.optimiser, values.shape))

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> ShardArrays:
        """From the arrays by their names in a snapshot."""
        state = {name: array for name, array in arrays.items() if name not in ("values", "versions")}
        return cls(arrays["values"], arrays.get("versions"), state)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by their names in a snapshot."""
        versions = {} if self.versions is None else {"versions": self.versions}
        return {"values": self.values, **versions, **self.state}

    def named(self, array: str) -> np.ndarray:
        """An array of the optimiser's state, or the values for ""."""
        return self.state[array] if array else self.values

    def followed_by(self, more: ShardArrays) -> ShardArrays:
        """A copy of these rows with ``more`` rows behind them."""
        return ShardArrays.of({name: np.concatenate([array, more.arrays[name]]) for name, array in self.arrays.items()})
