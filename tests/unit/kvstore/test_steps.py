"""The optimisers' kernels against the formulas in numpy's float32."""

from __future__ import annotations

import numpy as np
import pytest

from atta import _native
from atta.kvstore.mutable.table import apply_step, initial_state
from atta.kvstore.spec import OptimiserSpec
from tests.unit.kvstore.table_model import coalesced, expected

SPECS = [
    OptimiserSpec.sgd(0.1),
    OptimiserSpec.adagrad(0.1, lr_decay=0.01, initial_accumulator_value=0.1),
    OptimiserSpec.adam(0.01, betas=(0.8, 0.95)),
    OptimiserSpec.row_adam(0.01, betas=(0.8, 0.95)),
]


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
