"""The optimisers' kernels against the formulas in numpy's float32."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atta import _native
from atta.kvstore.mutable.arrays import apply_step, initial_state
from atta.kvstore.spec import OptimiserSpec

SPECS = [
    OptimiserSpec.sgd(0.1),
    OptimiserSpec.adagrad(0.1, lr_decay=0.01, initial_accumulator_value=0.1),
    OptimiserSpec.adam(0.01, betas=(0.8, 0.95)),
    OptimiserSpec.row_adam(0.01, betas=(0.8, 0.95)),
]


def coalesced(rows: np.ndarray, grads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    different, which = np.unique(rows, return_inverse=True)
    sums = np.zeros((len(different), *grads.shape[1:]), np.float32)
    np.add.at(sums, which, grads)
    return different, sums


def expected(spec: OptimiserSpec, step: int, x: np.ndarray, state: dict[str, np.ndarray], g: np.ndarray) -> None:
    """One step of rows with one gradient each, in place."""
    if spec.kind == "sgd":
        x -= np.float32(spec.lr) * g
    elif spec.kind == "adagrad":
        state["sum"] += g * g
        lr = np.float32(spec.lr / (1 + (step - 1) * spec.lr_decay))
        x -= lr * (g / (np.sqrt(state["sum"]) + np.float32(spec.eps)))
    else:
        b1, b2 = spec.betas
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m += (g - m) * np.float32(1 - b1)
        v += (g * g - v) * np.float32(1 - b2)
        if spec.kind == "row_adam":
            t = state["steps"]
            t += 1
            size, scale = spec.lr / (1 - np.float64(b1) ** t), 1 / np.sqrt(1 - np.float64(b2) ** t)
            root = np.sqrt(v) * scale.astype(np.float32)
            x -= size.astype(np.float32) * (m / (root + np.float32(spec.eps)))
            return
        size = np.float32(spec.lr * math.sqrt(1 - b2**step) / (1 - b1**step))
        x -= size * (m / (np.sqrt(v) + np.float32(spec.eps)))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 5)])
def test_steps_follow_the_formulas(spec: OptimiserSpec, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.standard_normal((30, *shape)).astype(np.float32)
    state, want, locks = initial_state(spec, x.shape), x.copy(), _native.RowLocks()
    want_state = {name: array.copy() for name, array in state.items()}
    for step in range(1, 51):
        rows = rng.integers(0, 30, rng.integers(0, 60))
        grads = rng.standard_normal((len(rows), *shape)).astype(np.float32)
        apply_step(spec, step, x, state, locks, rows=rows, grads=grads)
        different, sums = coalesced(rows, grads)
        part = want[different]
        part_state = {name: array[different] for name, array in want_state.items()}
        expected(spec, step, part, part_state, sums)
        want[different] = part
        for name, array in want_state.items():
            array[different] = part_state[name]
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
    for name, array in state.items():
        np.testing.assert_allclose(array, want_state[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_the_same_request_gives_the_same_bits(spec: OptimiserSpec, rng: np.random.Generator) -> None:
    rows, grads = rng.integers(0, 9, 500), rng.standard_normal((500, 16)).astype(np.float32)
    results = []
    for _ in range(2):
        x = np.zeros((9, 16), np.float32)
        apply_step(spec, 1, x, initial_state(spec, x.shape), _native.RowLocks(), rows=rows, grads=grads)
        results.append(x)
    assert np.array_equal(*results)
